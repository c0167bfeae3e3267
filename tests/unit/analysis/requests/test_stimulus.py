"""Planned against sent: an honest run passes every check, and each wrongly delivered stimulus fails its own."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp, poisson

from squall.analysis.arrays import Int64s
from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.limits import LIMITS
from squall.analysis.record import from_json, to_json
from squall.analysis.render.templates import sentences
from squall.analysis.requests.bursts import Burst, compare_bursts
from squall.analysis.requests.requests import Requests
from squall.analysis.requests.stimulus import (
    SCALES_NS,
    Sends,
    Stimulus,
    compare_dispersion,
    end_drift,
    gap_distance,
    lag_noise_ratio,
    sends_of,
    verify,
)
from squall.analysis.tables.sealed import CheckResult
from squall.analysis.verdict.figures import series_figures
from squall.analysis.verdict.run_view import AllowedLag
from squall.analysis.verdict.stimulus_checks import STIMULUS_CHECKS
from squall.analysis.wording import change_text

S = 1_000_000_000
MS = 1_000_000
ORIGIN_NS = 1_795_250_252_000_000_000
LAG_NS = LIMITS.lag_ns
N_WORKERS = 200


def span_of(seconds: float) -> RunPhase:
    return RunPhase("m", "measure", ORIGIN_NS, ORIGIN_NS + round(seconds * S))


def bursty(rng: np.random.Generator, seconds: int, rate_hz: float = 200.0) -> Int64s:
    """Poisson at the base rate, and at four times that in one second of ten; sorted, on the run clock."""
    rates = np.where(np.arange(seconds) % 10 == 4, 4.0, 1.0) * rate_hz
    counts = rng.poisson(rates)
    starts = np.repeat(np.arange(seconds), counts)
    return ORIGIN_NS + np.sort((starts * S + rng.uniform(0, S, counts.sum())).astype(np.int64))


def sent_as(planned: Int64s, lags: Int64s, seconds: float, is_sent: np.ndarray | None = None) -> Sends:
    kept = np.ones(len(planned), np.bool_) if is_sent is None else is_sent
    worker = np.arange(len(planned), dtype=np.int64) % N_WORKERS
    return Sends(span_of(seconds), worker, planned, np.where(kept, planned + lags, 0), kept)


def honest_lags(rng: np.random.Generator, n: int) -> Int64s:
    return rng.exponential(0.1 * MS, n).astype(np.int64)


def failed(sends: Sends, allowed_ns: int = LAG_NS) -> set[str]:
    """Names of the checks that the sends do not meet."""
    n_unsent = int((~sends.is_sent).sum())
    checks = checks_of([verify(sends, LIMITS)], n_unsent, m=AllowedLag(allowed_ns, allowed_ns))
    return {check.name for check in checks if not check.is_met}


def checks_of(stimuli: list[Stimulus], n_unsent: int = 0, **allowed: AllowedLag) -> list[CheckResult]:
    """The checks of the sends, where each phase may lag as `allowed` says, else by the least."""
    by_phase = defaultdict(lambda: AllowedLag(LAG_NS, LAG_NS), allowed)
    view: Any = SimpleNamespace(stimuli=stimuli, n_unsent=n_unsent, allowed_by_phase=by_phase)
    own = [check for check in STIMULUS_CHECKS if not check.name.startswith("lag in")]
    return [check.held(figure) for check in own if (figure := check.figure(view)) is not None]


def test_a_request_sent_before_its_time_is_a_fault_however_little() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, 120)
    lags = honest_lags(rng, len(planned))
    assert failed(sent_as(planned, lags, 120)) == set()
    lags[1_000] = -1
    assert failed(sent_as(planned, lags, 120)) == {"sent early"}


def test_each_phase_has_the_lag_that_its_own_latency_allows() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, 120)
    late = sent_as(planned, np.full(len(planned), 5 * MS), 120)
    calm = replace(verify(late, LIMITS), phase="calm")
    busy = replace(verify(late, LIMITS), phase="busy")
    allowed = AllowedLag(LAG_NS, 100 * MS)
    unmet = {check.name for check in checks_of([calm, busy], busy=allowed) if not check.is_met}
    assert "send lag of the worst worker" in unmet
    alone = {check.name for check in checks_of([busy], busy=allowed) if not check.is_met}
    assert "send lag of the worst worker" not in alone


def test_a_phase_that_was_not_sent_is_not_hidden_by_a_larger_one() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, 120)
    good = verify(sent_as(planned, honest_lags(rng, len(planned)), 120), LIMITS)
    none = replace(good, phase="small", n_planned=30, n_within=0)
    check = next(one for one in checks_of([good, none]) if one.name == "delivered load")
    assert not check.is_met


SECONDS = 120
Fault = Callable[[np.random.Generator, Int64s], Sends]


def honest(rng: np.random.Generator, planned: Int64s) -> Sends:
    return sent_as(planned, honest_lags(rng, len(planned)), SECONDS)


def thinned(rng: np.random.Generator, planned: Int64s) -> Sends:
    """3 % are never sent."""
    return sent_as(planned, honest_lags(rng, len(planned)), SECONDS, rng.uniform(size=len(planned)) > 0.03)


def smoothed(rng: np.random.Generator, planned: Int64s) -> Sends:
    """Each is late by up to 200 ms, evenly."""
    return sent_as(planned, rng.integers(0, 200 * MS, len(planned)), SECONDS)


def drifted(_: np.random.Generator, planned: Int64s) -> Sends:
    """The schedule is stretched by 1 %."""
    return sent_as(planned, (planned - ORIGIN_NS) // 100, SECONDS)


def one_worker_late(rng: np.random.Generator, planned: Int64s) -> Sends:
    """One worker of 200 sends everything 20 ms late."""
    sends = honest(rng, planned)
    return replace(sends, sent_ns=sends.sent_ns + np.where(sends.worker == 7, 20 * MS, 0))


def bursts_cut(_: np.random.Generator, planned: Int64s) -> Sends:
    """No more than 500/s leave the client, where the bursts ask for 800/s: a queue with 2 ms a send."""
    sent, free = np.empty_like(planned), 0
    for i, due in enumerate(planned.tolist()):
        sent[i] = max(due, free)
        free = int(sent[i]) + 2 * MS
    return sent_as(planned, sent - planned, SECONDS)


def bursts_filled(_: np.random.Generator, planned: Int64s) -> Sends:
    """What was planned in the half second before a burst waits for it."""
    at = (planned - ORIGIN_NS) % (10 * S)
    return sent_as(planned, np.where((at >= 3.5 * S) & (at < 4 * S), 4 * S - at, 0), SECONDS)


def stopped_before_the_end(_: np.random.Generator, planned: Int64s) -> Sends:
    """The last 3 s are sent after the phase."""
    late = planned >= ORIGIN_NS + (SECONDS - 3) * S
    return sent_as(planned, np.where(late, 3 * S, 0), SECONDS)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (thinned, {"unsent", "delivered load"}),
        (smoothed, {"dispersion 0.1 s", "delivered load per second", "send lag of the worst worker"}),
        (drifted, {"send lag end drift", "delivered load per second"}),
        (one_worker_late, {"send lag of the worst worker"}),
        (bursts_cut, {"delivered load in bursts", "dispersion 0.1 s", "dispersion 1 s"}),
        (bursts_filled, {"delivered load in bursts", "dispersion 1 s"}),
        (stopped_before_the_end, {"delivered load", "send lag end drift"}),
    ],
)
def test_each_wrongly_delivered_stimulus_fails_its_own_checks(fault: Fault, expected: set[str]) -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, SECONDS)
    assert failed(honest(rng, planned)) == set()
    assert expected <= failed(fault(rng, planned))


def test_one_late_worker_of_many_is_seen_by_nothing_else() -> None:
    rng = np.random.default_rng(5)
    sends = one_worker_late(rng, bursty(rng, SECONDS))
    assert failed(sends) == {"send lag of the worst worker"}
    stimulus = verify(sends, LIMITS)
    assert stimulus.worst_worker is not None
    assert stimulus.worst_worker.worker == 7
    assert stimulus.lag is not None
    assert stimulus.lag.p99_ns < LAG_NS < stimulus.worst_worker.p50_ns


def test_the_check_of_a_worker_names_it_in_its_sentence() -> None:
    rng = np.random.default_rng(5)
    stimulus = verify(one_worker_late(rng, bursty(rng, SECONDS)), LIMITS)
    reasons = [check.reason for check in checks_of([stimulus]) if check.reason]
    assert len(reasons) == 1
    assert "worker 7 was late" in reasons[0]


def test_a_lag_that_the_latency_allows_is_neither_late_worker_nor_drift() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, SECONDS)
    lags = np.linspace(0, 8 * MS, len(planned)).astype(np.int64)
    # a drift of 8 ms is below 1e-4 of 120 s
    assert failed(sent_as(planned, lags, SECONDS)) == {"send lag of the worst worker"}
    assert failed(sent_as(planned, lags, SECONDS), 10 * MS) == set()


def test_the_worst_of_several_phases_decides() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, SECONDS)
    good, bad = verify(honest(rng, planned), LIMITS), verify(smoothed(rng, planned), LIMITS)
    for stimuli in ([good, bad], [bad, good]):
        checks = {check.name: check for check in checks_of(stimuli)}
        assert not checks["dispersion 0.1 s"].is_met
        assert not checks["send lag of the worst worker"].is_met
        assert checks["dispersion 0.1 s"].value == abs(bad.dispersion[0].change_ratio)


def test_the_phase_with_the_most_drift_for_its_length_decides() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, SECONDS)
    good, bad = verify(honest(rng, planned), LIMITS), verify(drifted(rng, planned), LIMITS)
    long = replace(bad, duration_ns=2_000 * bad.duration_ns)  # as large a drift of a phase of 67 hours
    for stimuli in ([good, bad, long], [long, bad, good]):
        check = next(one for one in checks_of(stimuli) if "drift" in one.name)
        assert (check.value, check.limit, check.is_met) == (bad.end_drift_ns, 12 * MS, False)
    check = next(one for one in checks_of([good, long]) if "drift" in one.name)
    assert check.is_met


# what an honest lag may change


def poisson_plan(rng: np.random.Generator, seconds: int, rate_hz: float) -> Int64s:
    n = rng.poisson(rate_hz * seconds)
    return ORIGIN_NS + np.sort(rng.uniform(0, seconds * S, n).astype(np.int64))


def just_before_the_edges(_: np.random.Generator, seconds: int, rate_hz: float) -> Int64s:
    """Constant, each arrival 0.3 ms before a multiple of its gap: nearly all lags carry it over an edge or none."""
    gap_ns = round(S / rate_hz)
    return ORIGIN_NS + np.arange(1, round(seconds * rate_hz) + 1, dtype=np.int64) * gap_ns - 3 * MS // 10


def clustered(rng: np.random.Generator, seconds: int, rate_hz: float) -> Int64s:
    """Gamma gaps with c² 9."""
    gaps = rng.gamma(1 / 9, 9 * S / rate_hz, round(2 * seconds * rate_hz))
    times = np.cumsum(gaps).astype(np.int64)
    return ORIGIN_NS + times[times < seconds * S]


PLANS = [poisson_plan, just_before_the_edges, clustered]


@pytest.mark.parametrize("make", PLANS)
@pytest.mark.parametrize(("seconds", "rate_hz"), [(2, 100), (12, 10), (12, 200), (101, 50)])
def test_lags_up_to_the_allowed_one_never_fail_a_check(
    make: Callable[..., Int64s], seconds: int, rate_hz: float
) -> None:
    # 3 standard errors are left once in 370 by chance, and 2 % come on top: none of 25 runs of up to 3 scales does
    rng = np.random.default_rng(11)
    for _ in range(25):
        planned = make(rng, seconds, rate_hz)
        sends = sent_as(planned, rng.integers(0, LAG_NS, len(planned)), seconds)
        assert failed(sends) == set()


def test_without_that_allowance_an_honest_run_would_fail() -> None:
    bare = replace(LIMITS, lag_ns=0, stall_ns=0, dispersion_errors=0.0)
    rng = np.random.default_rng(11)
    planned = just_before_the_edges(rng, 12, 10)
    sent = np.sort(planned + rng.integers(0, LAG_NS, len(planned)))
    strict, allowing = (
        compare_dispersion(planned, sent, span_of(12), S // 10, limits) for limits in (bare, LIMITS)
    )
    assert strict is not None
    assert allowing is not None
    assert strict.limit_ratio == LIMITS.dispersion_ratio < abs(strict.change_ratio) <= allowing.limit_ratio


@pytest.mark.parametrize("make", PLANS)
def test_the_allowance_is_of_the_size_of_what_lags_do(make: Callable[..., Int64s]) -> None:
    """Not below 3 standard deviations of the change over 200 draws of the lags, nor 15 times as large.

    A standard deviation over 200 draws has a relative standard error of 1/sqrt(400) = 5 %: below the room of a factor.
    """
    rng = np.random.default_rng(3)
    planned, span = make(rng, 30, 100.0), span_of(30)
    without_stall = replace(LIMITS, stall_ns=0)
    allowed = lag_noise_ratio(planned, S // 10, span, without_stall)
    changes = []
    for _ in range(200):
        sent = np.sort(planned + rng.integers(0, LAG_NS, len(planned)))
        found = compare_dispersion(planned, sent, span, S // 10, LIMITS)
        assert found is not None
        changes.append(found.change_ratio)
    spread = abs(np.mean(changes)) + 3 * np.std(changes)
    assert spread <= allowed <= 15 * spread


def test_one_stall_at_any_edge_is_within_its_part_of_the_allowance() -> None:
    """Of all edges of the ten grids, the change at the worst comes near to what is allowed for it."""
    stall_only = replace(LIMITS, dispersion_ratio=0.0, lag_ns=0, dispersion_errors=0.0)
    planned = poisson_plan(np.random.default_rng(3), 3, 200.0)
    shares = []
    for edge in ORIGIN_NS + np.arange(1, 300) * 10 * MS:
        in_stall = (planned >= edge - LIMITS.stall_ns) & (planned < edge)
        found = compare_dispersion(
            planned, np.sort(np.where(in_stall, edge, planned)), span_of(3), S // 10, stall_only
        )
        assert found is not None
        shares.append(abs(found.change_ratio) / found.limit_ratio)
    assert 0.5 < max(shares) <= 1.0 + 1e-9


def test_the_limit_of_a_dispersion_is_two_per_cent_and_the_allowance() -> None:
    rng = np.random.default_rng(3)
    planned = poisson_plan(rng, 60, 200.0)
    found = compare_dispersion(planned, planned, span_of(60), S, LIMITS)
    assert found is not None
    assert found.limit_ratio == 0.02 + lag_noise_ratio(planned, S, span_of(60), LIMITS)


def test_the_allowance_falls_with_the_length_of_the_phase_and_leaves_two_per_cent() -> None:
    rng = np.random.default_rng(3)
    planned = bursty(rng, 600)
    allowances = [
        lag_noise_ratio(planned[planned < ORIGIN_NS + t * S], S, span_of(t), LIMITS) for t in (20, 60, 600)
    ]
    assert allowances == sorted(allowances, reverse=True)
    assert allowances[-1] < 0.002


@given(
    offsets=st.lists(st.integers(0, 2 * S - 1), min_size=100, max_size=200),
    which=st.integers(0, 99),
    late_ns=st.integers(1, LIMITS.stall_ns),
)
def test_no_single_late_arrival_makes_a_run_invalid(offsets: list[int], which: int, late_ns: int) -> None:
    planned = ORIGIN_NS + np.sort(np.array(offsets, dtype=np.int64))
    lags = np.zeros(len(planned), dtype=np.int64)
    lags[which] = late_ns
    assert failed(sent_as(planned, lags, 2.0)) == set()


# single figures


def test_a_burst_is_a_run_of_windows_of_twice_the_mean_or_more() -> None:
    counts = np.full(100, 20)
    counts[30:33], counts[60] = 80, 50  # mean 22.1
    planned = ORIGIN_NS + np.repeat(np.arange(100) * S // 10, counts) + 50 * MS
    sent = planned.copy()
    sent[np.flatnonzero(planned >= ORIGIN_NS + 3_200 * MS)[:30]] += (
        S  # of the third window of the first burst
    )
    found = compare_bursts(planned, np.sort(sent), span_of(10), LIMITS)
    assert found is not None
    # nothing is planned in the 10 ms before an edge, so that 2 sends are explained
    assert found.largest == (Burst(3 * S, 300 * MS, 240, 210, 28), Burst(6 * S, 100 * MS, 50, 50, 0))
    assert (found.n, found.n_planned, found.n_sent, found.window_ns) == (2, 290, 260, S // 10)
    assert found.difference_ratio == pytest.approx(28 / 290)


def test_a_stall_at_the_edge_of_a_burst_explains_what_was_planned_within_it() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, 10)
    edge = ORIGIN_NS + 5 * S
    in_stall = (planned >= edge - LIMITS.stall_ns) & (planned < edge)
    lags = np.where(in_stall, edge - planned, 0)
    found = compare_bursts(planned, np.sort(planned + lags), span_of(10), LIMITS)
    assert found is not None
    assert found.n_sent == found.n_planned - int(in_stall.sum()) < found.n_planned
    assert found.difference_ratio == 0.0


def test_without_a_burst_the_busiest_window_stands_for_one_and_sparse_phases_have_none() -> None:
    rng = np.random.default_rng(5)
    even = poisson_plan(rng, 20, 1_000.0)
    found = compare_bursts(even, even, span_of(20), LIMITS)
    assert found is not None
    counts = np.bincount((even - ORIGIN_NS) // (S // 10))
    assert (found.n, found.largest[0].n_planned) == (1, counts.max())
    windows = [compare_bursts(even[::step], even[::step], span_of(20), LIMITS) for step in (10, 100)]
    assert [one.window_ns for one in windows if one] == [S, 10 * S]
    assert compare_bursts(even[:10], even[:10], span_of(20), LIMITS) is None
    assert compare_bursts(even[:0], even[:0], span_of(20), LIMITS) is None


def test_chance_alone_makes_no_burst() -> None:
    assert 1 / poisson.sf(39, 20) == pytest.approx(19_000, rel=0.03)


def test_the_drift_is_of_medians_so_that_a_stall_is_none() -> None:
    planned = ORIGIN_NS + np.arange(2_000, dtype=np.int64) * 10 * MS
    stalled = np.where(np.arange(2_000) < 30, 300 * MS, 100)
    assert end_drift(sent_as(planned, stalled, 20), 20) == 0
    assert end_drift(sent_as(planned, np.arange(2_000) * 1_000, 20), 20) == 1_900_000
    assert end_drift(sent_as(planned[:1], stalled[:1], 20), 20) is None
    few = sent_as(planned[::50], np.arange(40) * MS, 20)  # halves: 0 … 19 and 20 … 39
    assert end_drift(few, 20) == 20 * MS
    assert end_drift(few, 21) is None


def test_the_distance_of_the_gaps_is_that_of_kolmogorov_and_smirnov() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, 20)
    sent = np.sort(planned + rng.integers(0, 3 * MS, len(planned)))
    expected = ks_2samp(np.diff(planned), np.diff(sent)).statistic
    assert gap_distance(planned, sent) == pytest.approx(expected)
    assert gap_distance(planned[:2], sent) is None


def test_of_many_gaps_an_even_part_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.analysis.requests.stimulus.MOST_GAPS", 1_000)
    rng = np.random.default_rng(5)
    planned = bursty(rng, 20)
    sent = np.sort(planned + rng.integers(0, 3 * MS, len(planned)))
    stride = -(-len(planned) // 1_000)
    assert stride > 4
    expected = ks_2samp(np.diff(planned)[::stride], np.diff(sent)[::stride]).statistic
    assert gap_distance(planned, sent) == pytest.approx(expected)


def test_a_harmless_lag_moves_that_distance_and_no_check() -> None:
    rng = np.random.default_rng(5)
    planned = just_before_the_edges(rng, SECONDS, 200.0)
    sends = sent_as(planned, rng.integers(0, LAG_NS, len(planned)), SECONDS)
    distance = verify(sends, LIMITS).gap_ks_ratio
    assert distance is not None
    assert distance > 0.45  # all planned gaps are 5 ms, and half of those sent are shorter
    assert failed(sends) == set()


def test_lags_are_by_nearest_rank_and_by_worker() -> None:
    planned = ORIGIN_NS + np.arange(4_000, dtype=np.int64) * MS
    lags = np.arange(4_000, dtype=np.int64) * 100
    stimulus = verify(sent_as(planned, lags, 4), LIMITS)
    assert stimulus.lag is not None
    assert (stimulus.lag.p50_ns, stimulus.lag.p99_ns, stimulus.lag.max_ns) == (199_900, 395_900, 399_900)
    assert [one.worker for one in stimulus.workers] == list(range(N_WORKERS))
    assert stimulus.workers[0].n == 20
    assert stimulus.workers[0].max_ns == 3_800 * 100


def test_the_rows_of_a_phase_come_in_the_order_of_the_schedule_with_their_worker() -> None:
    table = pa.table(
        {
            "phase": ["b", "a", "b", "b"],
            "worker": pa.array([1, 0, 0, 1], pa.int32()),
            "request_id": [3, 0, 2, 1],
            "scheduled_ns": [30, 0, 20, 10],
            "sent_ns": pa.array([31, 1, None, 12], pa.int64()),
            "done_ns": pa.array([32, 2, None, 13], pa.int64()),
            "rows": [1, 1, 1, 1],
            **dict.fromkeys(("node", "target", "request_kind", "outcome", "detail"), [""] * 4),
        }
    )
    spans = [RunPhase("b", "measure", 10, 40), RunPhase("c", "measure", 40, 50)]
    one, none = sends_of(Requests.from_table(table), spans)
    assert one.scheduled_ns.tolist() == [10, 20, 30]
    assert one.worker.tolist() == [1, 0, 1]
    assert one.is_sent.tolist() == [True, False, True]
    assert (one.lag_ns.tolist(), one.all_sent_ns.tolist()) == ([2, 1], [12, 31])
    assert len(none.scheduled_ns) == 0


def test_a_phase_in_which_nothing_was_sent_fails_and_is_plain_json() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, SECONDS)
    nothing = sent_as(planned, planned * 0, SECONDS, np.zeros(len(planned), np.bool_))
    assert {"unsent", "delivered load", "dispersion 1 s", "delivered load in bursts"} <= failed(nothing)
    figures = verify(nothing, LIMITS)
    plain = to_json(figures)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert from_json(Stimulus, plain) == figures
    assert (figures.lag, figures.workers, figures.gap_ks_ratio) == (None, (), None)


def test_every_scale_that_the_phase_holds_ten_windows_of_is_judged() -> None:
    rng = np.random.default_rng(5)
    planned = poisson_plan(rng, 1_000, 20.0)
    scales = [one.window_ns for one in verify(sent_as(planned, planned * 0, 1_000), LIMITS).dispersion]
    assert tuple(scales) == SCALES_NS


# figures of a series, before it is sent


def test_the_figures_of_a_plan_are_those_of_the_same_schedule_on_the_run_clock() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, 300)
    offsets = planned - ORIGIN_NS + 7 * S
    before = np.concatenate([np.arange(7) * S, offsets])
    assert series_figures(before, 7 * S, 307 * S) == series_figures(planned, ORIGIN_NS, ORIGIN_NS + 300 * S)


@pytest.mark.parametrize(
    ("seconds", "window_s", "carried"),
    [
        (9, None, set()),
        (10, 1, {"peak_to_mean_1s_ratio", "idc_1s_ratio"}),
        (100, 10, {"peak_to_mean_10s_ratio", "idc_10s_ratio"}),
        (600, 60, {"peak_to_mean_60s_ratio"}),
        (1_000, 60, {"peak_to_mean_60s_ratio", "idc_100s_ratio"}),
    ],
)
def test_a_figure_is_none_below_ten_windows_and_the_safe_load_is_of_the_longest(
    seconds: int, window_s: int | None, carried: set[str]
) -> None:
    planned = poisson_plan(np.random.default_rng(5), seconds, 20.0)
    figures = series_figures(planned, ORIGIN_NS, ORIGIN_NS + seconds * S)
    known = {name for name, value in to_json(figures).items() if value is not None}
    assert carried <= known
    last = {9: "idc_1s_ratio", 10: "idc_10s_ratio", 100: "idc_100s_ratio", 600: "idc_100s_ratio", 1_000: None}
    assert last[seconds] not in known
    assert figures.safe_load_window_ns == (window_s * S if window_s else None)
    if window_s:
        assert figures.safe_load_ratio == 1 / getattr(figures, f"peak_to_mean_{window_s}s_ratio")


def test_what_a_run_is_about_to_send_takes_two_lines() -> None:
    counts = np.full(600, 10)
    counts[300:360] = 40  # 40/s in one minute of ten: mean 13, peak to mean 40/13, safe load 13/40
    planned = ORIGIN_NS + np.concatenate([i * S + np.arange(n) * (S // n) for i, n in enumerate(counts)])
    lines = sentences("intended", "burst", series_figures(planned, ORIGIN_NS, ORIGIN_NS + 600 * S))
    assert len(lines) == 2
    assert lines[0].startswith("burst: 7,800 arrivals, 13.0/s; gap c² 0.20")
    assert "local 0; dispersion 6." in lines[0]
    assert lines[0].endswith("peak to mean 3.08 at 1 s, 3.08 at 10 s, 3.08 at 60 s")
    assert lines[1] == "burst: above 32.5 % load its busiest 60.0 s alone overloads the server"


def test_a_short_phase_prints_what_it_carries() -> None:
    planned = poisson_plan(np.random.default_rng(5), 2, 50.0)
    lines = sentences("intended", "try", series_figures(planned, ORIGIN_NS, ORIGIN_NS + 2 * S))
    assert len(lines) == 1
    assert "dispersion" not in lines[0]
    assert "-" not in lines[0].replace("local -", "")


def test_a_phase_takes_two_lines_on_the_screen() -> None:
    rng = np.random.default_rng(5)
    planned = bursty(rng, SECONDS)
    first, second = sentences("stimulus", verify(honest(rng, planned), LIMITS))
    n = f"{len(planned):,}"
    assert first == f"{n} of {n} sent within it; worst second 0 % off, bursts 0 %"
    assert second.startswith("dispersion ")
    assert [f"{scale} s " in second for scale in (" 0.1", " 1", " 10", " 100")] == [True] * 3 + [False]
    assert "; drift " in second
    assert "gap KS 0.0" in second


def test_a_change_has_its_sign() -> None:
    assert [change_text(one) for one in (0.0123, -0.0123, 0.0, None)] == ["+1.23 %", "-1.23 %", "0 %", "-"]


def test_a_phase_that_was_never_reached_has_figures_without_values() -> None:
    empty = np.empty(0, dtype=np.int64)
    stimulus = verify(sent_as(empty, empty, 60), LIMITS)
    assert (stimulus.n_planned, stimulus.n_within, stimulus.second_ratio) == (0, 0, None)
    assert (stimulus.bursts, stimulus.dispersion, stimulus.lag, stimulus.workers) == (None, (), None, ())
    assert (stimulus.end_drift_ns, stimulus.gap_ks_ratio, stimulus.worst_worker) == (None, None, None)
    assert sentences("stimulus", stimulus)[0] == "0 of 0 sent within it"
