from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.statistics.autocorrelation import deviations, integrated_time
from squall.analysis.statistics.latency import LEAST_TIMES, pooled_quantile, quantiles
from squall.analysis.statistics.order_statistics import (
    binomial_quantile,
    interval_ranks,
    nearest_rank,
    smallest_n,
)
from squall.analysis.statistics.stretches import Rows, run_lengths
from squall.scenarios.errors import AnalysisError
from tests.many_examples import examples

ROWS = st.lists(st.tuples(st.integers(-(10**12), 10**15), st.booleans()), min_size=1, max_size=150)


@given(rows=ROWS, percent=st.integers(1, 99))
def test_a_quantile_is_the_smallest_value_that_enough_rows_do_not_exceed(
    rows: list[tuple[int, bool]], percent: int
) -> None:
    q = percent / 100
    values = np.array([value for value, _ in rows])
    is_failed = np.array([failed for _, failed in rows])
    (found,) = quantiles(values, [q], is_failed)
    everything = sorted([math.inf if failed else value for value, failed in rows])
    expected = next(
        x for x in everything if Fraction(percent, 100) * len(rows) <= sum(y <= x for y in everything)
    )
    if len(rows) < smallest_n(q):
        assert found.is_refused
        assert found.value_ns is None
    else:
        assert found.is_infinite == (expected == math.inf)
        assert found.value_ns == (None if found.is_infinite else expected)
    assert (found.n, found.n_failed) == (len(rows), int(is_failed.sum()))


@given(values=st.lists(st.integers(0, 10**9), min_size=72, max_size=300))
@examples(40)
def test_without_failures_it_is_numpys_inverted_cdf(values: list[int]) -> None:
    found = quantiles(np.array(values), [0.5, 0.9, 0.95])
    expected = np.quantile(values, [0.5, 0.9, 0.95], method="inverted_cdf")
    assert [one.value_ns for one in found] == expected.tolist()


def test_the_rank_takes_q_as_the_decimal_that_was_written() -> None:
    assert [nearest_rank(0.95, n) for n in (20, 100, 1000)] == [19, 95, 950]
    assert nearest_rank(0.07, 100) == 7  # 0.07 * 100 is 7.000000000000001 in floats
    assert nearest_rank(0.001, 5) == 1


def test_the_fewest_rows_for_a_two_sided_interval_are_the_published_ones() -> None:
    assert [smallest_n(q) for q in (0.95, 0.99, 0.999)] == [72, 368, 3688]
    assert smallest_n(0.05) == smallest_n(0.95)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_smallest_n_is_the_first_n_that_has_both_ends(q: float) -> None:
    n = smallest_n(q)
    assert None not in interval_ranks(q, n, n)
    assert None in interval_ranks(q, n - 1, n - 1)


def test_interval_ranks_of_independent_rows_are_the_tables() -> None:
    assert interval_ranks(0.95, 1_000, 1_000) == (936, 964)
    assert interval_ranks(0.95, 10_000, 10_000) == (9457, 9543)
    assert interval_ranks(0.99, 5_000, 5_000) == (4936, 4964)
    assert interval_ranks(0.99, 100_000, 100_000) == (98938, 99062)
    assert interval_ranks(0.999, 10_000, 10_000) == (9983, 9997)


@given(n=st.integers(1, 300), percent=st.integers(1, 99), probability=st.sampled_from([0.025, 0.5, 0.975]))
def test_binomial_quantile_is_that_of_exact_fractions(n: int, percent: int, probability: float) -> None:
    p = Fraction(percent, 100)
    cumulative, k = Fraction(0), 0
    for k in range(n + 1):
        cumulative += math.comb(n, k) * p**k * (1 - p) ** (n - k)
        if cumulative >= Fraction(probability):
            break
    if abs(float(cumulative) - probability) > 1e-12:  # a tie is decided by the last bit of a float
        assert binomial_quantile(probability, n, float(p)) == k


def test_binomial_quantile_of_a_hundred_million_trials_is_within_two_of_the_normal_limit() -> None:
    n, p = 10**8, 0.99
    limit = n * p - 1.959964 * math.sqrt(n * p * (1 - p))
    assert abs(binomial_quantile(0.025, n, p) - limit) <= 2


def chained(rng: np.random.Generator, n: int, stay: float) -> np.ndarray:
    """(n,) values, exponential with mean 1e6; each is the one before with probability `stay`."""
    is_new = rng.uniform(size=n) >= stay
    is_new[0] = True
    return np.asarray((1e6 * rng.exponential(size=n))[is_new][np.cumsum(is_new) - 1], np.int64)


def test_rows_that_repeat_one_another_count_for_fewer() -> None:
    # Autocorrelation of any function of the value at lag k is stay^k: tau = (1 + stay) / (1 - stay).
    for stay, tau in ((0.0, 1.0), (0.9, 19.0)):
        found = quantiles(chained(np.random.default_rng(2), 200_000, stay), [0.5, 0.95])
        # The largest of up to five estimates of it: 4 to 5 % each (Geyer 1992: sqrt(2 (2 K + 1) / n), K about 100).
        for one in found:
            assert tau <= one.tau_count * 1.05
            assert one.tau_count < tau * 1.25
            assert one.n_eff == pytest.approx(one.n / one.tau_count)


def test_dependent_rows_get_a_wider_interval() -> None:
    rng = np.random.default_rng(2)
    values = chained(rng, 50_000, 0.9)
    (in_order,) = quantiles(values, [0.95])
    (shuffled,) = quantiles(rng.permutation(values), [0.95])
    assert in_order.value_ns == shuffled.value_ns
    widths = [(one.high_ns or 0) - (one.low_ns or 0) for one in (in_order, shuffled)]
    assert widths[0] > 2.5 * widths[1]  # sqrt(19) = 4.4, both ends known to some 10 %


def test_the_same_rows_give_the_same_interval() -> None:
    values = chained(np.random.default_rng(3), 20_000, 0.5)
    assert quantiles(values, [0.5, 0.99]) == quantiles(values, [0.5, 0.99])


@pytest.mark.parametrize("q", [0.05, 0.95])
def test_both_tails_are_treated_alike(q: float) -> None:
    values = chained(np.random.default_rng(3), 20_000, 0.5)
    (low,) = quantiles(values, [q])
    (mirrored,) = quantiles(values.max() - values, [1.0 - q])
    assert mirrored.tau_count == pytest.approx(low.tau_count, rel=0.05)  # nearest ranks differ by one
    assert low.low_ns is not None
    assert low.high_ns is not None
    assert values.max() - (mirrored.high_ns or 0) == pytest.approx(low.low_ns, rel=0.1)
    assert values.max() - (mirrored.low_ns or 0) == pytest.approx(low.high_ns, rel=0.1)


def test_a_run_too_short_for_an_interval_keeps_its_value_and_says_what_it_takes() -> None:
    few = np.repeat(np.random.default_rng(4).permutation(20), 100)  # 20 spells of 100 rows
    (found,) = quantiles(few, [0.5])
    assert found.value_ns == 9
    assert (found.low_ns, found.high_ns, found.method, found.is_refused) == (None, None, "", False)
    assert re.fullmatch(
        r"the run holds \d+ autocorrelation times, an interval takes 100: repeat it or make it longer",
        found.interval_reason,
    )
    assert found.n_eff < LEAST_TIMES
    (tail,) = quantiles(np.random.default_rng(4).permutation(500), [0.99])
    assert tail.value_ns == 494
    assert re.fullmatch(
        r"of the run's \d+ autocorrelation times \d are beyond p99, an interval takes 10: "
        "repeat it or make it longer",
        tail.interval_reason,
    )


def test_ten_times_beyond_the_quantile_are_enough() -> None:
    values = np.random.default_rng(5).permutation(2_000)
    assert quantiles(values[:1_500] % 2_000, [0.99])[0].method == "block bootstrap"
    assert quantiles(values[:900] % 2_000, [0.99])[0].method == ""


def test_rare_long_spells_on_quick_rows_give_no_upper_end() -> None:
    """The median forgets at once; three spells of slow rows say nothing about how slow the next one is."""
    rng = np.random.default_rng(6)
    values = rng.integers(0, 1_000_000, 20_000)
    for first in (3_000, 9_000, 15_000):
        values[first : first + 100] += 10_000_000
    (found,) = quantiles(values, [0.99])
    assert found.tau_count > 40
    assert found.high_ns is None


def test_what_differs_between_planned_stretches_is_no_chance() -> None:
    rng = np.random.default_rng(7)
    slow, quick = chained(rng, 10_000, 0.5) + 10_000_000, chained(rng, 10_000, 0.5)
    values = np.concatenate([quick, slow])
    (mixed,) = quantiles(values, [0.95])
    (apart,) = quantiles(values, [0.95], stretches=[10_000, 10_000])
    assert mixed.value_ns == apart.value_ns
    assert mixed.method == ""
    assert mixed.n_eff < 20
    assert apart.method == "block bootstrap"
    assert apart.tau_count < 5  # 3 each
    # p95 of both is p90 of the slow half alone
    (alone,) = quantiles(slow, [0.9])
    assert (apart.low_ns, apart.high_ns) == pytest.approx((alone.low_ns, alone.high_ns), rel=0.02)


def test_a_stretch_that_has_no_part_in_the_quantile_does_not_make_the_run_long_enough() -> None:
    """All of the slowest twentieth are in 20 spells of the second stretch, however long the first is."""
    rng = np.random.default_rng(8)
    quick = rng.integers(0, 1_000, 50_000)
    slow = 10_000 + np.repeat(rng.permutation(50), 100)
    (found,) = quantiles(np.concatenate([quick, slow]), [0.95], stretches=[50_000, 5_000])
    assert found.interval_reason.startswith("the run holds ")


def test_stretches_that_do_not_make_up_the_rows_are_an_error() -> None:
    with pytest.raises(AnalysisError, match="stretches of 9 rows in all do not make up 10 rows"):
        quantiles(np.arange(10), [0.5], stretches=[4, 5])


def test_an_empty_stretch_changes_nothing() -> None:
    values = chained(np.random.default_rng(3), 2_000, 0.5)
    assert quantiles(values, [0.5], stretches=[0, 2_000, 0]) == quantiles(values, [0.5])


def test_rows_that_are_all_the_same_have_no_interval() -> None:
    (found,) = quantiles(np.full(1_000, 7), [0.95])
    assert (found.value_ns, found.low_ns, found.high_ns) == (7, None, None)
    assert found.interval_reason == "no part of the run has rows on both sides of p95"


@pytest.mark.parametrize("n", [387, 408, 510, 1_062])
def test_rows_that_fail_in_turn_stray_by_no_more_than_rounding(n: int) -> None:
    """As those of one worker of three do: all blocks are alike, and what the draws differ by is no share of a row."""
    values = np.random.default_rng(1).integers(10**6, 10**7, n)
    for found in quantiles(values, [0.9, 0.95], np.arange(n) % 3 == 2):
        assert (found.is_infinite, found.low_ns, found.high_ns) == (True, None, None)


def test_ties_do_not_hide_what_varies() -> None:
    """Nine of ten rows have the same value, which is every quantile from p1 to p90."""
    values = np.where(np.random.default_rng(12).uniform(size=10_000) < 0.9, 7, 8)
    half, low, high = quantiles(values, [0.5, 0.05, 0.95])
    for one, value in ((half, 7), (low, 7), (high, 8)):
        assert (one.value_ns, one.low_ns, one.high_ns) == (value, value, value)


def test_the_interval_of_independent_rows_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    truth = -math.log(1 - 0.95) * 1e6
    covered = 0
    for _ in range(200):
        (found,) = quantiles((rng.exponential(size=1_000) * 1e6).astype(np.int64), [0.95])
        assert found.method == "block bootstrap"
        covered += (found.low_ns or 0) <= truth <= (found.high_ns or math.inf)
    # Standard error of a share of 0.95 over 200: 0.0154; three of them below.
    assert covered / 200 > 0.95 - 3 * 0.0154


def test_quantiles_over_runs_are_of_all_their_rows_with_an_interval_from_run_to_run() -> None:
    rng = np.random.default_rng(9)
    levels = np.array([0.8, 1.0, 1.2, 0.9, 1.1])
    runs = [(level * rng.exponential(1e6, 4_000)).astype(np.int64) for level in levels]
    found = pooled_quantile([(one, None) for one in runs], 0.95)
    pooled = np.concatenate(runs)
    assert found.value_ns == np.quantile(pooled, 0.95, method="inverted_cdf")
    assert (found.n, found.n_blocks, found.method) == (20_000, 5, "runs")
    shares = np.array([(one <= found.value_ns).mean() for one in runs])
    half = 2.776445 * shares.std(ddof=1) / math.sqrt(5)  # Student's t, 4 degrees
    ends = np.quantile(pooled, [0.95 - half, 0.95 + half], method="inverted_cdf")
    assert (found.low_ns, found.high_ns) == pytest.approx(tuple(ends), rel=1e-3)
    # variance of the mean share over that of 20,000 independent rows
    assert found.tau_count == pytest.approx(shares.var(ddof=1) / 5 * 20_000 / (0.95 * 0.05))


def test_runs_that_happen_to_agree_do_not_make_the_interval_narrower_than_their_rows() -> None:
    one = np.random.default_rng(10).permutation(4_000)
    found = pooled_quantile([(one, None)] * 3, 0.95)
    low, high = interval_ranks(0.95, 12_000, 12_000)
    assert low is not None
    assert high is not None
    assert found.low_ns is not None
    assert found.high_ns is not None
    # each value is there three times; autocorrelation times of independent rows are estimated as 1 to 1.1
    assert found.low_ns <= low / 3
    assert high / 3 - 1 <= found.high_ns


def test_runs_of_other_lengths_count_by_their_rows() -> None:
    rng = np.random.default_rng(11)
    runs = [(rng.exponential(1e6, n).astype(np.int64), None) for n in (1_000, 3_000, 9_000)]
    found = pooled_quantile(runs, 0.5)
    assert found.value_ns == np.quantile(np.concatenate([one for one, _ in runs]), 0.5, method="inverted_cdf")
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.value_ns is not None
    assert found.low_ns < found.value_ns < found.high_ns


def test_failures_of_runs_count_as_infinite() -> None:
    values = np.arange(1_000)
    found = pooled_quantile([(values, values % 10 == k) for k in range(3)], 0.95)
    assert (found.is_infinite, found.n_failed, found.n) == (True, 300, 3_000)


@pytest.mark.parametrize(
    ("lengths", "why"),
    [
        ((1_000,), "an interval over runs takes 3, there are 1: repeat the run"),
        ((1_000, 1_000), "an interval over runs takes 3, there are 2: repeat the run"),
        ((1_000, 1_000, 0), "1 of 3 runs have no rows"),
    ],
)
def test_too_few_runs_have_no_interval(lengths: tuple[int, ...], why: str) -> None:
    found = pooled_quantile([(np.arange(n), None) for n in lengths], 0.5)
    assert found.value_ns is not None
    assert (found.method, found.interval_reason, found.low_ns) == ("", why, None)


def test_no_runs_are_refused() -> None:
    assert pooled_quantile([], 0.5).is_refused


def test_an_interval_whose_upper_end_falls_on_failures_has_no_upper_end() -> None:
    values = np.random.default_rng(13).permutation(1_000)
    (found,) = quantiles(values, [0.95], np.isin(values % 25, [3]))  # 40 failed, spread evenly
    assert found.value_ns is not None
    assert found.low_ns is not None
    assert found.high_ns is None


def test_a_quantile_on_failures_is_infinite_and_says_why() -> None:
    values = np.arange(1_000)
    (found,) = quantiles(values, [0.95], values % 10 == 0)
    assert (found.is_infinite, found.value_ns) == (True, None)
    assert found.reason == "100 of 1000 rows failed, and a failure is infinitely slow"
    assert found.low_ns is None  # rank 936 of 900 finite ones


def test_a_quantile_that_n_cannot_carry_is_refused_with_the_n_it_takes() -> None:
    (found,) = quantiles(np.arange(71), [0.95])
    assert found.is_refused
    assert found.reason == "71 rows cannot carry p95: it takes 72"
    assert not quantiles(np.arange(72), [0.95])[0].is_refused


def test_no_rows_are_refused_not_an_error() -> None:
    assert quantiles(np.array([], dtype=np.int64), [0.5])[0].is_refused


@pytest.mark.parametrize("q", [0.0, 1.0, 95.0, -0.1])
def test_a_q_outside_0_and_1_is_an_error(q: float) -> None:
    with pytest.raises(AnalysisError, match="between 0 and 1"):
        quantiles(np.arange(10), [q])


def test_stretches_are_rows_of_one_label_in_turn() -> None:
    assert run_lengths(np.array([2, 2, 0, 1, 1, 1], dtype=np.int32)) == [2, 1, 3]
    assert run_lengths(np.array([5], dtype=np.int32)) == [1]
    assert run_lengths(np.array([], dtype=np.int32)) == []


@pytest.mark.parametrize("q", [0.05, 0.1, 0.5, 0.9, 0.95, 0.97])
def test_the_times_of_rows_in_one_stretch_are_those_of_each_level_taken_alone(q: float) -> None:
    rng = np.random.default_rng(3)
    values = np.convolve(rng.exponential(1e6, 5_000), np.ones(20), "valid").astype(np.int64)
    values[::7] = values[0]  # ties

    def alone(level: float) -> float:
        value = np.sort(values)[math.ceil(level * len(values)) - 1]
        n_less, n_most = (values < value).sum(), (values <= value).sum()
        is_less = n_less > 0 and (
            n_most == len(values) or level * len(values) - n_less < n_most - level * len(values)
        )
        return integrated_time(deviations(values < value if is_less else values <= value))

    rows = Rows(values, None, None)
    levels = [one if q >= 0.5 else 1.0 - one for one in (0.5, 0.75, 0.9, 0.95, 0.99)]
    near = [level for level in levels if abs(level - 0.5) < abs(q - 0.5) - 1e-12 or level == 0.5]
    assert rows.times(rows.deviations(q), q) == (
        max(alone(level) for level in (q, *near)), max(alone(level) for level in (q, *levels)),
    )  # fmt: skip
    assert rows.median_times == [alone(0.5)]
