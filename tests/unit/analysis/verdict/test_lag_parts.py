"""What of a quantile is send lag: exact, of that quantile alone, and never excused by another."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.limits import LIMITS
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.order_statistics import nearest_rank, smallest_n
from squall.analysis.tables.sealed import CheckResult
from squall.analysis.verdict.lag_parts import JUDGED, lag_parts
from squall.analysis.verdict.stimulus_checks import STIMULUS_CHECKS
from tests.synthetic_runs import START_NS, as_table

MS, US = 1_000_000, 1_000
QS = (0.5, 0.9, 0.95, 0.99)


def requests_of(
    lags_ns: list[int], services_ns: list[int], failed: list[bool] | None = None, is_open: bool = True
) -> Requests:
    n = len(lags_ns)
    due = [START_NS + i * MS for i in range(n)]
    sent = [t + lag for t, lag in zip(due, lags_ns, strict=True)]
    columns: dict[str, list[Any]] = {
        "phase": ["m"] * n, "run": ["r"] * n, "request_id": list(range(n)), "worker": [0] * n, "node": ["a"] * n,
        "target": ["s"] * n, "request_kind": ["k"] * n, "scheduled_ns": due, "sent_ns": sent,
        "first_byte_ns": sent, "done_ns": [t + s for t, s in zip(sent, services_ns, strict=True)],
        "rows": [1] * n, "request_bytes": [1] * n, "response_bytes": [1] * n, "detail": [""] * n,
        "outcome": ["timeout" if is_bad else "ok" for is_bad in failed or [False] * n],
    }  # fmt: skip
    return Requests.from_table(as_table("requests", columns), is_open)


def lag_checks(*phases: Requests) -> dict[str, CheckResult]:
    """The checks of the quantiles, of all of these phases."""
    found = [lag_parts(own, JUDGED) for own in phases]
    view: Any = SimpleNamespace(lag_parts={q: [one[i] for one in found] for i, q in enumerate(JUDGED)})
    own = [check for check in STIMULUS_CHECKS if check.name.startswith("lag in")]
    return {check.name: check.held(figure) for check in own if (figure := check.figure(view)) is not None}


rows = st.lists(
    st.tuples(st.integers(0, 5_000), st.integers(1, 5_000), st.booleans() | st.just(False)),
    min_size=1, max_size=600,
)  # fmt: skip


@given(rows)
def test_the_part_is_the_difference_of_the_quantiles_of_sorted_lists(
    found: list[tuple[int, int, bool]],
) -> None:
    lags, services, failed = (list(one) for one in zip(*found, strict=True))
    n = len(found)
    parts = lag_parts(requests_of(lags, services, failed), QS)
    endless = [math.inf if bad else 0 for bad in failed]
    response = sorted(a + b + c for a, b, c in zip(lags, services, endless, strict=True))
    service = sorted(b + c for b, c in zip(services, endless, strict=True))
    for q, part in zip(QS, parts, strict=True):
        rank = nearest_rank(q, n) - 1
        if n < smallest_n(q) or math.isinf(response[rank]):
            assert part is None
            continue
        assert part is not None
        assert (part.response_ns, part.excess_ns) == (response[rank], response[rank] - service[rank])
        assert 0 <= part.excess_ns <= max(lags)
        assert 0 <= part.ratio < 1


@given(st.integers(0, 50 * MS), st.lists(st.integers(1, 9 * MS), min_size=72, max_size=200))
def test_a_lag_that_all_have_is_the_part_of_each_quantile(lag: int, services: list[int]) -> None:
    for part in lag_parts(requests_of([lag] * len(services), services), QS[:3]):
        assert part is not None
        assert part.excess_ns == lag
        assert part.is_above == (lag > max(LIMITS.timer_ns, round(0.1 * part.response_ns)))


@given(st.integers(2, 1_000))
def test_no_tail_however_long_excuses_a_bent_median(factor: int) -> None:
    """Response p50 6.65 ms against service p50 4.51 ms; the slowest twentieth as slow as you like."""
    n = 600
    services = [4_510 * US] * (n - n // 20) + [38 * MS * factor] * (n // 20)
    lags = [2_140 * US if i % 10 < 6 else 10 * US for i in range(n)]
    checks = lag_checks(requests_of(lags, services))
    assert checks["lag in p50"].value == 2_140 * US
    assert checks["lag in p50"].limit == 665 * US
    assert checks["lag in p50"].is_unmet
    assert "32.2 % of that quantile is the client's" in checks["lag in p50"].reason
    assert checks["lag in p99"].is_met


@pytest.mark.parametrize(
    ("lag_us", "service_us", "is_met"),
    [(50, 150, True), (500, 700, True), (501, 700, False), (640, 6_000, True), (700, 6_000, False)],
)
def test_timers_are_no_fault_and_more_than_a_tenth_is(lag_us: int, service_us: int, is_met: bool) -> None:
    """50 us on 200 us are what a timer costs; above 0.5 ms a tenth of the quantile counts."""
    own = requests_of([lag_us * US] * 400, [service_us * US] * 400)
    assert [one.is_met for one in lag_checks(own).values()] == [is_met] * 3


def test_the_worst_of_several_phases_decides_and_all_together_count_too() -> None:
    good, bad = requests_of([0] * 400, [5 * MS] * 400), requests_of([2 * MS] * 400, [5 * MS] * 400)
    for phases in ((good, bad), (bad, good)):
        assert all(one.is_unmet for one in lag_checks(*phases).values())
    assert all(one.is_met for one in lag_checks(good).values())


def test_what_no_quantile_carries_is_not_assessed_and_no_fault() -> None:
    few = requests_of([40 * MS] * 71, [MS] * 71)
    checks = lag_checks(few)
    assert checks["lag in p50"].is_unmet
    assert checks["lag in p95"].not_assessed.startswith("it takes 72 requests")
    assert checks["lag in p99"].not_assessed.startswith("it takes 368 requests")
    all_failed = requests_of([40 * MS] * 400, [MS] * 400, [True] * 400)
    assert not any(one.is_unmet or one.is_met for one in lag_checks(all_failed).values())
    closed = requests_of([0] * 400, [MS] * 400, is_open=False)
    assert lag_parts(closed, QS) == [None] * len(QS)


def test_the_arrays_of_the_requests_are_left_as_they_are() -> None:
    rng = np.random.default_rng(3)
    own = requests_of(rng.integers(0, MS, 500).tolist(), rng.integers(1, MS, 500).tolist())
    before = own.done_ns.copy(), own.sent_ns.copy()
    lag_parts(own, QS)
    assert (own.done_ns == before[0]).all()
    assert (own.sent_ns == before[1]).all()
