"""What differences of pairs show, held to scipy, to tables and to brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from squall.analysis.arrays import Floats
from squall.analysis.compare.change import (
    differences,
    n_more_pairs,
    shown_by,
    walsh_interval,
    wilcoxon_p,
)
from squall.analysis.compare.corrections import looks_after, nominal_level
from squall.analysis.statistics.holm import holm
from squall.scenarios.errors import ScenarioError
from tests.known import known

MARGIN = math.log(1.03)
SAMPLES = st.lists(
    st.tuples(st.integers(1, 1_000), st.sampled_from((-1, 1))),
    min_size=6,
    max_size=12,
    unique_by=lambda one: one[0],
).map(lambda signed: np.array([size * sign / 1_000 for size, sign in signed]))
"""Without ties and zeros."""


@given(SAMPLES)
def test_interval_and_p_values_are_those_of_scipy_and_infinite_is_the_largest_rank(d: Floats) -> None:
    found, student = shown_by(d, MARGIN, 0.05), stats.ttest_1samp(d, 0.0)
    low, high = student.confidence_interval(0.95)
    expected = (low, high, student.pvalue, stats.wilcoxon(d).pvalue)
    assert (found.low, found.high, found.p_value, found.wilcoxon_p) == pytest.approx(expected, rel=1e-9)
    upper = stats.ttest_1samp(d, MARGIN, alternative="less").pvalue
    lower = stats.ttest_1samp(d, -MARGIN, alternative="greater").pvalue
    assert found.is_within == (max(upper, lower) < 0.05)
    largest = np.abs(d) == np.abs(d).max()
    assert wilcoxon_p(np.where(largest, np.copysign(np.inf, d), d)) == pytest.approx(found.wilcoxon_p)


def test_too_few_pairs_have_no_second_opinion() -> None:
    assert wilcoxon_p(np.arange(1.0, 6.0)) is None
    assert wilcoxon_p(np.arange(1.0, 7.0)) == pytest.approx(2 / 2**6)


@pytest.mark.parametrize("n", [6, 8, 10])
def test_ends_of_the_ranked_interval_are_those_that_the_test_does_not_reject(n: int) -> None:
    d = np.random.default_rng(n).normal(0.3, 1.0, n)
    _, low, high = walsh_interval(d, 0.05)
    shifts = (low - 1e-6, low + 1e-6, high - 1e-6, high + 1e-6)
    assert [known(wilcoxon_p(d - one)) <= 0.05 for one in shifts] == [True, False, False, True]


def test_a_pair_that_became_infinite_is_never_dropped_and_no_difference_is_exact() -> None:
    def shown(a: list[float], b: list[float], has_infinite: bool = False) -> tuple[object, ...]:
        found = shown_by(differences(a, b), MARGIN, 0.05, has_infinite)
        return found.p_value, found.high, found.is_within

    assert shown([10.0] * 8, [10.1] * 7 + [math.inf], True) == (pytest.approx(2 / 2**8), math.inf, False)
    assert shown([math.inf] * 8, [math.inf] * 8, True) == (1.0, 0.0, False)
    assert shown([1.0] * 4, [1.0] * 4) == (1.0, 0.0, True)
    assert shown([1.0] * 4, [2.0] * 4) == (0.0, pytest.approx(math.log(2)), False)


def test_that_many_more_pairs_decide_and_one_fewer_does_not() -> None:
    shown = shown_by(np.array([0.01, -0.05, 0.06, -0.02, 0.05]), MARGIN, 0.05)
    n = 5 + known(n_more_pairs(shown, MARGIN, 0.05, 4))
    reach = [
        abs(shown.centre) + stats.t.ppf(0.95, one - 1) * shown.spread / math.sqrt(one) for one in (n, n - 1)
    ]
    assert reach[0] < MARGIN <= reach[1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_rejects_what_closed_testing_by_bonferroni_does(p_values: list[float]) -> None:
    """A hypothesis is rejected exactly if every intersection with it is, each by its smallest p times its number."""
    places = range(len(p_values))
    families = [one for n in places for one in itertools.combinations(places, n + 1)]
    p_of = {family: min(1.0, len(family) * min(p_values[one] for one in family)) for family in families}
    closed = [max(p for family, p in p_of.items() if place in family) for place in places]
    assert holm(p_values) == pytest.approx(closed)


def test_looks_at_pococks_levels_keep_five_percent() -> None:
    """Sums of normal steps, 40,000 sequences: within 4 standard errors, 0.11 % each, of 5 %."""
    rng = np.random.default_rng(5)
    for n_looks in range(1, 6):
        z = rng.standard_normal((40_000, n_looks)).cumsum(axis=1) / np.sqrt(np.arange(1, n_looks + 1))
        bound = stats.norm.isf(nominal_level(n_looks) / 2)
        assert (np.abs(z).max(axis=1) > bound).mean() == pytest.approx(0.05, abs=4 * 0.0011)


def test_looks_end_with_all_pairs_and_never_at_one() -> None:
    assert [looks_after(8, n) for n in (1, 2, 5)] == [[8], [4, 8], [2, 4, 5, 7, 8]]
    for n_pairs, n_looks in ((3, 3), (8, 0), (8, 6)):
        with pytest.raises(ScenarioError, match="--looks"):
            looks_after(n_pairs, n_looks)
