"""What an experiment found, from its rows: cells, which is best, drift, the chosen cell again. Its fields are the keys
of `sweep.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from squall.analysis.studies.sweep_cells import CellFigures, MeanFigure, cell_figures, log_mean
from squall.analysis.studies.sweep_drift import Drift, drift_of
from squall.analysis.studies.sweep_rivals import Ranking, apart, is_low_better, rank, values_of
from squall.analysis.studies.sweep_rows import CELL, CONFIRM, REFERENCE, SweepRow
from squall.scenarios.records import Frozen

SCHEMA_VERSION = 1
FRONT, PERHAPS = "front", "perhaps"


class Design(Frozen):
    """What was to be run. `cells`: label and factors of each; `n_planned`: runs in all, the chosen cell's fresh ones
    left out; `restart`: what a server is started anew for."""

    name: str
    cells: tuple[tuple[str, Mapping[str, Any]], ...]
    objectives: tuple[str, ...]
    order: str
    restart: str
    repeats: int
    seed: int
    n_planned: int
    reference: int | None = None


class Confirmation(Frozen):
    """The chosen cell with fresh seeds: its figure over them, and between what (95 %, by the spread of the runs that
    chose it) the mean of so many fresh runs lies where the choice was no luck; None without two runs of each kind."""

    cell: int
    figure: MeanFigure
    chosen: MeanFigure
    expected_low: float | None
    expected_high: float | None
    is_expected: bool | None


class Sweep(Frozen):
    """All that an experiment found."""

    schema_version: int
    design: Design
    n_ended: int
    is_complete: bool
    cells: tuple[CellFigures, ...]
    rankings: tuple[Ranking, ...]
    drift: Drift | None
    confirmation: Confirmation | None
    sites: Mapping[str, str]
    runs: tuple[SweepRow, ...]

    @property
    def ranking(self) -> Ranking:
        """By the first objective: what decides."""
        return self.rankings[0]


def evaluate(design: Design, rows: Sequence[SweepRow]) -> Sweep:
    """The findings of the rows that there are."""
    chosen_by = [row for row in rows if row.role == CELL]
    values = {name: values_of(chosen_by, name) for name in design.objectives}
    rankings = tuple(rank(values[name], len(design.cells), name) for name in design.objectives)
    cells = tuple(
        cell_figures(number, label, factors, design.repeats, [row for row in chosen_by if row.cell == number])
        for number, (label, factors) in enumerate(design.cells)
    )
    first = design.objectives[0]
    n_ended = sum(row.role != CONFIRM for row in rows if row.is_ended)
    best = rankings[0].best
    confirming = [row for row in rows if row.role == CONFIRM and row.cell == best]
    return Sweep(
        schema_version=SCHEMA_VERSION,
        design=design,
        n_ended=n_ended,
        is_complete=n_ended >= design.n_planned,
        cells=_with_front(cells, rankings, values),
        rankings=rankings,
        drift=drift_of([row for row in rows if row.role == REFERENCE], first),
        confirmation=_confirmation(cells[best], confirming, first)
        if best is not None and confirming
        else None,
        sites={row.site: row.host for row in rows},
        runs=tuple(rows),
    )


def _confirmation(cell: CellFigures, fresh: Sequence[SweepRow], objective: str) -> Confirmation:
    """With n runs that chose and m fresh ones, of spread s on logarithms, the mean of the fresh ones lies within
    t(97.5 %, n - 1) s sqrt(1 / n + 1 / m) of that of the others."""
    found = log_mean([row.figures.value(objective) for row in fresh if row.is_counted])
    chosen = cell.objectives[objective]
    if chosen.mean is None or chosen.high is None or not found.n:
        return Confirmation(cell.cell, found, chosen, None, None, None)
    half = math.log(chosen.high / chosen.mean) * math.sqrt(1.0 + chosen.n / found.n)
    low, high = chosen.mean * math.exp(-half), chosen.mean * math.exp(half)
    is_expected = False if found.mean is None else _is_within(found.mean, low, high)
    return Confirmation(cell.cell, found, chosen, low, high, is_expected)


def _is_within(value: float, low: float, high: float) -> bool:
    return low * (1 - 1e-12) <= value <= high * (1 + 1e-12)


def _with_front(
    cells: Sequence[CellFigures], rankings: Sequence[Ranking], values: Mapping[str, Any]
) -> tuple[CellFigures, ...]:
    """A cell is behind another that is no worse in each objective by the means, and better in one in which they
    differ."""
    names = [ranking.objective for ranking in rankings]
    known = [one.cell for one in cells if all(one.objectives[name].mean is not None for name in names)]
    differ = {name: apart(values[name], known) for name in names}
    costs = {cell: {name: _cost(cells[cell], name) for name in names} for cell in known}

    def front(cell: int) -> str:
        own = costs[cell]
        ahead = [
            other
            for other in known
            if costs[other] != own and all(costs[other][name] <= own[name] for name in names)
        ]
        is_behind = any(
            costs[other][name] < own[name] and (min(cell, other), max(cell, other)) in differ[name]
            for other in ahead
            for name in names
        )
        return "" if is_behind else PERHAPS if ahead else FRONT

    return tuple(replace(one, front=front(one.cell)) if one.cell in costs else one for one in cells)


def _cost(cell: CellFigures, objective: str) -> float:
    """Less is better."""
    value = cell.objectives[objective].mean
    assert value is not None
    return value if is_low_better(objective) else -value
