"""What windows of a recording cost: planted differences, none at all, and how often the interval holds the truth."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.recorded import Windows
from squall.analysis.render.templates import sentences
from squall.analysis.requests.recording_cost import (
    LEAST_PAIRS,
    RecordingCosts,
    one_server,
    place,
    recording_costs,
    undisturbed,
)
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.order_statistics import binomial_quantile
from squall.analysis.summary.summary import summarise
from tests.plain_runs import plain_run
from tests.window_runs import windows_of

MS, S = 1_000_000, 1_000_000_000
ON, PERIOD, EDGE = 200 * MS, 2 * S, MS
FIRST = 1_000 * S


def phase(n_periods: int) -> RunPhase:
    return RunPhase("steady", "measure", FIRST, FIRST + n_periods * PERIOD)


def recorded(n_periods: int) -> Windows:
    span = phase(n_periods)
    rows = windows_of(span.start_ns, span.end_ns, ON, PERIOD, EDGE)
    return Windows.of([(r["begun_ns"], r["start_ns"], r["end_ns"], r["done_ns"]) for r in rows])


def requests(sent: Any, service: Any, outcome: Any = "ok", phases: Any = "steady") -> Requests:
    n = len(sent)

    def column(value: Any) -> pa.Array:
        return pa.array([value] * n if isinstance(value, str) else value)

    return Requests.from_table(pa.table({
        "request_id": np.arange(n), "worker": np.zeros(n, np.int64), "node": column("node-0"), "phase": column(phases),
        "scheduled_ns": np.asarray(sent) - 1_000, "sent_ns": np.asarray(sent),
        "done_ns": np.asarray(sent) + np.asarray(service), "rows": np.ones(n, np.int64), "outcome": column(outcome),
        "detail": column(""), "target": column("server-0"), "request_kind": column("m"),
    }))  # fmt: skip


def simulated(seed: int, n_periods: int, effect: float, rate_hz: float = 60.0) -> Requests:
    """Poisson arrivals; service lognormal about a level that wanders from period to period and within it, `effect`
    times as long where a window was asked for or open."""
    rng = np.random.default_rng(seed)
    span, windows = phase(n_periods), recorded(n_periods)
    n = rng.poisson(rate_hz * n_periods * PERIOD / S)
    sent = np.sort(rng.integers(span.start_ns, span.end_ns, n))
    slow = np.cumsum(rng.normal(0, 0.05, n_periods))[(sent - span.start_ns) // PERIOD]
    fast = rng.normal(0, 0.1, n_periods * 20 + 1)[(sent - span.start_ns) // (PERIOD // 20)]
    service = 4e6 * np.exp(slow + fast + rng.normal(0, 0.4, n))
    service *= np.where(
        np.searchsorted(windows.done_ns, sent, "right") < np.searchsorted(windows.begun_ns, sent, "right"),
        effect,
        1.0,
    )
    return requests(sent, service.astype(np.int64))


def costs(found: Requests, n_periods: int) -> RecordingCosts:
    windows, spans = recorded(n_periods), [phase(n_periods)]
    return recording_costs(found, windows, place(found, windows), spans, "outside")


def test_a_planted_tenth_is_found_and_no_difference_is_none() -> None:
    slower, same = (costs(simulated(3, 150, effect), 150).measure for effect in (1.1, 1.0))
    p50 = slower.service[0]
    assert p50.low is not None
    assert p50.high is not None
    assert 1.0 < p50.low <= 1.1 <= p50.high < 1.2
    for one in same.service:
        assert one.low is not None
        assert one.high is not None
        assert one.low <= 1.0 <= one.high
    assert slower.n_pairs == slower.n_windows == 150
    assert slower.recorded_ratio == pytest.approx((ON + EDGE) / PERIOD, rel=1e-3)
    assert slower.n_inside < 0.11 * slower.n_outside


def held(seeds: range, n_periods: int, effect: float) -> tuple[list[bool], list[bool]]:
    """Whether the intervals of p50 and p95 hold the planted ratio, run by run."""
    found: tuple[list[bool], list[bool]] = ([], [])
    for seed in seeds:
        for one, own in zip(
            costs(simulated(seed, n_periods, effect), n_periods).measure.service, found, strict=True
        ):
            assert one.low is not None
            assert one.high is not None
            own.append(one.low <= effect <= one.high)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("effect", [1.0, 1.1])
def test_intervals_hold_the_truth_about_as_often_as_they_say(effect: float) -> None:
    """Of 40 runs: fewer than the 0.1 % point of a binomial count with 95 % would tell of an interval too narrow."""
    for own in held(range(100, 140), 60, effect):
        assert sum(own) >= binomial_quantile(0.001, 40, 0.95)


@pytest.mark.slow
@pytest.mark.parametrize("n_periods", [15, *(pytest.param(n, marks=pytest.mark.long) for n in (60, 150))])
def test_intervals_of_many_runs_hold_the_truth(n_periods: int) -> None:
    """200 runs: the standard error of the share held is 1.5 %; an interval may be wider than it says, not narrower."""
    for own in held(range(1_000, 1_200), n_periods, 1.1):
        assert sum(own) / len(own) >= 0.95 - 3 * 0.0154


def test_a_request_is_told_by_its_send_and_one_that_outlives_the_pause_is_kept() -> None:
    windows = recorded(3)
    at = FIRST + np.array([0, 100, 195, 250, 1_000, 1_990, 3_000]) * MS
    service = np.array([5, 5, 5, 5, 5, 5, 60_000]) * MS  # the last: longer than the run
    found = place(
        requests(np.r_[at, at[4] + np.arange(1_000)], np.r_[service, np.full(1_000, 10 * MS)]), windows
    )
    assert found.is_inside[:7].tolist() == [False, True, False, False, False, False, False]
    assert found.is_outside[:7].tolist() == [False, False, False, True, True, False, True]


def test_phases_of_other_latencies_are_no_cost() -> None:
    """Two phases, one six times as slow, nothing planted: a median of all of them in one heap lies between the two."""
    n = 60
    calm = simulated(8, n, 1.0)
    half = RunPhase("calm", "measure", FIRST, FIRST + n // 2 * PERIOD)
    rest = RunPhase("busy", "measure", half.end_ns, FIRST + n * PERIOD)
    is_busy = calm.sent_ns >= rest.start_ns
    names = np.where(is_busy, "busy", "calm").tolist()
    both = requests(calm.sent_ns, calm.service_ns * np.where(is_busy, 6, 1), phases=names)
    windows = recorded(n)
    found = recording_costs(both, windows, place(both, windows), [half, rest], "all")
    p50 = found.measure.service[0]
    own = [one.service[0].ratio or 0.0 for one in found.by_phase.values()]
    assert p50.ratio == pytest.approx(np.exp(np.mean(np.log(own))), rel=0.02)
    assert p50.low is not None
    assert p50.high is not None
    assert p50.low <= 1.0 <= p50.high
    assert p50.high / p50.low < 1.5


def test_failures_are_infinitely_slow() -> None:
    found = simulated(4, 60, 1.0)
    windows = recorded(60)
    placed = place(found, windows)
    outcome = np.where(placed.is_inside & (np.arange(len(found)) % 10 == 0), "timeout", "ok")
    failing = requests(found.sent_ns, found.service_ns, outcome.tolist())
    p50, p95 = recording_costs(failing, windows, place(failing, windows), [phase(60)], "all").measure.service
    assert p50.ratio is not None
    assert (p95.inside_ns, p95.ratio, p95.reason) == (None, None, "infinite: too many failed")


def test_few_windows_have_no_interval_and_few_requests_no_ratio() -> None:
    found = costs(simulated(5, LEAST_PAIRS - 1, 1.0, rate_hz=200.0), LEAST_PAIRS - 1).measure.service[0]
    assert found.ratio is not None
    assert (found.low, found.reason[:25]) == (None, "9 windows with a pause af")
    p95 = costs(simulated(5, 20, 1.0, rate_hz=5.0), 20).measure.service[1]
    assert p95.ratio is None
    assert "72 are needed" in p95.reason


def test_latencies_lead_outside_where_every_phase_has_enough_there() -> None:
    found, windows = simulated(6, 10, 1.0), recorded(10)
    placed = place(found, windows)
    alone = undisturbed(found, placed, [phase(10)])
    assert alone is not None
    assert len(alone) == placed.is_outside.sum() > 200
    assert undisturbed(found, placed, [phase(10), RunPhase("late", "measure", FIRST, FIRST + S)]) is None


def test_windows_of_two_servers_cost_where_any_is_asked_for_and_hold_where_both_do() -> None:
    one, other = Windows.of([(0, 10, 50, 60)]), Windows.of([(5, 20, 55, 70), (100, 110, 120, 130)])
    both = one_server([one, other, Windows.of([])])
    rows = zip(both.begun_ns, both.start_ns, both.end_ns, both.done_ns, strict=True)
    assert [tuple(map(int, row)) for row in rows] == [(0, 20, 50, 70), (100, 130, 130, 130)]
    assert len(one_server([]).begun_ns) == 0


def test_the_summary_and_the_screen_say_what_recording_cost(tmp_path: Path) -> None:
    n_periods = 30
    span, found = phase(n_periods), simulated(7, n_periods, 1.3)
    rows = [
        {"request_id": i, "phase": "steady", "target": "server-0", "scheduled_ns": int(sent) - 1_000, "rows": 1,
         "sent_ns": int(sent), "done_ns": int(sent + service), "outcome": "ok", "request_kind": "m"}
        for i, (sent, service) in enumerate(zip(found.sent_ns, found.service_ns, strict=True))
    ]  # fmt: skip
    tables = {"requests": rows, "recordings": windows_of(span.start_ns, span.end_ns, ON, PERIOD, EDGE)}
    phases = [{"name": "steady", "kind": "measure", "start_ns": span.start_ns, "end_ns": span.end_ns}]
    store = plain_run(tmp_path, tables, phases=phases, start_ns=span.start_ns, plan={"load": "open"})
    made = summarise(store)
    assert made.recording is not None
    assert made.recording.headline == "outside"
    assert made.recording.by_phase["steady"] == made.recording.measure
    p50 = made.recording.measure.response
    assert p50 is not None
    spread = made.measure.latency.spreads["response"]
    assert spread.n == int(place(found, recorded(n_periods)).is_outside.sum()) < len(found)
    assert spread.quantiles[0].value_ns == pytest.approx(p50[0].outside_ns, rel=0.01)
    (line,) = sentences("recording", made.recording)
    change = r"[+-]?\d+ % \([+-]?\d+ to [+-]?\d+\)"
    of_which = "inside; headline latencies are those outside"
    whole = rf"kernels recorded in 10\.1 % of the time: p50 {change}, p95 {change} {of_which}"
    assert re.fullmatch(whole, line), line
    few = replace(made.recording, headline="all")
    assert sentences("recording", few)[0].endswith("headline latencies are of all requests")
    assert sentences("recording", None) == []
