"""What lies on a lane between the CUDA events that were recorded on it, window by window.

    stream        k k k e c e k k k e c e k k k e c e        k: kernel, c: copy, e: an event is recorded
    segment       0 0 0   1   2 2 2   3   4 4 4   5          in the order of calls, by correlation id

An event record has no instant: its place on its lane is that of the call, and calls of a process are numbered in their
order. Operations have both, so that they tell which numbers belong to which window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.cluster.node.injected.kernel_owners import Int64s, Lane, by_lane

NEVER, ALWAYS = np.iinfo(np.int64).max, np.iinfo(np.int64).min
"""Begin and end of a segment without operations."""
NOWHERE: Final = -1


class Stretch(NamedTuple):
    """A lane in one window."""

    window: int
    first: int
    """Number of its first segment."""
    events: Int64s
    """(n,): which CUDA event each record is of, in the order of calls."""
    start_ns: Int64s
    end_ns: Int64s
    """(n + 1,): of the operations before the first record, between one and the next, and after the last; `NEVER` and
    `ALWAYS` where there is none."""


class Segments:
    """The segments of one lane; numbered through all windows in which an event was recorded on it."""

    def __init__(self, correlation_id: Int64s, event: Int64s, window: Int64s) -> None:
        """(n,) each: the records in the order of calls, `window` of each."""
        self._correlation_id, self._event = correlation_id, event
        self.windows, first = np.unique(window, return_index=True)
        self._first = first.astype(np.int64)
        self._n = np.diff(np.append(self._first, len(event)))
        n_segments = len(event) + len(self.windows)
        self.start_ns = np.full(n_segments, NEVER, np.int64)
        self.end_ns = np.full(n_segments, ALWAYS, np.int64)

    def places(self, correlation_id: Int64s, window: Int64s) -> Int64s:
        """The segment of each operation, NOWHERE where its window has no event of this lane; (n,)."""
        found = np.full(len(window), NOWHERE, np.int64)
        if not len(self.windows):
            return found
        rank = np.minimum(np.searchsorted(self.windows, window), len(self.windows) - 1)
        n_before = np.searchsorted(self._correlation_id, correlation_id)
        is_here = (self.windows[rank] == window) & (n_before >= self._first[rank])
        is_here &= n_before <= self._first[rank] + self._n[rank]
        found[is_here] = (n_before + rank)[is_here]
        return found

    def add(self, places: Int64s, start_ns: Int64s, end_ns: Int64s) -> None:
        """Operations of the lane, at what `places` gave of them."""
        is_here = places != NOWHERE
        np.minimum.at(self.start_ns, places[is_here], start_ns[is_here])
        np.maximum.at(self.end_ns, places[is_here], end_ns[is_here])

    def stretches(self) -> list[Stretch]:
        """Window by window."""
        found = []
        for rank, (window, first, n) in enumerate(zip(self.windows, self._first, self._n, strict=True)):
            own = slice(first + rank, first + rank + n + 1)
            events = self._event[first : first + n]
            found.append(Stretch(int(window), own.start, events, self.start_ns[own], self.end_ns[own]))
        return found


@dataclass(eq=False)
class EventRecords:
    """The event records of one process, and which correlation ids the operations of each window have."""

    process: int
    n_windows: int
    _records: list[NDArray[Any]] = field(default_factory=list)
    _first: Int64s = field(init=False)
    _last: Int64s = field(init=False)

    def __post_init__(self) -> None:
        self._first = np.full(self.n_windows, NEVER, np.int64)
        self._last = np.full(self.n_windows, ALWAYS, np.int64)

    def add(self, events: NDArray[Any]) -> None:
        """Records of the ring."""
        if len(events):
            names = ("context", "stream", "correlation_id", "event")
            self._records.append(np.stack([events[name].astype(np.int64) for name in names]))

    def see(self, correlation_id: Int64s, window: Int64s) -> None:
        """Operations, and the window that holds each."""
        np.minimum.at(self._first, window, correlation_id)
        np.maximum.at(self._last, window, correlation_id)

    def lanes(self) -> dict[Lane, Segments]:
        """Of each lane on which events were recorded within windows its segments, still without operations.

        A record between the last operation of a window and the first of the next is of neither.
        """
        if not self._records:
            return {}
        context, stream, correlation_id, event = np.concatenate(self._records, axis=1)
        last = np.maximum.accumulate(self._last) if self.n_windows else self._last
        begin = self._first.copy()
        begin[1:] = np.maximum(begin[1:], np.where(last[:-1] == ALWAYS, begin[1:], last[:-1] + 1))
        found = {}
        for lane, rows in by_lane(self.process, context, stream):
            own = rows[np.argsort(correlation_id[rows], kind="stable")]
            window = np.searchsorted(last, correlation_id[own])
            is_in = window < self.n_windows
            is_in &= begin[np.minimum(window, self.n_windows - 1)] <= correlation_id[own]
            if is_in.any():
                found[lane] = Segments(correlation_id[own][is_in], event[own][is_in], window[is_in])
        return found
