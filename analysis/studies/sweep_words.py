"""The answer of an experiment in words, and the lines of its screen: words of `decisions.html.j2`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from squall.analysis.report.templates import decision
from squall.analysis.studies.sweep_cells import CellFigures
from squall.analysis.studies.sweep_result import Sweep
from squall.analysis.studies.sweep_rivals import apart, values_of
from squall.analysis.studies.sweep_rows import CELL


def answer(sweep: Sweep) -> str:
    """One sentence that says which cell is best and which cannot be told apart from it."""
    return decision("sweep", sweep)[0]


def facts(sweep: Sweep) -> list[str]:
    """What the answer rests on, a line each."""
    return decision("sweep_facts", sweep, [*_instances(sweep)])


def cell_lines(sweep: Sweep) -> list[str]:
    """A line for each cell, from the best on: its objectives, how it compares, how its runs ended."""
    return decision("sweep_cells", sweep, {one.cell: one for one in sweep.ranking.others})


_Counted = tuple[int, CellFigures]


def _instances(sweep: Sweep) -> Iterator[tuple[str, _Counted, _Counted, bool]]:
    """What more instances were measured to do: key, count and cell of fewer and of more, and whether they differ, for
    each two cells that differ in nothing but one count of instances, with no count between."""
    objective = sweep.design.objectives[0]
    values = values_of([row for row in sweep.runs if row.role == CELL], objective)
    known = [one for one in sweep.cells if one.objectives[objective].mean is not None]
    differ = apart(values, [one.cell for one in known])
    groups: dict[tuple[str, str], list[_Counted]] = {}
    for one in known:
        for key, count in one.factors.items():
            if key.rpartition(".")[2] == "instances" and isinstance(count, int):
                rest = {name: value for name, value in one.factors.items() if name != key}
                groups.setdefault((key, repr(rest)), []).append((count, one))
    for (key, _), counted in groups.items():
        for fewer, more in pairwise(sorted(counted, key=lambda each: each[0])):
            yield key, fewer, more, tuple(sorted((fewer[1].cell, more[1].cell))) in differ
