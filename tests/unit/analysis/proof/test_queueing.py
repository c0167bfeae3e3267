"""Theory against closed values, against exact arithmetic and against simulation, and the simulation against a loop."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from squall.analysis.proof.queueing import (
    Queue,
    _bisected,
    departures_ns,
    erlang_c,
    md1_response_cdf,
    mm1_response_quantile,
    mmc_response_cdf,
    sampling_ranges,
    simulate_quantiles,
)

MS = 1_000_000
S = 1_000_000_000
LOADS = (0.5, 0.8, 0.95)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("q", [0.01, 0.5, 0.95, 0.999])
def test_mm1_has_the_quantiles_of_an_exponential(load: float, q: float) -> None:
    rate_per_ns = (1.0 - load) / (2 * MS)  # mu - lambda
    assert mm1_response_quantile(q, load, 2 * MS) == pytest.approx(
        -math.log(1.0 - q) / rate_per_ns, rel=1e-12
    )


@pytest.mark.parametrize("load", LOADS)
def test_mmc_of_one_lane_is_mm1(load: float) -> None:
    for t in (0.0, 0.3, 1.0, 7.0, 200.0):
        assert mmc_response_cdf(t, 1, load, 1.0) == pytest.approx(-math.expm1(-(1 - load) * t), abs=1e-14)
    # bisected to a millionth of a service time
    bisected = _bisected(lambda t: mmc_response_cdf(t, 1, load, 1.0), 0.99, 1.0)
    assert bisected == pytest.approx(mm1_response_quantile(0.99, load, 1.0), abs=2e-6)


@pytest.mark.parametrize("load", LOADS)
def test_erlang_c_has_its_closed_values(load: float) -> None:
    assert erlang_c(1, load) == pytest.approx(load, rel=1e-14)
    assert erlang_c(2, load) == pytest.approx(2 * load**2 / (1 + load), rel=1e-14)
    offered = 4 * load
    waits = offered**4 / math.factorial(4) / (1 - load)
    assert erlang_c(4, load) == pytest.approx(
        waits / (sum(offered**k / math.factorial(k) for k in range(4)) + waits), rel=1e-13
    )


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
@pytest.mark.parametrize("wait", [0.0, 0.25, 1.0, 1.75, 10.5, 60.0, 150.125])
def test_md1_is_crommelins_sum(load: float, wait: float) -> None:
    assert md1_response_cdf(1.0 + wait, load, 1.0) == pytest.approx(crommelin(load, wait), abs=1e-12)


@pytest.mark.parametrize("load", LOADS)
def test_md1_has_the_mean_wait_of_pollaczek_and_khinchine(load: float) -> None:
    """The mean is the integral of 1 - F, by Gauss with 5 nodes between whole service times, where F has its kinks.

    P(W > x) falls as exp(-2 (1 - rho) x) at least: beyond 12 / (1 - rho) less than exp(-24) / (1 - rho) is left.
    """
    nodes, weights = np.polynomial.legendre.leggauss(5)
    integral = 0.0
    for k in range(math.ceil(12 / (1 - load))):
        above = [1.0 - md1_response_cdf(1.0 + k + (1 + node) / 2, load, 1.0) for node in nodes.tolist()]
        integral += float(np.dot(weights, above)) / 2
    # Pollaczek-Khinchine, Kleinrock I (1975), section 5.6
    assert integral == pytest.approx(load / (2 * (1 - load)), rel=1e-7)


def test_md1_has_an_atom_at_its_service_time() -> None:
    assert md1_response_cdf(0.999, 0.5, 1.0) == 0.0
    assert md1_response_cdf(1.0, 0.5, 1.0) == pytest.approx(0.5, rel=1e-14)
    assert Queue("constant", 1, 0.5, MS).response_quantile(0.3) == pytest.approx(MS, abs=1)


LOADS = (0.5, 0.8, 0.9)
QUEUES = [
    *(Queue("exponential", 1, load, 2 * MS) for load in LOADS),
    *(Queue("constant", 1, load, 2 * MS) for load in LOADS),
    *(Queue("exponential", 4, load, 2 * MS) for load in LOADS),
]


SIMULATED = [
    *((queue, 2_000) for queue in QUEUES if queue.load_ratio < 0.9),
    *((queue, 800) for queue in QUEUES if queue.load_ratio == 0.9),
    *(pytest.param(queue, 2_000, marks=pytest.mark.slow) for queue in QUEUES if queue.load_ratio == 0.9),
]


def queue_of(value: object) -> str | None:
    return f"{value.name} at {value.load_ratio}" if isinstance(value, Queue) else None


@pytest.mark.parametrize(("queue", "n_runs"), SIMULATED, ids=queue_of)
def test_theory_is_what_a_simulation_from_empty_comes_to(queue: Queue, n_runs: int) -> None:
    """The last of many arrivals, in runs of their own: independent and, by then, stationary.

    The start is forgotten as exp(-t / r) with r = service / (sqrt(c) (1 - sqrt(rho))^2) at most (M/M/1 has c = 1);
    at rho 0.9 that is 380 service times or 342 arrivals, so that of 4,000 arrivals exp(-11) is left; at rho 0.5 and
    4 lanes 12 arrivals. The share below a quantile is binomial: 4.5 standard errors are missed once in 150,000 times.
    """
    n_arrivals = {0.5: 300, 0.8: 1_200, 0.9: 4_000}[queue.load_ratio]
    rng = np.random.default_rng(5)
    shape = n_runs, n_arrivals
    arrivals = np.cumsum(rng.exponential(S / queue.arrival_hz, shape), axis=1)
    services = rng.exponential(queue.service_ns, shape)
    if queue.law == "constant":
        services = np.full(shape, float(queue.service_ns))
    last = (departures_ns(arrivals, services, queue.n_lanes) - arrivals)[:, -1]
    for q in (0.6, 0.9, 0.99):
        expected = queue.response_cdf(queue.response_quantile(q))
        assert expected == pytest.approx(q, abs=1e-5)
        share = np.count_nonzero(last <= queue.response_quantile(q)) / n_runs
        assert abs(share - q) < 4.5 * math.sqrt(q * (1 - q) / n_runs), q


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


def test_a_simulated_run_has_the_arrivals_of_its_window_only() -> None:
    """So few arrivals that most runs have none or one: nan, or one service time."""
    queue = Queue("constant", 1, 0.001, S)
    runs = simulate_quantiles(queue, 2 * S, (0.5,), 4_000, np.random.default_rng(1))[:, 0]
    share = float(np.isnan(runs).mean())
    expected = math.exp(-0.002)
    assert abs(share - expected) < 4.5 * math.sqrt(expected * (1 - expected) / 4_000)
    assert np.nanmin(runs) == pytest.approx(S, rel=1e-9)


@pytest.mark.parametrize("law", ["exponential", "constant"])
def test_a_range_misses_new_runs_as_rarely_as_it_says(law: str) -> None:
    """4,000 new runs, 200 for each of 20 ranges, of which 20 % are missed.

    The 200 share the luck of their range, made of 30 runs: on each side a standard deviation of
    sqrt(0.1 * 0.9 / 31) = 0.054 at most, so 0.054 sqrt(2 / 20) = 0.017 for the share; the runs add
    sqrt(0.2 * 0.8 / 4,000) = 0.006. 4.5 standard errors are 0.082.
    """
    queue = Queue("constant" if law == "constant" else "exponential", 1, 0.8, 2 * MS)
    rng = np.random.default_rng(11)
    n_missed = 0
    for _ in range(20):
        ((low, high),) = sampling_ranges(queue, S, (0.95,), 0.2, rng)
        runs = simulate_quantiles(queue, S, (0.95,), 200, rng)[:, 0]
        n_missed += int(np.count_nonzero((runs < low) | (runs > high)))
    assert abs(n_missed / 4_000 - 0.2) < 0.082


@pytest.mark.parametrize(
    ("law", "n_lanes", "load", "service_ns", "said"),
    [
        ("exponential", 1, 1.0, 1, "load"),
        ("exponential", 1, 0.0, 1, "load"),
        ("exponential", 0, 0.5, 1, "1 lane or more"),
        ("exponential", 1, 0.5, 0, "service time"),
        ("constant", 2, 0.5, 1, "1 lane only"),
    ],
)
def test_what_is_no_known_queue_is_refused(
    law: str, n_lanes: int, load: float, service_ns: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Queue("constant" if law == "constant" else "exponential", n_lanes, load, service_ns)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1])
def test_what_is_no_probability_has_no_quantile(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Queue("exponential", 1, 0.5, 1).response_quantile(q)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Queue("constant", 1, 0.5, 1).response_quantile(q)
