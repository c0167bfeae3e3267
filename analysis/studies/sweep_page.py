"""`sweep.html`: the answer of an experiment on one page. Rendering only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from squall.analysis.report.plots import Plot, Trace, curve, points
from squall.analysis.report.templates import render_page
from squall.analysis.studies.sweep_cells import CellFigures
from squall.analysis.studies.sweep_result import FRONT, Sweep
from squall.analysis.studies.sweep_rows import CELL, LATENCIES, REFERENCE
from squall.analysis.studies.sweep_words import facts
from squall.scenarios.units import NS_PER_MS

_MOST_TICKS = 40
"""Of cells named below an axis."""


def sweep_page(sweep: Sweep, command: str) -> str:
    """The page in one file; `command` makes the sweep again."""
    rivals = {one.cell: one for one in sweep.ranking.others}
    return render_page(
        "sweep.html.j2", plots_of(sweep), sweep=sweep, rivals=rivals, facts=facts(sweep), command=command
    )


def plots_of(sweep: Sweep) -> tuple[Plot, ...]:
    """The objectives, the cells, the drift."""
    return _plane(sweep), _by_cell(sweep), _drift(sweep)


def _axis(objective: str) -> str:
    return f"{objective}, ms" if objective in LATENCIES else f"{objective}, requests/s"


def _shown(values: Iterable[float | None], objective: str) -> list[float | None]:
    """Values of an objective in the unit of its axis; None of what is infinite."""
    scale = 1.0 / NS_PER_MS if objective in LATENCIES else 1.0
    return [None if value is None or math.isinf(value) else value * scale for value in values]


def _marks(
    name: str, cells: Sequence[CellFigures], y: str, x: str | None = None, at: Sequence[float] = ()
) -> Trace:
    """The means of cells with their intervals, over those of objective `x`, or at these places."""

    def ends(objective: str) -> list[list[float | None]]:
        figures = [one.objectives[objective] for one in cells]
        return [_shown([getattr(one, end) for one in figures], objective) for end in ("mean", "low", "high")]

    x_means, x_low, x_high = ends(x) if x is not None else [[*at], [], []]
    means, low, high = ends(y)
    labels = tuple(one.label for one in cells) if x is not None else ()
    return points(name, [one or 0.0 for one in x_means], means, low, high, x_low, x_high, labels)


def _plane(sweep: Sweep) -> Plot:
    """The objectives against one another: every cell with its intervals, and the front."""
    first = sweep.design.objectives[0]
    if len(sweep.design.objectives) < 2:
        return Plot("Pareto front", "", _axis(first), "line", absent="one objective alone has no front")
    second = sweep.design.objectives[1]
    head = f"{first} against {second}", _axis(second), _axis(first), "points"
    both = (first, second)
    known = [one for one in sweep.cells if all(one.objectives[name].mean is not None for name in both)]
    if not known:
        return Plot(*head, absent="no cell has both figures")
    known.sort(key=lambda one: one.objectives[second].mean or 0.0)
    front, rest = ([one for one in known if (one.front == FRONT) is is_on] for is_on in (True, False))
    on_front = _marks("on the front", front, first, second)
    runs = [row.figures for row in sweep.runs if row.role == CELL and row.is_counted]
    dots = zip(*(_shown([one.value(name) for one in runs], name) for name in both), strict=True)
    finite = [(x, y) for y, x in dots if x is not None and y is not None]
    series: tuple[Trace, ...] = (
        curve("Pareto front", on_front["x"], on_front["y"], "reference"),
        points("runs", [x for x, _ in finite], [y for _, y in finite]),
        on_front,
        *([_marks("behind it", rest, first, second)] if rest else []),
    )
    note = "Whiskers: 95 % intervals over seeds. The front is of the means; the table has which others may lie on it."
    return Plot(*head, series, note)


def _by_cell(sweep: Sweep) -> Plot:
    """Every run of every cell, from the best on."""
    objective, order = sweep.design.objectives[0], sweep.ranking.order
    head = "Cells, best first", "cell", _axis(objective), "points"
    rows = [row for row in sweep.runs if row.role == CELL and row.is_counted and row.cell in order]
    if not rows:
        return Plot(*head, absent="no valid run yet")
    cells = [sweep.cells[cell] for cell in order]
    at = [order.index(row.cell) - 0.15 for row in rows]
    series = (
        points("runs", at, _shown([row.figures.value(objective) for row in rows], objective)),
        _marks("mean, 95 % interval", cells, objective, at=[float(place) for place in range(len(cells))]),
    )
    ticks = tuple(one.label for one in cells) if len(cells) <= _MOST_TICKS else ()
    note = (
        "A dot is a run. Intervals are over seeds, and cells share their spread: the table compares in pairs."
    )
    return Plot(*head, series, note, x_ticks=ticks)


def _drift(sweep: Sweep) -> Plot:
    objective = sweep.design.objectives[0]
    head = ("The reference cell over the sweep", "position of the run", _axis(objective), "points")
    rows = [row for row in sweep.runs if row.role == REFERENCE and row.is_counted]
    if not rows:
        why = "the experiment names no reference cell" if sweep.drift is None else "no valid run yet"
        return Plot(*head, absent=why)
    series = []
    for site, host in sweep.sites.items():
        own = [row for row in rows if row.site == site]
        values = _shown([row.figures.value(objective) for row in own], objective)
        series.append(points(host, [float(row.position) for row in own], values))
    return Plot(*head, tuple(series), "One scenario, one seed: what differs is the machine.")
