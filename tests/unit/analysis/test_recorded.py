from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.recorded import Windows, common_stretches

instants = st.lists(st.integers(0, 60), min_size=8, max_size=8, unique=True).map(sorted)


@given(
    edges=instants,
    n=st.integers(0, 2),
    never_held=st.booleans(),
    first=st.integers(-5, 65),
    length=st.integers(0, 20),
)
def test_windows_hold_what_lies_in_one_of_them(
    edges: list[int], n: int, never_held: bool, first: int, length: int
) -> None:
    rows = [edges[:4], edges[4:]][:n]  # begun, start, end, done
    if never_held and rows:
        rows[0][1:3] = [rows[0][2], rows[0][1]]
    windows, last = Windows.of(reversed(rows)), first + length
    spans = [(start, max(start, end)) for _, start, end, _ in rows]
    holds = windows.hold(np.array([first]), np.array([last]))[0]
    assert holds == any(start <= first and last <= end for start, end in spans)
    assert [t for start, end in windows.within(first, last) for t in range(start, end)] == [
        t for t in range(first, last) if any(start <= t < end for start, end in spans)
    ]


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
