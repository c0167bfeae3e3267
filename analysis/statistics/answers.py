"""Judges a client on a null server: was a step clean, and did a queue with a known answer come out as known.

Pure: rows of requests and of the server's record in, plain mappings (the rows of `squall selftest --json`) out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Int64s
from squall.analysis.statistics.exact_queue import Found, Stamps, Waits, compare, drawn_services, spread
from squall.analysis.statistics.latency import nearest_rank, smallest_n
from squall.analysis.statistics.queueing import Queue, sampling_ranges
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

LAG_LIMIT_NS = 5_000_000
"""Send lag that a clean step stays below at p99."""
RATE_TOLERANCE_RATIO = 0.001
"""By how much a clean step's sends within its window may fall short of its arrivals; one request may in any case."""
QS = (0.5, 0.95, 0.99)
PASSED, FAILED, UNMEASURABLE = "passed", "failed", "not measurable"
"""How a known answer came out; not measurable: the host, not server or client, may be what broke a limit."""
ROOM_NS = 2_000_000
"""Least distance from theory to the upper end of p50's range: what the client may add must not move it out."""
_SERVICES_NS = (2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000, 100_000_000, 200_000_000)
_ROUGH_MISS_RATIO = 0.05
_MOST_REQUESTS = 15_000
"""Of a known answer: the simulation of more takes longer than they do."""


class Requests(Frozen, eq=False):
    """Rows of `requests` in order of request_id: instants in ns, (n,), -1 where not reached."""

    request_id: Int64s
    scheduled_ns: Int64s
    sent_ns: Int64s
    done_ns: Int64s
    is_ok: NDArray[np.bool_]

    @classmethod
    def merged(cls, parts: Sequence[Requests]) -> Requests:
        """The rows of all `parts`, none or more, by request_id."""
        whole: dict[str, Any] = {}
        for name in cls.__annotations__:
            none: NDArray[Any] = np.empty(0, np.bool_ if name == "is_ok" else np.int64)
            whole[name] = np.concatenate([none, *(getattr(part, name) for part in parts)])
        order = np.argsort(whole["request_id"])
        return cls(**{name: column[order] for name, column in whole.items()})


class Cost(Frozen):
    """What the worker processes took: CPU of all together around their runs, wall time of the longest.

    `waited_ns`: how long they were ready to run and did not; None where the kernel does not count it.
    """

    user_ns: int
    system_ns: int
    wall_ns: int
    waited_ns: int | None = None


class Expectation(Frozen):
    """A queue, how long it is watched from empty, and where each of `qs` of its response time must fall."""

    queue: Queue
    window_ns: int
    qs: tuple[float, ...]
    ranges_ns: tuple[tuple[float, float], ...]


def expect(
    law: str, n_lanes: int, load_ratio: float, window_ns: int, miss_ratio: float, seed: int
) -> Expectation:
    """What a client must find, with the shortest mean service time that leaves `ROOM_NS` above p50.

    The shorter it is, the more requests the window has and the narrower the ranges. `miss_ratio`: chance of each
    range to miss a right client. Quantiles that the requests do not carry are left out.
    """
    rng = np.random.default_rng(seed)
    for service_ns in _SERVICES_NS:
        queue = Queue("constant" if law == "constant" else "exponential", n_lanes, load_ratio, service_ns)
        n_expected = queue.arrival_hz * window_ns / NS_PER_S
        if n_expected > _MOST_REQUESTS:
            continue
        ((_, high),) = sampling_ranges(queue, window_ns, QS[:1], _ROUGH_MISS_RATIO, rng)
        if high - queue.response_quantile(QS[0]) >= ROOM_NS:
            break
    qs = tuple(q for q in QS if smallest_n(q) <= n_expected) or QS[:1]
    return Expectation(queue, window_ns, qs, tuple(sampling_ranges(queue, window_ns, qs, miss_ratio, rng)))


def judge_step(rows: Requests, start_ns: int, window_ns: int, cost: Cost) -> dict[str, Any]:
    """One step of the sweep: figures, and whether the client kept up; `reasons` says why not.

    Clean: every arrival ok, sends within [start, start + window) short of the arrivals by `RATE_TOLERANCE_RATIO` or
    one request at most, p99 of the send lag below `LAG_LIMIT_NS`, no arrival overdue by more than that at the end.
    """
    n, end_ns = len(rows.request_id), start_ns + window_ns
    is_sent = rows.sent_ns >= 0
    lag_ns = np.sort((rows.sent_ns - rows.scheduled_ns)[is_sent])
    n_in_time = int(np.count_nonzero(is_sent & (rows.sent_ns < end_ns)))
    is_unsent_at_end = ~is_sent | (rows.sent_ns >= end_ns)
    n_overdue = int(np.count_nonzero(is_unsent_at_end & (rows.scheduled_ns < end_ns - LAG_LIMIT_NS)))
    n_failed = n - int(np.count_nonzero(rows.is_ok))
    reasons = []
    if not n:
        reasons.append("no request")
    if n_failed:
        reasons.append(f"{n_failed} of {n} requests not ok")
    if n - n_in_time > max(1.0, RATE_TOLERANCE_RATIO * n):
        reasons.append(f"{n - n_in_time} of {n} requests not sent within the window")
    if len(lag_ns) and lag_ns[nearest_rank(0.99, len(lag_ns)) - 1] >= LAG_LIMIT_NS:
        reasons.append("p99 of the send lag over its limit")
    if n_overdue:
        reasons.append(f"{n_overdue} requests overdue at the end")
    return {
        "offered_hz": n * NS_PER_S / window_ns,
        "delivered_hz": n_in_time * NS_PER_S / window_ns,
        "n_requests": n,
        "n_failed": n_failed,
        "n_overdue": n_overdue,
        "send_lag_ns": {
            **{f"p{100 * q:g}": _quantile(lag_ns, q) for q in QS},
            "max": int(lag_ns[-1]) if len(lag_ns) else None,
        },
        "cpu_user_ns_per_request": cost.user_ns / n if n else None,
        "cpu_system_ns_per_request": cost.system_ns / n if n else None,
        "wall_ns": cost.wall_ns,
        "is_clean": not reasons,
        "reasons": reasons,
    }


def judge_queue(
    expected: Expectation,
    rows: Requests,
    planned_ns: Int64s,
    record: Mapping[str, NDArray[np.int64]],
    service_seed: int,
    waits: Waits,
) -> dict[str, Any]:
    """A known answer: the server against the exact answer of this very run, the client against the server.

    `planned_ns`: the plan's own instants, by request_id; `service_seed`: of the server's service times. What decides is
    `exact_queue.compare`, once every request is ok, at its planned instant and once in the record. Theory stands beside
    it with the range in which a run's quantile falls.
    """
    queue = expected.queue
    services_ns = drawn_services(queue.law, queue.service_ns, service_seed, len(rows.request_id))
    reasons, found = _compared(rows, planned_ns, record, services_ns, queue.n_lanes, waits)
    quantiles: list[dict[str, Any]] = []
    if found is not None:
        by_id = np.argsort(record["request_id"], kind="stable")
        arrival_ns = record["arrival_ns"][by_id]
        kinds = {
            "exact_ns": record["departure_ns"][by_id] - arrival_ns,
            "server_ns": record["replied_ns"][by_id] - arrival_ns,
            "client_ns": rows.done_ns - planned_ns,
        }
        for q, (low_ns, high_ns) in zip(expected.qs, expected.ranges_ns, strict=True):
            rank = nearest_rank(q, len(planned_ns)) - 1
            measured = {name: int(np.sort(values_ns)[rank]) for name, values_ns in kinds.items()}
            is_within = low_ns <= measured["client_ns"] <= high_ns
            theory = {
                "theory_ns": queue.response_quantile(q),
                "low_ns": low_ns,
                "high_ns": high_ns,
                "is_within": is_within,
            }
            quantiles.append({"q": q, **theory, **measured})
    return {
        "queue": queue.name, "load_ratio": queue.load_ratio, "service_mean_ns": queue.service_ns,
        "arrival_hz": queue.arrival_hz, "window_ns": expected.window_ns, "n_requests": len(rows.request_id),
        "over_constant_ns": None, "quantiles": quantiles, **_outcome(reasons, found),
    }  # fmt: skip


def judge_constant(
    service_ns: int,
    arrival_hz: float,
    window_ns: int,
    rows: Requests,
    planned_ns: Int64s,
    record: Mapping[str, NDArray[np.int64]],
    waits: Waits,
) -> dict[str, Any]:
    """A known answer: `service_ns` for each request, no waiting. Passed: as `judge_queue`, and no service time below
    `service_ns`."""
    services_ns = drawn_services("constant", service_ns, 0, len(rows.request_id))
    reasons, found = _compared(rows, planned_ns, record, services_ns, 0, waits)
    over_constant = None
    if found is not None:
        over_constant = spread(rows.done_ns - rows.sent_ns - service_ns)
        if over_constant["min"] < 0:
            reasons.append("a service time is below the constant")
    return {
        "queue": "M/D/inf", "load_ratio": None, "service_mean_ns": service_ns, "arrival_hz": arrival_hz,
        "window_ns": window_ns, "n_requests": len(rows.request_id), "over_constant_ns": over_constant,
        "quantiles": [], **_outcome(reasons, found),
    }  # fmt: skip


def _compared(
    rows: Requests,
    planned_ns: Int64s,
    record: Mapping[str, NDArray[np.int64]],
    services_ns: Int64s,
    n_lanes: int,
    waits: Waits,
) -> tuple[list[str], Found | None]:
    """Faults, and the comparison; None of that where the rows cannot be compared one by one."""
    reasons = _unmatched(rows, planned_ns, record)
    if reasons:
        return reasons, None
    by_id = np.argsort(record["request_id"], kind="stable")
    stamps = Stamps(
        np.argsort(by_id), rows.scheduled_ns, rows.sent_ns, record["arrival_ns"][by_id], record["start_ns"][by_id],
        record["departure_ns"][by_id], record["replied_ns"][by_id], rows.done_ns,
    )  # fmt: skip
    found = compare(stamps, services_ns, n_lanes, waits)
    return list(found.faults), found


def _outcome(faults: list[str], found: Found | None) -> dict[str, Any]:
    """A fault outweighs a doubt: it is there whatever the host did."""
    doubts = found.doubts if found is not None else []
    figures = (
        found.figures if found is not None else dict.fromkeys(("over_server_ns", "server_late_ns", "way_ns"))
    )
    status = FAILED if faults else UNMEASURABLE if doubts else PASSED
    return {**figures, "status": status, "reasons": [*faults, *doubts], "passed": status == PASSED}


def _unmatched(rows: Requests, planned_ns: Int64s, record: Mapping[str, NDArray[np.int64]]) -> list[str]:
    """Why the rows cannot be compared one by one; empty if they can."""
    n = len(rows.request_id)
    if not n:
        return ["no request"]
    if not rows.is_ok.all():
        return [f"{n - int(np.count_nonzero(rows.is_ok))} of {n} requests not ok"]
    if not np.array_equal(rows.scheduled_ns, planned_ns):
        return ["scheduled instants are not those of the plan"]
    if not np.array_equal(np.sort(record["request_id"]), rows.request_id):
        return [f"the server's record has not just the client's {n} requests"]
    return []


def _quantile(ordered_ns: Int64s, q: float) -> int | None:
    """None where the rows do not carry it."""
    n = len(ordered_ns)
    return int(ordered_ns[nearest_rank(q, n) - 1]) if n >= smallest_n(q) else None
