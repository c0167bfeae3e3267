"""Renewal processes by maximum likelihood on the gaps, and the two that have no shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from squall.analysis.arrays import Floats
from squall.analysis.traces.fitted import (
    ABOVE_1,
    LOG,
    Coordinate,
    Excerpt,
    Fitted,
    Parameter,
    Transform,
    scenario_of,
)
from squall.analysis.traces.maximum import Maximum, maximise
from squall.scenarios.arrivals.stationary import LARGEST_GAMMA_C2, SMALLEST_LOMAX_ALPHA
from squall.scenarios.exact.renewals import LARGEST_C2, SMALLEST_WEIBULL_SHAPE
from squall.scenarios.records import Frozen

_E = math.e
_LOG_C2_LESS_1 = Transform(
    lambda x: math.sqrt(1 + math.exp(x)),
    lambda cv: math.log(cv**2 - 1),
    lambda x: math.exp(x) / (2 * math.sqrt(1 + math.exp(x))),
)


class GapFamily(Frozen):
    """A law of gaps of mean 1 with one shape, and shapes to begin the search at. `log_density`: Σ ln f of gaps x and
    their logarithms, by sums of both where the law allows it: a search asks for it some hundred times."""

    name: str
    shape: Coordinate
    log_density: Callable[[Floats, Floats, float], float]
    starts: tuple[float, ...]


def _gamma(x: Floats, log_x: Floats, cv: float) -> float:
    k = cv**-2
    constant = k * math.log(k) - float(special.gammaln(k))
    return x.size * constant + (k - 1) * float(log_x.sum()) - k * float(x.sum())


def _weibull(x: Floats, log_x: Floats, shape: float) -> float:
    log_scaled = log_x + math.lgamma(1 + 1 / shape)
    powers = float(np.exp(shape * log_scaled).sum())
    return x.size * math.log(shape) + shape * float(log_scaled.sum()) - float(log_x.sum()) - powers


def _lognormal(x: Floats, log_x: Floats, cv: float) -> float:
    variance = math.log1p(cv**2)
    squares = float(np.square(log_x + variance / 2).sum())
    return -x.size / 2 * math.log(2 * math.pi * variance) - float(log_x.sum()) - squares / (2 * variance)


def _lomax(x: Floats, _: Floats, alpha: float) -> float:
    return x.size * math.log(alpha / (alpha - 1)) - (alpha + 1) * float(np.log1p(x / (alpha - 1)).sum())


def _hyperexponential(x: Floats, _: Floats, cv: float) -> float:
    p = (1 + math.sqrt((cv**2 - 1) / (cv**2 + 1))) / 2
    short, long = 2 * p, 2 * (1 - p)
    both = np.logaddexp(math.log(p * short) - short * x, math.log((1 - p) * long) - long * x)
    return float(both.sum())


FAMILIES = (
    GapFamily("gamma", Coordinate("cv", LOG, 0.02, math.sqrt(LARGEST_GAMMA_C2)), _gamma, (1 / _E, 1.0, 2.0)),
    GapFamily("weibull", Coordinate("shape", LOG, SMALLEST_WEIBULL_SHAPE, 50.0), _weibull, (0.5, 1.0, _E)),
    GapFamily(
        "lognormal", Coordinate("cv", LOG, 0.02, math.sqrt(LARGEST_C2)), _lognormal, (1 / _E, 1.35, 4.5)
    ),
    GapFamily(
        "pareto",
        Coordinate("alpha", ABOVE_1, SMALLEST_LOMAX_ALPHA + 1e-9, 501.0),
        _lomax,
        (1.37, 1 + _E, 21.0),
    ),
    GapFamily(
        "hyperexponential",
        Coordinate("cv", _LOG_C2_LESS_1, math.sqrt(1.0001), math.sqrt(LARGEST_C2)),
        _hyperexponential,
        (1.07, math.sqrt(2), 2.9),
    ),
)


def fit_poisson(excerpts: Sequence[Excerpt], rate_hz: float) -> Fitted:
    """n/span, the estimate of greatest likelihood e^(-rate·span) rate^n; standard error √n/span."""
    count, span = sum(one.points.size for one in excerpts), sum(one.length for one in excerpts)
    rate = Parameter("rate", count / span, math.sqrt(count) / span, "1/s")
    log_likelihood = count * math.log(rate.value) - count
    return Fitted("poisson", (rate,), 1, scenario_of("poisson", rate_hz, ()), log_likelihood, count)


def constant_of(rate_hz: float) -> Fitted:
    """One arrival every 1/rate. It has no likelihood."""
    rate = Parameter("rate", rate_hz, None, "1/s")
    return Fitted("constant", (rate,), 1, scenario_of("constant", rate_hz, ()))


def fit_renewal(family: GapFamily, excerpts: Sequence[Excerpt], rate_hz: float) -> Fitted:
    """Rate and shape. The gap to the first and that from the last point of a excerpt do not count.

    `rate_hz` is that of the whole trace. The rate is sought as a multiple of that of the gaps.
    """
    gaps = _gaps(excerpts)
    seen = 1 / float(gaps.mean())
    log_gaps = np.log(gaps)

    def value(rate: float, shape: float) -> float:
        log_rate = math.log(rate)
        return family.log_density(gaps * rate, log_gaps + log_rate, shape) + gaps.size * log_rate

    rate = Coordinate("rate", LOG, _E**-3, _E**3, "1/s", seen)
    starts = [(seen, start) for start in family.starts]
    return maximise(value, (rate, family.shape), starts, gaps.size).fitted(family.name, rate_hz)


def fit_unit_gamma(excerpts: Sequence[Excerpt]) -> Maximum:
    """cv of gamma gaps of mean 1."""
    gaps = _gaps(excerpts)
    log_gaps = np.log(gaps)
    family = FAMILIES[0]
    starts = [(start,) for start in family.starts]
    return maximise(lambda cv: _gamma(gaps, log_gaps, cv), (family.shape,), starts, gaps.size)


def _gaps(excerpts: Sequence[Excerpt]) -> Floats:
    return np.concatenate([np.diff(excerpt.points) for excerpt in excerpts])
