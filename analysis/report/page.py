"""`report.html`: the run on one page that needs no network. Rendering only, no arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from squall.analysis.record import to_json
from squall.analysis.report.figure_queries import figure_queries, query_command
from squall.analysis.report.plots import Plot
from squall.analysis.report.run_plots import run_plots
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.report.templates import render_page
from squall.analysis.requests.cold_words import cold_lines
from squall.analysis.storage.intact import refuse_probe
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.store import RunStore
from squall.analysis.wording import LATENCY_LABELS


def write_report(store: RunStore, summary: Summary | None = None) -> Path:
    """Writes `report.html` into the run directory, sealed or not, and returns its path.

    `summary` is made anew if it is None. Raises `MissingTable` if the run has no requests, `AnalysisError`
    for a probe's.
    """
    refuse_probe(store)
    summary = summarise(store) if summary is None else summary
    return store.write_text("report.html", render_html(summary, store.manifest, run_plots(store, summary)))


def render_html(summary: Summary, manifest: Manifest, plots: Sequence[Plot]) -> str:
    """The page."""
    return render_page(
        "report.html.j2",
        plots,
        s=summary,
        m=to_json(manifest),
        labels=LATENCY_LABELS[summary.load],
        spreads=summary.measure.latency.spreads,
        lag_parts=summary.measure.latency.lag_parts,
        cold_lines=cold_lines(summary.cold),
        queries=figure_queries(summary, manifest),
        query_command=query_command,
    )
