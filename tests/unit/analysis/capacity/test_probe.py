"""The margin of a run: how far its promises are from being broken, of which kind they may be."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from squall.analysis.capacity.probe import Margin, margin_of
from squall.analysis.decisions.figures import BROKEN, INVALID, KEPT, UNDECIDED, PromiseFigures
from squall.scenarios.promises import parse_promises
from tests.unit.analysis.decisions.test_over_seeds import run_of

MS = 1_000_000
PROMISES = (
    parse_promises({"response": "p(95)<50ms", "failures": "rate<1%", "goodput{within:80ms}": "rate>0.9"})
    or ()
)


def figures(n: int, n_late: int, n_allowed: int, **changes: Any) -> PromiseFigures:
    verdict = KEPT if n_late <= n_allowed else BROKEN
    return run_of(n, n_late, verdict=verdict, n_allowed=n_allowed, **changes)


def found(*those: PromiseFigures) -> Margin:
    return margin_of(PROMISES[: len(those)], those)


def test_a_time_is_held_to_its_limit_in_logarithms() -> None:
    kept = found(figures(1_000, 20, 50, value=25.0 * MS))
    assert (kept.verdict, kept.binding) == (KEPT, "response p(95)<50ms")
    assert kept.margin == pytest.approx(math.log(0.5))
    broken = found(figures(1_000, 90, 50, value=100.0 * MS))
    assert broken.verdict == BROKEN
    assert broken.margin == pytest.approx(math.log(2.0))


def test_at_the_limit_the_sign_is_the_verdicts() -> None:
    at_limit = found(figures(1_000, 51, 50, value=50.0 * MS))
    assert (at_limit.verdict, at_limit.margin) == (BROKEN, 0.0)
    below = found(figures(1_000, 50, 50, value=50.0 * MS))
    assert below.margin is not None
    assert below.margin < 0.0


@pytest.mark.parametrize(
    ("n_late", "is_below"), [(0, True), (9, True), (10, False), (11, False), (900, False)]
)
def test_a_share_is_below_zero_exactly_where_it_is_kept(n_late: int, is_below: bool) -> None:
    one = margin_of(PROMISES[1:2], [figures(1_000, n_late, 9)])
    assert one.margin is not None
    assert (one.margin < 0.0) is is_below


def test_the_worst_promise_binds() -> None:
    time, share = figures(1_000, 20, 50, value=45.0 * MS), figures(1_000, 9, 9)
    assert found(time, share).binding == "failures rate<1%" or found(time, share).binding.startswith(
        "failures"
    )
    assert found(figures(1_000, 20, 50, value=49.9 * MS), figures(1_000, 2, 9)).binding.startswith("response")


def test_beside_a_broken_promise_one_without_requests_says_nothing() -> None:
    """It ended the search with an AssertionError."""
    nobody = replace(run_of(1, 0, verdict=UNDECIDED), n=0, n_allowed=None)
    broken = figures(1_000, 90, 50, value=60 * MS)
    both = parse_promises({"response": "p(95)<50ms", "response{burst:in}": "p(95)<80ms"}) or ()
    one = margin_of(both, [broken, nobody])
    assert (one.verdict, one.binding) == (BROKEN, "response p(95)<50ms")
    assert one.margin == pytest.approx(math.log(60 / 50))


def test_infinite_figures_have_a_sign_only() -> None:
    one = found(figures(1_000, 90, 50, value=None, is_infinite=True))
    assert (one.verdict, one.margin, one.binding) == (BROKEN, None, "response p(95)<50ms")


@pytest.mark.parametrize("verdict", [INVALID, UNDECIDED])
def test_what_is_not_judged_has_its_reason(verdict: str) -> None:
    one = found(run_of(1_000, 0, verdict=verdict, reason="none of its requests was sent"))
    assert one == Margin(verdict, None, "", "none of its requests was sent")


def test_a_promise_that_allows_none_is_broken_by_one() -> None:
    (most,) = parse_promises({"failures": "count<1"}) or ()
    margins = [margin_of([most], [figures(1_000, n_late, 0)]).margin for n_late in (0, 1)]
    assert margins[0] is not None
    assert margins[1] is not None
    assert margins[0] < 0.0 <= margins[1]
