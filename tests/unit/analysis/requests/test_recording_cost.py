"""What windows of a recording cost: planted differences, none at all, and how often the interval holds the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.analysis.recorded import Windows
from squall.analysis.report.summary import summarise
from squall.analysis.requests.recording_cost import (
    LEAST_PAIRS,
    RecordedQuantile,
    RecordingCosts,
    one_server,
    place,
    recording_costs,
    undisturbed,
)
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.order_statistics import binomial_quantile
from squall.analysis.storage.timeline import RunPhase
from tests.known import known
from tests.plain_runs import plain_run
from tests.unit.analysis.requests.made_requests import requests_of
from tests.window_runs import windows_of

MS, S = 1_000_000, 1_000_000_000
ON, PERIOD, EDGE = 200 * MS, 2 * S, MS
FIRST = 1_000 * S


def phase(n_periods: int) -> RunPhase:
    return RunPhase("main", "measure", FIRST, FIRST + n_periods * PERIOD)


def recorded(n_periods: int) -> Windows:
    rows = windows_of(FIRST, phase(n_periods).end_ns, ON, PERIOD, EDGE)
    return Windows.of([(r["begun_ns"], r["start_ns"], r["end_ns"], r["done_ns"]) for r in rows])


def requests(sent_ns: np.ndarray, service_ns: np.ndarray, **columns: Any) -> Requests:
    return requests_of(sent_ns - 1_000, sent_ns=sent_ns, done_ns=sent_ns + service_ns, **columns)


def simulated(seed: int, n_periods: int, effect: float, rate_hz: float = 60.0) -> Requests:
    """Poisson arrivals; service lognormal about a level that wanders from period to period and within it, `effect`
    times as long where a window was asked for or open."""
    rng = np.random.default_rng(seed)
    windows = recorded(n_periods)
    n = rng.poisson(rate_hz * n_periods * PERIOD / S)
    sent = np.sort(rng.integers(FIRST, phase(n_periods).end_ns, n))
    slow = np.cumsum(rng.normal(0, 0.05, n_periods))[(sent - FIRST) // PERIOD]
    fast = rng.normal(0, 0.1, n_periods * 20 + 1)[(sent - FIRST) // (PERIOD // 20)]
    service = 4e6 * np.exp(slow + fast + rng.normal(0, 0.4, n))
    n_begun, n_done = (np.searchsorted(edges, sent, "right") for edges in (windows.begun_ns, windows.done_ns))
    return requests(sent, (service * np.where(n_done < n_begun, effect, 1.0)).astype(np.int64))


def costs(found: Requests, n_periods: int, *spans: RunPhase) -> RecordingCosts:
    windows = recorded(n_periods)
    return recording_costs(found, windows, place(found, windows), spans or [phase(n_periods)], "outside")


def holds(one: RecordedQuantile, truth: float) -> bool:
    return known(one.low) <= truth <= known(one.high)


def test_a_planted_tenth_is_found_and_no_difference_is_none() -> None:
    slower, same = (costs(simulated(3, 150, effect), 150).measure for effect in (1.1, 1.0))
    p50 = slower.service[0]
    assert holds(p50, 1.1)
    assert 1.0 < known(p50.low) < known(p50.high) < 1.2
    assert all(holds(one, 1.0) for one in same.service)
    assert slower.n_pairs == slower.n_windows == 150
    assert slower.recorded_ratio == pytest.approx((ON + EDGE) / PERIOD, rel=1e-3)
    assert slower.n_inside < 0.11 * slower.n_outside


@pytest.mark.slow
@pytest.mark.parametrize(
    ("effect", "n_periods", "n_runs"),
    [
        (1.0, 60, 40),
        (1.1, 60, 40),
        (1.1, 15, 200),
        *(pytest.param(1.1, n, 200, marks=pytest.mark.long) for n in (60, 150)),
    ],
)
def test_intervals_hold_the_truth_about_as_often_as_they_say(
    effect: float, n_periods: int, n_runs: int
) -> None:
    """Fewer than the 0.1 % point of a binomial count with 95 % tell of an interval too narrow; it may be wider."""
    seeds = range(1_000, 1_000 + n_runs)
    every = [costs(simulated(seed, n_periods, effect), n_periods).measure.service for seed in seeds]
    for own in zip(*every, strict=True):
        assert sum(holds(one, effect) for one in own) >= binomial_quantile(0.001, n_runs, 0.95)


def test_a_request_is_told_by_its_send_and_one_that_outlives_the_pause_is_kept() -> None:
    at = FIRST + np.array([0, 100, 195, 250, 1_000, 1_990, 3_000]) * MS
    service = np.array([5, 5, 5, 5, 5, 5, 60_000]) * MS  # the last: longer than the run
    more = at[4] + np.arange(1_000)
    found = place(requests(np.r_[at, more], np.r_[service, np.full(1_000, 10 * MS)]), recorded(3))
    assert found.is_inside[:7].tolist() == [False, True, False, False, False, False, False]
    assert found.is_outside[:7].tolist() == [False, False, False, True, True, False, True]


def test_phases_of_other_latencies_are_no_cost() -> None:
    """Two phases, one six times as slow, nothing planted: a median of all of them in one heap lies between the two."""
    calm = simulated(8, 60, 1.0)
    half = RunPhase("calm", "measure", FIRST, FIRST + 30 * PERIOD)
    rest = RunPhase("busy", "measure", half.end_ns, FIRST + 60 * PERIOD)
    is_busy = calm.sent_ns >= rest.start_ns
    names = np.where(is_busy, "busy", "calm").tolist()
    both = requests(calm.sent_ns, calm.service_ns * np.where(is_busy, 6, 1), phase=names)
    found = costs(both, 60, half, rest)
    p50 = found.measure.service[0]
    own = [known(one.service[0].ratio) for one in found.by_phase.values()]
    assert p50.ratio == pytest.approx(np.exp(np.mean(np.log(own))), rel=0.02)
    assert holds(p50, 1.0)
    assert known(p50.high) / known(p50.low) < 1.5


def test_what_is_infinite_or_too_few_has_no_ratio_and_few_windows_no_interval() -> None:
    found = simulated(4, 60, 1.0)
    is_failed = place(found, recorded(60)).is_inside & (np.arange(len(found)) % 10 == 0)
    outcome = np.where(is_failed, "timeout", "ok").tolist()
    p50, p95 = costs(requests(found.sent_ns, found.service_ns, outcome=outcome), 60).measure.service
    assert p50.ratio is not None
    assert (p95.inside_ns, p95.ratio, p95.reason) == (None, None, "infinite: too many failed")
    p95 = costs(simulated(5, 20, 1.0, rate_hz=5.0), 20).measure.service[1]
    assert p95.ratio is None
    assert "72 are needed" in p95.reason
    p50 = costs(simulated(5, LEAST_PAIRS - 1, 1.0, rate_hz=200.0), LEAST_PAIRS - 1).measure.service[0]
    assert p50.ratio is not None
    assert (p50.low, p50.reason[:25]) == (None, "9 windows with a pause af")


def test_latencies_lead_outside_where_every_phase_has_enough_there() -> None:
    found = simulated(6, 10, 1.0)
    placed = place(found, recorded(10))
    alone = known(undisturbed(found, placed, [phase(10)]))
    assert len(alone) == placed.is_outside.sum() > 200
    assert undisturbed(found, placed, [phase(10), RunPhase("late", "measure", FIRST, FIRST + S)]) is None


def test_windows_of_two_servers_cost_where_any_is_asked_for_and_hold_where_both_do() -> None:
    one, other = Windows.of([(0, 10, 50, 60)]), Windows.of([(5, 20, 55, 70), (100, 110, 120, 130)])
    both = one_server([one, other, Windows.of([])])
    columns = (both.begun_ns, both.start_ns, both.end_ns, both.done_ns)
    assert [list(column) for column in columns] == [[0, 100], [20, 130], [50, 130], [70, 130]]
    assert len(one_server([]).begun_ns) == 0


def test_the_summary_leads_with_the_latencies_outside_and_has_those_that_recording_cost(
    tmp_path: Path,
) -> None:
    span, found = phase(30), simulated(7, 30, 1.3)
    names = (
        "request_id",
        "scheduled_ns",
        "sent_ns",
        "done_ns",
        "rows",
        "phase",
        "target",
        "outcome",
        "request_kind",
    )
    tables = {
        "requests": found.table(*names).to_pylist(),
        "recordings": windows_of(FIRST, span.end_ns, ON, PERIOD, EDGE),
    }
    phases = [{"name": "main", "kind": "measure", "start_ns": FIRST, "end_ns": span.end_ns}]
    made = summarise(plain_run(tmp_path, tables, phases=phases, start_ns=FIRST, plan={"load": "open"}))
    recording = known(made.recording)
    assert (recording.headline, recording.by_phase["main"]) == ("outside", recording.measure)
    spread = made.measure.latency.spreads["response"]
    assert spread.n == int(place(found, recorded(30)).is_outside.sum()) < len(found)
    p50 = known(recording.measure.response)[0]
    assert spread.quantiles[0].value_ns == pytest.approx(p50.outside_ns, rel=0.01)
