"""Planned against sent: an honest run passes every check, and each wrongly delivered stimulus fails its own."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from squall.analysis.arrays import Int64s
from squall.analysis.limits import LIMITS
from squall.analysis.record import from_json, to_json
from squall.analysis.requests.bursts import Burst, compare_bursts
from squall.analysis.requests.stimulus import (
    SCALES_NS,
    Dispersion,
    Sends,
    Stimulus,
    compare_dispersion,
    end_drift,
    gap_distance,
    lag_noise_ratio,
    verify,
)
from squall.analysis.storage.sealed import CheckResult
from squall.analysis.storage.timeline import RunPhase
from squall.analysis.verdict.checks import CHECKS
from squall.analysis.verdict.figures import series_figures
from squall.analysis.verdict.run_view import AllowedLag, is_open

S, MS = 1_000_000_000, 1_000_000
ORIGIN_NS = 1_795_250_252_000_000_000
LAG_NS = LIMITS.lag_ns
N_WORKERS, SECONDS = 200, 120
Rng = np.random.Generator


def span_of(seconds: float) -> RunPhase:
    return RunPhase("m", "measure", ORIGIN_NS, ORIGIN_NS + round(seconds * S))


def poisson(rng: Rng, rates_hz: Any) -> Int64s:
    """With the rate of each second in turn; sorted, on the run clock."""
    starts = np.repeat(np.arange(len(rates_hz)), rng.poisson(rates_hz))
    return ORIGIN_NS + np.sort((starts * S + rng.uniform(0, S, len(starts))).astype(np.int64))


def bursty(rng: Rng, seconds: int = SECONDS) -> Int64s:
    """200/s, and four times that in one second of ten."""
    return poisson(rng, np.where(np.arange(seconds) % 10 == 4, 800.0, 200.0))


def sent_as(planned: Int64s, lags: Any, seconds: float = SECONDS, is_sent: Any = None) -> Sends:
    kept = np.ones(len(planned), np.bool_) if is_sent is None else is_sent
    worker = np.arange(len(planned), dtype=np.int64) % N_WORKERS
    return Sends(span_of(seconds), worker, planned, np.where(kept, planned + lags, 0), kept)


def failed(*stimuli: Sends | Stimulus, **allowed: AllowedLag) -> dict[str, CheckResult]:
    """The checks that are not met, where each phase may lag as `allowed` says, else by the least."""
    n_unsent = sum(int((~one.is_sent).sum()) for one in stimuli if isinstance(one, Sends))
    figures = [verify(one, LIMITS) if isinstance(one, Sends) else one for one in stimuli]
    by_phase = defaultdict(lambda: AllowedLag(LAG_NS, LAG_NS), allowed)
    view: Any = SimpleNamespace(loaded=figures, n_unsent=n_unsent, allowed_by_phase=by_phase)
    own = [check for check in CHECKS if check.where is is_open and not check.name.startswith("lag in")]
    held = [check.held(figure) for check in own if (figure := check.figure(view)) is not None]
    return {check.name: check for check in held if not check.is_met}


def honest_lags(n: int) -> Int64s:
    return np.random.default_rng(6).exponential(0.1 * MS, n).astype(np.int64)


def queued(planned: Int64s, took_ns: int) -> Int64s:
    """Lags where one send takes so long."""
    free = np.arange(len(planned)) * took_ns
    return np.asarray(np.maximum.accumulate(planned - free) + free - planned)


PLANNED = bursty(np.random.default_rng(5))
AT = PLANNED - ORIGIN_NS
PLACE = np.arange(len(PLANNED))
HONEST = honest_lags(len(PLANNED))
EVEN = np.random.default_rng(7).uniform(size=len(PLANNED))
LATE, PER_SECOND, DRIFT = "send lag of the worst worker", "delivered load per second", "send lag end drift"
LOAD, IN_BURSTS = "delivered load", "delivered load in bursts"
TENTH, SECOND, TEN = (f"dispersion {window} s" for window in ("0.1", "1", "10"))
FAULTS: dict[str, tuple[Sends, set[str]]] = {
    "none": (sent_as(PLANNED, HONEST), set()),
    "one is a ns early": (sent_as(PLANNED, np.where(PLACE == 1_000, -1, HONEST)), {"sent early"}),
    "3 % are never sent": (sent_as(PLANNED, HONEST, is_sent=EVEN > 0.03), {"unsent", LOAD, TENTH, SECOND, TEN}),
    "nothing is sent": (
        sent_as(PLANNED, 0, is_sent=EVEN > 1), {"unsent", LOAD, PER_SECOND, IN_BURSTS, TENTH, SECOND, TEN},
    ),
    "late by up to 200 ms, evenly": (
        sent_as(PLANNED, (EVEN * 200 * MS).astype(np.int64)), {LATE, PER_SECOND, IN_BURSTS, TENTH},
    ),
    "stretched by 1 %": (sent_as(PLANNED, AT // 100), {LATE, PER_SECOND, IN_BURSTS, DRIFT}),
    # a drift of 8 ms is below 1e-4 of 120 s
    "later and later, up to 8 ms": (sent_as(PLANNED, np.linspace(0, 8 * MS, len(AT)).astype(np.int64)), {LATE}),
    "one worker of 200 is 20 ms late": (sent_as(PLANNED, HONEST + np.where(PLACE % 200 == 7, 20 * MS, 0)), {LATE}),
    "500/s at most": (sent_as(PLANNED, queued(PLANNED, 2 * MS)), {LATE, PER_SECOND, IN_BURSTS, TENTH, SECOND, TEN}),
    "half a second before a burst waits for it": (
        sent_as(PLANNED, np.where((AT % (10 * S) >= 3.5 * S) & (AT % (10 * S) < 4 * S), 4 * S - AT % (10 * S), 0)),
        {LATE, PER_SECOND, IN_BURSTS, TENTH, SECOND},
    ),
    "the last 3 s come after the end": (
        sent_as(PLANNED, np.where(AT >= 117 * S, 3 * S, 0)), {LOAD, PER_SECOND, DRIFT, TENTH, SECOND, TEN},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_wrongly_delivered_stimulus_fails_its_own_checks_and_no_others(name: str) -> None:
    sends, expected = FAULTS[name]
    assert set(failed(sends)) == expected
    figures = verify(sends, LIMITS)
    plain = json.loads(json.dumps(to_json(figures), allow_nan=False))
    assert from_json(Stimulus, plain) == figures


def test_the_phase_that_is_worst_by_its_own_measure_decides() -> None:
    good, even, drifted, growing = (
        verify(FAULTS[name][0], LIMITS)
        for name in (
            "none",
            "late by up to 200 ms, evenly",
            "stretched by 1 %",
            "later and later, up to 8 ms",
        )
    )
    long = replace(
        drifted, duration_ns=2_000 * drifted.duration_ns
    )  # as large a drift of a phase of 67 hours
    for stimuli in ([good, even], [even, good]):
        found = failed(*stimuli)
        assert LATE in found
        assert found[TENTH].value == abs(even.dispersion[0].change_ratio)
    for stimuli in ([good, drifted, long], [long, drifted, good]):
        assert failed(*stimuli)[DRIFT].value == drifted.end_drift_ns
        assert failed(*stimuli)[DRIFT].limit == 12 * MS
    assert DRIFT not in failed(good, long)
    assert set(failed(good, replace(good, n_planned=30, n_within=0))) == {LOAD}
    calm, busy = (replace(growing, phase=name) for name in ("calm", "busy"))
    allowed = AllowedLag(10 * MS, 10 * MS)  # by the latency of that phase
    assert set(failed(calm, busy, busy=allowed)) == {LATE}
    assert not failed(busy, busy=allowed)


# what an honest lag may change


def poisson_plan(rng: Rng, seconds: int, rate_hz: float) -> Int64s:
    return poisson(rng, np.full(seconds, rate_hz))


def just_before_the_edges(_: Rng, seconds: int, rate_hz: float) -> Int64s:
    """Constant, each arrival 0.3 ms before a multiple of its gap: nearly all lags carry it over an edge or none."""
    gap_ns = round(S / rate_hz)
    return ORIGIN_NS + np.arange(1, round(seconds * rate_hz) + 1, dtype=np.int64) * gap_ns - 3 * MS // 10


def clustered(rng: Rng, seconds: int, rate_hz: float) -> Int64s:
    """Gamma gaps with c² 9."""
    times = np.cumsum(rng.gamma(1 / 9, 9 * S / rate_hz, round(2 * seconds * rate_hz))).astype(np.int64)
    return ORIGIN_NS + times[times < seconds * S]


PLANS = [poisson_plan, just_before_the_edges, clustered]


def change_of(planned: Int64s, sent: Int64s, seconds: int, **limits: Any) -> Dispersion:
    found = compare_dispersion(planned, np.sort(sent), span_of(seconds), S // 10, replace(LIMITS, **limits))
    assert found is not None
    return found


@pytest.mark.parametrize("make", PLANS)
@pytest.mark.parametrize(("seconds", "rate_hz"), [(2, 100), (12, 10), (12, 200), (101, 50)])
def test_lags_up_to_the_allowed_one_never_fail_a_check(
    make: Callable[..., Int64s], seconds: int, rate_hz: float
) -> None:
    # 3 standard errors are left once in 370 by chance, and 2 % come on top: none of 25 runs of up to 3 scales does
    rng = np.random.default_rng(11)
    for _ in range(25):
        planned = make(rng, seconds, rate_hz)
        assert not failed(sent_as(planned, rng.integers(0, LAG_NS, len(planned)), seconds))


@pytest.mark.parametrize("make", PLANS)
def test_the_allowance_is_of_the_size_of_what_lags_do(make: Callable[..., Int64s]) -> None:
    """Not below 3 standard deviations of the change over 200 draws of the lags, nor 15 times as large.

    A standard deviation over 200 draws has a relative standard error of 1/sqrt(400) = 5 %: below the room of a factor.
    """
    rng = np.random.default_rng(3)
    planned = make(rng, 30, 100.0)
    allowed = lag_noise_ratio(planned, S // 10, span_of(30), replace(LIMITS, stall_ns=0))
    found = [
        change_of(planned, planned + rng.integers(0, LAG_NS, len(planned)), 30, stall_ns=0)
        for _ in range(200)
    ]
    changes = [one.change_ratio for one in found]
    spread = abs(np.mean(changes)) + 3 * np.std(changes)
    assert spread <= allowed <= 15 * spread
    assert found[0].limit_ratio == 0.02 + allowed


def test_one_stall_at_any_edge_is_within_its_part_of_the_allowance() -> None:
    """Of all edges of the ten grids, the change at the worst comes near to what is allowed for it."""
    planned = poisson_plan(np.random.default_rng(3), 3, 200.0)
    shares = []
    for edge in ORIGIN_NS + np.arange(1, 300) * 10 * MS:
        in_stall = (planned >= edge - LIMITS.stall_ns) & (planned < edge)
        sent = np.where(in_stall, edge, planned)
        found = change_of(planned, sent, 3, dispersion_ratio=0.0, lag_ns=0, dispersion_errors=0.0)
        shares.append(abs(found.change_ratio) / found.limit_ratio)
    assert 0.5 < max(shares) <= 1.0 + 1e-9


@given(
    offsets=st.lists(st.integers(0, 2 * S - 1), min_size=100, max_size=200),
    which=st.integers(0, 99),
    late_ns=st.integers(1, LIMITS.stall_ns),
)
def test_no_single_late_arrival_makes_a_run_invalid(offsets: list[int], which: int, late_ns: int) -> None:
    planned = ORIGIN_NS + np.sort(np.array(offsets, dtype=np.int64))
    assert not failed(sent_as(planned, np.where(np.arange(len(planned)) == which, late_ns, 0), 2.0))


# single figures


def test_a_burst_is_a_run_of_windows_of_twice_the_mean_or_more() -> None:
    counts = np.full(100, 20)
    counts[30:33], counts[60] = 80, 50  # mean 22.1
    planned = ORIGIN_NS + np.repeat(np.arange(100) * S // 10, counts) + 50 * MS
    sent = planned.copy()
    sent[np.flatnonzero(planned >= ORIGIN_NS + 3_200 * MS)[:30]] += (
        S  # in the third window of the first burst
    )
    found = compare_bursts(planned, np.sort(sent), span_of(10), LIMITS)
    assert found is not None
    # nothing is planned in the 10 ms before an edge, so that 2 sends are explained
    assert found.largest == (Burst(3 * S, 300 * MS, 240, 210, 28), Burst(6 * S, 100 * MS, 50, 50, 0))
    assert (found.n, found.n_planned, found.n_sent, found.window_ns) == (2, 290, 260, S // 10)
    assert found.difference_ratio == pytest.approx(28 / 290)


def test_a_stall_at_the_edge_of_a_burst_explains_what_was_planned_within_it() -> None:
    edge = ORIGIN_NS + 5 * S
    in_stall = (edge - LIMITS.stall_ns <= PLANNED) & (edge > PLANNED)
    found = compare_bursts(PLANNED, np.sort(np.where(in_stall, edge, PLANNED)), span_of(10), LIMITS)
    assert found is not None
    assert found.n_sent == found.n_planned - int(in_stall.sum()) < found.n_planned
    assert found.difference_ratio == 0.0


def test_without_a_burst_the_busiest_window_stands_for_one_and_sparse_phases_have_none() -> None:
    even = poisson_plan(np.random.default_rng(5), 20, 1_000.0)
    found = [compare_bursts(own, own, span_of(20), LIMITS) for own in (even, even[::10], even[::100])]
    assert [one.window_ns for one in found if one] == [S // 10, S, 10 * S]
    assert found[0] is not None
    counts = np.bincount((even - ORIGIN_NS) // (S // 10))
    assert (found[0].n, found[0].largest[0].n_planned) == (1, counts.max())
    assert [compare_bursts(own, own, span_of(20), LIMITS) for own in (even[:10], even[:0])] == [None, None]


def test_the_drift_is_of_medians_so_that_a_stall_is_none() -> None:
    planned = ORIGIN_NS + np.arange(2_000, dtype=np.int64) * 10 * MS
    few = planned[::50]  # halves: 0 … 19 and 20 … 39
    for own, lags, least, drift_ns in (
        (planned, np.where(np.arange(2_000) < 30, 300 * MS, 100), 20, 0),
        (planned, np.arange(2_000) * 1_000, 20, 1_900_000),
        (few, np.arange(40) * MS, 20, 20 * MS),
        (few, np.arange(40) * MS, 21, None),
    ):
        assert end_drift(sent_as(own, lags, 20), least) == drift_ns


@pytest.mark.parametrize("most", [10**6, 1_000])
def test_the_distance_of_the_gaps_is_that_of_kolmogorov_and_smirnov(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squall.analysis.requests.stimulus.MOST_GAPS", most)
    sent = np.sort(PLANNED + (EVEN * 3 * MS).astype(np.int64))
    stride = -(-len(PLANNED) // most)
    expected = ks_2samp(np.diff(PLANNED)[::stride], np.diff(sent)[::stride]).statistic
    assert gap_distance(PLANNED, sent) == pytest.approx(expected)
    assert gap_distance(PLANNED[:2], sent) is None


def test_lags_are_by_nearest_rank_of_all_and_of_each_worker_with_20_sends() -> None:
    sends = sent_as(PLANNED[:3_999], (EVEN * S).astype(np.int64)[:3_999])
    stimulus = verify(sends, LIMITS)
    assert [one.worker for one in stimulus.workers] == list(range(N_WORKERS - 1))  # the last has 19
    for one in (stimulus.lag, *stimulus.workers):
        assert one is not None
        own = np.sort(sends.lag_ns if one.worker is None else sends.lag_ns[sends.worker == one.worker])
        ranks = [-(-len(own) * percent // 100) - 1 for percent in (50, 95, 99, 100)]
        assert (one.n, [one.p50_ns, one.p95_ns, one.p99_ns, one.max_ns]) == (len(own), own[ranks].tolist())


def test_a_phase_has_the_scales_that_it_holds_ten_windows_of_and_no_values_where_nothing_was_planned() -> (
    None
):
    planned = poisson_plan(np.random.default_rng(5), 1_000, 20.0)
    for seconds, n_scales in ((1_000, 4), (999, 3)):
        found = verify(sent_as(planned, 0, seconds), LIMITS)
        assert tuple(one.window_ns for one in found.dispersion) == SCALES_NS[:n_scales]
    none = verify(sent_as(planned[:0], 0, 60), LIMITS)
    counts = (none.n_planned, none.n_sent, none.n_within, none.n_early)
    assert counts == (0, 0, 0, 0)
    assert (none.bursts, none.dispersion, none.lag, none.workers, none.second_ratio) == (
        None,
        (),
        None,
        (),
        None,
    )
    assert (none.end_drift_ns, none.gap_ks_ratio, none.worst_worker) == (None, None, None)


# figures of a series, before it is sent


@pytest.mark.parametrize(
    ("seconds", "window_s", "carried", "lacked"),
    [
        (9, None, set(), "idc_1s_ratio"),
        (10, 1, {"peak_to_mean_1s_ratio", "idc_1s_ratio"}, "idc_10s_ratio"),
        (100, 10, {"peak_to_mean_10s_ratio", "idc_10s_ratio"}, "idc_100s_ratio"),
        (600, 60, {"peak_to_mean_60s_ratio"}, "idc_100s_ratio"),
        (1_000, 60, {"peak_to_mean_60s_ratio", "idc_100s_ratio"}, ""),
    ],
)
def test_a_figure_is_none_below_ten_windows_and_the_safe_load_is_of_the_longest(
    seconds: int, window_s: int | None, carried: set[str], lacked: str
) -> None:
    planned = poisson_plan(np.random.default_rng(5), seconds, 20.0)
    figures = series_figures(planned, ORIGIN_NS, ORIGIN_NS + seconds * S)
    known = {name for name, value in to_json(figures).items() if value is not None}
    assert carried <= known
    assert lacked not in known
    assert figures.safe_load_window_ns == (window_s * S if window_s else None)
    if window_s:
        assert figures.safe_load_ratio == 1 / getattr(figures, f"peak_to_mean_{window_s}s_ratio")
