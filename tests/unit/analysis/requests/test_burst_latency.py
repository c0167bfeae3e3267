"""Quantiles of the requests that were scheduled within bursts, outside, and in each burst."""

from __future__ import annotations

import numpy as np
import pytest

from squall.analysis.limits import LIMITS
from squall.analysis.requests.burst_latency import BurstResponse, ResponseFigures, by_burst
from squall.analysis.requests.bursts import compare_bursts
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.latency import quantiles
from squall.analysis.storage.timeline import RunPhase
from tests.unit.analysis.requests.made_requests import requests_of

S, MS = 1_000_000_000, 1_000_000
SPAN = RunPhase("load", "measure", 10 * S, 50 * S)
QS = [0.5, 0.95]
Bursts = list[tuple[int, int]]


def made(bursts: Bursts, n_failed: int = 0, is_open: bool = True) -> tuple[Requests, np.ndarray]:
    """300 requests a second, and 3,000 within each [begin, end) s, where they take 50 ms on average in place of 5; and
    which burst each is in, -1 of those outside. The first `n_failed` within fail."""
    rng = np.random.default_rng(1)
    parts = [rng.integers(0, 40 * S, 300 * 40)]
    parts += [rng.integers(begin * S, end * S, 2_700 * (end - begin)) for begin, end in bursts]
    at_ns = np.sort(np.concatenate(parts))
    burst = np.full(len(at_ns), -1)
    for number, (begin, end) in enumerate(bursts):
        burst[(at_ns >= begin * S) & (at_ns < end * S)] = number
    took_ns = (rng.exponential(np.where(burst < 0, 5.0, 50.0)) * MS).astype(np.int64)
    outcome = np.full(len(at_ns), "ok", dtype=object)
    outcome[np.flatnonzero(burst >= 0)[:n_failed]] = "timeout"
    due_ns = SPAN.start_ns + at_ns
    return requests_of(due_ns, is_open, phase="load", done_ns=due_ns + took_ns, outcome=outcome), burst


@pytest.mark.parametrize(
    ("bursts", "n_failed"), [([(5, 6), (20, 22)], 600), ([(3 * k, 3 * k + 1) for k in range(12)], 0)]
)
def test_requests_are_of_the_burst_that_they_were_scheduled_in(bursts: Bursts, n_failed: int) -> None:
    measured, burst = made(bursts, n_failed)
    is_failed = ~measured.is_ok

    def figures_of(which: np.ndarray) -> ResponseFigures:
        found = quantiles(measured.response_ns[which], QS, is_failed[which])
        return ResponseFigures(int(which.sum()), int(is_failed[which].sum()), tuple(found))

    figures = (by_burst(measured, [SPAN], QS) or {})["load"]
    named = compare_bursts(measured.scheduled_ns, measured.sent_ns, SPAN, LIMITS)
    assert figures is not None
    assert named is not None
    assert (figures.n_bursts, figures.window_ns) == (named.n, named.window_ns) == (len(bursts), 100 * MS)
    assert (figures.inside, figures.outside) == (figures_of(burst >= 0), figures_of(burst < 0))
    assert figures.inside.n_failed == n_failed
    largest = sorted(np.argsort(np.bincount(burst[burst >= 0]), kind="stable")[-10:].tolist())
    spans = [(begin * S, (end - begin) * S) for begin, end in (bursts[number] for number in largest)]
    assert [(one.offset_ns, one.duration_ns) for one in named.largest] == spans
    assert figures.largest == tuple(
        BurstResponse(**vars(figures_of(burst == number)), offset_ns=offset, duration_ns=duration)
        for number, (offset, duration) in zip(largest, spans, strict=True)
    )


def test_a_load_without_bursts_or_of_too_few_requests_has_none_and_a_closed_loop_plans_none() -> None:
    even, _ = made([])
    empty = RunPhase("empty", "measure", 60 * S, 70 * S)
    assert by_burst(even, [SPAN, empty], QS) == {"load": None, "empty": None}
    assert by_burst(even.take(np.arange(3)), [SPAN], QS) == {"load": None}
    assert by_burst(made([(5, 6)], is_open=False)[0], [SPAN], QS) is None
