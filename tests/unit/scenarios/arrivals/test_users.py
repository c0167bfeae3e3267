"""Think times: mean and spread as stated, and the mean rest of one that is still going on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from squall.scenarios.arrivals.users import ConstantThink, ExponentialThink, LognormalThink, ThinkConfig

MS = 1_000_000

EXPONENTIAL = ExponentialThink(kind="exponential", mean="40ms")
LOGNORMAL = LognormalThink(kind="lognormal", mean="40ms", cv=1.5)
NARROW = LognormalThink(kind="lognormal", mean="40ms", cv=0.3)
CONSTANT = ConstantThink(value="40ms")


def test_a_constant_think_time_is_always_the_same_and_0_by_default() -> None:
    rng = np.random.default_rng(0)
    assert CONSTANT.draw(rng, 3).tolist() == [40 * MS] * 3
    assert ConstantThink().draw(rng, 2).tolist() == [0, 0]


@pytest.mark.parametrize("think", [EXPONENTIAL, LOGNORMAL, NARROW])
def test_the_mean_and_the_spread_are_those_stated(think: ThinkConfig) -> None:
    n = 200_000
    draws = think.draw(np.random.default_rng(1), n).astype(float)
    mean, cv = think.mean_ns, think.cv
    assert mean == 40 * MS
    # Standard error of the mean of n draws: cv · mean / sqrt(n), four of them.
    assert abs(draws.mean() - mean) < 4 * cv * mean / math.sqrt(n)
    # Of the cv: sqrt((kurtosis - 1) / 4n) relative, with 9 for the exponential and less for the narrow one;
    # the heavy lognormal (w = 1 + cv² = 3.25: w⁴ + 2w³ + 3w² - 3 = 209) has sqrt(208 / 8e5) = 1.6 %.
    assert draws.std() / draws.mean() == pytest.approx(cv, rel=4 * 0.016)
    assert draws.min() >= 0


def test_a_think_time_of_centuries_stays_an_int64() -> None:
    think = LognormalThink(kind="lognormal", mean="2000000h", cv=50.0)
    assert think.draw(np.random.default_rng(0), 10_000).min() >= 0


@pytest.mark.parametrize("think", [EXPONENTIAL, LOGNORMAL, NARROW, CONSTANT])
@pytest.mark.parametrize("elapsed_ns", [0, 10 * MS, 30 * MS, 60 * MS])
def test_the_mean_rest_is_that_of_the_draws_that_lasted_so_long(think: ThinkConfig, elapsed_ns: int) -> None:
    draws = think.draw(np.random.default_rng(2), 400_000).astype(float)
    rest = draws[draws > elapsed_ns] - elapsed_ns
    (found,) = think.mean_excess_ns(np.array([elapsed_ns]))
    if not len(rest):
        assert found == 0
        return
    assert abs(found - rest.mean()) <= 4.5 * rest.std() / math.sqrt(len(rest)) + 1  # 1 ns of rounding


def test_a_think_time_longer_than_any_that_can_be_has_no_rest() -> None:
    assert NARROW.mean_excess_ns(np.array([10**15])).tolist() == [0.0]
