"""Capacity of servers whose answer is known, on a simulated clock."""

from __future__ import annotations

import math

import numpy as np
import pytest

from squall.analysis.studies.capacity_search import Options, expected_probes, search
from tests.capacity_searches import SERVICE_S, Simulated, delayed_batches, fifo, p95_s, searched
from tests.known import known
from tests.simulated_servers import gamma_arrivals

TRUTH_HZ = 80.0
"""A load of 0.8 of a server of 10 ms."""
POISSON_LIMIT_S, BURSTY_LIMIT_S = 7.61 * SERVICE_S, 63.0 * SERVICE_S
LIMITS = {1.0: POISSON_LIMIT_S, 3.0: BURSTY_LIMIT_S}
"""By coefficient of variation of the gaps."""


def slow(*values: object) -> list[object]:
    return [pytest.param(one, marks=pytest.mark.slow) for one in values]


@pytest.mark.parametrize(("cv", "tolerance"), [(1.0, 0.02), (3.0, 0.06)])
def test_the_limits_are_the_long_run_p95_at_that_load(cv: float, tolerance: float) -> None:
    # p95 of 6,000 requests varies by 10.6 % and 28 % from seed to seed at this load (facts of the field), so that of
    # 1,200,000 by 0.75 % and 2 %: the tolerances are three standard errors of that, rounded.
    arrival_s = gamma_arrivals(np.random.default_rng(5), 1_200_000, cv) / TRUTH_HZ
    assert p95_s(fifo(arrival_s)) == pytest.approx(LIMITS[cv], rel=tolerance)


# 94 and 93 of 100 hold the truth where 95 are nominal. Of 100 fewer than 88 come by chance once in 140 times, of 20
# fewer than 16 once in 170; the bursty interval is to hold it in 82 of 100, of 20 fewer than 12 come once in 200 then.
@pytest.mark.parametrize(
    ("n", "least", "least_bursty"),
    [(20, 16, 12), pytest.param(100, 88, 82, marks=[pytest.mark.slow, pytest.mark.long])],
)
def test_intervals_hold_the_truth_and_are_wider_for_bursts_whose_safe_load_is_kept(
    n: int, least: int, least_bursty: int
) -> None:
    smooth = [searched(1.0, POISSON_LIMIT_S, family, n_fresh=0) for family in range(n)]
    assert sum(one.holds(TRUTH_HZ) for one in smooth) >= least
    assert np.mean([one.width_ratio for one in smooth]) <= 0.10
    assert np.mean([one.n_runs for one in smooth]) < 25
    bursty = [searched(3.0, BURSTY_LIMIT_S, family, n // 2) for family in range(n)]
    assert sum(one.holds(TRUTH_HZ) for one in bursty) >= least_bursty
    assert np.mean([one.width_ratio for one in bursty]) > 1.5 * smooth[0].width_ratio
    # at the safe load of 95 in 100 searches nine of ten bursts are kept: of 50 fresh seeds each 94 searches see 0.9
    assert np.mean([one.kept_ratio for one in bursty]) >= 0.9
    if n == 100:  # three standard errors of a binomial share of 100 are 0.065
        assert np.mean([one.kept_ratio >= 0.9 for one in bursty]) >= 0.95 - 0.065


@pytest.mark.parametrize("n_seeds", [1, 5, *slow(2, 10)])
def test_as_many_runs_are_expected_as_searches_take(n_seeds: int) -> None:
    options = Options(n_seeds, 1, 50.0, 5_000.0)
    for cv, limit_s in LIMITS.items():
        levels = [Simulated(fifo, limit_s, cv, family=family) for family in range(4)]
        for one in levels:
            search(one, options)
        n_asked = np.mean([len(one.asked) for one in levels])
        assert n_asked == pytest.approx(expected_probes(options), rel=0.15)


def test_one_seed_repeated_would_miss_the_truth_that_seeds_cover() -> None:
    # the check of the checks: an interval whose spread is that of one schedule run again holds the truth nowhere
    levels = Simulated(fifo, BURSTY_LIMIT_S, 3.0)
    found = search(lambda _, rate_hz, purpose: levels(1, rate_hz, purpose), Options(5, 1, 50.0, 5_000.0))
    interval = known(found.interval)
    assert not interval.low_hz <= TRUTH_HZ <= interval.high_hz


@pytest.mark.parametrize("start_hz", [20.0, 700.0, 10_000.0, *slow(300.0, 1_200.0, 1_900.0)])
def test_a_batcher_that_waits_has_a_feasible_interval_from_any_start(start_hz: float) -> None:
    levels = Simulated(delayed_batches, 0.015)
    found = search(levels, Options(5, 1, start_hz, 100.0 * start_hz))
    low_hz, high_hz = known(known(found.low).rate_hz), known(found.interval).rate_hz
    assert (found.kind, known(found.low_probe).is_broken) == ("found", True)
    assert 1.5 * low_hz < high_hz
    # the interval's inside is kept and what is beyond its ends is not, by 5 and 2 precisions of the search
    inside = [low_hz * (high_hz / low_hz) ** part for part in (0.1, 0.5, 0.9)]
    kept = [levels(1, rate_hz, "").is_kept for rate_hz in (*inside, low_hz / 1.06, high_hz * 1.1)]
    assert kept == [True, True, True, False, False]


def test_the_capacity_of_a_seed_is_that_of_its_schedule() -> None:
    levels = Simulated(fifo, POISSON_LIMIT_S)
    found = search(levels, Options(3, 7, 50.0, 5_000.0, precision=0.005), confirms=False)
    for one in found.seeds:
        rate_hz = known(one.rate_hz)
        assert levels(one.seed, rate_hz * math.exp(-0.005), "").is_kept
        assert levels(one.seed, rate_hz * math.exp(0.005), "").is_broken
