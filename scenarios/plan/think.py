"""How long the users of a closed loop think between a reply and their next request."""

from __future__ import annotations

import math
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.config.arrivals import ConstantThink, ExponentialThink, LognormalThink, ThinkConfig
from squall.scenarios.exact import draws
from squall.scenarios.plan.mix import lognormal_parameters

_LONGEST_NS = 2**62


def mean_think_ns(config: ThinkConfig) -> int:
    """Mean of the think time."""
    return config.value_ns if isinstance(config, ConstantThink) else config.mean_ns


def think_cv(config: ThinkConfig) -> float:
    """Coefficient of variation of the think time."""
    match config:
        case ConstantThink():
            return 0.0
        case ExponentialThink():
            return 1.0
        case LognormalThink():
            return config.cv
        case _:
            assert_never(config)


def draw_think_ns(config: ThinkConfig, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """`count` think times, (count,) int64, drawn independently and rounded to the nearest ns."""
    match config:
        case ConstantThink():
            return np.full(count, config.value_ns, dtype=np.int64)
        case ExponentialThink():
            found = draws.standard_exponential(rng, count) * config.mean_ns
        case LognormalThink():
            found = draws.lognormal(rng, *lognormal_parameters(config.mean_ns, config.cv), count)
        case _:
            assert_never(config)
    return np.minimum(np.rint(found), _LONGEST_NS).astype(np.int64)


def mean_excess_ns(config: ThinkConfig, elapsed_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean rest of a think time that has lasted `elapsed_ns` (0 or more) so far, same shape.

    Constant: value - e. Exponential: the mean, without memory. Lognormal: E[T | T > e] - e = mean · Φ(d + sigma)
    / Φ(d) - e with d = (mu - ln e) / sigma (partial expectation of the lognormal, by completing the square).
    """
    elapsed = np.asarray(elapsed_ns, dtype=np.float64)
    match config:
        case ConstantThink():
            return np.maximum(config.value_ns - elapsed, 0.0)
        case ExponentialThink():
            return np.full(elapsed.shape, float(config.mean_ns))
        case LognormalThink():
            mu, sigma = lognormal_parameters(config.mean_ns, config.cv)
            return np.array([_lognormal_excess(config.mean_ns, mu, sigma, e) for e in elapsed.tolist()])
        case _:
            assert_never(config)


def _lognormal_excess(mean_ns: float, mu: float, sigma: float, elapsed: float) -> float:
    if elapsed <= 0:
        return mean_ns
    d = (mu - math.log(elapsed)) / sigma
    beyond = _normal_cdf(d)
    # 8 sigma out nothing is left of the probability: the rest is taken as 0, it is of no think time seen
    return max(mean_ns * _normal_cdf(d + sigma) / beyond - elapsed, 0.0) if beyond > 1e-15 else 0.0


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2
