"""`capacity.html`: the answer in words, the curves that it was read from, the seeds and the runs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain

from squall.analysis.report.plots import Plot, Trace, band, curve, points
from squall.analysis.report.templates import render_page
from squall.analysis.studies.capacity_answer import Answer, Settings, scaling
from squall.analysis.studies.capacity_rows import Row
from squall.analysis.wording import count_text
from squall.scenarios.promises import TIMES
from squall.scenarios.units import NS_PER_MS

RATE = "offered rate, requests per s"


def capacity_page(
    answers: Sequence[Answer], settings: Settings, rows: Sequence[Row], commands: Sequence[str]
) -> str:
    """The page of at least one answer, in one file; the first is that of all servers. `commands`: what makes it
    again."""
    return render_page(
        "capacity.html.j2", plots_of(answers, rows), answers=answers, settings=settings, runs=rows,
        efficiency=scaling(answers), commands=commands, exp=math.exp,
    )  # fmt: skip


def plots_of(answers: Sequence[Answer], rows: Sequence[Row]) -> list[Plot]:
    """Those of each set of servers, then of all sets."""
    of_each = [_plots(one, [row for row in rows if row.variant == one.variant]) for one in answers]
    return [*chain(*of_each), *_servers_plots(answers)]


def _plots(answer: Answer, rows: Sequence[Row]) -> list[Plot]:
    of = f", {answer.variant} servers" if answer.variant != "all" else ""
    counted = sorted((one for one in rows if not one.is_replaced), key=lambda one: one.rate_hz)
    return [_margin_plot(answer, counted, of), _goodput_plot(counted, of)]


def _margin_plot(answer: Answer, rows: Sequence[Row], of: str) -> Plot:
    """The promised figure against the rate: in ms where one time is promised, else the worst over its limit."""
    named = {(one.binding, one.limit) for one in rows if one.binding}
    promise, limit = next(iter(named)) if len(named) == 1 else ("", None)
    is_time = re.split(r"[{ ]", promise)[0] in TIMES
    scale = float(limit or 1.0) / NS_PER_MS if is_time else 1.0
    label = f"{promise.rpartition('<')[0]}, ms" if is_time else "worst figure over its limit"
    known = [(one.seed, one.rate_hz, math.exp(one.margin) * scale) for one in rows if one.margin is not None]
    title = f"Promised figure against offered rate{of}"
    if not known:
        return Plot(title, RATE, label, "loglog", absent="no run gave a finite figure")
    figures = [scale, *(figure for *_, figure in known)]
    low, high = 0.8 * min(figures), 1.25 * max(figures)
    series: list[Trace] = []
    if answer.interval is not None:
        ends = [answer.interval.low_hz, answer.interval.high_hz]
        series.append(band(f"capacity, {answer.level:.0%}", ends, [high, high], [low, low]))
    for seed in sorted({seed for seed, *_ in known}):
        own = [point for of_seed, *point in known if of_seed == seed]
        series.append(curve(f"seed {seed}", [x for x, _ in own], [y for _, y in own], "points"))
    series.append(curve("limit", [rows[0].rate_hz, rows[-1].rate_hz], [scale, scale], "reference"))
    n_without = len(rows) - len(known)
    without = f" {count_text(n_without)} runs have no finite figure and no dot." if n_without else ""
    return Plot(title, RATE, label, "loglog", tuple(series), f"A dot is a run, a line a seed.{without}")


def _goodput_plot(rows: Sequence[Row], of: str) -> Plot:
    known = [one for one in rows if one.good_hz is not None]
    title = f"Goodput against offered rate{of}"
    if not known:
        return Plot(title, RATE, "requests per s", "points", absent="no run has requests")
    x = [one.rate_hz for one in known]
    ends = [min(x), max(x)]
    series = (
        points("ok and in time", x, [one.good_hz for one in known]),
        points("ok within the phases", x, [one.throughput_hz for one in known]),
        curve("offered", ends, [*ends], "reference"),
    )
    return Plot(title, RATE, "requests per s", "points", series, "A dot is a run.")


def _servers_plots(answers: Sequence[Answer]) -> list[Plot]:
    """Capacity against the number of servers, measured, with what so many single ones would carry."""
    known = sorted((one for one in answers if one.capacity_hz is not None), key=lambda one: one.n_servers)
    if len(known) < 2:
        return []
    x = [float(one.n_servers) for one in known]
    lows = [one.interval.low_hz if one.interval else one.capacity_hz for one in known]
    highs = [one.interval.high_hz if one.interval else one.capacity_hz for one in known]
    series: list[Trace] = [points("measured", x, [one.capacity_hz for one in known], lows, highs)]
    if known[0].n_servers == 1:
        single = known[0].capacity_hz or 0.0
        series.append(curve("so many times one", x, [n * single for n in x], "reference"))
    return [Plot("Capacity against servers", "servers", "requests per s", "points", tuple(series))]
