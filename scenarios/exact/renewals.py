"""Renewal processes of rate 1, and their gaps of the two laws that recorded clients have, too: gamma and Weibull.

A renewal process in its stationary state begins with a gap of the equilibrium law, density 1 - F(x): that of U·G with
U uniform on [0, 1) and G the length-biased gap, density x·f(x) (Cox, Renewal Theory, 1962, section 5.3). Started with
a gap of F instead, every one of N superposed copies has an arrival near 0: a burst that no copy has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from squall.scenarios.arrays import Floats, Int64s, pieces
from squall.scenarios.exact import arrays, draws, scalars
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    from numpy.random import Generator


CHUNK = 1 << 20
"""Draws at a time. It is part of what a seed means: some laws draw a longer array differently."""
MOST_SPREAD_C2 = 100.0
"""Of heavier gaps a few are so long that fewer, not more, of them reach the end."""
LARGEST_C2 = 1_000.0
"""Of gaps: beyond, a gap of a million means is ordinary and no run sees the mean rate."""
SMALLEST_WEIBULL_SHAPE = 0.165
"""c2 is then about 1,000."""


class Law(Frozen):
    """Independent gaps of mean 1. `c2`: their variance, the squared coefficient of variation, infinite for a tail index
    up to 2; `gaps` draws so many, (n,) float64; `first` one of the equilibrium law."""

    c2: float
    gaps: Callable[[Generator, int], Floats]
    first: Callable[[Generator], float]

    def points(self, rng: Generator, length: float) -> Floats:
        """Points of the process in [0, length), (n,) float64, sorted. Gaps are drawn in blocks until they pass it."""
        (points,) = series_until(
            np.array([self.first(rng)]),
            np.array([length]),
            lambda _, missing: gap_counts(self.c2, missing),
            lambda _, counts: in_chunks(rng, self.gaps, int(counts[0])),
        )
        return points


def gap_counts(c2: float | Floats, missing: Floats) -> Int64s:
    """How many gaps of variance `c2` are drawn for lengths that are `missing`, (n,): nearly always enough."""
    counts = missing + 4 * np.sqrt(np.minimum(c2, MOST_SPREAD_C2) * missing)
    return np.asarray(counts, np.int64) + 16


def series_until(
    firsts: Floats,
    ends: Floats,
    counts: Callable[[Int64s, Floats], Int64s],
    steps: Callable[[Int64s, Int64s], Floats],
) -> list[Floats]:
    """Many rising series, each from its first value up to its end, drawn together.

    `counts` says how many steps are to be drawn of which series for what they miss; `steps` draws so many of each, or
    as many pairs, those of one series after those of another.
    """
    series, reached = [[first] for first in np.split(firsts, firsts.size)], firsts.copy()
    todo = np.flatnonzero(reached < ends)
    while todo.size:
        n_steps = counts(todo, ends[todo] - reached[todo])
        for part in _neighbours(n_steps):
            drawn, ends_at = steps(todo[part], n_steps[part]), np.cumsum(n_steps[part])
            blocks = np.split(drawn, ends_at[:-1] * (drawn.size // ends_at[-1]))
            for which, block in zip(todo[part].tolist(), blocks, strict=True):
                np.cumsum(block, out=block)
                block += reached[which]
                series[which].append(block)
                reached[which] = block[-1]
        todo = todo[reached[todo] < ends[todo]]
    whole = [np.concatenate(blocks) for blocks in series]
    return [values[: np.searchsorted(values, end)] for values, end in zip(whole, ends.tolist(), strict=True)]


def _neighbours(counts: Int64s) -> list[slice]:
    """Neighbours whose counts sum to `CHUNK` at most, or one alone that is above it."""
    found, start, total = [], 0, 0
    for place, count in enumerate(counts.tolist()):
        if total and total + count > CHUNK:
            found.append(slice(start, place))
            start, total = place, 0
        total += count
    return [*found, slice(start, counts.size)]


def in_chunks(rng: Generator, gaps: Callable[[Generator, int], Floats], count: int) -> Floats:
    """`count` gaps, drawn `CHUNK` at a time, with the memory of one array."""
    drawn = np.empty(count)
    for rows in pieces(count, CHUNK):
        part = drawn[rows]
        part[:] = gaps(rng, part.size)
    return drawn


def gamma_law(c2: float) -> Law:
    """Gamma gaps: shape 1/c2, scale c2. The length-biased gap is Gamma(1/c2 + 1) of the same scale.

    Raises ValueError for a variance that no process is drawn of.
    """
    refuse_c2(c2)
    return Law(
        c2,
        lambda rng, count: draws.standard_gamma(rng, 1 / c2, count) * c2,
        lambda rng: float(draws.standard_gamma(rng, 1 / c2 + 1, 1)[0]) * c2 * rng.random(),
    )


def weibull_law(shape: float) -> Law:
    """Weibull gaps of a shape k: F(x) = 1 - exp(-(x/s)^k), s = 1/Γ(1 + 1/k), so that (x/s)^k is Exp(1), and
    Gamma(1 + 1/k) of the length-biased gap. Raises ValueError for a shape whose gaps are too heavy."""
    if not shape >= SMALLEST_WEIBULL_SHAPE:
        raise ValueError(f"a weibull shape of {shape} is below {SMALLEST_WEIBULL_SHAPE} (c2 {LARGEST_C2:g})")
    return Law(
        weibull_c2(shape),
        lambda rng, count: _weibull_root(draws.standard_exponential(rng, count), shape),
        lambda rng: (
            float(_weibull_root(draws.standard_gamma(rng, 1 + 1 / shape, 1), shape)[0]) * rng.random()
        ),
    )


def weibull_c2(shape: float) -> float:
    """c2 = Γ(1 + 2/k)/Γ(1 + 1/k)² - 1 of a Weibull law of shape k."""
    mean = scalars.gamma(1 + 1 / shape)
    return max(0.0, scalars.gamma(1 + 2 / shape) / (mean * mean) - 1)


def refuse_c2(c2: float, least: float = 0.0) -> None:
    """Raises ValueError for gaps of a variance that no process is drawn of."""
    if not (least <= c2 <= LARGEST_C2 and c2 > 0):
        raise ValueError(f"c2 {c2:g} of the gaps must lie in {least:g} to {LARGEST_C2:g}")


def _weibull_root(powers: Floats, shape: float) -> Floats:
    """s·powers^(1/k)."""
    # half the step of an exponential draw; its logarithm is finite
    logs = arrays.log(np.maximum(powers, 2.0**-54))
    return arrays.exp(logs / shape) / scalars.gamma(1 + 1 / shape)
