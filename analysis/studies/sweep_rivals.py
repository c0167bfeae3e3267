"""Which cell is best by an objective, and which others cannot be told apart from it. Pure.

The unit is the run. Two cells are compared by the ratios of their figures within blocks (one seed on one site), so that
what the seeds differ by cancels (`squall.analysis.statistics.paired`). The p-value of a pair is that of Student's t of
the mean log ratio over its standard error, two-sided.

The best cell is chosen by the same runs. That it leads by chance is held against it by taking all pairs of cells into
one family, not only those with the best: Holm (1979, Scand. J. Statist. 6(2)) calls a pair different where p(i) <= 5 %
/ (m - i + 1) for it and all before it in the order of p, over m pairs, so that with 95 % no two equal cells are called
different, whichever leads. A pair without two common blocks has no p-value and is never told apart.

The best cell has the smallest effect in log figure = effect of cell + effect of block, by least squares: the mean
where no run is missing; where some are, cells are not compared over different seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from squall.analysis.statistics.holm import holm
from squall.analysis.statistics.paired import LEAST_PAIRS, PairedRatio, paired_ratio
from squall.analysis.studies.sweep_rows import LATENCIES, SweepRow
from squall.scenarios.records import Frozen

LEVEL = 0.05
_CLOSE = 1e-12
Block = tuple[str, int]
Values = Mapping[int, Mapping[Block, float]]
"""Of each cell, its figure in each block."""


class Rival(Frozen):
    """Cell number `cell` over the best one: the ratio of their figures with its 95 % interval, by itself; None without
    two common blocks. `p`: after Holm. `is_apart`: they differ."""

    cell: int
    ratio: float | None
    low: float | None
    high: float | None
    n_pairs: int
    p: float | None
    is_apart: bool


class Ranking(Frozen):
    """By one objective: the `best` cell (None without any), the others from the next best on, those that are `unranked`
    for an infinite figure in some run, or for none in any."""

    objective: str
    best: int | None
    others: tuple[Rival, ...]
    unranked: tuple[int, ...]

    @property
    def order(self) -> list[int]:
        """Every cell, from the best on, those that are not ranked last."""
        ranked = [] if self.best is None else [self.best, *(one.cell for one in self.others)]
        return [*ranked, *self.unranked]

    @property
    def rivals(self) -> tuple[int, ...]:
        """Cells that cannot be told apart from the best."""
        return tuple(one.cell for one in self.others if not one.is_apart)


def is_low_better(objective: str) -> bool:
    """Latencies; not throughput."""
    return objective in LATENCIES


def values_of(rows: Sequence[SweepRow], objective: str) -> dict[int, dict[Block, float]]:
    """Figures of the rows that count, by cell and block."""
    found: dict[int, dict[Block, float]] = {}
    for row in rows:
        value = row.figures.value(objective)
        if row.is_counted and value is not None and value > 0:
            found.setdefault(row.cell, {})[row.site, row.block] = value
    return found


def rank(values: Values, n_cells: int, objective: str) -> Ranking:
    """The cells 0 to n_cells - 1 by an objective."""
    ranked = {
        cell: {block: math.log(value) for block, value in own.items()}
        for cell, own in values.items()
        if own and not any(math.isinf(value) for value in own.values())
    }
    unranked = tuple(cell for cell in range(n_cells) if cell not in ranked)
    if not ranked:
        return Ranking(objective, None, (), unranked)
    sign = 1.0 if is_low_better(objective) else -1.0
    effects = _effects(ranked)
    order = sorted(ranked, key=lambda cell: (sign * effects[cell], cell))
    best = order[0]
    adjusted = _adjusted(values, ranked)
    others = tuple(_rival(cell, best, values, adjusted) for cell in order[1:])
    return Ranking(objective, best, others, unranked)


def apart(values: Values, cells: Sequence[int]) -> set[tuple[int, int]]:
    """Pairs of `cells` (the smaller number first) that differ, Holm over all of them."""
    return {pair for pair, p in _adjusted(values, cells).items() if p <= LEVEL}


def _rival(cell: int, best: int, values: Values, adjusted: Mapping[tuple[int, int], float]) -> Rival:
    found = _ratio(values, best, cell)
    p = adjusted.get((min(cell, best), max(cell, best)))
    if found is None:
        return Rival(cell, None, None, None, len(_common(values, best, cell)), None, False)
    return Rival(cell, found.ratio, found.low, found.high, found.n_pairs, p, p is not None and p <= LEVEL)


def _common(values: Values, one: int, other: int) -> list[Block]:
    return [block for block in values[one] if block in values[other]]


def _ratio(values: Values, one: int, other: int) -> PairedRatio | None:
    """`other` over `one`."""
    blocks = _common(values, one, other)
    if len(blocks) < LEAST_PAIRS:
        return None
    return paired_ratio([values[other][block] for block in blocks], [values[one][block] for block in blocks])


def _adjusted(values: Values, cells: Iterable[int]) -> dict[tuple[int, int], float]:
    """Holm's p-values of all pairs of cells that have one."""
    pairs = {pair: _ratio(values, *pair) for pair in itertools.combinations(sorted(cells), 2)}
    p_of = {pair: found.p_value for pair, found in pairs.items() if found is not None}
    return dict(zip(p_of, holm(list(p_of.values())), strict=True))


def _effects(logs: Mapping[int, Mapping[Block, float]]) -> dict[int, float]:
    """Effects of cells beside those of blocks, by least squares: the two means in turn, which converge on it."""
    blocks = {block for own in logs.values() for block in own}
    of_block, found = dict.fromkeys(blocks, 0.0), dict.fromkeys(logs, 0.0)
    for _ in range(1_000):
        new = {cell: math.fsum(own[b] - of_block[b] for b in own) / len(own) for cell, own in logs.items()}
        change = max(abs(new[cell] - found[cell]) for cell in logs)
        found = new
        for block in blocks:
            own_of = [own[block] - found[cell] for cell, own in logs.items() if block in own]
            of_block[block] = math.fsum(own_of) / len(own_of)
        if change <= _CLOSE:
            break
    return found
