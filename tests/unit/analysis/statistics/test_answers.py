"""The judges of the selftest: what a right client gets, and every way in which a wrong one is found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.arrays import Int64s
from squall.analysis.statistics.answers import (
    FAILED,
    LAG_LIMIT_NS,
    PASSED,
    UNMEASURABLE,
    Cost,
    Requests,
    expect,
    judge_constant,
    judge_queue,
    judge_step,
)
from squall.analysis.statistics.exact_queue import (
    LATE_LIMIT_NS,
    MEDIAN_LIMIT_NS,
    WAY_LIMIT_NS,
    Waits,
    drawn_services,
    exact_times,
)

MS = 1_000_000
S = 1_000_000_000
START = 7 * S


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 100)), min_size=1, max_size=60), st.integers(0, 5)
)
def test_exact_times_are_those_of_lanes_taken_as_they_get_free(
    pairs: list[tuple[int, int]], n_lanes: int
) -> None:
    """Without lanes each request has one of its own."""
    arrivals = np.cumsum([gap for gap, _ in pairs]).astype(np.int64) + 10**18
    services = np.array([service for _, service in pairs], np.int64)
    free = [0] * (n_lanes or len(pairs))
    heapify(free)
    starts = []
    for arrival, service in zip(arrivals.tolist(), services.tolist(), strict=True):
        starts.append(max(arrival, free[0]))
        heapreplace(free, starts[-1] + service)
    found = exact_times(arrivals, services, n_lanes)
    assert found[0].tolist() == starts
    assert found[1].tolist() == (np.array(starts) + services).tolist()


def steady(n: int = 2_000, lag_ns: int = 20_000) -> Requests:
    """`n` requests, evenly over one second."""
    ids = np.arange(n, dtype=np.int64)
    sent = START + ids * (S // n) + lag_ns
    return Requests(ids, sent - lag_ns, sent, sent + MS, np.ones(n, np.bool_))


def late_by(part: slice, lag_ns: int) -> Requests:
    rows = steady()
    rows.sent_ns[part] = rows.scheduled_ns[part] + lag_ns
    return rows


FAILURE = replace(steady(), is_ok=np.arange(2_000) != 5)


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [
        (steady(), []),
        (steady(100), []),
        (steady(100, LAG_LIMIT_NS), ["p99 of the send lag over its limit"]),
        (FAILURE, ["1 of 2000 requests not ok"]),
        (replace(FAILURE, sent_ns=np.where(FAILURE.is_ok, FAILURE.sent_ns, -1)),
         ["1 of 2000 requests not ok", "1 requests overdue at the end"]),
        (late_by(slice(100, 121), LAG_LIMIT_NS), ["p99 of the send lag over its limit"]),
        (late_by(slice(1_997, 2_000), 2 * MS), ["3 of 2000 requests not sent within the window"]),
        (late_by(slice(1_985, 1_987), 20 * MS), ["2 requests overdue at the end"]),
        (Requests.merged([]), ["no request"]),
    ],
    ids=["clean", "few", "few and late", "failed", "unsent", "late", "fewer", "overdue", "none"],
)  # fmt: skip
def test_a_step_is_clean_or_says_why_not(rows: Requests, reasons: list[str]) -> None:
    found = judge_step(rows, START, S, Cost(user_ns=30 * MS, system_ns=10 * MS, wall_ns=S))
    assert (found["reasons"], found["is_clean"]) == (reasons, not reasons)
    n = len(rows.request_id)
    per_request = found["cpu_user_ns_per_request"], found["cpu_system_ns_per_request"]
    assert per_request == ((30 * MS / n, 10 * MS / n) if n else (None, None))
    assert (found["offered_hz"], found["send_lag_ns"]["p99"] is None) == (n, n < 1_000)
    if not reasons and n == 2_000:
        assert found["delivered_hz"] == n
        assert found["send_lag_ns"] == dict.fromkeys(("p50", "p95", "p99", "max"), 20_000)


EXPECTED = expect("exponential", 1, 0.8, 3 * S, 0.01, seed=1)
SEED = 5
QUIET, BUSY = Waits(0, 0), Waits(10**12, 10**12)
Change = Callable[[Int64s], Int64s]


@dataclass(frozen=True)
class Play:
    """A client on the null server's queue: its rows, the plan's instants by request, the server's record."""

    rows: Requests
    planned_ns: Int64s
    record: dict[str, Int64s]

    def moved(self, by_ns: int | Int64s, *names: str) -> Play:
        """With those instants moved; the plan's with `scheduled_ns`."""
        rows = {name: getattr(self.rows, name) + by_ns for name in names if hasattr(self.rows, name)}
        record = {name: self.record[name] + by_ns for name in names if name in self.record}
        planned_ns = self.planned_ns + by_ns if "scheduled_ns" in names else self.planned_ns
        return Play(replace(self.rows, **rows), planned_ns, self.record | record)

    def judged(self, waits: Waits = QUIET, seed: int = SEED) -> dict[str, Any]:
        return judge_queue(EXPECTED, self.rows, self.planned_ns, self.record, seed, waits)


def same(values_ns: Int64s) -> Int64s:
    return values_ns


def played(load_ratio: float = 0.8, arrivals: Change = same, services: Change = same) -> Play:
    """A right client: sent 50 us after the schedule, 50 us on the way, the server 10 us late, 190 us on the way back.

    Ids are in no order. `arrivals`, `services`: what happened to them before the server worked on them.
    """
    rng = np.random.default_rng(2)
    queue = replace(EXPECTED.queue, load_ratio=load_ratio)
    gaps = rng.exponential(S / queue.arrival_hz, 20_000)
    planned = START + np.cumsum(gaps).astype(np.int64)
    planned = planned[planned < START + EXPECTED.window_ns]
    n = len(planned)
    arrival = arrivals(planned + 100_000)
    drawn = drawn_services("exponential", queue.service_ns, SEED, n + 1)
    start, departure = exact_times(arrival, services(drawn)[:n], 1)
    ids = rng.permutation(n)
    by_id = np.argsort(ids)
    sent, done = planned + 50_000, departure + 200_000
    rows = Requests(np.arange(n), planned[by_id], sent[by_id], done[by_id], np.ones(n, np.bool_))
    record = {
        "request_id": ids, "arrival_ns": arrival, "start_ns": start, "departure_ns": departure,
        "replied_ns": departure + 10_000,
    }  # fmt: skip
    return Play(rows, planned[by_id], record)


PLAY = played()
N = len(PLAY.planned_ns)


def test_a_right_client_passes_with_its_figures() -> None:
    found = PLAY.judged()
    assert (found["passed"], found["status"], found["reasons"]) == (True, PASSED, [])
    assert found["over_server_ns"] == dict.fromkeys(("min", "p10", "p50", "max"), 300_000)
    assert found["server_late_ns"]["p50"] == 10_000
    assert {name: way["p10"] for name, way in found["way_ns"].items()} == {"in": 50_000, "out": 190_000}
    assert [one["q"] for one in found["quantiles"]] == [0.5, 0.95, 0.99]
    for one in found["quantiles"]:
        assert one["client_ns"] - one["exact_ns"] == 300_000
        assert one["server_ns"] - one["exact_ns"] == 10_000
        assert one["low_ns"] < one["theory_ns"] < one["high_ns"]
    assert PLAY.judged(BUSY)["passed"], "a busy host alone is no reason"


def test_the_exact_answer_decides_and_theory_stands_beside_it() -> None:
    """A run of half the load is out of theory's range, and yet exact: it is no other queue, it is another plan."""
    found = played(load_ratio=0.3).judged()
    assert found["passed"], found["reasons"]
    assert not found["quantiles"][0]["is_within"]


def test_a_stall_of_the_host_in_some_requests_is_no_fault() -> None:
    """A stall of 100 ms: arrivals in it are read after it. The recursion goes by the arrivals that there were."""
    found = played(
        arrivals=lambda at: np.where((at >= at[200]) & (at < at[200] + 100 * MS), at[200] + 100 * MS, at)
    ).judged()
    assert (found["status"], found["reasons"]) == (PASSED, [])


def without_first(play: Play) -> Play:
    return replace(play, record={name: column[1:] for name, column in play.record.items()})


NEVER_REPLIED = replace(PLAY, record=PLAY.record | {"replied_ns": np.full(N, -1)})
ALL_FROM_FIRST = f"{N} of {N} departures are not those of the recursion, from arrival 0 on"
FAULTS: dict[str, tuple[Play, str]] = {
    "departures 1 ns late": (PLAY.moved(1, "departure_ns"), ALL_FROM_FIRST),
    "starts 1 ns early": (PLAY.moved(-1, "start_ns"), ALL_FROM_FIRST),
    "replied early": (PLAY.moved(-10_001, "replied_ns"), f"replied lies before departure in {N} of {N}"),
    "done early": (PLAY.moved(-190_001, "done_ns"), f"done lies before replied in {N} of {N}"),
    "arrivals early": (PLAY.moved(-50_001, "arrival_ns"), "arrival lies before sent"),
    "sent early": (PLAY.moved(-50_001, "sent_ns"), "sent lies before scheduled"),
    "sent late": (PLAY.moved(50_001, "sent_ns"), "arrival lies before sent"),
    "never replied": (NEVER_REPLIED, f"replied lies before departure in {N} of {N}"),
    "a service time dropped": (
        played(services=lambda s: np.delete(s, 20)), "not those of the recursion, from arrival 20 on"),
    "a service time doubled": (
        played(services=lambda s: np.insert(s, 20, s[20])), "not those of the recursion, from arrival 21 on"),
    "service times of another seed": (
        played(services=lambda s: drawn_services("exponential", EXPECTED.queue.service_ns, SEED + 1, len(s))),
        "not those of the recursion, from arrival 0 on"),
    # a client that was held up for 200 ms and moved its schedule along hides the wait
    "scheduled from the send": (
        replace(PLAY, rows=PLAY.moved(
            np.where(PLAY.planned_ns > START + S, 200 * MS, 0), "scheduled_ns").rows),
        "scheduled instants are not those of the plan"),
    "one lost": (without_first(PLAY), "the server's record has not just the client's"),
    "one failed": (
        replace(PLAY, rows=replace(PLAY.rows, is_ok=PLAY.rows.request_id != 3)), f"1 of {N} requests not ok"),
    "none": (replace(PLAY, rows=Requests.merged([]), planned_ns=PLAY.planned_ns[:0]), "no request"),
}  # fmt: skip


@pytest.mark.parametrize(("play", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_fault_fails_whatever_the_host_did(play: Play, reason: str) -> None:
    for waits in (QUIET, BUSY):
        found = play.judged(waits)
        assert (found["status"], found["passed"]) == (FAILED, False)
        assert any(reason in one for one in found["reasons"]), found["reasons"]


SLOWER_NS = (PLAY.record["departure_ns"] - PLAY.record["arrival_ns"]) // 10
SLOW_TIMER = PLAY.moved(SLOWER_NS, "replied_ns").moved(
    SLOWER_NS[np.argsort(PLAY.record["request_id"])], "done_ns"
)
LATE: dict[str, tuple[Play, int]] = {
    "the server answers late": (SLOW_TIMER, LATE_LIMIT_NS),
    "the client stamps replies late": (PLAY.moved(MS, "done_ns"), WAY_LIMIT_NS),
    "the way to the server takes long": (PLAY.moved(-MS, "sent_ns", "scheduled_ns"), WAY_LIMIT_NS),
    "the median over the server's own time is over": (PLAY.moved(-MS, "scheduled_ns"), MEDIAN_LIMIT_NS),
}


@pytest.mark.parametrize(("reason", "play", "limit_ns"), [(said, *late) for said, late in LATE.items()])
def test_a_lateness_is_a_fault_unless_server_and_client_waited_long(
    reason: str, play: Play, limit_ns: int
) -> None:
    """An eighth of the limit a request explains nothing; where the kernel counts no waits nothing is said."""
    expected = {
        QUIET: (FAILED, ""), Waits(N * limit_ns // 8, 0): (FAILED, ""),
        Waits(N * limit_ns, 0): (UNMEASURABLE, "a request for a core"),
        Waits(None, 0): (UNMEASURABLE, "the kernel does not count here"),
    }  # fmt: skip
    for waits, (status, words) in expected.items():
        found = play.judged(waits)
        assert found["status"] == status, waits
        assert any(one.startswith(reason) and words in one for one in found["reasons"]), found["reasons"]


@pytest.mark.parametrize(("service_ns", "over_ns"), [(MS, 200_000), (2 * MS, -800_000)])
def test_a_constant_is_a_lower_bound_of_each_service_time(service_ns: int, over_ns: int) -> None:
    rows = steady()
    rows = replace(rows, done_ns=rows.sent_ns + service_ns + over_ns)
    departure_ns = rows.sent_ns + service_ns
    record = {
        "request_id": rows.request_id, "arrival_ns": rows.sent_ns, "start_ns": rows.sent_ns,
        "departure_ns": departure_ns, "replied_ns": np.minimum(departure_ns, rows.done_ns),
    }  # fmt: skip
    found = judge_constant(service_ns, 2_000.0, S, rows, rows.scheduled_ns, record, QUIET)
    assert found["over_constant_ns"] == dict.fromkeys(("min", "p10", "p50", "max"), over_ns)
    assert ("a service time is below the constant" in found["reasons"]) == (over_ns < 0)
    assert found["passed"] == (over_ns >= 0)
