"""Renewal processes by maximum likelihood on the gaps, and the two that have no shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from squall.analysis.arrays import Floats
from squall.analysis.fitting.fitted import Excerpt, Fitted, Parameter, rate_text, rounded
from squall.analysis.fitting.maximum import maximise
from squall.scenarios.arrivals.stationary import LARGEST_GAMMA_C2, SMALLEST_LOMAX_ALPHA
from squall.scenarios.exact.renewals import LARGEST_C2, SMALLEST_WEIBULL_SHAPE

LogDensity = Callable[[Floats, Floats, float], float]
"""Σ ln f of gaps x and their logarithms under a law of mean 1 with that shape."""


@dataclass(frozen=True)
class GapFamily:
    """A law of mean 1 with one shape; `transform` takes a free coordinate to the shape, `slope` is its derivative."""

    name: str
    shape: str
    log_density: LogDensity
    transform: Callable[[float], float]
    slope: Callable[[float], float]
    bounds: tuple[float, float]
    starts: tuple[float, ...]


def _gamma(x: Floats, log_x: Floats, cv: float) -> float:
    k = cv**-2
    return (
        x.size * (k * math.log(k) - float(special.gammaln(k)))
        + (k - 1) * float(log_x.sum())
        - k * float(x.sum())
    )


def _weibull(x: Floats, log_x: Floats, shape: float) -> float:
    log_scaled = log_x + math.lgamma(1 + 1 / shape)
    powers = float(np.exp(shape * log_scaled).sum())
    return x.size * math.log(shape) + shape * float(log_scaled.sum()) - float(log_x.sum()) - powers


def _lognormal(x: Floats, log_x: Floats, cv: float) -> float:
    variance = math.log1p(cv**2)
    squares = float(np.square(log_x + variance / 2).sum())
    return -x.size / 2 * math.log(2 * math.pi * variance) - float(log_x.sum()) - squares / (2 * variance)


def _lomax(x: Floats, log_x: Floats, alpha: float) -> float:
    del log_x
    return x.size * math.log(alpha / (alpha - 1)) - (alpha + 1) * float(np.log1p(x / (alpha - 1)).sum())


def _hyperexponential(x: Floats, log_x: Floats, cv: float) -> float:
    del log_x
    p = (1 + math.sqrt((cv**2 - 1) / (cv**2 + 1))) / 2
    short, long = 2 * p, 2 * (1 - p)
    both = np.logaddexp(math.log(p * short) - short * x, math.log((1 - p) * long) - long * x)
    return float(both.sum())


def _one_more(x: float) -> float:
    return math.sqrt(1 + math.exp(x))


FAMILIES = (
    GapFamily(
        "gamma",
        "cv",
        _gamma,
        math.exp,
        math.exp,
        (math.log(0.02), math.log(LARGEST_GAMMA_C2) / 2),
        (-1.0, 0.0, 0.7),
    ),
    GapFamily(
        "weibull",
        "shape",
        _weibull,
        math.exp,
        math.exp,
        (math.log(SMALLEST_WEIBULL_SHAPE), math.log(50)),
        (-0.7, 0.0, 1.0),
    ),
    GapFamily(
        "lognormal",
        "cv",
        _lognormal,
        math.exp,
        math.exp,
        (math.log(0.02), math.log(LARGEST_C2) / 2),
        (-1.0, 0.3, 1.5),
    ),
    GapFamily(
        "pareto",
        "alpha",
        _lomax,
        lambda x: 1 + math.exp(x),
        math.exp,
        (math.log(SMALLEST_LOMAX_ALPHA - 1) + 1e-9, math.log(500)),
        (-1.0, 1.0, 3.0),
    ),
    GapFamily(
        "hyperexponential",
        "cv",
        _hyperexponential,
        _one_more,
        lambda x: math.exp(x) / (2 * _one_more(x)),
        (math.log(1e-4), math.log(LARGEST_C2 - 1)),
        (-2.0, 0.0, 2.0),
    ),
)


def fit_poisson(excerpts: Sequence[Excerpt], rate_hz: float) -> Fitted:
    """n/span, the estimate of greatest likelihood e^(-rate·span) rate^n; standard error √n/span."""
    count, span = _total(excerpts)
    rate = count / span
    return Fitted(
        "poisson",
        (Parameter("rate", rate, math.sqrt(count) / span, "1/s"),),
        1,
        {"kind": "poisson", "rate": rate_text(rate_hz)},
        count * math.log(rate) - count,
        count,
    )


def constant_of(rate_hz: float) -> Fitted:
    """One arrival every 1/rate. It has no likelihood."""
    scenario = {"kind": "constant", "rate": rate_text(rate_hz)}
    return Fitted("constant", (Parameter("rate", rate_hz, None, "1/s"),), 1, scenario)


def fit_renewal(family: GapFamily, excerpts: Sequence[Excerpt], rate_hz: float) -> Fitted:
    """Rate and shape. The gap to the first and that from the last point of a excerpt do not count.

    `rate_hz` is that of the whole trace. Coordinates are ln of the rate over that of the gaps, and the family's own.
    """
    gaps = np.concatenate([np.diff(excerpt.points) for excerpt in excerpts])
    seen = 1 / float(gaps.mean())
    x, log_x = gaps * seen, np.log(gaps * seen)

    def value(at: Floats) -> float:
        scale = math.exp(at[0])
        found = family.log_density(x * scale, log_x + at[0], family.transform(at[1]))
        return found + x.size * (float(at[0]) + math.log(seen))

    starts = [np.array([0.0, start]) for start in family.starts]
    found = maximise(value, starts, [(-3.0, 3.0), family.bounds], x.size)
    rate, shape = seen * math.exp(found.at[0]), family.transform(found.at[1])
    return Fitted(
        family.name,
        (
            Parameter("rate", rate, found.stderr((rate, 0)), "1/s"),
            Parameter(family.shape, shape, found.stderr((0, family.slope(found.at[1])))),
        ),
        2,
        {"kind": family.name, "rate": rate_text(rate_hz), family.shape: rounded(shape)},
        found.likelihood,
        x.size,
        found.failure,
    )


def fit_unit_gamma(excerpts: Sequence[Excerpt]) -> tuple[tuple[Parameter], float, str]:
    """cv of gamma gaps of mean 1, their log-likelihood, and `Maximum.failure`."""
    gaps = np.concatenate([np.diff(excerpt.points) for excerpt in excerpts])
    log_gaps = np.log(gaps)
    family = FAMILIES[0]
    starts = [np.array([start]) for start in family.starts]
    found = maximise(lambda at: _gamma(gaps, log_gaps, math.exp(at[0])), starts, [family.bounds], gaps.size)
    cv = math.exp(found.at[0])
    return (Parameter("cv", cv, found.stderr((cv,))),), found.value, found.failure


def _total(excerpts: Sequence[Excerpt]) -> tuple[int, float]:
    return sum(s.points.size for s in excerpts), sum(s.length for s in excerpts)
