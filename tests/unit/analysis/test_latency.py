from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.latency import (
    binomial_quantile,
    inflation,
    interval_ranks,
    nearest_rank,
    quantiles,
    smallest_n,
)
from scenarios.errors import AnalysisError

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


def test_independent_rows_are_hardly_inflated_and_long_runs_fully() -> None:
    rng = np.random.default_rng(1)
    # Variance of 20 batch means: chi-square of 19 degrees, 99.99 % of draws below 2.7 times its mean.
    independent = rng.uniform(size=20_000) < 0.95
    assert 1.0 <= inflation(independent, 0.95) < 2.7
    runs = np.repeat(rng.uniform(size=200) < 0.5, 100)  # runs of 100: inflation about 100
    assert 30 < inflation(runs, float(runs.mean())) < 270
    assert inflation(independent[:99], 0.95) == 1.0


def test_dependent_rows_get_a_wider_interval_and_a_smaller_n_eff() -> None:
    rng = np.random.default_rng(2)
    slow_spells = np.repeat(rng.exponential(size=200), 100)
    values = (1e6 * (slow_spells + rng.exponential(size=20_000))).astype(np.int64)
    (in_order,) = quantiles(values, [0.95])
    (shuffled,) = quantiles(rng.permutation(values), [0.95])
    assert in_order.value_ns == shuffled.value_ns
    assert in_order.n_eff < shuffled.n_eff / 5
    assert None not in (in_order.low_ns, in_order.high_ns, shuffled.low_ns, shuffled.high_ns)
    assert in_order.high_ns - in_order.low_ns > 2 * (shuffled.high_ns - shuffled.low_ns)  # type: ignore[operator]


def test_the_interval_of_independent_rows_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    truth = -math.log(1 - 0.95) * 1e6
    covered = 0
    for _ in range(400):
        (found,) = quantiles((rng.exponential(size=1_000) * 1e6).astype(np.int64), [0.95])
        covered += (found.low_ns or 0) <= truth <= (found.high_ns or math.inf)
    # Standard error of a share of 0.95 over 400: 0.0109; three of them below. Inflation only widens.
    assert covered / 400 > 0.95 - 3 * 0.0109


def poisson_gaps(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.exponential(size=n)


def alternating_gaps(rng: np.random.Generator, n: int) -> np.ndarray:
    """Gaps of Poisson arrivals at 3 times the mean rate for 50 mean gaps, then 0.5 times for 200, and on."""
    spells = []
    start, n_drawn = 0.0, 0
    while n_drawn <= n:
        for rate, mean_length in ((3.0, 50.0), (0.5, 200.0)):
            length = rng.exponential(mean_length)
            spells.append(np.sort(rng.uniform(start, start + length, rng.poisson(rate * length))))
            start += length
            n_drawn += len(spells[-1])
    return np.diff(np.concatenate(spells))[:n]


def responses_ns(gaps: np.ndarray, service: float) -> np.ndarray:
    """Wait and service of a queue with one server and constant service (Lindley), a mean gap being 1 ms."""
    steps = np.concatenate([[0.0], np.cumsum(service - gaps[1:])])
    return (1e6 * (steps - np.minimum.accumulate(steps) + service)).astype(np.int64)


@pytest.mark.parametrize(
    ("gaps", "service", "covers", "plain_covers"),
    [(poisson_gaps, 0.8, 0.96, 0.28), (alternating_gaps, 0.7, 0.74, 0.02)],
)
def test_the_interval_covers_as_stated_on_a_queue_where_plain_order_statistics_do_not(
    gaps: Callable[[np.random.Generator, int], np.ndarray], service: float, covers: float, plain_covers: float
) -> None:
    rng = np.random.default_rng(7)
    n, repeats = 10_000, 100
    truth = np.quantile(responses_ns(gaps(rng, 4_000_000), service), 0.95, method="inverted_cdf")
    low, high = interval_ranks(0.95, n, n)
    assert low is not None
    assert high is not None
    hits = plain_hits = 0
    for _ in range(repeats):
        values = responses_ns(gaps(rng, 2 * n), service)[n:]
        (found,) = quantiles(values, [0.95])
        hits += (found.low_ns or 0) <= truth <= (found.high_ns or math.inf)
        ordered = np.sort(values)
        plain_hits += ordered[low - 1] <= truth <= ordered[high - 1]
    for found_hits, stated in ((hits, covers), (plain_hits, plain_covers)):
        # The stated share is itself of 400 repeats: 3.5 standard errors of both together.
        error = math.sqrt(stated * (1 - stated) * (1 / repeats + 1 / 400))
        assert abs(found_hits / repeats - stated) < 3.5 * error


def test_an_interval_whose_upper_end_falls_on_failures_has_no_upper_end() -> None:
    values = np.arange(1_000)
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
