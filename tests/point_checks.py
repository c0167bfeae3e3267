"""Checks of draws and of point processes against theory: each returns whether the draws fail it.

All bounds come from the standard error at the n used. A check that a right process fails is a chance of 7e-6
(4.5 standard errors, two-sided normal) or of 1e-4 (goodness of fit); seeds are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

SIGMAS = 4.5
LEVEL = 1e-4

Floats = NDArray[np.float64]
Function = Callable[[Any], Any]


def misses(found: float, expected: float, standard_error: float) -> bool:
    """Whether `found` is more than SIGMAS standard errors off."""
    return not abs(found - expected) <= SIGMAS * standard_error


def misfits(values: ArrayLike, cdf: Function) -> bool:
    """Kolmogorov-Smirnov at LEVEL with the exact law of D at this n: at n = 10,000 the critical D is 0.0223.

    No values at all are a misfit.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    n = ordered.size
    if n == 0:
        return True
    below = cdf(ordered)
    ranks = np.arange(n + 1) / n
    distance = max(float((ranks[1:] - below).max()), float((below - ranks[:-1]).max()))
    return distance > critical_distance(n)


def critical_distance(n: int) -> float:
    """D that n independent draws exceed with probability LEVEL."""
    return float(stats.kstwo.isf(LEVEL, n))


def misses_shares(counts: ArrayLike, expected: ArrayLike) -> bool:
    """Pearson's chi-square at LEVEL; cells with fewer than 5 expected are put into one."""
    seen, due = np.asarray(counts, np.float64), np.asarray(expected, np.float64)
    large = due >= 5
    seen = np.append(seen[large], seen[~large].sum())
    due = np.append(due[large], due[~large].sum())
    if due[-1] == 0:
        if seen[-1] > 0:
            return True
        seen, due = seen[:-1], due[:-1]
    statistic = float(((seen - due) ** 2 / due).sum())
    freedom = max(seen.size - 1, 1)  # of Poisson counts one more, which makes the test a little stricter
    return bool(stats.chi2.sf(statistic, freedom) < LEVEL)


def misses_mean(values: ArrayLike, expected: float, variance: float) -> bool:
    """Mean of independent values against theory, with the variance of theory: s.e. √(variance/n)."""
    found = np.asarray(values, np.float64)
    return misses(float(found.mean()), expected, math.sqrt(variance / found.size))


def misses_variance(values: ArrayLike, expected: float) -> bool:
    """Variance of independent values: s.e. √((m4 - v²)/n), fourth moment m4 about the mean from the sample."""
    found = np.asarray(values, np.float64)
    centred = found - found.mean()
    variance = float((centred**2).mean())
    error = math.sqrt(max(float((centred**4).mean()) - variance**2, 0.0) / found.size)
    return misses(float(found.var(ddof=1)), expected, error)


def is_correlated(values: ArrayLike) -> bool:
    """Spearman's rank correlation of neighbours, of variance 1/(n - 1) where they are independent."""
    ranks = stats.rankdata(np.asarray(values, np.float64))
    correlation = float(np.corrcoef(ranks[1:], ranks[:-1])[0, 1])
    return misses(correlation, 0.0, 1 / math.sqrt(len(ranks) - 2))


def misses_tail(values: ArrayLike, alpha: float, k: int) -> bool:
    """Hill's estimate of exactly Pareto values from the k largest: s.e. α/√k (Hill, Annals of Statistics 3, 1975)."""
    largest = np.sort(np.asarray(values, np.float64))[-k - 1 :]
    return misses(1 / float(np.log(largest[1:] / largest[0]).mean()), alpha, alpha / math.sqrt(k))


@dataclass(frozen=True)
class Counts:
    """Counts of independent replications in windows [begin, end) of the axis: (n_replications,) each."""

    windows: tuple[tuple[float, float], ...]
    counts: tuple[NDArray[np.int64], ...]


def replicate(draw: Callable[[], ArrayLike], windows: Sequence[tuple[float, float]], n: int) -> Counts:
    """`n` replications of sorted points, counted in each window."""
    edges = np.array(windows, np.float64)
    found = np.empty((n, len(edges)), np.int64)
    for index in range(n):
        places = np.searchsorted(np.asarray(draw()), edges, side="left")
        found[index] = places[:, 1] - places[:, 0]
    return Counts(tuple(windows), tuple(found.T))


def count_faults(
    seen: Counts, mean: Callable[[float, float], float], variance: Callable[[float, float], float]
) -> set[str]:
    """Names of what fails: counts of [begin, end) have mean(begin, end) and variance(begin, end) by theory."""
    faults = set()
    for window, counts in zip(seen.windows, seen.counts, strict=True):
        expected = variance(*window)
        if misses_mean(counts, mean(*window), expected):
            faults.add(f"mean {window[0]:g}-{window[1]:g}")
        if misses_variance(counts, expected):
            faults.add(f"idc {window[0]:g}-{window[1]:g}")
    return faults


def renewal_idc(cdf: Function, window: float, steps: int = 2_000) -> float:
    """IDC of the equilibrium renewal process with gaps of mean 1 and distribution function `cdf`.

    Var N(w) = w + 2∫_0^w H(u) du - w², H the ordinary renewal function (Cox, Renewal Theory, 1962, section 4.5).
    H = F + ∫F(t - u) dH(u), solved by midpoints (Xie, Communications in Statistics B 18, 1989).
    """
    h = window / steps
    at, middle = cdf(np.arange(steps + 1) * h), cdf((np.arange(steps) + 0.5) * h)
    renewals, rises = np.zeros(steps + 1), np.zeros(steps)
    for i in range(1, steps + 1):
        known = rises[: i - 1] @ middle[i - 1 : 0 : -1]
        renewals[i] = (at[i] + known - renewals[i - 1] * middle[0]) / (1 - middle[0])
        rises[i - 1] = renewals[i] - renewals[i - 1]
    area = h * (renewals.sum() - renewals[-1] / 2)
    return float(1 + 2 * area / window - window)


def equilibrium_cdf(cdf: Function) -> Function:
    """∫_0^x (1 - F) by trapezia on a grid of 20,000 points from 1e-9 to 1e7, each 0.2 % above the one before."""
    grid = np.concatenate([[0.0], np.geomspace(1e-9, 1e7, 20_000)])
    rest = 1 - cdf(grid)
    area = np.concatenate([[0.0], np.cumsum((rest[1:] + rest[:-1]) / 2 * np.diff(grid))])
    return lambda x: np.interp(x, grid, area)


def hawkes_idc(n: float, beta: float, window: float) -> float:
    """1 + 2A(1/k - (1 - e^-kw)/(k²w)), A = nβ(2 - n)/(2(1 - n)), k = β(1 - n), at any rate (Hawkes, 1971)."""
    a, k = n * beta * (2 - n) / (2 * (1 - n)), beta * (1 - n)
    return 1 + 2 * a * (1 / k - -math.expm1(-k * window) / (k**2 * window))


def hawkes_residuals(points: Floats, n: float, beta: float, start: float) -> Floats:
    """Λ(t_i) - Λ(t_i-1) of a Hawkes process of rate 1, Exp(1) if it is one; from `start` on, once what was before 0
    has no weight any more."""
    gaps = np.diff(points)
    decays = np.exp(-beta * gaps)
    excitation, found = 1.0, np.empty(gaps.size)
    for index, (gap, decay) in enumerate(zip(gaps.tolist(), decays.tolist(), strict=True)):
        found[index] = (1 - n) * gap + n * excitation * (1 - decay)
        excitation = excitation * decay + 1
    return found[points[:-1] >= start]


def exponential_cdf(x: Any) -> Any:
    """1 - e^-x."""
    return -np.expm1(-np.asarray(x))


@dataclass(frozen=True)
class Chain:
    """A chain as its generator Q and levels state it."""

    levels: tuple[float, ...]
    stays: tuple[float, ...]
    jumps: tuple[tuple[float, ...], ...]

    @cached_property
    def rates(self) -> Floats:
        rates: Floats = (np.array(self.jumps) - np.eye(len(self.levels))) / np.array(self.stays)[:, None]
        return rates

    @cached_property
    def shares(self) -> Floats:
        """Left null vector of Q, by its eigenvalues."""
        values, vectors = np.linalg.eig(self.rates.T)
        null: Floats = vectors[:, int(np.abs(values).argmin())].real
        shares: Floats = null / null.sum()
        return shares

    @cached_property
    def scaled(self) -> Floats:
        levels = np.array(self.levels)
        scaled: Floats = levels / (self.shares @ levels)
        return scaled

    def level_variance(self, window_ns: float) -> float:
        """Variance of the mean level over a window: (2/w²)∫(w - u)·Cov(u) du, Cov(u) = π L e^Qu L 1 - 1."""
        steps = np.linspace(0.0, window_ns, 401)
        values, vectors = np.linalg.eig(self.rates)
        left, right = (self.shares * self.scaled) @ vectors, np.linalg.solve(vectors, self.scaled)
        covariance = np.array([float((left * np.exp(values * u) @ right).real) for u in steps]) - 1
        return float(2 / window_ns**2 * np.trapezoid((window_ns - steps) * covariance, steps))


def even_source_variances(law: Function, windows: tuple[float, ...], step: float) -> list[float]:
    """Variance of the mean level (0 or 2) of a source that is ON and OFF by one law of mean 1, over each window.

    Its covariance is c(t) = E (-1)^N(t), N the equilibrium renewal process of all switches. From an ordinary start
    h = 1 - F - ∫h(t - u) dF(u), and c = 1 - F_e - ∫h(t - u) dF_e(u), f_e = 1 - F; by trapezia.
    """
    times = np.arange(round(max(windows) / step) + 1) * step
    rest, jumps = 1 - law(times), np.diff(law(times))
    ordinary = np.ones(times.size)
    for i in range(1, times.size):
        known = jumps[1:i] @ (ordinary[i - 2 :: -1][: i - 1] + ordinary[i - 1 : 0 : -1]) if i > 1 else 0.0
        ordinary[i] = (rest[i] - known / 2 - jumps[0] * ordinary[i - 1] / 2) / (1 + jumps[0] / 2)
    middle = np.convolve((rest[1:] + rest[:-1]) / 2, (ordinary[1:] + ordinary[:-1]) / 2)[: times.size - 1]
    begun = np.concatenate([[0.0], np.cumsum((rest[1:] + rest[:-1]) / 2 * step)])
    covariance = 1 - begun - np.concatenate([[0.0], middle * step])
    return [
        float(2 / w**2 * np.trapezoid((w - times[times <= w]) * covariance[times <= w], dx=step))
        for w in windows
    ]
