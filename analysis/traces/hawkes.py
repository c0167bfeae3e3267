"""Hawkes process of an exponential kernel by maximum likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np

from squall.analysis.arrays import Floats
from squall.analysis.traces.fitted import LOG, LOGIT, Coordinate, Excerpt, Fitted, Parameter
from squall.analysis.traces.maximum import Maximum, maximise
from squall.scenarios.arrivals.stationary import LARGEST_HAWKES_N

LEAST_N = 1e-4
LEAST_BETA, LARGEST_BETA = 1e-3, 1e3  # per expected arrival
_START_BETAS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_START_NS = (0.2, 0.7)
_NEGLIGIBLE = 1e-17


def excitations(gaps: Floats, beta: float, before: float) -> Floats:
    """X just before each point, X(t) = Σ_(t_j < t) e^(-beta (t - t_j)) + before·e^(-beta t); (n,) for gaps (n,).

    `gaps[0]` runs from 0 to the first point. X_i = a_i (1 + X_(i-1)), a_i = e^(-beta gap_i) (Ozaki, Ann. Inst. Stat.
    Math. 31, 1979), as a scan by doubling: after step k each entry holds the sum over the 2^k points before it, and
    the steps end where a product of 2^k factors a is below 1e-17.
    """
    factors = np.exp(-beta * gaps)
    sums = factors.copy()
    sums[:1] *= before
    step = 1
    while step < gaps.size and factors.max() > _NEGLIGIBLE:
        sums[step:] += factors[step:] * sums[:-step]
        factors[step:] *= factors[:-step].copy()
        factors[:step] = 0.0
        step *= 2
    return sums


def log_likelihood(excerpts: Sequence[Excerpt], rate: float, n: float, beta: float) -> float:
    """Σ ln λ(t_i) - ∫λ, λ(t) = rate (1 - n) + n·beta·X(t) (Daley, Vere-Jones, 2003, Proposition 7.2.III).

    X at the start of a excerpt is not known and is taken at its stationary mean rate/beta.
    """
    before = rate / beta
    total = 0.0
    for excerpt in excerpts:
        points, length = excerpt.points, excerpt.length
        rates = excitations(np.diff(points, prepend=0.0), beta, before)
        rates *= n * beta
        rates += rate * (1 - n)
        faded = float(np.exp(-beta * (length - points)).sum())
        offspring = points.size - faded + before * -math.expm1(-beta * length)
        total += float(np.log(rates).sum()) - rate * (1 - n) * length - n * offspring
    return total


def fit_hawkes(excerpts: Sequence[Excerpt], rate_hz: float) -> Fitted:
    """n and beta (1/s), of points in seconds, given the rate seen. `rate_hz` is that of the whole trace.

    The rate is not free: on a rate that drifts the likelihood grows towards n = 1 with a rate far from the one seen.
    Its standard error is that of a mean count, √(IDC(∞)·count)/span with IDC(∞) = 1/(1 - n)².
    """
    seen = sum(s.points.size for s in excerpts) / sum(s.length for s in excerpts)
    found = _maximum(excerpts, seen, "1/s")
    n = found.parameters[0].value
    rate = Parameter("rate", seen, math.sqrt(found.n) / (1 - n) / found.n * seen, "1/s")
    return found.fitted("hawkes", rate_hz, rate)


def fit_unit_hawkes(excerpts: Sequence[Excerpt], start: tuple[float, ...] = ()) -> Maximum:
    """n and beta, per expected arrival, of points of rate 1. `start`: where these are nearly, where that is known."""
    return _maximum(excerpts, 1.0, "per arrival", [start] if start else ())


def coordinates(rate: float, unit: str) -> tuple[Coordinate, Coordinate]:
    """n and beta of a process of that rate."""
    return (
        Coordinate("n", LOGIT, LEAST_N, LARGEST_HAWKES_N),
        Coordinate("beta", LOG, LEAST_BETA, LARGEST_BETA, unit, rate),
    )


def _maximum(
    excerpts: Sequence[Excerpt], rate: float, unit: str, starts: Sequence[tuple[float, ...]] = ()
) -> Maximum:
    plain = [(n, rate * beta) for n, beta in product(_START_NS, _START_BETAS)]
    n_arrivals = sum(s.points.size for s in excerpts)
    likelihood = partial(log_likelihood, excerpts, rate)
    return maximise(likelihood, coordinates(rate, unit), starts or plain, n_arrivals, n_tried=2)
