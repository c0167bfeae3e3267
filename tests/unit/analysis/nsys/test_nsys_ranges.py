"""Ranges of batches and the events in them, by looking at every range."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from squall.analysis.nsys.batches import read_ranges
from squall.analysis.nsys.ranges import BatchRanges
from squall.analysis.storage.query import over
from tests.many_examples import examples

NEVER = np.iinfo(np.int64).max
DEVICES = {"": -1, "|cpu": -1, "|gpu1": 1}


class Span(NamedTuple):
    thread: int
    start: int
    end: int | None


spans = st.builds(
    lambda thread, start, length: Span(thread, start, start + length),
    st.integers(1, 3), st.integers(0, 40), st.integers(0, 20),
)  # fmt: skip
ranges = st.lists(spans | spans.map(lambda span: span._replace(end=None)), max_size=12)


def read(rows: list[Span]) -> BatchRanges:
    """Batch i has the row i, and a name that says so."""
    names = [f"squall|i{i}{list(DEVICES)[i % 3]}|{i}" for i in range(len(rows))]
    columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(3)]
    columns += [pa.array(names, pa.string()), pa.nulls(len(rows), pa.int64())]
    table = pa.table(columns, ["globalTid", "start", "end", "text", "textId"])
    with over({"NVTX_EVENTS": table}) as connection:
        connection.execute("CREATE TABLE StringIds(id BIGINT, value VARCHAR)")
        return read_ranges(connection)


def ends(rows: list[Span]) -> list[int]:
    """An open range lasts to the next of its thread; at one start the longest is the first, an open one the last."""
    order = sorted(
        range(len(rows)), key=lambda i: (*rows[i][:2], rows[i].end is None, -(rows[i].end or 0), i)
    )
    found = [NEVER if row.end is None else row.end for row in rows]
    for one, after in pairwise(order):
        if rows[one].end is None and rows[after].thread == rows[one].thread:
            found[one] = rows[after].start
    return found


def check(rows: list[Span], events: list[Span]) -> None:
    """Each event is in the last opened of the ranges of its thread that hold its start, unless that ends before it."""
    found, wanted = read(rows), ends(rows)
    owners = found.batch_id.tolist()
    assert sorted(owners) == list(range(len(rows)))
    assert list(zip(found.thread, found.start_ns, strict=True)) == sorted(row[:2] for row in rows)
    assert found.end_ns.tolist() == [wanted[i] for i in owners]
    assert found.instance == tuple(f"i{i}" for i in owners)
    assert found.device.tolist() == [list(DEVICES.values())[i % 3] for i in owners]
    located = found.locate(*(np.array([event[i] for event in events], np.int64) for i in range(3)))
    for event, row in zip(events, located.tolist(), strict=True):
        holding = [
            place for place, i in enumerate(owners)
            if rows[i].thread == event.thread and rows[i].start <= event.start < wanted[i]
        ]  # fmt: skip
        assert event.end is not None
        assert row == (holding[-1] if holding and event.end <= found.end_ns[holding[-1]] else -1)


events = st.lists(spans, max_size=12)
NESTED = [Span(1, 0, 100), Span(1, 20, 30)]


@examples(100)
@example(NESTED, [Span(1, start, start + 1) for start in (5, 20, 25, 30, 99, 100)])
@example([Span(1, 10, None), Span(1, 30, 35), Span(2, 20, 25), Span(2, 40, None)], [Span(1, 29, 30)])
@given(ranges, events)
def test_events_are_located_as_by_looking_at_every_range(rows: list[Span], events: list[Span]) -> None:
    check(rows, events)


@pytest.mark.slow
@settings(max_examples=1_000)
@given(ranges, events)
def test_events_of_a_thousand_lists_are_located_so(rows: list[Span], events: list[Span]) -> None:
    check(rows, events)
