"""The page of a trace: its figures and plots in one HTML file that needs no network. Rendering only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from squall.analysis.render.plots_data import Plot
from squall.analysis.render.report import render_page
from squall.analysis.render.trace_screen import head_lines, tables


def write_trace_page(path: Path, summary: Mapping[str, Any], plots: Sequence[Plot], name: str = "") -> Path:
    """Writes the page of `trace_info.trace_summary` and `trace_plots.trace_plots`, and returns its path."""
    page = render_page(
        "trace_page.html.j2",
        plots,
        name=name or path.stem,
        lines=head_lines(summary),
        tables=tables(summary),
        notes=summary["notes"],
    )
    path.write_text(page, encoding="utf-8")
    return path
