from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.recorded import Windows, common_stretches

instants = st.lists(st.integers(0, 60), min_size=8, max_size=8, unique=True).map(sorted)


@given(edges=instants, first=st.integers(-5, 65), length=st.integers(0, 20))
def test_a_window_holds_what_lies_in_it(edges: list[int], first: int, length: int) -> None:
    rows = [edges[:4], edges[4:]]  # begun, start, end, done
    windows, last = Windows.of(reversed(rows)), first + length
    holds = windows.hold(np.array([first]), np.array([last]))[0]
    assert holds == any(start <= first and last <= end for _, start, end, _ in rows)


def test_a_window_that_never_held_holds_nothing() -> None:
    windows = Windows.of([(0, 50, 40, 60)])
    assert windows.within(-100, 100) == ()
    assert windows.hold(np.array([45]), np.array([46])).tolist() == [False]


def test_no_windows_hold_nothing() -> None:
    none = Windows.of([])
    assert none.hold(np.array([1]), np.array([2])).tolist() == [False]
    assert none.within(0, 10) == ()


spans = st.lists(st.integers(0, 30), unique=True, max_size=10).map(
    lambda found: [tuple(sorted(found)[i : i + 2]) for i in range(0, len(found) // 2 * 2, 2)]
)


@given(st.lists(spans, max_size=3))
def test_common_stretches_are_the_instants_of_all(every: list[list[tuple[int, int]]]) -> None:
    found = common_stretches(every)
    inside = [{t for a, b in one for t in range(a, b)} for one in every]
    assert {t for a, b in found for t in range(a, b)} == (set.intersection(*inside) if inside else set())
    assert all(a < b for a, b in found)
    assert list(found) == sorted(found)
