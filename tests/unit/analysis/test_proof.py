"""The judges of the selftest: what a right client gets, and every way in which a wrong one is found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.proof import (
    LAG_LIMIT_NS,
    MEDIAN_LIMIT_NS,
    Cost,
    Expectation,
    Requests,
    expect,
    judge_constant,
    judge_queue,
    judge_step,
)
from analysis.queueing import departures_ns

MS = 1_000_000
S = 1_000_000_000
START = 7 * S
COST = Cost(user_ns=30 * MS, system_ns=10 * MS, wall_ns=S)
Record = dict[str, NDArray[np.int64]]


def steady(n: int = 2_000, lag_ns: int = 20_000) -> Requests:
    """`n` requests, evenly over one second."""
    scheduled = START + np.arange(n, dtype=np.int64) * (S // n)
    return Requests(
        np.arange(n, dtype=np.int64),
        scheduled,
        scheduled + lag_ns,
        scheduled + lag_ns + MS,
        np.ones(n, np.bool_),
    )


def judged(rows: Requests) -> dict[str, Any]:
    return judge_step(rows, START, S, COST)


def test_a_step_that_kept_up_is_clean_with_its_figures() -> None:
    figures = judged(steady())
    assert figures["is_clean"]
    assert figures["reasons"] == []
    assert (figures["offered_hz"], figures["delivered_hz"]) == (2_000.0, 2_000.0)
    assert figures["send_lag_ns"] == {"p50": 20_000, "p95": 20_000, "p99": 20_000, "max": 20_000}
    assert figures["cpu_user_ns_per_request"] == 30 * MS / 2_000
    assert figures["cpu_system_ns_per_request"] == 10 * MS / 2_000


def test_few_requests_carry_no_p99_yet_must_not_be_late() -> None:
    assert judged(steady(100))["send_lag_ns"]["p99"] is None
    assert judged(steady(100))["is_clean"]
    assert "p99 of the send lag over its limit" in judged(steady(100, LAG_LIMIT_NS))["reasons"]


def late_by(part: slice, lag_ns: int) -> Requests:
    rows = steady()
    sent = rows.sent_ns.copy()
    sent[part] = rows.scheduled_ns[part] + lag_ns
    return replace(rows, sent_ns=sent)


def failed_once() -> Requests:
    rows = steady()
    return replace(rows, is_ok=rows.request_id != 5)


def unsent_once() -> Requests:
    rows = steady()
    return replace(rows, is_ok=rows.request_id != 5, sent_ns=np.where(rows.request_id == 5, -1, rows.sent_ns))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (failed_once(), ["1 of 2000 requests not ok"]),
        (unsent_once(), ["1 of 2000 requests not ok", "1 requests overdue at the end"]),
        (late_by(slice(100, 121), LAG_LIMIT_NS), ["p99 of the send lag over its limit"]),
        (late_by(slice(1_997, 2_000), 2 * MS), ["3 of 2000 requests not sent within the window"]),
        (late_by(slice(1_985, 1_987), 20 * MS), ["2 requests overdue at the end"]),
        (Requests.merged([]), ["no request"]),
    ],
    ids=["failed", "unsent", "late", "fewer", "overdue", "none"],
)
def test_a_step_that_did_not_keep_up_says_why(rows: Requests, said: list[str]) -> None:
    assert judged(rows)["reasons"] == said
    assert not judged(rows)["is_clean"]


def test_rows_of_several_workers_are_merged_by_request() -> None:
    rows = steady()
    parts = [
        Requests(*(getattr(rows, name)[part::2] for name in Requests.__annotations__)) for part in (1, 0)
    ]
    merged = Requests.merged(parts)
    for name in Requests.__annotations__:
        assert np.array_equal(getattr(merged, name), getattr(rows, name))


EXPECTED = expect("exponential", 1, 0.8, 3 * S, 0.01, seed=1)


def played(load_ratio: float = 0.8, over_ns: int = 300_000) -> tuple[Requests, NDArray[np.int64], Record]:
    """A right client of the null server's queue at `load_ratio`: (rows, planned instants, the server's record).

    Requests arrive 0.1 ms after their schedule and are answered `over_ns` - 0.1 ms after their departure.
    """
    rng = np.random.default_rng(2)
    queue = replace(EXPECTED.queue, load_ratio=load_ratio)
    gaps = rng.exponential(S / queue.arrival_hz, 20_000)
    planned = START + np.cumsum(gaps).astype(np.int64)
    planned = planned[planned < START + EXPECTED.window_ns]
    n = len(planned)
    arrival = planned + 100_000
    services = np.rint(rng.exponential(queue.service_ns, n))
    departure = departures_ns(arrival[None].astype(float), services[None], 1)[0].astype(np.int64)
    done = departure + over_ns - 100_000
    rows = Requests(np.arange(n, dtype=np.int64), planned, planned + 50_000, done, np.ones(n, np.bool_))
    order = rng.permutation(n)
    record = {
        "request_id": rows.request_id[order],
        "arrival_ns": arrival[order],
        "departure_ns": departure[order],
    }
    return rows, planned, record


def answer(rows: Requests, planned: NDArray[np.int64], record: Record) -> dict[str, Any]:
    return judge_queue(EXPECTED, rows, planned, record)


def test_a_right_client_passes_with_its_figures() -> None:
    found = answer(*played())
    assert found["passed"], found["reasons"]
    assert found["over_server_ns"] == {"min": 300_000, "p50": 300_000, "max": 300_000}
    assert [one["q"] for one in found["quantiles"]] == [0.5, 0.95, 0.99]
    for one in found["quantiles"]:
        assert one["client_ns"] - one["server_ns"] == 300_000
        assert one["low_ns"] < one["theory_ns"] < one["high_ns"]


def from_the_send(rows: Requests, planned: NDArray[np.int64], record: Record) -> dict[str, Any]:
    """A client that was held up for 200 ms and moved its schedule along: it hides the wait."""
    moved = np.where(planned > START + S, 200 * MS, 0)
    return answer(replace(rows, scheduled_ns=planned + moved), planned, record)


def stamped_early(rows: Requests, planned: NDArray[np.int64], record: Record) -> dict[str, Any]:
    """A client whose end of a reply lies before the server's departure."""
    return answer(replace(rows, done_ns=rows.done_ns - 400_000), planned, record)


def lost_one(rows: Requests, planned: NDArray[np.int64], record: Record) -> dict[str, Any]:
    return answer(rows, planned, {name: column[1:] for name, column in record.items()})


def failed_one(rows: Requests, planned: NDArray[np.int64], record: Record) -> dict[str, Any]:
    return answer(replace(rows, is_ok=rows.request_id != 3), planned, record)


def slow(rows: Requests, planned: NDArray[np.int64], record: Record) -> dict[str, Any]:
    return answer(replace(rows, done_ns=rows.done_ns + MEDIAN_LIMIT_NS), planned, record)


def none(rows: Requests, planned: NDArray[np.int64], record: Record) -> dict[str, Any]:
    return answer(Requests.merged([rows][:0]), planned[:0], record)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (from_the_send, "scheduled instants are not those of the plan"),
        (stamped_early, "a response time is below the server's own"),
        (lost_one, "the server's record has not just the client's"),
        (failed_one, "requests not ok"),
        (slow, "the median over the server's own time is over its limit"),
        (none, "no request"),
    ],
)
def test_a_wrong_client_fails(
    spoil: Callable[[Requests, NDArray[np.int64], Record], dict[str, Any]], said: str
) -> None:
    found = spoil(*played())
    assert not found["passed"]
    assert said in found["reasons"][0]


def test_another_load_than_the_theorys_fails() -> None:
    found = answer(*played(load_ratio=0.3))
    assert not found["passed"]
    assert found["is_quiet"]
    assert "p50 is out of its range" in found["reasons"]


def test_a_stall_that_can_decide_is_named() -> None:
    rows, planned, record = played()
    late = (planned >= START + 2 * S) & (planned < START + 2 * S + 400 * MS)
    held = np.where(late, START + 2 * S + 400 * MS - planned, 0)
    found = answer(replace(rows, done_ns=rows.done_ns + held), planned, record)
    assert not found["is_quiet"]
    assert found["reasons"][-1] == "the host stalled meanwhile"


def test_the_expected_service_time_leaves_room_above_theory() -> None:
    for load in (0.5, 0.95):
        expected: Expectation = expect("constant", 1, load, 4 * S, 0.01, seed=3)
        assert expected.ranges_ns[0][1] - expected.theory_ns[0] > MEDIAN_LIMIT_NS


def test_a_short_window_carries_fewer_quantiles() -> None:
    assert expect("constant", 1, 0.5, S, 0.01, seed=1).qs == (0.5, 0.95)


def constants(service_ns: int, done_ns: int) -> dict[str, Any]:
    rows = steady()
    rows = replace(rows, done_ns=rows.sent_ns + done_ns)
    record = {"request_id": rows.request_id, "arrival_ns": rows.sent_ns, "departure_ns": rows.sent_ns + MS}
    return judge_constant(service_ns, 2_000.0, S, rows, rows.scheduled_ns, record)


def test_a_constant_is_a_lower_bound_of_each_service_time() -> None:
    found = constants(MS, MS + 200_000)
    assert found["passed"], found["reasons"]
    assert found["over_constant_ns"] == {"min": 200_000, "p50": 200_000, "max": 200_000}
    assert constants(2 * MS, MS + 200_000)["reasons"] == ["a service time is below the constant"]
