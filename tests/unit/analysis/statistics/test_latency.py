"""Quantiles and ranks by their definition; intervals of series whose dependence is known."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, t

from squall.analysis.statistics.autocorrelation import deviations, integrated_time
from squall.analysis.statistics.latency import pooled_quantile, quantiles
from squall.analysis.statistics.order_statistics import (
    binomial_quantile,
    interval_ranks,
    nearest_rank,
    smallest_n,
)
from squall.analysis.statistics.stretches import Rows, run_lengths
from squall.scenarios.errors import AnalysisError
from tests.known import known

ROWS = st.lists(st.tuples(st.integers(-(10**12), 10**15), st.booleans()), max_size=150)


@given(rows=ROWS, percent=st.integers(1, 99))
def test_a_quantile_is_the_smallest_value_that_enough_rows_do_not_exceed(
    rows: list[tuple[int, bool]], percent: int
) -> None:
    """Failures are infinite; what n rows cannot carry is refused, with the n that it takes."""
    q = percent / 100
    values = np.array([value for value, _ in rows], np.int64)
    is_failed = np.array([failed for _, failed in rows], np.bool_)
    (found,) = quantiles(values, [q], is_failed)
    everything = sorted([math.inf if failed else value for value, failed in rows])
    assert (found.n, found.n_failed) == (len(rows), int(is_failed.sum()))
    assert found.is_refused == (len(rows) < smallest_n(q))
    if found.is_refused:
        assert (found.value_ns, found.low_ns) == (None, None)
        assert found.reason == f"{len(rows)} rows cannot carry p{100 * q:g}: it takes {smallest_n(q)}"
        return
    expected = next(
        x for x in everything if Fraction(percent, 100) * len(rows) <= sum(y <= x for y in everything)
    )
    assert (found.value_ns, found.is_infinite) == (
        (None, True) if expected == math.inf else (expected, False)
    )
    words = f"{found.n_failed} of {found.n} rows failed, and a failure is infinitely slow"
    assert found.reason == (words if found.is_infinite else "")


def test_ranks_and_the_fewest_rows_are_the_published_ones() -> None:
    assert [nearest_rank(0.95, n) for n in (20, 100, 1000)] == [19, 95, 950]
    assert nearest_rank(0.07, 100) == 7  # 0.07 * 100 is 7.000000000000001 in floats
    assert nearest_rank(0.001, 5) == 1
    assert [smallest_n(q) for q in (0.95, 0.05, 0.99, 0.999)] == [72, 72, 368, 3688]
    assert [interval_ranks(0.95, n, n) for n in (1_000, 10_000)] == [(936, 964), (9457, 9543)]
    assert [interval_ranks(0.99, n, n) for n in (5_000, 100_000)] == [(4936, 4964), (98938, 99062)]
    assert interval_ranks(0.999, 10_000, 10_000) == (9983, 9997)
    for q in (0.5, 0.9, 0.95, 0.99, 0.999):
        n = smallest_n(q)
        assert None not in interval_ranks(q, n, n)
        assert None in interval_ranks(q, n - 1, n - 1)


@given(
    n=st.integers(1, 300) | st.integers(1, 10**8),
    percent=st.integers(1, 99),
    probability=st.sampled_from([0.025, 0.5, 0.975]),
)
def test_binomial_quantile_is_the_smallest_count_that_is_likely_enough(
    n: int, percent: int, probability: float
) -> None:
    found = binomial_quantile(probability, n, percent / 100)
    below, at = binom.cdf([found - 1, found], n, percent / 100)
    assert below < probability + 1e-9  # a tie is decided by the last bits of a float
    assert at >= probability - 1e-9


def chained(rng: np.random.Generator, n: int, stay: float) -> np.ndarray:
    """(n,) values, exponential with mean 1e6; each is the one before with probability `stay`."""
    is_new = rng.uniform(size=n) >= stay
    is_new[0] = True
    return np.asarray((1e6 * rng.exponential(size=n))[is_new][np.cumsum(is_new) - 1], np.int64)


@pytest.mark.parametrize(("stay", "tau"), [(0.0, 1.0), (0.9, 19.0)])
@pytest.mark.parametrize("is_mirrored", [False, True])
def test_rows_that_repeat_one_another_count_for_fewer_in_both_tails(
    stay: float, tau: float, is_mirrored: bool
) -> None:
    """Autocorrelation of any function of the value at lag k is stay^k: tau = (1 + stay) / (1 - stay)."""
    values = chained(np.random.default_rng(2), 200_000, stay)
    for q in (0.5, 0.95):
        (one,) = quantiles(values.max() - values, [1 - q]) if is_mirrored else quantiles(values, [q])
        # The largest of up to five estimates of it: 4 to 5 % each (Geyer 1992: sqrt(2 (2 K + 1) / n), K about 100).
        assert tau <= one.tau_count * 1.05
        assert one.tau_count < tau * 1.25
        assert one.n_eff == pytest.approx(one.n / one.tau_count)
        # normal half width of the count; both ends are known to some 10 %, and the share in rows to a tenth
        half = 1.96 * math.sqrt(one.n * q * (1 - q) * tau)
        ends = [known(one.low_ns), known(one.high_ns)]
        places = np.searchsorted(
            np.sort(values), values.max() - np.array(ends[::-1]) if is_mirrored else ends
        )
        assert np.abs(places - q * one.n) == pytest.approx([half, half], rel=0.25)


MIXED = np.random.default_rng(6).integers(0, 1_000_000, 20_000)
MIXED[[first + k for first in (3_000, 9_000, 15_000) for k in range(100)]] += 10_000_000
TOO_SHORT = r"the run holds \d+ autocorrelation times, an interval takes 100: repeat it or make it longer"
FEW_BEYOND = r"of the run's \d+ autocorrelation times \d are beyond p99, an interval takes 10: .*"


@pytest.mark.parametrize(
    ("values", "q", "stretches", "value_ns", "why"),
    [
        # 20 spells of 100 rows
        (np.repeat(np.random.default_rng(4).permutation(20), 100), 0.5, None, 9, TOO_SHORT),
        (np.random.default_rng(4).permutation(500), 0.99, None, 494, FEW_BEYOND),
        (np.random.default_rng(5).permutation(900), 0.99, None, 890, FEW_BEYOND),
        (np.random.default_rng(5).permutation(1_500), 0.99, None, 1_484, ""),
        (np.full(1_000, 7), 0.95, None, 7, "no part of the run has rows on both sides of p95"),
        # the median forgets at once; three spells of slow rows say nothing about how slow the next one is
        (MIXED, 0.99, None, None, ""),
        # all of the slowest twentieth are in 20 spells of the second stretch, however long the first is
        (
            np.r_[np.random.default_rng(8).integers(0, 1_000, 50_000), 10_000 + np.repeat(np.arange(50) * 7 % 50, 100)],
            0.95, [50_000, 5_000], None, TOO_SHORT,
        ),
    ],
)  # fmt: skip
def test_a_run_too_short_for_an_interval_keeps_its_value_and_says_what_it_takes(
    values: np.ndarray, q: float, stretches: list[int] | None, value_ns: int | None, why: str
) -> None:
    (found,) = quantiles(values, [q], stretches=stretches)
    assert found.value_ns == (value_ns or found.value_ns)
    assert re.fullmatch(why, found.interval_reason)
    assert (found.method, found.low_ns is None) == (("", True) if why else ("block bootstrap", False))
    if values is MIXED:
        assert found.tau_count > 40
        assert found.high_ns is None


def test_what_differs_between_planned_stretches_is_no_chance() -> None:
    rng = np.random.default_rng(7)
    slow, quick = chained(rng, 10_000, 0.5) + 10_000_000, chained(rng, 10_000, 0.5)
    values = np.concatenate([quick, slow])
    (mixed,) = quantiles(values, [0.95])
    (apart,) = quantiles(values, [0.95], stretches=[10_000, 0, 10_000])
    assert mixed.value_ns == apart.value_ns
    assert mixed.method == ""
    assert mixed.n_eff < 20
    assert apart.method == "block bootstrap"
    assert apart.tau_count < 5  # 3 each
    # p95 of both is p90 of the slow half alone
    (alone,) = quantiles(slow, [0.9])
    assert (apart.low_ns, apart.high_ns) == pytest.approx((alone.low_ns, alone.high_ns), rel=0.02)


@pytest.mark.parametrize("n", [387, 408, 510, 1_062])
def test_rows_that_fail_in_turn_stray_by_no_more_than_rounding(n: int) -> None:
    """As those of one worker of three do: all blocks are alike, and what the draws differ by is no share of a row."""
    values = np.random.default_rng(1).integers(10**6, 10**7, n)
    for found in quantiles(values, [0.9, 0.95], np.arange(n) % 3 == 2):
        assert (found.is_infinite, found.low_ns, found.high_ns) == (True, None, None)


def test_ties_do_not_hide_what_varies_and_an_end_that_falls_on_failures_is_none() -> None:
    """Nine of ten rows have the same value, which is every quantile from p1 to p90."""
    values = np.where(np.random.default_rng(12).uniform(size=10_000) < 0.9, 7, 8)
    found = quantiles(values, [0.05, 0.5, 0.95])
    assert [(one.low_ns, one.value_ns, one.high_ns) for one in found] == [(7, 7, 7), (7, 7, 7), (8, 8, 8)]
    values = np.random.default_rng(13).permutation(1_000)
    (p95,) = quantiles(values, [0.95], values % 25 == 3)  # 40 failed, spread evenly
    assert (p95.low_ns is None, p95.value_ns is None, p95.high_ns) == (False, False, None)


def test_runs_that_happen_to_agree_do_not_make_the_interval_narrower_than_their_rows() -> None:
    one = np.random.default_rng(10).permutation(4_000)
    found = pooled_quantile([(one, None)] * 3, 0.95)
    low, high = interval_ranks(0.95, 12_000, 12_000)
    # each value is there three times; autocorrelation times of independent rows are estimated as 1 to 1.1
    assert known(found.low_ns) <= known(low) / 3
    assert known(high) / 3 - 1 <= known(found.high_ns)


def test_quantiles_over_runs_are_of_all_their_rows_with_an_interval_from_run_to_run() -> None:
    rng = np.random.default_rng(9)
    sizes = np.array([3_000, 5_000, 4_000, 2_000, 6_000])
    levels = (0.8, 1.0, 1.2, 0.9, 1.1)
    runs = [rng.exponential(level * 1e6, n).astype(np.int64) for n, level in zip(sizes, levels, strict=True)]
    found = pooled_quantile([(one, None) for one in runs], 0.95)
    pooled = np.concatenate(runs)
    assert found.value_ns == np.quantile(pooled, 0.95, method="inverted_cdf")
    assert (found.n, found.n_blocks, found.method) == (20_000, 5, "runs")
    below = np.array([(one <= found.value_ns).sum() for one in runs])
    residuals = below - below.sum() / 20_000 * sizes  # a ratio estimator
    variance = 5 / 4 * (residuals @ residuals)
    half = t.ppf(0.975, 4) * math.sqrt(variance) / 20_000
    ends = np.quantile(pooled, [0.95 - half, 0.95 + half], method="inverted_cdf")
    assert (found.low_ns, found.high_ns) == pytest.approx(tuple(ends), rel=1e-3)
    assert found.tau_count == pytest.approx(variance / (20_000 * 0.95 * 0.05))


def test_runs_that_are_too_few_or_empty_or_fail_have_no_interval() -> None:
    values = np.arange(1_000)
    found = pooled_quantile([(values, values % 10 == k) for k in range(3)], 0.95)
    assert (found.is_infinite, found.n_failed, found.n) == (True, 300, 3_000)
    assert pooled_quantile([], 0.5).is_refused
    for lengths, why in (
        ((1_000,), "an interval over runs takes 3, there are 1: repeat the run"),
        ((1_000, 1_000), "an interval over runs takes 3, there are 2: repeat the run"),
        ((1_000, 1_000, 0), "1 of 3 runs have no rows"),
    ):
        found = pooled_quantile([(np.arange(n), None) for n in lengths], 0.5)
        assert (found.value_ns, found.method, found.interval_reason, found.low_ns) == (499, "", why, None)


@pytest.mark.parametrize(
    ("q", "stretches", "why"),
    [
        *((q, None, "between 0 and 1") for q in (0.0, 1.0, 95.0, -0.1)),
        (0.5, [4, 5], "stretches of 9 rows in all do not make up 10 rows"),
    ],
)
def test_what_is_no_quantile_of_the_rows_is_an_error(q: float, stretches: Any, why: str) -> None:
    with pytest.raises(AnalysisError, match=why):
        quantiles(np.arange(10), [q], stretches=stretches)


@pytest.mark.parametrize(("codes", "lengths"), [([2, 2, 0, 1, 1, 1], [2, 1, 3]), ([5], [1]), ([], [])])
def test_stretches_are_rows_of_one_label_in_turn(codes: list[int], lengths: list[int]) -> None:
    assert run_lengths(np.array(codes, dtype=np.int32)) == lengths


@pytest.mark.parametrize("q", [0.05, 0.1, 0.5, 0.9, 0.95, 0.97])
def test_the_times_of_rows_in_one_stretch_are_those_of_each_level_taken_alone(q: float) -> None:
    rng = np.random.default_rng(3)
    values = np.convolve(rng.exponential(1e6, 5_000), np.ones(20), "valid").astype(np.int64)
    values[::7] = values[0]  # ties

    def alone(level: float) -> float:
        value, share = np.sort(values)[math.ceil(level * len(values)) - 1], level * len(values)
        n_less, n_most = (values < value).sum(), (values <= value).sum()
        is_less = n_less > 0 and (n_most == len(values) or share - n_less < n_most - share)
        return integrated_time(deviations(values < value if is_less else values <= value))

    rows = Rows(values, None, None)
    levels = [one if q >= 0.5 else 1.0 - one for one in (0.5, 0.75, 0.9, 0.95, 0.99)]
    near = [level for level in levels if abs(level - 0.5) < abs(q - 0.5) - 1e-12 or level == 0.5]
    longest = max(alone(level) for level in (q, *near)), max(alone(level) for level in (q, *levels))
    assert rows.times(rows.deviations(q), q) == longest
    assert rows.median_times == [alone(0.5)]
