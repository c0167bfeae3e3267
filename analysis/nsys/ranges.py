"""Our ranges as intervals of a thread, and which of them an event of that thread lies in."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from squall.analysis.arrays import Int64s
from squall.scenarios.records import Frozen


class BatchRanges(Frozen, eq=False):
    """Our ranges, one row each, in order of (thread, start). Instants are the report's; `end_ns` is never null."""

    thread: Int64s
    """nsys's globalTid: process and thread."""
    start_ns: Int64s
    end_ns: Int64s
    instance: tuple[str, ...]
    device: Int64s
    """`instance_device` of the instance."""
    batch_id: Int64s

    def __len__(self) -> int:
        return len(self.thread)

    def locate(self, thread: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
        """Row of the range that each event lies in; -1 if in none. Of nested ranges the one opened last counts.

        A range holds [start, end): an event belongs to it that starts while it is open and ends no later than it.
        """
        found = np.full(len(thread), -1, dtype=np.int64)
        threads, firsts = np.unique(self.thread, return_index=True)
        for one, first, last in (
            zip(threads, firsts, [*firsts[1:], len(self)], strict=True) if len(self) else ()
        ):
            rows = np.flatnonzero(thread == one)
            if not len(rows):
                continue
            starts, owners = _segments(self.start_ns[first:last], self.end_ns[first:last])
            place = np.searchsorted(starts, start_ns[rows], side="right") - 1
            owner = np.where(place >= 0, owners[np.maximum(place, 0)], -1)
            is_inside = (owner >= 0) & (end_ns[rows] <= self.end_ns[first + np.maximum(owner, 0)])
            found[rows] = np.where(is_inside, first + owner, -1)
        return found


def _segments(start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Instants at which the innermost open range of one thread changes, and which it is from then on (-1: none).

    Ranges come in order of (start, -end).
    """
    if (start_ns[1:] >= end_ns[:-1]).all():
        owners = np.arange(len(start_ns), dtype=np.int64)
        starts = np.column_stack((start_ns, end_ns)).ravel()
        return starts, np.column_stack((owners, np.full(len(owners), -1))).ravel()
    return _nested_segments(start_ns, end_ns)


def _nested_segments(start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
    starts, ends = start_ns.tolist(), end_ns.tolist()
    changes: list[tuple[int, int]] = []
    still_open: list[int] = []  # negated rows: the last opened is on top
    opened = 0
    for instant in sorted({*starts, *ends}):
        while opened < len(starts) and starts[opened] <= instant:
            heappush(still_open, -opened)
            opened += 1
        while still_open and ends[-still_open[0]] <= instant:
            heappop(still_open)
        changes.append((instant, -still_open[0] if still_open else -1))
    table = np.array(changes, dtype=np.int64)
    return table[:, 0], table[:, 1]
