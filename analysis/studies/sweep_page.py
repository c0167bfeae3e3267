"""`sweep.html`: the answer of an experiment on one page. Rendering only."""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.report.decision_page import DecisionPage
from squall.analysis.report.plots import Plot, Trace, curve, points
from squall.analysis.studies.sweep_cells import CellFigures
from squall.analysis.studies.sweep_result import FRONT, Sweep
from squall.analysis.studies.sweep_rows import CELL, LATENCIES, REFERENCE
from squall.analysis.studies.sweep_words import answer, facts

_NS_PER_MS = 1e6
_MOST_TICKS = 40
"""Of cells named below an axis."""


def page_of(sweep: Sweep, command: str) -> DecisionPage:
    """The page; `command` makes the sweep again."""
    return DecisionPage(
        title=f"squall sweep: {sweep.design.name}",
        answer=answer(sweep),
        is_good=None,
        facts=tuple(facts(sweep)),
        notes=_notes(sweep),
        plots=(_plane(sweep), _by_cell(sweep), _drift(sweep)),
        tables=(),
        commands=(command,),
        template="sweep.html.j2",
        values={"sweep": sweep, "rivals": {one.cell: one for one in sweep.ranking.others}},
    )


_ORDERS = {
    "blocked-random": "blocks of random order, every second the reverse of the one before",
    "fixed": "all seeds of a cell, then those of the next: a drift of the machine passes for a difference of cells",
}


def _notes(sweep: Sweep) -> tuple[str, ...]:
    design = sweep.design
    return (
        f"{len(sweep.cells)} cells, {design.repeats} seeds each from {design.seed} on; order: {_ORDERS[design.order]};"
        f" a server is started anew for {design.restart}.",
        "Cells are compared by the ratios of their figures on the same seeds; Holm over all pairs of cells at 5 %.",
    )


def _axis(objective: str) -> str:
    return f"{objective}, ms" if objective in LATENCIES else f"{objective}, requests/s"


def _shown(value: float | None, objective: str) -> float | None:
    return value / _NS_PER_MS if value is not None and objective in LATENCIES else value


def _plane(sweep: Sweep) -> Plot:
    """The objectives against one another: every cell with its intervals, and the front."""
    first = sweep.design.objectives[0]
    if len(sweep.design.objectives) < 2:
        return Plot("Pareto front", "", _axis(first), "line", absent="one objective alone has no front")
    second = sweep.design.objectives[1]
    title, axes = f"{first} against {second}", (_axis(second), _axis(first))
    known = [one for one in sweep.cells if _mean(one, first) is not None and _mean(one, second) is not None]
    if not known:
        return Plot(title, *axes, "points", absent="no cell has both figures")
    front = sorted((one for one in known if one.front == FRONT), key=lambda one: _mean(one, second) or 0.0)
    rest = [one for one in known if one.front != FRONT]
    line = curve(
        "Pareto front", [_x(one, second) for one in front], [_mean(one, first) for one in front], "reference"
    )
    runs = [row for row in sweep.runs if row.role == CELL and row.is_counted]
    dots = [
        (x, y)
        for row in runs
        if (x := _shown(row.figures.value(second), second)) is not None
        and (y := _shown(row.figures.value(first), first)) is not None
        and y != float("inf")
    ]
    series: tuple[Trace, ...] = (
        line,
        points("runs", [x for x, _ in dots], [y for _, y in dots]),
        _marks("on the front", front, second, first),
        *([_marks("behind it", rest, second, first)] if rest else []),
    )
    note = "Whiskers: 95 % intervals over seeds. The front is of the means; the table has which others may lie on it."
    return Plot(title, *axes, "points", series, note)


def _mean(one: CellFigures, objective: str) -> float | None:
    return _shown(one.objectives[objective].mean, objective)


def _x(one: CellFigures, objective: str) -> float:
    return _mean(one, objective) or 0.0


def _marks(name: str, cells: Sequence[CellFigures], x: str, y: str) -> Trace:
    return points(
        name,
        [_x(one, x) for one in cells],
        [_mean(one, y) for one in cells],
        [_shown(one.objectives[y].low, y) for one in cells],
        [_shown(one.objectives[y].high, y) for one in cells],
        [_shown(one.objectives[x].low, x) for one in cells],
        [_shown(one.objectives[x].high, x) for one in cells],
        tuple(one.label for one in cells),
    )


def _by_cell(sweep: Sweep) -> Plot:
    """Every run of every cell, from the best on."""
    objective = sweep.design.objectives[0]
    order = sweep.ranking.order
    place = {cell: float(at) for at, cell in enumerate(order)}
    rows = [row for row in sweep.runs if row.role == CELL and row.is_counted and row.cell in place]
    if not rows:
        return Plot("Cells", "cell", _axis(objective), "points", absent="no valid run yet")
    finite = [row for row in rows if row.figures.value(objective) not in (None, float("inf"))]
    cells = [sweep.cells[cell] for cell in order]
    means = [_mean(one, objective) for one in cells]
    low = [_shown(one.objectives[objective].low, objective) for one in cells]
    high = [_shown(one.objectives[objective].high, objective) for one in cells]
    series = (
        points("runs", [place[row.cell] - 0.15 for row in finite],
               [_shown(row.figures.value(objective), objective) for row in finite]),
        points("mean, 95 % interval", [place[one.cell] for one in cells], means, low, high),
    )  # fmt: skip
    ticks = tuple(one.label for one in cells) if len(cells) <= _MOST_TICKS else ()
    note = (
        "A dot is a run. Intervals are over seeds, and cells share their spread: the table compares in pairs."
    )
    return Plot("Cells, best first", "cell", _axis(objective), "points", series, note, x_ticks=ticks)


def _drift(sweep: Sweep) -> Plot:
    objective = sweep.design.objectives[0]
    head = ("The reference cell over the sweep", "position of the run", _axis(objective), "points")
    rows = [row for row in sweep.runs if row.role == REFERENCE and row.is_counted]
    if not rows:
        return Plot(
            *head,
            absent="the experiment names no reference cell" if sweep.drift is None else "no valid run yet",
        )
    series = []
    for site, host in sweep.sites.items():
        own = [row for row in rows if row.site == site and row.figures.value(objective) != float("inf")]
        at, values = [float(row.position) for row in own], [row.figures.value(objective) for row in own]
        series.append(points(host, at, [_shown(value, objective) for value in values]))
    return Plot(*head, tuple(series), "One scenario, one seed: what differs is the machine.")
