"""What differences of pairs show, held to scipy, to tables and to brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from squall.analysis.compare.pairs.change import (
    differences,
    n_more_pairs,
    shown_by,
    walsh_interval,
    wilcoxon_p,
)
from squall.analysis.compare.pairs.corrections import NOMINAL, looks_after, nominal_level
from squall.analysis.statistics.holm import holm
from squall.scenarios.errors import ScenarioError

MARGIN = math.log(1.03)
SAMPLES = st.lists(
    st.tuples(st.integers(1, 1_000), st.sampled_from((-1, 1))),
    min_size=6,
    max_size=12,
    unique_by=lambda one: one[0],
).map(lambda signed: [size * sign / 1_000 for size, sign in signed])
"""Without ties and zeros."""


@given(SAMPLES)
def test_interval_and_p_value_are_those_of_scipy(values: list[float]) -> None:
    d = np.array(values)
    found, known = shown_by(d, MARGIN, 0.05), stats.ttest_1samp(d, 0.0)
    low, high = known.confidence_interval(0.95)
    assert (found.low, found.high, found.p_value) == pytest.approx((low, high, known.pvalue), rel=1e-9)
    upper = stats.ttest_1samp(d, MARGIN, alternative="less").pvalue
    lower = stats.ttest_1samp(d, -MARGIN, alternative="greater").pvalue
    assert found.is_within == (max(upper, lower) < 0.05)


@given(SAMPLES)
def test_wilcoxon_is_that_of_scipy_and_infinite_is_the_largest(values: list[float]) -> None:
    d = np.array(values)
    assert wilcoxon_p(d) == pytest.approx(stats.wilcoxon(d).pvalue)
    largest = int(np.argmax(np.abs(d)))
    infinite = d.copy()
    infinite[largest] = math.copysign(math.inf, d[largest])
    assert wilcoxon_p(infinite) == pytest.approx(wilcoxon_p(d))


def test_too_few_pairs_have_no_second_opinion() -> None:
    assert wilcoxon_p(np.arange(1.0, 6.0)) is None
    assert wilcoxon_p(np.arange(1.0, 7.0)) == pytest.approx(2 / 2**6)


@pytest.mark.parametrize("n", [6, 8, 10])
def test_ends_of_the_ranked_interval_are_those_that_the_test_does_not_reject(n: int) -> None:
    d = np.random.default_rng(n).normal(0.3, 1.0, n)
    _, low, high = walsh_interval(d, 0.05)
    for shift, is_rejected in (
        (low - 1e-6, True),
        (low + 1e-6, False),
        (high - 1e-6, False),
        (high + 1e-6, True),
    ):
        p = wilcoxon_p(d - shift)
        assert p is not None
        assert (p <= 0.05) == is_rejected


def test_a_pair_that_became_infinite_is_never_dropped() -> None:
    a, b = [10.0] * 8, [10.1] * 7 + [math.inf]
    found = shown_by(differences(a, b), MARGIN, 0.05, has_infinite=True)
    assert (found.high, found.is_within) == (math.inf, False)
    assert found.p_value == pytest.approx(2 / 2**8)
    both = shown_by(differences([math.inf] * 8, [math.inf] * 8), MARGIN, 0.05, has_infinite=True)
    assert (both.p_value, both.is_within) == (1.0, False)


def test_alike_to_the_last_bit_is_within_and_apart_by_a_constant_is_not_chance() -> None:
    same, other = shown_by(np.zeros(4), MARGIN, 0.05), shown_by(np.full(4, 0.5), MARGIN, 0.05)
    assert (same.p_value, same.is_within, other.p_value, other.is_within) == (1.0, True, 0.0, False)


def test_that_many_more_pairs_decide_and_one_fewer_does_not() -> None:
    shown = shown_by(np.array([0.01, -0.05, 0.06, -0.02, 0.05]), MARGIN, 0.05)
    more = n_more_pairs(shown, MARGIN, 0.05, 4)
    assert more is not None

    def is_within(n: int) -> bool:
        half = stats.t.ppf(0.95, n - 1) * shown.spread / math.sqrt(n)
        return bool(abs(shown.centre) + half < MARGIN)

    assert (is_within(5 + more), is_within(4 + more)) == (True, False)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.001, 0.2))
def test_holm_rejects_what_closed_testing_by_bonferroni_does(p_values: list[float], level: float) -> None:
    """A hypothesis is rejected exactly if every intersection with it is, each by its smallest p times its number."""
    places = range(len(p_values))
    for place, corrected in enumerate(holm(p_values)):
        families = (
            family
            for size in range(1, len(p_values) + 1)
            for family in itertools.combinations(places, size)
            if place in family
        )
        closed = max(min(1.0, len(family) * min(p_values[one] for one in family)) for family in families)
        assert corrected == pytest.approx(closed)
        assert (corrected <= level) == (closed <= level)


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
    assert len(NOMINAL) == 5
