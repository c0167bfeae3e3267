from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.analysis.nsys.batches import read_ranges
from squall.analysis.nsys.ranges import BatchRanges
from tests.many_examples import examples

NEVER = np.iinfo(np.int64).max
instants = st.integers(0, 40)
spans = st.tuples(st.integers(1, 3), instants, st.integers(0, 20))  # thread, start, length
ranges = st.lists(st.tuples(spans, st.booleans()), max_size=12)
events = st.lists(spans, max_size=12)


def made(rows: list[tuple[tuple[int, int, int], bool]]) -> BatchRanges:
    thread, start = (pa.array([row[0][i] for row in rows], pa.int64()) for i in range(2))
    ids = range(len(rows))
    devices = ["", "|cpu", "|gpu1"]
    names = [f"squall|i{i}{devices[i % 3]}|{i}" for i in ids]
    table = {"globalTid": thread, "start": start, "textId": pa.nulls(len(rows), pa.int64())}
    table["end"] = pa.array([None if is_open else row[1] + row[2] for row, is_open in rows], pa.int64())
    with duckdb.connect() as connection:
        connection.register("NVTX_EVENTS", pa.table({**table, "text": pa.array(names, pa.string())}))
        connection.execute("CREATE TABLE StringIds(id BIGINT, value VARCHAR)")
        return read_ranges(connection)


def brute(found: BatchRanges, thread: int, start: int, end: int) -> int:
    """The last opened of the ranges of that thread that hold `start`; -1 if that one ends before `end`."""
    holding = [
        row
        for row in range(len(found))
        if found.thread[row] == thread and found.start_ns[row] <= start < found.end_ns[row]
    ]
    return holding[-1] if holding and end <= found.end_ns[holding[-1]] else -1


@examples(100)
@given(ranges, events)
def test_events_are_located_as_by_looking_at_every_range(
    rows: list[tuple[tuple[int, int, int], bool]], wanted: list[tuple[int, int, int]]
) -> None:
    check_located(rows, wanted)


@pytest.mark.slow
@settings(max_examples=1_000)
@given(ranges, events)
def test_events_are_located_as_by_looking_at_every_range_whatever_they_are(
    rows: list[tuple[tuple[int, int, int], bool]], wanted: list[tuple[int, int, int]]
) -> None:
    check_located(rows, wanted)


def check_located(rows: list[tuple[tuple[int, int, int], bool]], wanted: list[tuple[int, int, int]]) -> None:
    found = made(rows)
    thread, start, length = (np.array([event[i] for event in wanted], np.int64) for i in range(3))
    located = found.locate(thread, start, start + length)
    expected = [brute(found, t, s, s + n) for t, s, n in wanted]
    assert located.tolist() == expected


@given(ranges)
def test_ranges_come_by_thread_and_start_and_lose_nothing(
    rows: list[tuple[tuple[int, int, int], bool]],
) -> None:
    found = made(rows)
    keys = list(zip(found.thread.tolist(), found.start_ns.tolist(), strict=True))
    assert keys == sorted(keys)
    assert sorted(found.batch_id.tolist()) == list(range(len(rows)))
    assert found.device.tolist() == [1 if i % 3 == 2 else -1 for i in found.batch_id.tolist()]
    for row, (batch_id, instance) in enumerate(zip(found.batch_id.tolist(), found.instance, strict=True)):
        (thread, start, _), _ = rows[batch_id]
        assert (found.thread[row], found.start_ns[row], instance) == (thread, start, f"i{batch_id}")


def test_an_open_range_lasts_to_the_next_of_its_thread() -> None:
    found = made([((1, 10, 0), True), ((1, 30, 5), False), ((2, 20, 5), False), ((2, 40, 0), True)])
    assert found.end_ns.tolist() == [30, 35, 25, NEVER]


def test_of_nested_ranges_the_inner_holds_and_the_outer_holds_again_after_it() -> None:
    found = made([((1, 0, 100), False), ((1, 20, 10), False)])
    starts = np.array([5, 20, 25, 30, 99, 100], np.int64)
    located = found.locate(np.ones(6, np.int64), starts, starts + 1)
    assert located.tolist() == [0, 1, 1, 0, 0, -1]
