"""Random numbers of the usual laws, the same bits on every CPU: of a generator only `random` is used.

numpy's own `standard_exponential`, `standard_normal`, `gamma`, `poisson` and the laws made from them take logarithms
and powers of the C library, which differ in the last digit from one CPU (and one C library) to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, repeat

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from squall.scenarios.arrays import Bools, Floats, Int64s, pieces
from squall.scenarios.exact import arrays

_MOST_AT_ONCE = 1 << 20
"""Draws by rejection at a time: part of what a seed means."""
_FEW = 10.0
"""Mean of a Poisson number below which its distribution function is summed."""
_LONGEST_SUM = 100
"""Terms of it: from 60 on a mean of 10 leaves nothing of float64."""

# of whole numbers that float64 holds
_LOG_FACTORIALS = arrays.log(np.array([float(math.factorial(k)) for k in range(16)]))
_HALF_LOG_TURN = 0.9189385332046728  # ln(2π)/2


def standard_exponential(rng: Generator, count: int) -> Floats:
    """Exp(1), (count,), by inversion: -ln(1 - U), from 0 to 36.7."""
    return 0.0 - arrays.log(1.0 - rng.random(count))


def standard_normal(rng: Generator, count: int) -> Floats:
    """N(0, 1), (count,), within 8.6: √(2E)·cos(2πU), then √(2E)·sin(2πU) (Box, Muller, Ann. Math. Stat. 29, 1958)."""
    n_pairs = (count + 1) // 2
    radii, turns = np.sqrt(2.0 * standard_exponential(rng, n_pairs)), rng.random(n_pairs)
    draws = np.empty((2, n_pairs))
    for rows in pieces(n_pairs, arrays.BLOCK):
        draws[:, rows] = radii[rows] * np.stack(arrays.cos_sin(turns[rows]))
    return draws.ravel()[:count]


def lognormal(rng: Generator, mu: float, sigma: float, count: int) -> Floats:
    """exp(mu + sigma·Z), (count,)."""
    return arrays.exp(sigma * standard_normal(rng, count) + mu)


def standard_gamma(rng: Generator, shape: float, count: int) -> Floats:
    """Gamma of that shape > 0 and scale 1, (count,).

    Marsaglia, Tsang, ACM TOMS 26, 2000: d·V with d = shape - 1/3, V = (1 + Z/√(9d))³, taken if
    ln U < Z²/2 + d(1 - V + ln V). A shape below 1 is that of shape + 1 times U^(1/shape).
    """
    larger = shape if shape >= 1 else shape + 1
    draws = np.empty(0)
    while draws.size < count:
        proposals, taken = _gamma_proposals(rng, larger, count - draws.size)
        draws = np.append(draws, proposals[taken])
    return draws * arrays.exp(standard_exponential(rng, count) / -shape) if shape < 1 else draws


def gamma_each(rng: Generator, shapes: Floats) -> Floats:
    """Gamma of scale 1, one of each shape > 0, (n,); as `standard_gamma`."""
    is_small = shapes < 1
    larger, small = np.where(is_small, shapes + 1, shapes), shapes[is_small]
    draws = _by_rejection(shapes.size, lambda todo: _gamma_proposals(rng, larger[todo], todo.size))
    draws[is_small] *= arrays.exp(standard_exponential(rng, small.size) / -small)
    return draws


def _by_rejection(count: int, propose: Callable[[Int64s], tuple[Floats, Bools]]) -> Floats:
    """Draws, (count,): `propose` returns a proposal for each place that is asked for, and which of them are taken."""
    draws, todo = np.empty(count), np.arange(count)
    while todo.size:
        proposals, taken = propose(todo)
        draws[todo[taken]] = proposals[taken]
        todo = todo[~taken]
    return draws


def _gamma_proposals(rng: Generator, shape: float | Floats, count: int) -> tuple[Floats, Bools]:
    """`count` proposals of a shape, or shapes (count,), of 1 or more, and which are taken: at least 95 % on average."""
    d = np.broadcast_to(shape, count) - 1 / 3
    z = standard_normal(rng, count)
    u = rng.random(count)
    v = z / np.sqrt(9 * d) + 1.0
    cube, square = v * v * v, z * z
    # the paper's bound below the condition, without a logarithm
    taken = (1.0 - 0.0331 * (square * square)) > u
    rest = np.flatnonzero(~taken & (v > 0.0))
    v3 = np.maximum(cube[rest], np.finfo(np.float64).tiny)
    u = np.maximum(u[rest], 2.0**-54)
    taken[rest] = arrays.log(u) < 0.5 * square[rest] + d[rest] * ((1.0 - v3) + arrays.log(v3))
    return cube * d, taken & (v > 0.0)


def poisson(rng: Generator, mean: float, count: int) -> Int64s:
    """Poisson numbers of one mean (0 or more), (count,)."""
    draws = np.empty(count, np.int64)
    for rows in pieces(count, _MOST_AT_ONCE):
        part = draws[rows]
        if mean < _FEW:
            part[:] = _summed(np.array([mean]), rng.random(part.size))
        else:
            part[:] = _transformed_rejection(np.full(part.size, mean), repeat(lambda n: rng.random((n, 2))))
    return draws


def poisson_each(rng: Generator, means: Floats) -> Int64s:
    """Poisson numbers, one of each mean (0 or more), (n,); each try of a rejection has a generator of its own."""
    draws = np.empty(means.size, np.int64)
    is_few = means < _FEW
    uniform = rng.random((means.size, 2))
    draws[is_few] = _summed(means[is_few], uniform[is_few, 0])
    tries: Iterator[Callable[[int], Floats]] = chain(
        [lambda _: uniform[~is_few]], repeat(lambda n: rng.spawn(1)[0].random((n, 2)))
    )
    draws[~is_few] = _transformed_rejection(means[~is_few], tries)
    return draws


def _summed(means: Floats, uniform: Floats) -> Int64s:
    """How many P(N <= k) are not above each uniform number, (n,); of one mean below 10 for all, or one for each."""
    draws = np.zeros(uniform.size, np.int64)
    p = arrays.exp(-means)
    total = p.copy()
    for k in range(1, _LONGEST_SUM):
        is_above = uniform >= total
        if not is_above.any():
            break
        draws += is_above
        p *= means / k
        total += p
    return draws


def _transformed_rejection(means: Floats, tries: Iterator[Callable[[int], Floats]]) -> Int64s:
    """Poisson numbers of means of 10 and more, (n,): PTRS of Hörmann, Insurance: Math. and Econ. 12, 1993.

    `tries`: what draws the uniform numbers of each try, (m, 2) for m that are left.
    """
    drawn = _by_rejection(means.size, lambda todo: _tried(means[todo], next(tries)(todo.size)))
    return drawn.astype(np.int64)


def _tried(mean: Floats, uniform: Floats) -> tuple[Floats, Bools]:
    """A proposal for each mean, and whether it is taken; constants of the paper."""
    u, v = uniform[:, 0] - 0.5, uniform[:, 1]
    b = 0.931 + 2.53 * np.sqrt(mean)
    a = -0.059 + 0.02483 * b
    per_alpha = 1.1239 + 1.1328 / (b - 3.4)
    bound = 0.9277 - 3.6224 / (b - 2.0)
    edge = np.maximum(0.5 - np.abs(u), 2.0**-54)
    k = np.floor((2.0 * a / edge + b) * u + mean + 0.43)
    taken = (edge >= 0.07) & (v <= bound)
    rest = np.flatnonzero(~taken & (k >= 0.0) & ((edge >= 0.013) | (v <= edge)))
    k_rest, edge_rest = k[rest], edge[rest]
    hat = np.maximum(v[rest], 2.0**-54) * per_alpha[rest] / (a[rest] / (edge_rest * edge_rest) + b[rest])
    mass = k_rest * arrays.log(mean[rest]) - mean[rest] - _log_factorial(k_rest)
    taken[rest] = arrays.log(hat) <= mass
    return k, taken


def _log_factorial(k: Floats) -> Floats:
    """ln k! of whole numbers, (n,): a table up to 15, Stirling's series beyond (Abramowitz, Stegun, 6.1.41)."""
    n = np.maximum(k, 15.0)
    per = 1.0 / n
    square = per * per
    series = per * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680))))
    beyond = (n + 0.5) * arrays.log(n) - n + _HALF_LOG_TURN + series
    return np.where(k > 15.0, beyond, _LOG_FACTORIALS[np.minimum(k, 15.0).astype(np.int64)])


def by_weight(values: Int64s, weights: Floats, rng: Generator, count: int) -> NDArray[np.int32]:
    """Values drawn with probabilities in proportion to their weights."""
    return values.astype(np.int32)[places(bounds_of(weights), rng, count)]


def bounds_of(weights: Floats) -> Floats:
    """(n,): the probability of a place up to each, which is in proportion to its weight."""
    bounds: Floats = np.cumsum(weights / weights.max())  # so that no sum leaves float64
    bounds /= bounds[-1]
    return bounds


def places(bounds: Floats, rng: Generator, count: int) -> Int64s:
    """Places, (count,), with the probabilities of `bounds_of`, by inversion."""
    return np.searchsorted(bounds[:-1], rng.random(count), side="right")
