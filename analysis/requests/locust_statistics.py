"""Locust's own statistics, as the manifest holds them: which entry is the total, and whether they are whole."""

from __future__ import annotations

from squall.analysis.storage.locust import LocustEntry, LocustFacts
from squall.analysis.wording import names_text

AGGREGATE = "Aggregated"
"""Name under which Locust writes the total of all entries, without a method."""


def is_aggregate(entry: LocustEntry) -> bool:
    """Whether it is Locust's total, and no name of requests."""
    return entry.name == AGGREGATE and entry.method in ("", "None")


def unreported(facts: LocustFacts) -> str:
    """Why Locust's statistics do not hold every request; empty where they do."""
    if not facts.is_whole:
        return "Locust's master was lost, and its last statistics with it"
    missing = [f"worker {one.worker}" for one in facts.workers if not one.has_reported]
    return f"no last report to Locust's master of {names_text(missing)}" if missing else ""
