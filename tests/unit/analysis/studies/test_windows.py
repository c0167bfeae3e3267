"""Windows and their stability, held to loops over plain rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.studies.perf_rows import EndedRequests
from squall.analysis.studies.perf_windows import (
    Window,
    count_windows,
    first_stable,
    joined,
    latency_ns,
    percentiles_ns,
    request_window,
    spread_ratio,
    time_windows,
)
from squall.scenarios.units import NS_PER_S
from tests.plain_runs import plain_run
from tests.unit.analysis.studies.rows import ended, evenly

CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text())
S = NS_PER_S
Times = list[tuple[int, int, bool]]


def tenths(least: int, most: int) -> st.SearchStrategy[int]:
    """Times on a grid of tenths of a second, so that they meet edges of windows."""
    return st.integers(least, most).map((S // 10).__mul__)


TIMES = st.lists(st.tuples(tenths(0, 90), tenths(1, 10), st.booleans()), min_size=1, max_size=60)
"""Sends, service times, and whether the request succeeded."""


def made(times: Times) -> EndedRequests:
    sent, service, is_ok = zip(*times, strict=True)
    return ended([*sent], [*service], tuple(i for i, ok in enumerate(is_ok) if not ok))


@given(times=TIMES, length=tenths(1, 30))
def test_every_request_is_in_the_window_in_which_it_ended(times: Times, length: int) -> None:
    requests = made(times)
    windows = time_windows(requests, S, 8 * S, length)
    assert len(windows) == 7 * S // length
    for window in windows:
        inside = [ok for sent, service, ok in times if window.start_ns <= sent + service < window.end_ns]
        assert (len(window.requests), window.n_ok) == (len(inside), sum(inside))
        assert window.throughput_hz(8) == 8 * sum(inside) * S / length
    if windows:
        assert len(joined(windows, requests).requests) == sum(len(window.requests) for window in windows)


@given(times=TIMES, n=st.integers(1, 20))
def test_a_window_of_requests_holds_as_many_and_whole_seconds(times: Times, n: int) -> None:
    requests = made(times)
    for window in count_windows(requests, 0, 10 * S, n):
        assert len(window.requests) >= n
        assert (window.end_ns - window.start_ns) % S == 0
        assert len(requests.between(window.start_ns, window.end_ns - S)) < n


@given(times=TIMES, n=st.integers(1, 60), since=tenths(0, 90))
def test_the_window_of_a_number_of_requests_has_those_that_were_sent_first(
    times: Times, n: int, since: int
) -> None:
    eligible = sorted(sent for sent, *_ in times if sent >= since)
    windows = request_window(made(times), since, n)
    assert len(windows) == (len(eligible) >= n)
    for window in windows:
        assert sorted(window.requests.sent_ns.tolist()) == eligible[:n]
        assert window.requests.done_ns.tolist() == sorted(window.requests.done_ns.tolist())
        assert (window.start_ns, window.end_ns) == (eligible[0], window.requests.done_ns[-1] + 1)


@given(times=TIMES, percentile=st.integers(1, 99))
def test_failed_requests_are_infinitely_slow_in_percentiles_and_not_in_the_average(
    times: Times, percentile: int
) -> None:
    ranked = sorted(float(service) if ok else math.inf for _, service, ok in times)
    requests = made(times)
    assert latency_ns(requests, percentile) == ranked[-(-percentile * len(times) // 100) - 1]
    ok_ns = [value for value in ranked if value < math.inf]
    mean = sum(ok_ns) / len(ok_ns) if ok_ns else math.nan
    assert latency_ns(requests, None) == pytest.approx(mean, nan_ok=True)
    nothing = requests.between(20 * S, 30 * S)
    assert math.isnan(percentiles_ns(nothing.done_ns, nothing, [percentile])[0])


@pytest.mark.parametrize("case", CASES["stable"])
def test_three_windows_in_a_row_are_stable_in_throughput_and_latency(case: dict[str, Any]) -> None:
    windows = []
    for i, (n, service, *slow) in enumerate(case["windows"]):
        requests = ended([i * S] * (n + len(slow)), [*[service] * n, *slow])
        windows.append(Window(i * S, (i + 1) * S, requests))
    assert first_stable(windows, 0.1, case.get("percentile"), case.get("may_vary", False)) == case["first"]


def test_how_far_values_differ() -> None:
    assert spread_ratio([10.0, 12.0, 11.0]) == pytest.approx(0.2)
    assert [spread_ratio(values) for values in ([], [0.0, 1.0], [math.inf, 1.0])] == [math.inf] * 3


def test_requests_are_read_by_their_ends_and_those_that_did_not_end_are_left_out(tmp_path: Path) -> None:
    names = ("request_id", "sent_ns", "first_byte_ns", "done_ns", "outcome")
    rows = [
        (0, 5, 8, 9, "ok"),
        (1, 1, 2, 4, "ok"),
        (2, None, None, None, "unsent"),
        (3, 3, None, 6, "timeout"),
    ]
    store = plain_run(tmp_path, {"requests": [dict(zip(names, row, strict=True)) for row in rows]})
    found = EndedRequests.read(store)
    assert found.done_ns.tolist() == [4, 6, 9]
    assert found.first_byte_ns.tolist() == [2, 6, 8]
    assert found.is_ok.tolist() == [True, False, True]
    assert found.scheduled_ns is None
    assert len(evenly(10, 5.0).between(0, S)) == 5
