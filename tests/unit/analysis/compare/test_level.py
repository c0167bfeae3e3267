"""The level of a run: throughput, goodput, in flight, backlog, peaks, bursts and busy periods of planted requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from squall.analysis.arrays import Int64s
from squall.analysis.compare.level import Level, is_short, level_of
from squall.analysis.requests.requests import Labels
from squall.analysis.storage.timeline import RunPhase
from tests.known import known
from tests.simulated_servers import fifo_response, gamma_arrivals
from tests.unit.analysis.compare.test_judged import MAIN, MS, S, evenly, requests


def level(at_ns: Int64s, response_ns: Int64s) -> Level:
    """Of requests in one phase, from 100 s on up to the last of them."""
    found = requests(at_ns + MAIN.start_ns, response_ns)
    own = replace(found, phase=Labels(np.zeros(len(found), np.int64), ("main",)))
    return level_of(own, [RunPhase("main", "measure", MAIN.start_ns, int(own.scheduled_ns[-1]) + 1)], None)


def queued(load: float, n: int = 5_000) -> Level:
    """Poisson arrivals at a first-come-first-served server of 1 ms."""
    arrival_s = gamma_arrivals(np.random.default_rng(3), n) / (1_000.0 * load)
    return level((arrival_s * S).astype(np.int64), (fifo_response(arrival_s, 0.001) * S).astype(np.int64))


def test_even_requests_have_the_figures_that_were_planted() -> None:
    # 200 in 10 s, 10 ms each, ten of them 60 ms, two rejected after 10 ms
    slow, failed = dict.fromkeys(range(100, 110), 60 * MS), {7: 1, 8: 1}
    found = level_of(evenly(200, slow, failed), [MAIN], 50 * MS)
    assert vars(found) == pytest.approx({
        "n": 200, "n_ok": 198, "n_unanswered": 0, "offered_hz": 20.0, "throughput_hz": 19.8, "good_hz": 18.8,
        "response_mean_ns": (188 * 10 + 10 * 60) / 198 * MS, "response_p50_ns": 10 * MS,
        "response_p95_ns": 60 * MS, "response_p99_ns": 60 * MS,
        "in_flight_mean_count": (190 * 0.01 + 10 * 0.06) / 10, "backlog_growth_ratio": found.backlog_growth_ratio,
        "peak_1s_hz": 20.0, "peak_100ms_hz": 20.0, "n_bursts": 0,
        # 60 ms outlast the 50 ms to the next request, so that the eleven from 100 to 110 are one busy period
        "n_busy_periods": 190,
    })  # fmt: skip
    assert not found.is_saturated
    found = level_of(evenly(100, outcome={3: 3, 4: 2}), [MAIN], None)
    assert (found.n_ok, found.n_unanswered) == (98, 1)  # unsent leaves nothing at the server


@pytest.mark.parametrize(("load", "is_saturated"), [(0.5, False), (0.9, False), (1.1, True), (1.5, True)])
def test_a_backlog_that_grows_all_along_is_saturated(load: float, is_saturated: bool) -> None:
    found = queued(load)
    assert found.is_saturated is is_saturated
    if load > 1.0:  # what comes in less what goes out
        assert found.backlog_growth_ratio == pytest.approx(1.0 - 1.0 / load, abs=0.05)
    # Little's law: in flight is rate times mean response time
    in_flight = found.offered_hz * known(found.response_mean_ns) / S
    assert found.in_flight_mean_count == pytest.approx(in_flight, rel=1e-6)


def test_busy_periods_are_as_many_as_arrivals_that_find_the_server_idle() -> None:
    # one in five finds it idle: 4,000 of 20,000, standard error below 3 %
    assert queued(0.8, 20_000).n_busy_periods == pytest.approx(4_000, rel=0.09)


def test_bursts_of_the_plan_are_counted() -> None:
    calm = np.arange(0, 100 * S, S // 20)
    bursts = np.concatenate([np.arange(at * S, at * S + S // 2, S // 400) for at in (10, 30, 50)])
    at_ns = np.sort(np.concatenate([calm, bursts]))
    found = level(at_ns, np.full(len(at_ns), MS))
    assert found.n_bursts == 3
    assert found.peak_100ms_hz == pytest.approx(430, abs=20)


def test_few_bursts_or_busy_periods_are_short() -> None:
    assert [is_short(*one) for one in ((0, 30), (0, 29), (9, 500), (10, 500))] == [False, True, True, False]
