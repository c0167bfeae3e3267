"""docs/metrics.md names every figure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from squall.analysis.metrics.measures import NAMES

DOCS = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"[a-z0-9_]+", DOCS))
LABELS = {"server", "instance", "model", "node", "process", "thread", "start_ns", "end_ns"}


def keys(figures: Any) -> Iterator[str]:
    if isinstance(figures, list):
        for one in figures:
            yield from keys(one)
    elif isinstance(figures, dict):
        for name, value in figures.items():
            yield name
            yield from keys(value)


def test_every_measure_is_in_the_docs() -> None:
    tables = re.findall(r"^\| (`.*?`) \|", DOCS, re.MULTILINE)
    listed = [name for cell in tables for name in re.findall(r"`([a-z0-9_]+)`", cell)]
    assert [name for name in listed if name in NAMES] == list(NAMES)


def test_every_figure_is_in_the_docs(two_heads_metrics: dict[str, Any]) -> None:
    phase = two_heads_metrics["phases"]["linear_head"]
    found = {
        name
        for kind in ("servers", "instances", "gpus")
        for one in phase[kind].values()
        for name in keys(one)
    }
    assert found - LABELS - WORDS == set()
