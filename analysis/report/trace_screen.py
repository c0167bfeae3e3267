"""A trace's figures on the screen, within 80 columns, and on its page. Rendering only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from squall.analysis.report.decision_page import DecisionPage, DecisionTable
from squall.analysis.report.plots import Plot
from squall.analysis.report.screen import figure_table
from squall.analysis.report.templates import labelled, sentences
from squall.analysis.wording import duration_text
from squall.scenarios.units import NS_PER_S

WIDTH = 80
LABEL_WIDTH = 24
MOST_LABEL = 22
FIRST_DATE_NS = 631_152_000 * NS_PER_S
"""1990-01-01 UTC: stamps from here on are dates, smaller ones a trace's own numbers."""
DISPERSION = "Index of dispersion"
NOTES = {
    "Bursts": "c²: variance over squared mean; exponential gaps have 1.",
    DISPERSION: "Variance over mean of the counts per window, mean over ten shifted grids; Poisson has 1. ~: under ten"
    " windows, rough. Band: block bootstrap, blocks of 300 s or a tenth of the span.",
    "Memory and tails": "Hill: tail index of the largest 5 % and 1 % with its standard error; an exponential law has"
    " about 3.9 at 5 %. Hurst: variance-time slope from one count and from ten, and Haar wavelets; 0.5 is short memory,"
    " a drifting rate raises it.",
    "Queue of constant service": "One server, at the stated mean load.",
}

Figures = Mapping[str, Any]


def render_trace(summary: Figures, name: str = "", width: int = WIDTH) -> RenderableType:
    """What `squall trace info` prints, from `traces.info.trace_summary`; `name` of the file or the run.

    Notes take `width` columns, tables what they need.
    """
    first, *rest = head_lines(summary)
    head = Text.assemble((f"{name}\n" if name else "", "bold"), (first, "" if name else "bold"))
    notes = Table.grid(padding=(0, 1))
    notes.add_column(width=1)
    notes.add_column(width=width - 2, overflow="fold")
    for note in summary["notes"]:
        notes.add_row("•", Text(note))
    last: list[RenderableType] = [Text(), notes] if summary["notes"] else []
    return Group(
        head,
        *(Text(line, "dim") for line in rest),
        *(Padding(_table(one), (1, 0, 0, 0)) for one in tables(summary)),
        *last,
    )


def trace_page(summary: Figures, plots: Sequence[Plot], name: str) -> DecisionPage:
    """The page of `traces.info.trace_summary` and `trace_plots.trace_plots`."""
    first, *rest = head_lines(summary)
    return DecisionPage(
        title=name,
        answer=first,
        is_good=None,
        facts=tuple(rest),
        notes=tuple(summary["notes"]),
        plots=tuple(plots),
        tables=tuple(tables(summary)),
        commands=(),
    )


def head_lines(summary: Figures) -> list[str]:
    """Arrivals, span, rate, and what the stamps look like."""
    first = _instant_text(summary["first_ns"]) if summary["first_ns"] >= FIRST_DATE_NS else ""
    return sentences("trace_head", summary, first, _span_text(summary["as_is"]["span_ns"]))


def tables(summary: Figures) -> list[DecisionTable]:
    """The figures as texts, of the series as it is, or as it was logged and spread inside its ticks."""
    series = {"": summary["as_is"]}
    if summary["spread"] is not None:
        series = {"as logged": summary["as_is"], "spread in ticks": summary["spread"]}
    at_windows = zip(*(one["dispersion"] for one in series.values()), strict=True)
    dispersion = tuple(tuple(sentences("trace_dispersion", one)) for one in at_windows)
    heads = (DISPERSION, *([*series] if len(series) > 1 else ["IDC"]), "90 % band", "windows")
    found = [
        _side_by_side("Bursts", series, "trace_bursts"),
        DecisionTable(DISPERSION, heads, dispersion, NOTES[DISPERSION]),
        _side_by_side("Memory and tails", series, "trace_memory"),
        _side_by_side("Queue of constant service", series, "trace_queue"),
    ]
    if summary["sizes"]:
        rows = tuple(
            (
                name if len(name) <= MOST_LABEL else f"{name[: MOST_LABEL - 1]}…",
                *sentences("trace_size", one),
            )
            for name, one in summary["sizes"].items()
        )
        columns = ("Sizes", "mean", "c²", "p99", "max", "Hill 5 %", "Hill 1 %")
        found.append(DecisionTable("Sizes", columns, rows))
    return found


def _side_by_side(title: str, series: Mapping[str, Figures], macro: str) -> DecisionTable:
    """A column for each of the series, with the labels of the first."""
    first, *others = (dict(labelled(macro, one)) for one in series.values())
    rows = tuple((label, text, *(one.get(label, "-") for one in others)) for label, text in first.items())
    return DecisionTable(title, (title, *series), rows, NOTES[title])


def _table(one: DecisionTable) -> Table:
    table = figure_table(one.heads, one.rows, label_width=LABEL_WIDTH if len(one.heads) <= 5 else 0)
    table.columns[0].header_style = "bold"
    return table


def _span_text(span_ns: int) -> str:
    """`58 min 22 s`, `2 d 3 h`: the two largest units."""
    if span_ns < 60 * NS_PER_S:
        return duration_text(span_ns)
    s = round(span_ns / NS_PER_S)
    for size, unit, part, part_unit in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if s >= size:
            return f"{s // size:,} {unit} {s % size // part} {part_unit}"
    return f"{s} s"


def _instant_text(t_ns: int) -> str:
    return f"{datetime.fromtimestamp(t_ns // NS_PER_S, UTC):%Y-%m-%d %H:%M:%S} UTC"
