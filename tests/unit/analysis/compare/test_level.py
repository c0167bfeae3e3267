"""The level of a run: throughput, goodput, in flight, backlog, peaks, bursts and busy periods of planted requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.compare.level import is_short, level_of
from squall.analysis.requests.requests import Labels, Requests
from tests.simulated_servers import fifo_response, gamma_arrivals
from tests.unit.analysis.decisions.test_judged import MAIN, MS, S, evenly, requests


def queued(load: float, n: int = 5_000, seed: int = 3) -> tuple[Requests, RunPhase]:
    """Poisson arrivals at a first-come-first-served server of 1 ms."""
    arrival_s = gamma_arrivals(np.random.default_rng(seed), n) / (1_000.0 * load)
    response_s = fifo_response(arrival_s, 0.001)
    at_ns = (arrival_s * S).astype(np.int64) + MAIN.start_ns
    span = RunPhase("main", "measure", MAIN.start_ns, int(at_ns[-1]) + 1)
    return in_one_phase(requests(at_ns, (response_s * S).astype(np.int64))), span


def in_one_phase(found: Requests) -> Requests:
    """All of `found` as requests of phase main."""
    return replace(found, phase=Labels(np.zeros(len(found), np.int64), ("main",)))


def test_even_requests_have_the_figures_that_were_planted() -> None:
    # 200 in 10 s, 10 ms each, ten of them 60 ms, two rejected after 10 ms
    slow, failed = dict.fromkeys(range(100, 110), 60 * MS), {7: 1, 8: 1}
    found = level_of(evenly(200, slow, failed), [MAIN], 50 * MS)
    assert (found.n, found.n_ok, found.n_unanswered) == (200, 198, 0)
    assert (found.offered_hz, found.throughput_hz, found.good_hz) == (20.0, 19.8, 18.8)
    assert (found.response_p50_ns, found.response_p95_ns, found.response_p99_ns) == (
        10 * MS,
        60 * MS,
        60 * MS,
    )
    assert found.response_mean_ns == pytest.approx((188 * 10 + 10 * 60) / 198 * MS)
    assert found.in_flight_mean_count == pytest.approx((190 * 0.01 + 10 * 0.06) / 10)
    assert (found.peak_1s_hz, found.peak_100ms_hz) == (20.0, 20.0)
    assert found.n_bursts == 0
    # 60 ms outlast the 50 ms to the next request, so that the eleven from 100 to 110 are one busy period
    assert found.n_busy_periods == 190
    assert not found.is_saturated


def test_unanswered_requests_are_counted() -> None:
    found = level_of(evenly(100, outcome={3: 3, 4: 2}), [MAIN], None)
    assert (found.n_ok, found.n_unanswered) == (98, 1)  # unsent leaves nothing at the server


@pytest.mark.parametrize(("load", "is_saturated"), [(0.5, False), (0.9, False), (1.1, True), (1.5, True)])
def test_a_backlog_that_grows_all_along_is_saturated(load: float, is_saturated: bool) -> None:
    own, span = queued(load)
    found = level_of(own, [span], None)
    assert found.is_saturated is is_saturated
    if load > 1.0:  # what comes in less what goes out
        assert found.backlog_growth_ratio == pytest.approx(1.0 - 1.0 / load, abs=0.05)
    # Little's law: in flight is rate times mean response time
    assert found.in_flight_mean_count == pytest.approx(
        found.offered_hz * (found.response_mean_ns or 0.0) / S, rel=1e-6
    )


def test_busy_periods_are_as_many_as_arrivals_that_find_the_server_idle() -> None:
    own, span = queued(0.8, 20_000)
    found = level_of(own, [span], None)
    # one in five finds it idle: 4,000 of 20,000, standard error below 3 %
    assert found.n_busy_periods == pytest.approx(4_000, rel=0.09)


def test_bursts_of_the_plan_are_counted() -> None:
    calm = np.arange(0, 100 * S, S // 20)
    bursts = np.concatenate([np.arange(at * S, at * S + S // 2, S // 400) for at in (10, 30, 50)])
    at_ns = MAIN.start_ns + np.sort(np.concatenate([calm, bursts]))
    span = RunPhase("main", "measure", MAIN.start_ns, MAIN.start_ns + 100 * S)
    found = level_of(in_one_phase(requests(at_ns, np.full(len(at_ns), MS))), [span], None)
    assert found.n_bursts == 3
    assert found.peak_100ms_hz == pytest.approx(430, abs=20)


@pytest.mark.parametrize(
    ("n_bursts", "n_busy", "short"), [(0, 30, False), (0, 29, True), (9, 500, True), (10, 500, False)]
)
def test_few_bursts_or_busy_periods_are_short(n_bursts: int, n_busy: int, short: bool) -> None:
    assert is_short(n_bursts, n_busy) is short
