"""How many rows each request carries."""

from __future__ import annotations

import math
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from scenarios.load import ConstantRows, LognormalRows, ParetoRows, RowsConfig, UniformRows


def draw_rows(config: RowsConfig, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
    """Rows of `count` requests, (count,) int32, each in [1, max_rows(config)], drawn independently."""
    match config:
        case ConstantRows():
            return np.full(count, config.value, dtype=np.int32)
        case UniformRows():
            return rng.integers(config.low, config.high, count, dtype=np.int32, endpoint=True)
        case LognormalRows():
            return _lognormal(config, rng, count)
        case ParetoRows():
            return _bounded_pareto(config, rng, count)
        case _:
            assert_never(config)


def possible_rows(config: RowsConfig) -> range:
    """Every number of rows that one request can carry."""
    match config:
        case ConstantRows():
            return range(config.value, config.value + 1)
        case UniformRows():
            return range(config.low, config.high + 1)
        case LognormalRows():
            return range(1, config.max + 1)
        case ParetoRows():
            return range(config.min, config.max + 1)
        case _:
            assert_never(config)


def max_rows(config: RowsConfig) -> int:
    """Most rows that one request can carry."""
    return possible_rows(config)[-1]


def lognormal_parameters(mean: float, cv: float) -> tuple[float, float]:
    """(mu, sigma) of the logarithm of a lognormal of that mean and cv.

    sigma² = ln(1 + cv²) and mu = ln(mean) - sigma²/2, from the moments exp(mu + sigma²/2) and exp(sigma²) - 1.
    """
    variance = math.log1p(cv**2)
    return math.log(mean) - variance / 2, math.sqrt(variance)


def _lognormal(config: LognormalRows, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
    """Rounded to the nearest, then clipped to [1, max]: mean and cv are those before both steps."""
    draws = rng.lognormal(*lognormal_parameters(config.mean, config.cv), count)
    return np.clip(np.rint(draws), 1, config.max).astype(np.int32)


def _bounded_pareto(config: ParetoRows, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
    """Floor of a Pareto bounded to [min, max + 1), by inversion of its distribution function.

    F(x) = (1 - (L/x)^a) / (1 - (L/H)^a), so x = L · (1 - u · (1 - (L/H)^a))^(-1/a).
    """
    low, high = float(config.min), float(config.max + 1)
    cut = 1 - (low / high) ** config.alpha
    draws = low * (1 - rng.random(count) * cut) ** (-1 / config.alpha)
    rows: NDArray[np.int32] = np.clip(np.floor(draws), config.min, config.max).astype(np.int32)
    return rows
