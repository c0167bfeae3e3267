"""The fits of a trace on the screen, within 80 columns. Rendering only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from squall.analysis.report.screen import figure_table
from squall.analysis.wording import count_text, duration_text, rate_text
from squall.scenarios.units import digits_text

if TYPE_CHECKING:  # scipy takes a second to load, and whoever has a report has loaded it
    from squall.analysis.traces.fit_report import FitReport

WIDTH = 80
MOST_SNIPPET_LINES = 24
"""Lines of the snippet on the screen: `--snippet FILE` and `--json` have all."""
COLUMNS = {
    "idc 1s": "1 s",
    "idc 10s": "10 s",
    "idc 100s": "100 s",
    "peak 10s": "peak",
    "wait 50%": "W 50%",
    "wait 80%": "W 80%",
}
"""Figures that have a column, and its head."""
LEGEND = (
    "IDC over 1, 10, 100 s; peak to mean over 10 s; p99 wait of a queue of constant "
    "service at 50 and 80 % load, in service times: medians of the draws. ! outside the trace's band "
    "(IDC: 90 % block bootstrap; peak, waits: within 1.3 times). score: mean |ln(draw/trace)| of all figures. "
    "k: parameters. AIC: per arrival."
)


NO_MODEL = "what follows is no model of this trace, only the nearest that was found:"


def render_fit(report: FitReport) -> RenderableType:
    """What `squall trace fit` prints, from `traces.fit_report.fit_trace`."""
    head = f"{count_text(report.n)} arrivals in {duration_text(report.end_ns)}, {rate_text(report.rate_hz)}"
    parameters = Table.grid(padding=(0, 2))
    for one in report.best.fitted.parameters:
        error = "" if one.stderr is None else f"± {digits_text(one.stderr)}"
        parameters.add_row(f"  {one.name}", digits_text(one.value), error, one.unit)
    return Group(
        Text(head, style="bold"),
        Padding(_table(report), (1, 0, 0, 0)),
        Text(LEGEND, style="dim"),
        Text(f"\n{report.verdict()}", "bold green" if report.best.fits else "bold yellow"),
        *([] if report.best.fits else [Text(NO_MODEL, "bold yellow")]),
        *([parameters] if parameters.rows else []),
        *(Text(f"note: {note}", style="yellow") for note in report.notes),
        Padding(_snippet(report), (1, 0, 0, 0)),
    )


def _table(report: FitReport) -> Table:
    target = {figure.name: figure for figure in report.target}
    table = figure_table(("process", "k", "score", *COLUMNS.values(), "AIC"), (), WIDTH)
    for label, field, style in (("trace", "value", "bold"), ("  band from", "low", ""), ("  to", "high", "")):
        values = [getattr(target.get(name), field, None) for name in COLUMNS]
        missing = "-" if field == "value" else ""
        cells = [missing if value is None else count_text(value) for value in values]
        table.add_row(label, "", "", *cells, "", style=style, end_section=field == "high")
    for one in report.ranked:
        figures = (
            f"{count_text(one.medians[name])}{'!' if name in one.misses else ''}" if name in target else "-"
            for name in COLUMNS
        )
        fitted = one.fitted
        aic = "-" if fitted.aic_per_arrival is None else f"{fitted.aic_per_arrival:.3f}"
        name = f"{fitted.name}{' failed' if fitted.failure else ''}"
        style = "green" if one.fits else "red" if fitted.failure else ""
        table.add_row(name, str(fitted.n_parameters), f"{one.score:.3f}", *figures, aic, style=style)
    return table


def _snippet(report: FitReport) -> Text:
    lines = report.snippet().splitlines()
    if len(lines) > MOST_SNIPPET_LINES:
        left_out = len(lines) - MOST_SNIPPET_LINES
        tail = lines[-1:] if not lines[-1].startswith("    ") else []
        lines = [
            *lines[: MOST_SNIPPET_LINES - len(tail)],
            f"    # … {left_out} lines more: --snippet FILE",
            *tail,
        ]
    return Text("\n".join(lines))
