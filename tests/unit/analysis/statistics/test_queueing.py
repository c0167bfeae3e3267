"""Theory against closed values, against exact arithmetic and against simulation, and the simulation against a loop."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from squall.analysis.statistics.queueing import (
    Queue,
    _bisected,
    departures_ns,
    erlang_c,
    md1_response_cdf,
    mmc_response_cdf,
    sampling_ranges,
    simulate_quantiles,
)

MS = 1_000_000
S = 1_000_000_000
LOADS = (0.5, 0.8, 0.95)


@pytest.mark.parametrize("load", LOADS)
def test_one_lane_has_the_response_times_of_an_exponential(load: float) -> None:
    for t in (0.0, 0.3, 1.0, 7.0, 200.0):
        assert mmc_response_cdf(t, 1, load, 1.0) == pytest.approx(-math.expm1(-(1 - load) * t), abs=1e-14)
    for q in (0.01, 0.5, 0.95, 0.999):
        found = Queue("exponential", 1, load, 2 * MS).response_quantile(q)
        assert found == pytest.approx(-math.log(1 - q) * 2 * MS / (1 - load), rel=1e-12)
        # bisected to a millionth of a service time
        bisected = _bisected(lambda t: mmc_response_cdf(t, 1, load, 2 * MS), q, 2 * MS)
        assert bisected == pytest.approx(found, abs=2e-6 * 2 * MS)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("n_lanes", [1, 2, 4])
def test_erlang_c_is_its_sum(n_lanes: int, load: float) -> None:
    offered = n_lanes * load
    waits = offered**n_lanes / math.factorial(n_lanes) / (1 - load)
    others = sum(offered**k / math.factorial(k) for k in range(n_lanes))
    assert erlang_c(n_lanes, load) == pytest.approx(waits / (others + waits), rel=1e-13)


def test_mmc_is_smooth_where_its_two_rates_meet() -> None:
    """c = 2 at load 0.5: c mu - lambda = mu, where the general formula divides by zero."""
    for t in (0.1, 1.0, 5.0, 40.0):
        met = mmc_response_cdf(t, 2, 0.5, 1.0)
        assert met == pytest.approx(1 - math.exp(-t) * (1 + erlang_c(2, 0.5) * t), abs=1e-14)
        for load in (0.5 - 1e-9, 0.5 + 1e-9):
            assert mmc_response_cdf(t, 2, load, 1.0) == pytest.approx(met, abs=1e-7)


def crommelin(load: float, wait: float) -> float:
    """P(W <= wait), wait in service times, by the alternating sum in 300 digits."""
    with localcontext() as context:
        context.prec = 300
        rate, t = Decimal(load), Decimal(wait)
        total = Decimal(0)
        for k in range(math.floor(wait) + 1):
            left = rate * (t - k)
            total += (-left) ** k / math.factorial(k) * left.exp() if k else left.exp()
        return float((1 - rate) * total)


@pytest.mark.parametrize("load", [*LOADS, 0.999])
def test_md1_is_crommelins_sum(load: float) -> None:
    assert md1_response_cdf(0.999, load, 1.0) == 0.0
    for wait in (0.0, 0.25, 1.0, 1.75, 10.5, 60.0, 150.125):
        assert md1_response_cdf(1.0 + wait, load, 1.0) == pytest.approx(crommelin(load, wait), abs=1e-12)
    # no wait: an atom of 1 - load at the service time
    assert Queue("constant", 1, load, MS).response_quantile((1 - load) / 2) == pytest.approx(MS, abs=1)


N_ARRIVALS = {0.5: 300, 0.8: 1_200, 0.9: 4_000}
SIMULATED = [
    pytest.param(law, n_lanes, load, n_runs, marks=[pytest.mark.slow] if (load, n_runs) == (0.9, 2_000) else [])
    for law, n_lanes in (("exponential", 1), ("constant", 1), ("exponential", 4))
    for load, n_runs in ((0.5, 2_000), (0.8, 2_000), (0.9, 800), (0.9, 2_000))
]  # fmt: skip


@pytest.mark.parametrize(("law", "n_lanes", "load", "n_runs"), SIMULATED)
def test_theory_is_what_a_simulation_from_empty_comes_to(
    law: Any, n_lanes: int, load: float, n_runs: int
) -> None:
    """The last of many arrivals, in runs of their own: independent and, by then, stationary.

    The start is forgotten as exp(-t / r) with r = service / (sqrt(c) (1 - sqrt(rho))^2) at most (M/M/1 has c = 1);
    at rho 0.9 that is 380 service times or 342 arrivals, so that of 4,000 arrivals exp(-11) is left; at rho 0.5 and
    4 lanes 12 arrivals. The share below a quantile is binomial: 4.5 standard errors are missed once in 150,000 times.
    """
    queue = Queue(law, n_lanes, load, 2 * MS)
    rng, shape = np.random.default_rng(5), (n_runs, N_ARRIVALS[load])
    arrivals = np.cumsum(rng.exponential(S / queue.arrival_hz, shape), axis=1)
    services = rng.exponential(queue.service_ns, shape)
    if law == "constant":
        services = np.full(shape, float(queue.service_ns))
    last = (departures_ns(arrivals, services, n_lanes) - arrivals)[:, -1]
    for q in (0.6, 0.9, 0.99):
        expected = queue.response_quantile(q)
        assert queue.response_cdf(expected) == pytest.approx(q, abs=1e-5)
        assert abs(np.mean(last <= expected) - q) < 4.5 * math.sqrt(q * (1 - q) / n_runs), q


@pytest.mark.parametrize("n_lanes", [1, 3])
def test_departures_are_those_of_a_plain_loop(n_lanes: int) -> None:
    rng = np.random.default_rng(3)
    arrivals = np.sort(rng.integers(0, 2_000, (4, 60)), axis=1).astype(float)
    services = rng.integers(0, 90, (4, 60)).astype(float)
    found = departures_ns(arrivals, services, n_lanes)
    for run in range(4):
        free = [0.0] * n_lanes
        for n in range(60):
            free.sort()
            free[0] = max(free[0], arrivals[run, n]) + services[run, n]
            assert found[run, n] == pytest.approx(free[0], abs=1e-9)


@pytest.mark.parametrize("law", ["exponential", "constant"])
def test_a_range_misses_new_runs_as_rarely_as_it_says(law: Any) -> None:
    """4,000 new runs, 200 for each of 20 ranges, of which 20 % are missed.

    The 200 share the luck of their range, made of 30 runs: on each side a standard deviation of
    sqrt(0.1 * 0.9 / 31) = 0.054 at most, so 0.054 sqrt(2 / 20) = 0.017 for the share; the runs add
    sqrt(0.2 * 0.8 / 4,000) = 0.006. 4.5 standard errors are 0.082.
    """
    queue, rng, n_missed = Queue(law, 1, 0.8, 2 * MS), np.random.default_rng(11), 0
    for _ in range(20):
        ((low, high),) = sampling_ranges(queue, S, (0.95,), 0.2, rng)
        runs = simulate_quantiles(queue, S, (0.95,), 200, rng)[:, 0]
        n_missed += int(np.count_nonzero((runs < low) | (runs > high)))
    assert abs(n_missed / 4_000 - 0.2) < 0.082
