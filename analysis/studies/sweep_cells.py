"""A cell over its seeds: how its runs ended, and its mean figures with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from squall.analysis.statistics.student import mean_of
from squall.analysis.studies.sweep_rows import COLUMNS, DONE, FAILED, INVALID, SweepRow
from squall.scenarios.records import Frozen


class MeanFigure(Frozen):
    """Of `n` runs: the geometric mean and its 95 % interval (Student's t on logarithms), or, of shares, the arithmetic
    one. None where there is no run; bounds None for one run. `n_infinite` of the runs had none that is finite: then
    there is no mean."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    n_infinite: int = 0


class CellFigures(Frozen):
    """Cell number `cell`. `n_planned` runs were to choose; of those that were run `n_valid` are VALID, `n_invalid`
    INVALID twice, `n_failed` raised. `objectives`: of each, over the VALID ones. `promises_kept`: of each promise in
    how many of these it was kept. `front`: on the Pareto front by its means, or not to be told apart from a cell on
    it."""

    cell: int
    label: str
    factors: Mapping[str, Any]
    n_planned: int
    n_valid: int
    n_invalid: int
    n_failed: int
    objectives: Mapping[str, MeanFigure]
    failed_ratio: MeanFigure
    wall_s: float
    promises_kept: Mapping[str, int]
    front: str = ""


def cell_figures(
    cell: int, label: str, factors: Mapping[str, Any], n_planned: int, rows: Sequence[SweepRow]
) -> CellFigures:
    """The figures of one cell from its rows that choose."""
    final = [row for row in rows if row.is_ended]
    valid = [row for row in final if row.outcome == DONE]
    promises = list(dict.fromkeys(name for row in valid for name in row.figures.promises))
    return CellFigures(
        cell=cell,
        label=label,
        factors=factors,
        n_planned=n_planned,
        n_valid=len(valid),
        n_invalid=sum(row.outcome == INVALID for row in final),
        n_failed=sum(row.outcome == FAILED for row in final),
        objectives={name: log_mean([row.figures.value(name) for row in valid]) for name in COLUMNS},
        failed_ratio=mean([row.figures.failed_ratio for row in valid]),
        wall_s=math.fsum(row.wall_s for row in rows),
        promises_kept={
            name: sum(row.figures.promises.get(name) == "kept" for row in valid) for name in promises
        },
    )


def log_mean(values: Sequence[float | None]) -> MeanFigure:
    """The geometric mean of positive values; None ones are left out, infinite ones counted."""
    known = [value for value in values if value is not None and value > 0]
    n_infinite = sum(math.isinf(value) for value in known)
    if n_infinite or not known:
        return MeanFigure(None, None, None, len(known), n_infinite)
    found = mean([math.log(value) for value in known])
    assert found.mean is not None
    ends = [None if end is None else math.exp(end) for end in (found.low, found.high)]
    return MeanFigure(math.exp(found.mean), ends[0], ends[1], found.n)


def mean(values: Sequence[float | None]) -> MeanFigure:
    """The arithmetic mean; None values are left out."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return MeanFigure(known[0] if known else None, None, None, len(known))
    found = mean_of(known)
    half = found.half(0.05)
    return MeanFigure(found.mean, found.mean - half, found.mean + half, found.n)
