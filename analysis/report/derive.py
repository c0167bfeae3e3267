"""Makes everything again that is derived from the raw tables of a run: costs, join, steps, windows, summary, report."""

from __future__ import annotations

import json
from dataclasses import replace

from squall.analysis.compare.run_row import write_row
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.windows import window_notes, write_windows
from squall.analysis.report.page import write_report
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import FILE, Summary
from squall.analysis.storage.intact import finite, refuse_probe, require_intact
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, Spread, in_threads
from squall.analysis.storage.store import RunStore

N_THREADS = 2
"""Slices at a time: while one is written the other is counted. Two fit into the memory limit, each of its share."""
_LAST = "report.html"


def is_derived(store: RunStore) -> bool:
    """Whether all of it is there: the report is written last, but that of before `RunStore.reopen` may lie there."""
    return store.has_file(_LAST) and (store.has("joined") or not store.has("requests"))


def derive(
    store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES, spread: Spread | None = None
) -> Summary:
    """Writes tables `batch_costs`, `joined`, `steps` and `windows`, `summary.json`, `run.parquet` and `report.html`;
    returns the summary.

    `memory_limit_bytes` bounds what a step holds before it spills to the disk of the run directory; the rows written do
    not depend on it. `spread` has the slices of the first two done elsewhere, each within that limit; without it they
    are done here, `N_THREADS` at a time. What was there before stays until its successor is whole. Raises MissingTable
    for a run without requests, AnalysisError for tables that contradict each other and for a
    probe's run, StoreError where the run directory is broken or cannot be written.
    """
    refuse_probe(store)
    store.sweep()
    require_intact(store)
    slices = spread or in_threads(N_THREADS)
    write_batch_costs(store, memory_limit_bytes, slices)
    write_joined(store, memory_limit_bytes, slices)
    write_windows(store, memory_limit_bytes)
    summary = summarise(store, memory_limit_bytes)
    summary = replace(summary, notes=(*summary.notes, *window_notes(store, memory_limit_bytes)))
    figures, not_finite = finite(summary.to_json())
    figures["not_finite"] = not_finite
    store.write_text(FILE, json.dumps(figures, indent=2, allow_nan=False) + "\n")
    if not_finite:  # what is shown is what was written
        summary = Summary.from_json(figures)
    write_row(store, figures, memory_limit_bytes)
    write_report(store, summary)
    return summary
