"""The judges of the selftest: what a right client gets, and every way in which a wrong one is found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.analysis.proof.answers import (
    FAILED,
    LAG_LIMIT_NS,
    PASSED,
    UNMEASURABLE,
    Cost,
    Expectation,
    Requests,
    expect,
    judge_constant,
    judge_queue,
    judge_step,
)
from squall.analysis.proof.exact_queue import MEDIAN_LIMIT_NS, Waits, drawn_services, exact_times

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


SEED = 5
QUIET = Waits(0, 0)


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
    start, departure = exact_times(arrival, drawn_services("exponential", queue.service_ns, SEED, n), 1)
    done = departure + over_ns - 100_000
    rows = Requests(np.arange(n, dtype=np.int64), planned, planned + 50_000, done, np.ones(n, np.bool_))
    record = {
        "request_id": rows.request_id, "arrival_ns": arrival, "start_ns": start, "departure_ns": departure,
        "replied_ns": departure + 10_000,
    }  # fmt: skip
    return rows, planned, record


def answer(
    rows: Requests, planned: NDArray[np.int64], record: Record, waits: Waits = QUIET, seed: int = SEED
) -> dict[str, Any]:
    return judge_queue(EXPECTED, rows, planned, record, seed, waits)


def test_a_right_client_passes_with_its_figures() -> None:
    found = answer(*played())
    assert (found["passed"], found["status"], found["reasons"]) == (True, PASSED, [])
    assert found["over_server_ns"] == dict.fromkeys(("min", "p10", "p50", "max"), 300_000)
    assert [one["q"] for one in found["quantiles"]] == [0.5, 0.95, 0.99]
    for one in found["quantiles"]:
        assert one["client_ns"] - one["exact_ns"] == 300_000
        assert one["server_ns"] - one["exact_ns"] == 10_000
        assert one["low_ns"] < one["theory_ns"] < one["high_ns"]


def test_the_exact_answer_decides_and_theory_stands_beside_it() -> None:
    """A run of half the load is out of theory's range, and yet exact: it is no other queue, it is another plan."""
    found = answer(*played(load_ratio=0.3))
    assert found["passed"], found["reasons"]
    assert not any(one["is_within"] for one in found["quantiles"][:1])


def test_a_server_with_service_times_of_another_seed_fails() -> None:
    found = answer(*played(), seed=SEED + 1)
    assert found["status"] == FAILED
    assert "are not those of the recursion, from arrival 0 on" in found["reasons"][0]


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


def busy_host(rows: Requests, planned: NDArray[np.int64], record: Record) -> dict[str, Any]:
    """The same, lost twice over: a request is missing, and the host was busy."""
    return answer(rows, planned, {name: column[1:] for name, column in record.items()}, Waits(10**12, 10**12))


def none(rows: Requests, planned: NDArray[np.int64], record: Record) -> dict[str, Any]:
    return answer(Requests.merged([rows][:0]), planned[:0], record)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (from_the_send, "scheduled instants are not those of the plan"),
        (stamped_early, "done lies before replied"),
        (lost_one, "the server's record has not just the client's"),
        (failed_one, "requests not ok"),
        (slow, "the client stamps replies late"),
        (busy_host, "the server's record has not just the client's"),
        (none, "no request"),
    ],
)
def test_a_wrong_client_fails(
    spoil: Callable[[Requests, NDArray[np.int64], Record], dict[str, Any]], said: str
) -> None:
    found = spoil(*played())
    assert not found["passed"]
    assert found["status"] == FAILED
    assert said in found["reasons"][0]


def test_what_a_busy_host_may_have_done_is_not_measurable_and_says_why() -> None:
    rows, planned, record = played()
    late = replace(rows, done_ns=rows.done_ns + MEDIAN_LIMIT_NS)
    found = answer(late, planned, record, Waits(0, len(planned) * MEDIAN_LIMIT_NS))
    assert (found["status"], found["passed"]) == (UNMEASURABLE, False)
    assert all("waited 1 ms a request for a core" in reason for reason in found["reasons"])
    assert answer(rows, planned, record, Waits(10**12, 10**12))["passed"], "a busy host alone is no reason"


def test_the_expected_service_time_leaves_room_above_theory() -> None:
    for load in (0.5, 0.95):
        expected: Expectation = expect("constant", 1, load, 4 * S, 0.01, seed=3)
        assert expected.ranges_ns[0][1] - expected.theory_ns[0] > MEDIAN_LIMIT_NS


def test_a_short_window_carries_fewer_quantiles() -> None:
    assert expect("constant", 1, 0.5, S, 0.01, seed=1).qs == (0.5, 0.95)


def constants(service_ns: int, done_ns: int) -> dict[str, Any]:
    rows = steady()
    rows = replace(rows, done_ns=rows.sent_ns + done_ns)
    departure_ns = rows.sent_ns + service_ns
    record = {
        "request_id": rows.request_id, "arrival_ns": rows.sent_ns, "start_ns": rows.sent_ns,
        "departure_ns": departure_ns, "replied_ns": np.minimum(departure_ns, rows.done_ns),
    }  # fmt: skip
    return judge_constant(service_ns, 2_000.0, S, rows, rows.scheduled_ns, record, QUIET)


def test_a_constant_is_a_lower_bound_of_each_service_time() -> None:
    found = constants(MS, MS + 200_000)
    assert found["passed"], found["reasons"]
    assert found["over_constant_ns"] == dict.fromkeys(("min", "p10", "p50", "max"), 200_000)
    assert "a service time is below the constant" in constants(2 * MS, MS + 200_000)["reasons"]
