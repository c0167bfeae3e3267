"""The fits of a trace on the screen, within 80 columns. Rendering only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from squall.analysis.wording import count_text, duration_text, rate_text
from squall.scenarios.units import digits_text

if TYPE_CHECKING:  # scipy takes a second to load, and whoever has a report has loaded it
    from squall.analysis.fitting.criteria import Figure
    from squall.analysis.fitting.fitted import Parameter
    from squall.analysis.fitting.report import FitReport, Ranked

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
    """What `squall trace fit` prints, from `fitting.report.fit_trace`."""
    parts: list[RenderableType] = [
        _headline(report),
        Padding(_table(report), (1, 0, 0, 0)),
        Text(LEGEND, style="dim"),
        Padding(_verdict(report), (1, 0, 0, 0)),
    ]
    if not report.best.fits:
        parts.append(Text(NO_MODEL, style="bold yellow"))
    if len(report.best.fitted.parameters):
        parts.append(_parameter_grid(report.best.fitted.parameters))
    parts += [Text(f"note: {note}", style="yellow") for note in report.notes]
    parts.append(Padding(_snippet(report), (1, 0, 0, 0)))
    return Group(*parts)


def _headline(report: FitReport) -> Text:
    n, span = count_text(report.n), duration_text(report.end_ns)
    return Text(f"{n} arrivals in {span}, {rate_text(report.rate_hz)}", style="bold")


def _table(report: FitReport) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        width=WIDTH,
        padding=(0, 0, 0, 1),
        pad_edge=False,
        show_edge=False,
        header_style="dim",
    )
    for place, head in enumerate(("process", "k", "score", *COLUMNS.values(), "AIC")):
        table.add_column(head, justify="left" if place == 0 else "right", no_wrap=True)
    target = {figure.name: figure for figure in report.target}
    table.add_row("trace", "", "", *(_value_text(target.get(name)) for name in COLUMNS), "", style="bold")
    table.add_row("  band from", "", "", *(_bound_text(target.get(name), "low") for name in COLUMNS), "")
    table.add_row(
        "  to", "", "", *(_bound_text(target.get(name), "high") for name in COLUMNS), "", end_section=True
    )
    for one in report.ranked:
        table.add_row(*_row(one, target), style="green" if one.fits else "red" if one.fitted.failure else "")
    return table


def _row(one: Ranked, target: dict[str, Figure]) -> list[str]:
    figures = [
        f"{_short(one.medians[name])}{'!' if name in one.misses else ''}" if name in target else "-"
        for name in COLUMNS
    ]
    aic = one.fitted.aic_per_arrival
    return [
        f"{one.fitted.name}{' failed' if one.fitted.failure else ''}",
        str(one.fitted.n_parameters),
        f"{one.score:.3f}",
        *figures,
        "-" if aic is None else f"{aic:.3f}",
    ]


def _verdict(report: FitReport) -> Text:
    return Text(report.verdict(), style="bold green" if report.best.fits else "bold yellow")


def _parameter_grid(parameters: Sequence[Parameter]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for parameter in parameters:
        error = "" if parameter.stderr is None else f"± {_digits(parameter.stderr)}"
        grid.add_row(f"  {parameter.name}", _digits(parameter.value), error, parameter.unit)
    return grid


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


def _value_text(figure: Figure | None) -> str:
    return "-" if figure is None else _short(figure.value)


def _bound_text(figure: Figure | None, side: str) -> str:
    bound = None if figure is None else getattr(figure, side)
    return "" if bound is None else _short(bound)


def _short(value: float) -> str:
    """Two decimals below 10, one below 100, none above: `0.12`, `12.3`, `1,234`."""
    return f"{value:,.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def _digits(value: float) -> str:
    """Three digits: `0.0123`, `1.23`."""
    return digits_text(value)
