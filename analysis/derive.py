"""Makes everything again that is derived from the raw tables of a run: batch costs, join, windows, summary, report."""

from __future__ import annotations

import json
from typing import Any

from analysis.batch_costs import write_batch_costs
from analysis.held_folder import sweep_folders
from analysis.intact import finite, require_intact
from analysis.join import write_joined
from analysis.query import MEMORY_LIMIT_BYTES, Spread, in_threads
from analysis.report import write_report
from analysis.store import RunStore
from analysis.summary import summarise
from analysis.windows import window_notes, write_windows

N_THREADS = 2
"""Slices at a time: while one is written the other is counted. Two fit into the memory limit, each of its share."""


_LAST = "report.html"


def is_derived(store: RunStore) -> bool:
    """Whether all of it is there: the report is written last."""
    return (store.run_dir / _LAST).exists()


def derive(
    store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES, spread: Spread | None = None
) -> dict[str, Any]:
    """Writes tables `batch_costs`, `joined` and `windows`, `summary.json` and `report.html`; returns the summary.

    `memory_limit_bytes` bounds what a step holds before it spills to the disk of the run directory; the rows written do
    not depend on it. `spread` has the slices of the first two done elsewhere, each within that limit; without it they
    are done here, `N_THREADS` at a time. What was there before stays until its successor is whole. Raises MissingTable
    for a run without requests, AnalysisError for tables that contradict each other, StoreError where the run directory
    is broken or cannot be written.
    """
    sweep_folders(store.run_dir)
    require_intact(store)
    slices = spread or in_threads(N_THREADS)
    write_batch_costs(store, memory_limit_bytes, slices)
    write_joined(store, memory_limit_bytes, slices)
    write_windows(store, memory_limit_bytes)
    figures, not_finite = finite(summarise(store, memory_limit_bytes))
    notes = [*figures["notes"], *window_notes(store, memory_limit_bytes)]
    summary: dict[str, Any] = {**figures, "notes": notes, "not_finite": not_finite}
    store.write_text("summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    write_report(store, summary)
    return summary
