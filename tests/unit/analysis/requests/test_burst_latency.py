"""Quantiles of the requests that were scheduled within bursts, outside, and in each burst."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.limits import LIMITS
from squall.analysis.requests.burst_latency import by_burst
from squall.analysis.requests.burst_spans import find_bursts
from squall.analysis.requests.bursts import compare_bursts
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.statistics.latency import quantiles

S, MS = 1_000_000_000, 1_000_000
SPAN = RunPhase("load", "measure", 10 * S, 50 * S)


def planned(rng: np.random.Generator, bursts: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Sorted instants of `SPAN`: 300 a second, and 3,000 a second within each [begin, end) in seconds of it."""
    parts = [rng.integers(SPAN.start_ns, SPAN.end_ns, 300 * 40)]
    parts += [
        rng.integers(SPAN.start_ns + begin * S, SPAN.start_ns + end * S, 2_700 * (end - begin))
        for begin, end in bursts
    ]
    return np.sort(np.concatenate(parts))


def requests(
    scheduled_ns: np.ndarray, response_ns: np.ndarray, is_ok: np.ndarray, **changes: Any
) -> Requests:
    n = len(scheduled_ns)
    one = Labels(np.zeros(n, dtype=np.int32), ("load",))
    columns: dict[str, Any] = {
        "is_open": True, "request_id": np.arange(n), "worker": np.zeros(n, np.int64),
        "node": one, "phase": one, "scheduled_ns": scheduled_ns,
        "sent_ns": scheduled_ns, "is_sent": np.ones(n, np.bool_), "done_ns": scheduled_ns + response_ns,
        "is_done": is_ok, "rows": np.ones(n, np.int64),
        "outcome": Labels((~is_ok).astype(np.int32), ("ok", "timeout")), "detail": one,
        "target": one, "request_kind": one,
    }  # fmt: skip
    return Requests(**{**columns, **changes})


def made(bursts: tuple[tuple[int, int], ...], n_failed_inside: int = 0) -> tuple[Requests, np.ndarray]:
    """Requests of exponential response times, 5 ms outside and 50 ms within bursts, and which are within."""
    rng = np.random.default_rng(1)
    at_ns = planned(rng, bursts)
    offset_s = (at_ns - SPAN.start_ns) / S
    inside = np.zeros(len(at_ns), dtype=np.bool_)
    for begin, end in bursts:
        inside |= (offset_s >= begin) & (offset_s < end)
    response_ns = (rng.exponential(np.where(inside, 50.0, 5.0)) * MS).astype(np.int64)
    is_ok = np.ones(len(at_ns), np.bool_)
    is_ok[np.flatnonzero(inside)[:n_failed_inside]] = False
    return requests(at_ns, response_ns, is_ok), inside


def test_requests_are_told_apart_by_where_they_were_scheduled() -> None:
    measured, inside = made(((5, 6), (20, 22)))
    found = by_burst(measured, [SPAN], [0.5, 0.95])
    assert found is not None
    figures = found["load"]
    assert figures is not None
    assert (figures.n_bursts, figures.window_ns) == (2, 100 * MS)
    assert (figures.inside.n, figures.outside.n) == (inside.sum(), (~inside).sum())
    for part, which in ((figures.inside, inside), (figures.outside, ~inside)):
        expected = quantiles(measured.response_ns[which], [0.5, 0.95])
        assert [one.value_ns for one in part.quantiles] == [one.value_ns for one in expected]
        assert all(one.method == "block bootstrap" for one in part.quantiles)
    first, second = figures.largest
    assert (first.offset_ns, first.duration_ns) == (5 * S, 1 * S)
    assert (second.offset_ns, second.duration_ns) == (20 * S, 2 * S)
    assert first.n + second.n == inside.sum()
    assert second.n == pytest.approx(6_000, rel=0.05)  # 300 of them by a Poisson count: 6 standard errors


def test_failures_are_infinite_within_bursts_too() -> None:
    measured, inside = made(((5, 6),), n_failed_inside=600)
    found = by_burst(measured, [SPAN], [0.5, 0.95])
    assert found is not None
    figures = found["load"]
    assert figures is not None
    assert figures.inside.n_failed == 600
    half, slow = figures.inside.quantiles
    assert half.value_ns is not None
    assert slow.is_infinite
    assert figures.outside.n_failed == 0
    assert figures.largest[0].n == inside.sum()


def test_the_bursts_are_those_that_the_stimulus_names() -> None:
    measured, _ = made(((5, 6), (20, 22), (30, 31)))
    named = compare_bursts(measured.scheduled_ns, measured.sent_ns, SPAN, LIMITS)
    found = find_bursts(measured.scheduled_ns, SPAN, LIMITS)
    assert named is not None
    assert found is not None
    assert found.window_ns == named.window_ns
    assert [(one.offset_ns, one.duration_ns) for one in named.largest] == list(
        zip(
            (found.begins_ns - SPAN.start_ns).tolist(),
            (found.ends_ns - found.begins_ns).tolist(),
            strict=True,
        )
    )


def test_only_the_largest_are_listed_in_order_of_time() -> None:
    bursts = tuple((3 * k, 3 * k + 1) for k in range(12))
    measured, inside = made(bursts)
    figures = (by_burst(measured, [SPAN], [0.5]) or {})["load"]
    assert figures is not None
    assert (figures.n_bursts, figures.inside.n) == (12, inside.sum())
    offsets = [one.offset_ns for one in figures.largest]
    assert len(offsets) == 10
    assert offsets == sorted(offsets)


def test_a_load_without_bursts_or_of_too_few_requests_has_none() -> None:
    measured, _ = made(())
    assert by_burst(measured, [SPAN], [0.5]) == {"load": None}
    assert by_burst(measured.take(np.arange(3)), [SPAN], [0.5]) == {"load": None}
    other = RunPhase("empty", "measure", 60 * S, 70 * S)
    assert by_burst(measured, [other], [0.5]) == {"empty": None}


def test_a_closed_loop_plans_no_bursts() -> None:
    measured, _ = made(((5, 6),))
    closed = requests(measured.scheduled_ns, measured.response_ns, measured.is_ok, is_open=False)
    assert by_burst(closed, [SPAN], [0.5]) is None
