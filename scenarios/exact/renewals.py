"""Renewal processes of rate 1, and their gaps of the two laws that recorded clients have, too: gamma and Weibull.

A renewal process in its stationary state begins with a gap of the equilibrium law, density 1 - F(x): that of U·G with
U uniform on [0, 1) and G the length-biased gap, density x·f(x) (Cox, Renewal Theory, 1962, section 5.3). Started with
a gap of F instead, every one of N superposed copies has an arrival near 0: a burst that no copy has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.exact import arrays, draws, scalars
from squall.scenarios.exact.arrays import Floats

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


def renewal_points(
    rng: Generator,
    gaps: Callable[[Generator, int], Floats],
    first: float,
    c2: float,
    length: float,
) -> Floats:
    """Points in [0, length), (n,) float64, sorted: the first at `first`, then `gaps` of variance `c2`.

    Gaps are drawn in blocks until they pass `length`.
    """
    (points,) = series_until(
        np.array([first]),
        np.array([length]),
        lambda _, missing: gap_counts(c2, missing),
        lambda _, counts: in_chunks(rng, gaps, int(counts[0])),
    )
    return points


def gap_counts(c2: float | Floats, missing: Floats) -> NDArray[np.int64]:
    """How many gaps of variance `c2` are drawn for lengths that are `missing`, (n,): nearly always enough."""
    counts = missing + 4 * np.sqrt(np.minimum(c2, MOST_SPREAD_C2) * missing)
    return np.asarray(counts, np.int64) + 16


def series_until(
    firsts: Floats,
    ends: Floats,
    counts: Callable[[NDArray[np.int64], Floats], NDArray[np.int64]],
    steps: Callable[[NDArray[np.int64], NDArray[np.int64]], Floats],
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


def _neighbours(counts: NDArray[np.int64]) -> list[slice]:
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
    for start in range(0, count, CHUNK):
        part = drawn[start : start + CHUNK]
        part[:] = gaps(rng, part.size)
    return drawn


def gamma_gaps(rng: Generator, c2: float, count: int) -> Floats:
    """Gamma gaps of mean 1 and variance `c2`, (count,): shape 1/c2, scale c2."""
    return draws.standard_gamma(rng, 1 / c2, count) * c2


def first_gamma_gap(rng: Generator, c2: float) -> float:
    """A gap of their equilibrium law; the length-biased gap is Gamma(1/c2 + 1) of the same scale."""
    longest = float(draws.standard_gamma(rng, 1 / c2 + 1, 1)[0]) * c2
    return longest * rng.random()


def weibull_gaps(rng: Generator, shape: float, count: int) -> Floats:
    """Weibull gaps of mean 1, (count,): F(x) = 1 - exp(-(x/s)^k), s = 1/Γ(1 + 1/k), so that (x/s)^k is Exp(1)."""
    return _weibull_root(draws.standard_exponential(rng, count), shape)


def first_weibull_gap(rng: Generator, shape: float) -> float:
    """A gap of their equilibrium law; of the length-biased gap (x/s)^k is Gamma(1 + 1/k)."""
    longest = _weibull_root(draws.standard_gamma(rng, 1 + 1 / shape, 1), shape)
    return float(longest[0]) * rng.random()


def weibull_c2(shape: float) -> float:
    """c2 = Γ(1 + 2/k)/Γ(1 + 1/k)² - 1 of a Weibull law of shape k."""
    mean = scalars.gamma(1 + 1 / shape)
    return max(0.0, scalars.gamma(1 + 2 / shape) / (mean * mean) - 1)


def refuse_c2(c2: float, least: float = 0.0) -> None:
    """Raises ValueError for gaps of a variance that no process is drawn of."""
    if not (least <= c2 <= LARGEST_C2 and c2 > 0):
        raise ValueError(f"c2 {c2:g} of the gaps must lie in {least:g} to {LARGEST_C2:g}")


def refuse_weibull_shape(shape: float) -> None:
    """Raises ValueError for a shape whose gaps are too heavy."""
    if not (shape >= SMALLEST_WEIBULL_SHAPE):
        raise ValueError(f"a weibull shape of {shape} is below {SMALLEST_WEIBULL_SHAPE} (c2 {LARGEST_C2:g})")


def _weibull_root(powers: Floats, shape: float) -> Floats:
    """s·powers^(1/k)."""
    # half the step of an exponential draw; its logarithm is finite
    logs = arrays.log(np.maximum(powers, 2.0**-54))
    return arrays.exp(logs / shape) / scalars.gamma(1 + 1 / shape)
