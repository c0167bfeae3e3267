"""Promises held to planted requests: verdicts, budgets, when it was certain and where it was worst."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.decisions.figures import BROKEN, KEPT, UNDECIDED, Certainty, PlaceInRun, PromiseFigures
from squall.analysis.decisions.judged import hold
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.requests.streams import ResponseTimes
from squall.scenarios.promises import parse_promises

S, MS = 1_000_000_000, 1_000_000
MAIN, NEXT = RunPhase("main", "measure", 100 * S, 110 * S), RunPhase("next", "measure", 110 * S, 120 * S)


def requests(at_ns: Int64s, response_ns: Int64s, outcome: Int64s | None = None, **changes: Any) -> Requests:
    """Sent at their time; `outcome` 0: ok, 1: rejected, 2: unsent, 3: timeout without an end."""
    n = len(at_ns)
    outcome = np.zeros(n, np.int64) if outcome is None else outcome
    none = Labels(np.zeros(n, np.int64), ("",))
    columns: dict[str, Any] = {
        "is_open": True, "request_id": np.arange(n), "worker": np.zeros(n, np.int64), "node": none,
        "phase": Labels((at_ns >= NEXT.start_ns).astype(np.int64), ("main", "next")), "scheduled_ns": at_ns,
        "sent_ns": np.where(outcome == 2, 0, at_ns), "is_sent": outcome != 2,
        "done_ns": np.where(outcome < 2, at_ns + response_ns, 0), "is_done": outcome < 2, "rows": np.ones(n, np.int64),
        "outcome": Labels(outcome, ("ok", "rejected", "unsent", "timeout")),
        "detail": Labels((outcome == 1).astype(np.int64), ("", "503 full")),
        "target": Labels(np.arange(n) % 2, ("server-0", "server-1")), "request_kind": none,
    }  # fmt: skip
    return Requests(**{**columns, **changes})


def evenly(n: int, slow: dict[int, int] | None = None, outcome: dict[int, int] | None = None) -> Requests:
    """`n` requests over `MAIN` that take 10 ms, or ns by place in `slow`."""
    at_ns = MAIN.start_ns + np.arange(n) * (10 * S // max(1, n))
    response_ns, outcomes = np.full(n, 10 * MS), np.zeros(n, np.int64)
    for place, value in (slow or {}).items():
        response_ns[place] = value
    for place, value in (outcome or {}).items():
        outcomes[place] = value
    return requests(at_ns, response_ns, outcomes)


def held(key: str, condition: object, found: Requests, **more: Any) -> PromiseFigures:
    (promise,) = parse_promises({key: condition}) or ()
    return hold(promise, found, [MAIN, NEXT], **more).figures


def test_a_promise_is_kept_up_to_the_last_late_request_that_it_allows() -> None:
    slow = dict.fromkeys(range(100, 110), 60 * MS)
    kept, broken = evenly(200, slow), evenly(200, {**slow, 7: 50 * MS})
    found = held("response", "p(95)<50ms", kept)
    assert (found.verdict, found.n, found.n_late, found.n_allowed) == (KEPT, 200, 10, 10)
    assert (found.value, found.used_ratio, found.certain) == (10 * MS, 1.0, None)
    found = held("response", "p(95)<50ms", broken)
    assert (found.verdict, found.n_late, found.value) == (BROKEN, 11, 50 * MS)
    assert held("response", "p(95)<=50ms", broken).verdict == KEPT


def test_a_first_response_is_late_where_it_came_late_or_never_did() -> None:
    """Of 200 requests 12 have their first response after 50 ms, one never, and one fails after an early one."""
    found = evenly(200, outcome={3: 1, 4: 3})
    first_ns = found.scheduled_ns + 5 * MS
    first_ns[50:62] += 45 * MS
    first_ns[4] = 0
    given = ResponseTimes(first_ns, *np.zeros((2, 200), np.int64))
    told = held("first_response", "p(95)<50ms", found, responses=given)
    assert (told.verdict, told.n, told.n_late, told.value) == (BROKEN, 200, 13, 50 * MS)
    first_ns[50:53] -= 1
    told = held("first_response", "p(95)<50ms", found, responses=given)
    assert (told.verdict, told.n_late, told.n_failed) == (KEPT, 10, 1)
    assert held("first_response", "max<1s", found, responses=given).is_infinite


def test_a_gap_is_late_where_a_request_has_one_so_long_or_failed() -> None:
    """Of 200 requests 9 have a gap of 50 ms, one fails without any, one answers once; the means are a tenth."""
    found = evenly(200, outcome={3: 1})
    gap_ns = np.full(200, 20 * MS)
    gap_ns[50:59], gap_ns[4] = 50 * MS, 0
    given = ResponseTimes(found.scheduled_ns + 5 * MS, gap_ns, gap_ns // 10)
    told = held("gap", "p(95)<50ms", found, responses=given)
    assert (told.verdict, told.n_late, told.n_failed, told.value) == (KEPT, 10, 1, 20 * MS)
    gap_ns[60] = 50 * MS
    told = held("gap", "p(95)<50ms", found, responses=given)
    assert (told.verdict, told.n_late, told.value) == (BROKEN, 11, 50 * MS)
    assert told.certain == Certainty("main", 60 * 50 * MS + 10 * MS, 60), "when the request ends"
    assert held("gap", "p(95)<=50ms", found, responses=given).verdict == KEPT
    told = held("mean_gap", "p(99)<5ms", found, responses=given)
    assert (told.verdict, told.n_late, told.value) == (BROKEN, 10, 5 * MS)


def test_it_is_certain_when_one_more_is_overdue_than_may_be() -> None:
    # 200 requests, one every 50 ms: places 100 … 110 are late, and the 11th of them overdue 50 ms after its instant.
    found = held("response", "p(95)<50ms", evenly(200, dict.fromkeys(range(100, 111), 60 * MS)))
    assert found.certain == Certainty("main", 110 * 50 * MS + 50 * MS, 110)
    assert found.worst == PlaceInRun("main", 5 * S, S, 20, 11)


def test_a_failure_makes_it_certain_before_it_is_overdue() -> None:
    found = held("response", "max<50ms", evenly(200, outcome={20: 1}))
    assert found.certain == Certainty("main", 20 * 50 * MS + 10 * MS, 20)
    assert (found.n_failed, found.failure, found.is_infinite) == (1, "1 x HTTP 503 full", True)
    assert found.used_ratio is None


@pytest.mark.parametrize(("n_failed", "verdict"), [(8, KEPT), (12, BROKEN)])
@pytest.mark.parametrize("outcome", [1, 3])
def test_4_percent_of_failures_leave_a_p95_finite_and_6_percent_do_not(
    n_failed: int, verdict: str, outcome: int
) -> None:
    found = held("response", "p(95)<50ms", evenly(200, outcome=dict.fromkeys(range(n_failed), outcome)))
    assert (found.verdict, found.is_infinite) == (verdict, verdict == BROKEN)
    assert found.late_ratio == n_failed / 200


def test_no_request_none_sent_and_all_failed_are_never_kept() -> None:
    conditions = {"response": "p(95)<50ms", "failures": "rate<=0.999", "goodput{within:1s}": "rate>=0.001"}
    for key, condition in conditions.items():
        assert held(key, condition, evenly(0)).verdict == UNDECIDED
        assert held(key, condition, evenly(50, outcome=dict.fromkeys(range(50), 2))).verdict == UNDECIDED
        assert held(key, condition, evenly(50, outcome=dict.fromkeys(range(50), 1))).verdict == BROKEN
    assert (
        held("failures", "count<1000", evenly(50, outcome=dict.fromkeys(range(50), 2))).verdict == UNDECIDED
    )
    found = held("response", "p(95)<50ms", evenly(0))
    assert (found.n, found.value, found.reason) == (0, None, "the run has no request that it is about")


def test_service_and_lag_run_from_the_send() -> None:
    base = evenly(100)
    late = requests(base.scheduled_ns, base.response_ns + 100 * MS, sent_ns=base.scheduled_ns + 100 * MS)
    assert held("response", "p(95)<50ms", late).verdict == BROKEN
    assert held("service", "p(95)<50ms", late).verdict == KEPT
    lag = held("send_lag", "med<=100ms", late)
    assert (lag.verdict, lag.value) == (KEPT, 100 * MS)
    assert held("send_lag", "med<100ms", late).verdict == BROKEN


def test_tags_pick_requests() -> None:
    slow = dict.fromkeys(range(0, 200, 2), 60 * MS)  # all of server-0
    found = evenly(200, slow)
    assert held("response{server:server-0}", "p(95)<50ms", found).n_late == 100
    assert held("response{server:server-1}", "p(95)<50ms", found).verdict == KEPT
    assert held("response{phase:main}", "p(95)<50ms", found).n == 200
    assert held("response{phase:next}", "p(95)<50ms", found).verdict == UNDECIDED


def test_each_window_keeps_it_by_itself() -> None:
    slow = dict.fromkeys(range(100, 105), 60 * MS)  # 5 of 200, and 5 of the 20 of their second
    found = evenly(200, slow)
    assert held("response", "p(90)<50ms", found).verdict == KEPT
    windows = held("response{window:1s}", "p(90)<50ms", found)
    assert (windows.verdict, windows.n_parts, windows.n_parts_broken) == (BROKEN, 10, 1)
    assert windows.worst == PlaceInRun("main", 5 * S, S, 20, 5)
    assert (windows.n, windows.n_late, windows.n_allowed) == (20, 5, 2)
    assert windows.certain == Certainty("main", 102 * 50 * MS + 50 * MS, 102)


def test_bursts_are_judged_together_apart_and_each() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.integers(MAIN.start_ns, MAIN.end_ns, 3_000)]
    parts += [rng.integers(MAIN.start_ns + at * S, MAIN.start_ns + (at + 1) * S, 2_000) for at in (2, 7)]
    at_ns = np.sort(np.concatenate(parts))
    second = (at_ns - MAIN.start_ns) // S
    response_ns = np.where(second == 7, 80 * MS, 10 * MS)  # the second burst is slow
    found = requests(at_ns, response_ns)
    assert held("response{burst:out}", "p(95)<50ms", found).verdict == KEPT
    inside = held("response{burst:in}", "p(95)<50ms", found)
    assert inside.verdict == BROKEN
    assert inside.n == int(np.isin(second, (2, 7)).sum())
    each = held("response{burst:each}", "p(95)<50ms", found)
    assert (each.verdict, each.n_parts, each.n_parts_broken) == (BROKEN, 2, 1)
    assert each.worst is not None
    assert each.worst.offset_ns == 7 * S
    assert held("response{burst:each}", "p(95)<50ms", evenly(1_000)).reason.startswith("the run has no burst")


def test_a_gpu_is_judged_for_all_that_may_have_run_on_it() -> None:
    gpus = Labels(np.arange(200) % 2, ("GPU-a1", "GPU-b2"))
    slow = dict.fromkeys(range(1, 200, 2), 60 * MS)
    found = evenly(200, slow)
    assert held("response{gpu:GPU-a}", "p(95)<50ms", found, gpus=gpus).verdict == KEPT
    assert held("response{gpu:GPU-b2}", "p(95)<50ms", found, gpus=gpus).verdict == BROKEN
    unknown = Labels(np.where(np.arange(200) < 20, 2, gpus.codes), ("GPU-a1", "GPU-b2", ""))
    open_one = held("response{gpu:GPU-a}", "p(95)<50ms", found, gpus=unknown)
    assert (open_one.verdict, open_one.n_unknown) == (UNDECIDED, 20)
    assert "20 requests it is not known which GPU" in open_one.reason
    assert held("response{gpu:GPU-b}", "p(95)<50ms", found, gpus=unknown).verdict == BROKEN


def test_a_promise_at_a_load_is_undecided_below_it() -> None:
    found = evenly(200)  # 10/s over the two phases, 20/s over its own
    at = {"threshold": "p(95)<50ms", "at": "20/s"}
    assert held("response{phase:main}", at, found).verdict == KEPT
    below = held("response", at, found)
    assert (below.verdict, below.reason) == (UNDECIDED, "the load was 10.0/s, and it is promised at 20.0/s")


def test_a_closed_loop_is_judged_by_service_times() -> None:
    base = evenly(100, {0: 60 * MS, 1: 60 * MS})
    closed = requests(
        base.scheduled_ns, base.response_ns, is_open=False, sent_ns=base.scheduled_ns,
        done_ns=base.scheduled_ns + base.response_ns, scheduled_ns=np.zeros(100, np.int64),
    )  # fmt: skip
    assert held("service", "p(99)<50ms", closed).certain == Certainty("main", 100 * MS + 50 * MS, 1)
    assert held("goodput{within:50ms}", "rate>=0.98", closed).verdict == KEPT


def brute(times_ns: Int64s, is_failed: Bools, limit_ns: int) -> bool:
    """p(90) < limit by sorting, failures infinite."""
    times = np.sort(np.where(is_failed, np.inf, times_ns.astype(np.float64)))
    return bool(times[math.ceil(0.9 * len(times)) - 1] < limit_ns)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=50), st.integers(1, 31))
def test_the_verdict_is_that_of_the_sorted_times(rows: list[tuple[int, bool]], limit_ns: int) -> None:
    times_ns = np.array([time for time, _ in rows], dtype=np.int64)
    is_failed = np.array([failed for _, failed in rows], dtype=np.bool_)
    found = requests(MAIN.start_ns + np.arange(len(rows)), times_ns, is_failed.astype(np.int64))
    figures = held("response", f"p(90)<{limit_ns}ns", found)
    assert (figures.verdict == KEPT) == brute(times_ns, is_failed, limit_ns)
    assert (figures.certain is None) == (figures.verdict == KEPT)
