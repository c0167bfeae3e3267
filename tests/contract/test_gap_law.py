"""What every law of gaps does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from squall.scenarios.arrivals.gaps import Gaps
from tests.contract.processes import LAWS

N = 20_000


def gaps_of(name: str, seed: int = 1) -> Gaps:
    return LAWS[name].gaps(np.random.default_rng(seed), N)


def first_gaps_of(name: str, n: int) -> Gaps:
    rng = np.random.default_rng(2)
    return np.array([LAWS[name].first_gap(rng) for _ in range(n)])


@pytest.mark.parametrize("name", LAWS)
def test_gaps_are_positive_floats_of_mean_1_and_the_same_for_a_seed(name: str) -> None:
    gaps = gaps_of(name)
    assert gaps.dtype == np.float64
    assert gaps.shape == (N,)
    assert (gaps > 0).all()
    # standard error √(c2/n); one in 10^6 misses by 5 of them
    assert gaps.mean() == pytest.approx(1.0, abs=5 * math.sqrt(LAWS[name].c2 / N))
    assert np.array_equal(gaps, gaps_of(name))
    assert not np.array_equal(gaps, gaps_of(name, seed=3))


@pytest.mark.parametrize("name", LAWS)
def test_the_first_gap_is_what_is_left_of_a_gap_met_at_random(name: str) -> None:
    """Of mean (c2 + 1)/2 (Cox, Renewal Theory, 1962, section 5.4): an ordinary first gap has mean 1."""
    n = 300
    first = first_gaps_of(name, n)
    assert (first >= 0).all()
    error = 5 * float(first.std()) / math.sqrt(n)
    assert first.mean() == pytest.approx((LAWS[name].c2 + 1) / 2, abs=error)


@pytest.mark.parametrize("name", LAWS)
def test_no_gap_is_asked_for_and_none_is_given(name: str) -> None:
    assert LAWS[name].gaps(np.random.default_rng(1), 0).shape == (0,)
