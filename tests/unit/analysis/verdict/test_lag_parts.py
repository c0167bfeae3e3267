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
from squall.analysis.storage.sealed import CheckResult
from squall.analysis.verdict.checks import CHECKS
from squall.analysis.verdict.lag_parts import JUDGED, lag_parts
from tests.synthetic_runs import START_NS
from tests.unit.analysis.requests.made_requests import requests_of as made

MS, US = 1_000_000, 1_000
QS = (0.5, 0.9, 0.95, 0.99)


def requests_of(
    lags_ns: list[int], services_ns: list[int], failed: list[bool] | None = None, is_open: bool = True
) -> Requests:
    due_ns = START_NS + MS * np.arange(len(lags_ns))
    sent_ns = due_ns + np.array(lags_ns)
    outcome = ["timeout" if is_bad else "ok" for is_bad in failed or [False] * len(lags_ns)]
    return made(due_ns, is_open, sent_ns=sent_ns, done_ns=sent_ns + np.array(services_ns), outcome=outcome)


def lag_checks(*phases: Requests) -> list[CheckResult]:
    """The checks of p50, p95 and p99, of all of these phases."""
    found = [lag_parts(own, JUDGED) for own in phases]
    view: Any = SimpleNamespace(lag_parts={q: [one[i] for one in found] for i, q in enumerate(JUDGED)})
    own = [check for check in CHECKS if check.name.startswith("lag in")]
    return [check.held(figure) for check in own if (figure := check.figure(view)) is not None]


rows = st.lists(
    st.tuples(st.integers(0, 5_000), st.integers(1, 5_000), st.booleans() | st.just(False)),
    min_size=1, max_size=600,
)  # fmt: skip


@given(rows, st.sampled_from([1, MS]))
def test_the_part_is_the_difference_of_the_quantiles_of_sorted_lists(
    found: list[tuple[int, int, bool]], unit_ns: int
) -> None:
    lags, services, failed = (list(one) for one in zip(*found, strict=True))
    lags, services = ([unit_ns * ns for ns in own] for own in (lags, services))
    n = len(found)
    own = requests_of(lags, services, failed)
    parts = lag_parts(own, QS)
    assert (own.lag_ns == lags).all(), "the requests are left as they are"
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
        assert part.ratio == part.excess_ns / part.response_ns
        assert part.is_above == (part.excess_ns > max(LIMITS.timer_ns, round(0.1 * part.response_ns)))


@given(st.integers(2, 1_000))
def test_no_tail_however_long_excuses_a_bent_median(factor: int) -> None:
    """Response p50 6.65 ms against service p50 4.51 ms; the slowest twentieth as slow as you like."""
    n = 600
    services = [4_510 * US] * (n - n // 20) + [38 * MS * factor] * (n // 20)
    lags = [2_140 * US if i % 10 < 6 else 10 * US for i in range(n)]
    p50, _, p99 = lag_checks(requests_of(lags, services))
    assert (p50.value, p50.limit) == (2_140 * US, 665 * US)
    assert p50.is_unmet
    assert "32.2 % of that quantile is the client's" in p50.reason
    assert p99.is_met


MET, UNMET, OPEN = "met", "unmet", "not assessed"


@pytest.mark.parametrize(
    ("phases", "found"),
    [
        # 50 us on 200 us are what a timer costs; above 0.5 ms a tenth of the quantile counts
        ([(400, 50, 150)], [MET, MET, MET]),
        ([(400, 500, 700)], [MET, MET, MET]),
        ([(400, 501, 700)], [UNMET, UNMET, UNMET]),
        ([(400, 640, 6_000)], [MET, MET, MET]),
        ([(400, 700, 6_000)], [UNMET, UNMET, UNMET]),
        # the worst of several decides
        ([(400, 0, 5_000), (400, 2_000, 5_000)], [UNMET, UNMET, UNMET]),
        ([(400, 2_000, 5_000), (400, 0, 5_000)], [UNMET, UNMET, UNMET]),
        # 72 requests carry a p95, 368 a p99
        ([(71, 40_000, 1_000)], [UNMET, OPEN, OPEN]),
        ([(72, 40_000, 1_000)], [UNMET, UNMET, OPEN]),
    ],
)
def test_more_than_a_tenth_of_a_quantile_is_a_fault(
    phases: list[tuple[int, int, int]], found: list[str]
) -> None:
    """Phases of so many requests with such a lag and service time, us."""
    checks = lag_checks(*(requests_of([lag * US] * n, [service * US] * n) for n, lag, service in phases))
    assert [UNMET if one.is_unmet else MET if one.is_met else OPEN for one in checks] == found


@pytest.mark.parametrize(("is_failed", "is_open"), [(True, True), (False, False)])
def test_neither_failures_nor_a_closed_loop_have_a_part(is_failed: bool, is_open: bool) -> None:
    own = requests_of([40 * MS] * 400, [MS] * 400, [is_failed] * 400, is_open)
    assert lag_parts(own, QS) == [None] * len(QS)
    assert all(one.not_assessed.startswith("it takes ") for one in lag_checks(own))
