"""Row counts: within their bounds, and of the law asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scenarios.load import ConstantRows, LognormalRows, ParetoRows, RowsConfig, UniformRows
from scenarios.mix import draw_rows, max_rows

N = 100_000
SIGMAS = 4.0

CONFIGS: list[RowsConfig] = [
    ConstantRows(value=3),
    UniformRows(kind="uniform", low=2, high=5),
    LognormalRows(kind="lognormal", mean=2, cv=1, max=16),
    ParetoRows(kind="pareto", alpha=1.3, min=2, max=64),
]


def draw(config: RowsConfig, count: int = N) -> np.ndarray:
    return draw_rows(config, np.random.default_rng(7), count)


@pytest.mark.parametrize("config", CONFIGS)
def test_rows_are_int32_from_1_to_the_most_rows(config: RowsConfig) -> None:
    rows = draw(config)
    assert rows.dtype == np.int32
    assert rows.shape == (N,)
    assert rows.min() >= 1
    assert rows.max() == max_rows(config)
    assert draw(config, 0).size == 0


def test_constant_rows_are_all_the_same() -> None:
    assert np.unique(draw(CONFIGS[0])).tolist() == [3]


def test_uniform_rows_include_both_ends_equally_often() -> None:
    counts = np.bincount(draw(CONFIGS[1]))[2:]
    # binomial: standard error sqrt(n p (1-p)) with p = 1/4
    assert np.abs(counts - N / 4).max() < SIGMAS * math.sqrt(N * 0.25 * 0.75)


def test_lognormal_rows_have_the_mean_and_cv_asked_for() -> None:
    rows = draw(LognormalRows(kind="lognormal", mean=200, cv=0.5, max=100_000))
    # rounding adds 1/12 to a variance of 10,000 and clipping at 500 sigma nothing
    assert abs(rows.mean() - 200) < SIGMAS * 100 / math.sqrt(N)
    # skewness 3cv + cv^3 = 1.6 and excess kurtosis 16cv^2 + 15cv^4 + 6cv^6 + cv^8 = 5.0: the delta
    # method as in test_processes gives a relative variance of cv of (5.0 + 2 + 4cv^2 - 4·1.6·cv)/(4n)
    relative_error = math.sqrt((5.0 + 2 + 1 - 3.2) / (4 * N))
    assert rows.std(ddof=1) / rows.mean() == pytest.approx(0.5, rel=SIGMAS * relative_error)


def test_pareto_rows_have_the_tail_of_their_index() -> None:
    rows = draw(CONFIGS[3])
    low, high, alpha = 2.0, 65.0, 1.3
    for at_least in (3, 8, 32):
        p = ((low / at_least) ** alpha - (low / high) ** alpha) / (1 - (low / high) ** alpha)
        assert abs((rows >= at_least).mean() - p) < SIGMAS * math.sqrt(p * (1 - p) / N)
