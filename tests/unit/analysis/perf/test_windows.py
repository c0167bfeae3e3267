"""Windows and their stability, held to brute force and to numpy."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.perf.rows import COLUMNS, EndedRequests
from squall.analysis.perf.windows import (
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
from tests.unit.analysis.perf.rows import ended, evenly

S = NS_PER_S
TIMES = st.lists(st.tuples(st.integers(0, 9 * S), st.integers(1, S)), min_size=1, max_size=60)


@given(times=TIMES, length=st.integers(S // 10, 3 * S))
def test_every_request_is_in_the_window_in_which_it_ended(times: list[tuple[int, int]], length: int) -> None:
    requests = ended([sent for sent, _ in times], [service for _, service in times])
    windows = time_windows(requests, S, 8 * S, length)
    assert len(windows) == 7 * S // length
    for window in windows:
        inside = sum(window.start_ns <= sent + service < window.end_ns for sent, service in times)
        assert len(window.requests) == inside
    if windows:
        assert len(joined(windows, requests).requests) == sum(len(one.requests) for one in windows)


@given(times=TIMES, n=st.integers(1, 20))
def test_a_window_of_requests_holds_as_many_and_whole_seconds(times: list[tuple[int, int]], n: int) -> None:
    requests = ended([sent for sent, _ in times], [service for _, service in times])
    for window in count_windows(requests, 0, 10 * S, n):
        assert len(window.requests) >= n
        assert (window.end_ns - window.start_ns) % S == 0
        assert len(requests.between(window.start_ns, window.end_ns - S)) < n


@given(times=TIMES, n=st.integers(1, 60), since=st.integers(0, 9 * S))
def test_the_window_of_a_number_of_requests_has_those_that_were_sent_first(
    times: list[tuple[int, int]], n: int, since: int
) -> None:
    requests = ended([sent for sent, _ in times], [service for _, service in times])
    eligible = sorted(sent for sent, _ in times if sent >= since)
    found = request_window(requests, since, n)
    if len(eligible) < n:
        assert found == []
        return
    assert sorted(found[0].requests.sent_ns.tolist()) == eligible[:n]
    assert found[0].requests.done_ns.tolist() == sorted(found[0].requests.done_ns.tolist())
    assert found[0].end_ns == found[0].requests.done_ns[-1] + 1


@given(times=TIMES, percentile=st.integers(1, 99))
def test_percentiles_are_those_of_numpy_over_raw_rows(times: list[tuple[int, int]], percentile: int) -> None:
    service = [one for _, one in times]
    requests = ended([sent for sent, _ in times], service)
    expected = np.percentile(service, percentile, method="inverted_cdf")
    assert latency_ns(requests, percentile) == expected
    assert latency_ns(requests, None) == pytest.approx(np.mean(service))


def test_a_failed_request_is_infinitely_slow_in_percentiles_and_not_in_the_average() -> None:
    requests = ended([0, 1, 2, 3], [10, 20, 30, 40], failed=(0,))
    values = requests.done_ns - requests.sent_ns
    assert percentiles_ns(values, requests, [50, 75, 99]) == [30.0, 40.0, math.inf]
    assert latency_ns(requests, None) == 30.0
    nothing = requests.between(S, 2 * S)
    assert all(math.isnan(latency_ns(nothing, one)) for one in (None, 50))


def test_throughput_counts_rows_of_requests_that_succeeded() -> None:
    window = Window(0, 2 * S, ended([0, 1, 2, 3], [10, 20, 30, 40], failed=(1,)))
    assert window.throughput_hz(8) == 12.0


def windows_of(*levels: tuple[int, int]) -> list[Window]:
    """A window for each number of requests and service time."""
    return [
        Window(index * S, (index + 1) * S, ended([index * S] * n, [service] * n))
        for index, (n, service) in enumerate(levels)
    ]


def test_three_windows_in_a_row_are_stable_in_throughput_and_latency() -> None:
    assert first_stable(windows_of((100, 50), (105, 52), (110, 55)), 0.1, None) == 0
    assert first_stable(windows_of((100, 50), (100, 50)), 0.1, None) is None
    assert first_stable(windows_of((80, 50), (100, 50), (105, 50), (110, 50)), 0.1, None) == 1
    assert first_stable(windows_of((100, 50), (100, 60), (100, 50)), 0.1, None) is None
    assert first_stable(windows_of((100, 50), (0, 50), (100, 50)), 0.1, None) is None
    assert first_stable(windows_of((100, 50), (111, 50), (100, 50)), 0.1, None) is None


def test_with_async_the_throughput_alone_decides_where_the_latency_does_not_settle() -> None:
    restless = windows_of((100, 50), (100, 90), (100, 50), (100, 50), (100, 50))
    assert first_stable(restless, 0.1, None, latency_may_vary=True) == 2
    assert first_stable(restless[:3], 0.1, None, latency_may_vary=True) == 0
    assert first_stable(restless[:3], 0.1, None) is None


def test_a_percentile_decides_where_it_is_asked_for() -> None:
    windows = [
        Window(index * S, (index + 1) * S, ended([index * S] * 10, [50] * 9 + [last]))
        for index, last in enumerate((50, 90, 50))
    ]
    assert first_stable(windows, 0.1, 50) == 0
    assert first_stable(windows, 0.1, 99) is None


def test_how_far_values_differ() -> None:
    assert spread_ratio([10.0, 12.0, 11.0]) == pytest.approx(0.2)
    assert [spread_ratio(one) for one in ([], [0.0, 1.0], [math.inf, 1.0])] == [math.inf] * 3


def test_requests_are_read_by_their_ends_and_those_that_did_not_end_are_left_out() -> None:
    rows = {
        "request_id": [0, 1, 2, 3], "scheduled_ns": [None] * 4, "sent_ns": [5, 1, None, 3],
        "first_byte_ns": [8, 2, None, None], "done_ns": [9, 4, None, 6], "outcome": ["ok", "ok", "unsent", "timeout"],
    }  # fmt: skip
    types = {"outcome": pa.string()}
    table = pa.table({name: pa.array(rows[name], types.get(name, pa.int64())) for name in COLUMNS})
    found = EndedRequests.from_table(table)
    assert found.done_ns.tolist() == [4, 6, 9]
    assert found.first_byte_ns.tolist() == [2, 6, 8]
    assert found.is_ok.tolist() == [True, False, True]
    assert found.scheduled_ns is None
    assert len(evenly(10, 5.0).between(0, S)) == 5
