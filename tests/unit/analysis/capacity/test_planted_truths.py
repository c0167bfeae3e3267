"""Capacity of servers whose answer is known, on a simulated clock."""

from __future__ import annotations

import math

import numpy as np
import pytest

from squall.analysis.capacity.search import Options, expected_probes, search
from tests.capacity_searches import SERVICE_S, Simulated, delayed_batches, fifo, p95_s, searched
from tests.simulated_servers import gamma_arrivals

TRUTH_HZ = 80.0
"""A load of 0.8 of a server of 10 ms."""
POISSON_LIMIT_S, BURSTY_LIMIT_S = 7.61 * SERVICE_S, 63.0 * SERVICE_S


@pytest.mark.parametrize(
    ("cv", "limit_s", "tolerance"), [(1.0, POISSON_LIMIT_S, 0.02), (3.0, BURSTY_LIMIT_S, 0.06)]
)
def test_the_limits_are_the_long_run_p95_at_that_load(cv: float, limit_s: float, tolerance: float) -> None:
    # p95 of 6,000 requests varies by 10.6 % and 28 % from seed to seed at this load (facts of the field), so that of
    # 1,200,000 by 0.75 % and 2 %: the tolerances are three standard errors of that, rounded.
    arrival_s = gamma_arrivals(np.random.default_rng(5), 1_200_000, cv) / TRUTH_HZ
    assert p95_s(fifo(arrival_s)) == pytest.approx(limit_s, rel=tolerance)


# 94 and 93 of 100 hold the truth where 95 are nominal. Of 100 fewer than 88 come by chance once in 140 times, of 20
# fewer than 16 once in 170; the bursty interval is to hold it in 82 of 100, of 20 fewer than 12 come once in 200 then.
POISSON = pytest.mark.parametrize(
    ("n", "least"), [(20, 16), pytest.param(100, 88, marks=[pytest.mark.slow, pytest.mark.long])]
)
BURSTY = pytest.mark.parametrize(
    ("n", "least"), [(20, 12), pytest.param(100, 82, marks=[pytest.mark.slow, pytest.mark.long])]
)


@POISSON
def test_a_poisson_capacity_is_in_its_interval_and_the_interval_is_narrow(n: int, least: int) -> None:
    found = [searched(1.0, POISSON_LIMIT_S, family, n_fresh=0) for family in range(n)]
    assert sum(one.holds(TRUTH_HZ) for one in found) >= least
    assert np.mean([one.width_ratio for one in found]) <= 0.10
    assert np.mean([one.n_runs for one in found]) < 25


@BURSTY
def test_a_bursty_capacity_is_in_a_wider_interval_and_its_safe_load_is_kept(n: int, least: int) -> None:
    n_fresh = 50 if n == 100 else 10
    found = [searched(3.0, BURSTY_LIMIT_S, family, n_fresh) for family in range(n)]
    assert sum(one.holds(TRUTH_HZ) for one in found) >= least
    smooth = searched(1.0, POISSON_LIMIT_S, 0)
    assert np.mean([one.width_ratio for one in found]) > 1.5 * smooth.width_ratio
    # at the safe load of 95 in 100 searches nine of ten bursts are kept: of 50 fresh seeds each 94 searches see 0.9
    assert np.mean([one.kept_ratio for one in found]) >= 0.9
    if n == 100:  # three standard errors of a binomial share of 100 are 0.065
        assert np.mean([one.kept_ratio >= 0.9 for one in found]) >= 0.95 - 0.065


@pytest.mark.parametrize("n_seeds", [1, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 10))])
def test_as_many_runs_are_expected_as_searches_take(n_seeds: int) -> None:
    options = Options(n_seeds, 1, 50.0, 5_000.0)
    for cv, limit_s in ((1.0, POISSON_LIMIT_S), (3.0, BURSTY_LIMIT_S)):
        levels = [Simulated(fifo, limit_s, cv, family=family) for family in range(4)]
        for one in levels:
            search(one, options)
        assert np.mean([len(one.asked) for one in levels]) == pytest.approx(
            expected_probes(options), rel=0.15
        )


def test_one_seed_repeated_would_miss_the_truth_that_seeds_cover() -> None:
    # the check of the checks: an interval whose spread is that of one schedule run again holds the truth nowhere
    levels = Simulated(fifo, BURSTY_LIMIT_S, 3.0)
    found = search(lambda _, rate_hz, purpose: levels(1, rate_hz, purpose), Options(5, 1, 50.0, 5_000.0))
    assert found.interval is not None
    assert not found.interval.low_hz <= TRUTH_HZ <= found.interval.high_hz


@pytest.mark.parametrize(
    "start_hz",
    [
        20.0,
        700.0,
        10_000.0,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (300.0, 1_200.0, 1_900.0)),
    ],
)
def test_a_batcher_that_waits_has_a_feasible_interval_from_any_start(start_hz: float) -> None:
    levels = Simulated(delayed_batches, 0.015)
    found = search(levels, Options(5, 1, start_hz, 100.0 * start_hz))
    assert found.kind == "found"
    assert found.interval is not None
    assert found.low is not None
    assert found.low.rate_hz is not None
    assert found.low_probe is not None
    assert found.low_probe.is_broken
    low_hz, high_hz = found.low.rate_hz, found.interval.rate_hz
    assert 1.5 * low_hz < high_hz
    # the interval's inside is kept and what is beyond its ends is not, by 5 and 2 precisions of the search
    inside = [levels(1, low_hz * (high_hz / low_hz) ** part, "") for part in (0.1, 0.5, 0.9)]
    assert all(one.is_kept for one in inside)
    assert levels(1, low_hz / 1.06, "").is_broken
    assert levels(1, high_hz * 1.1, "").is_broken


def test_the_capacity_of_a_seed_is_that_of_its_schedule() -> None:
    levels = Simulated(fifo, POISSON_LIMIT_S)
    found = search(levels, Options(3, 7, 50.0, 5_000.0, precision=0.005), confirms=False)
    for one in found.seeds:
        rate_hz = one.edge.rate_hz
        assert rate_hz is not None
        assert levels(one.seed, rate_hz * math.exp(-0.005), "").is_kept
        assert levels(one.seed, rate_hz * math.exp(0.005), "").is_broken
