"""The lanes of a server's processes on which events were recorded, and what these tell of operations that several
batches of an instance hold.

The files of records are read twice for it: first all event records (`note`), then all operations (`add`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.analysis.recorded import Windows
from squall.cluster.node.injected.execution_matching import matched_rows
from squall.cluster.node.injected.execution_segments import NOWHERE, EventRecords, Segments
from squall.cluster.node.injected.kernel_owners import Instance, Int64s, Lane, owner_of

Rows = NDArray[Any]
Lanes = Iterable[tuple[Lane, NDArray[np.intp]]]


@dataclass(eq=False)
class ExecutionLanes:
    """`note` for all records, `begin`, `add` for all operations, `match`; then `told`. Operations lie in `windows`."""

    windows: Windows
    instances: tuple[Instance, ...]
    _records: dict[int, EventRecords] = field(default_factory=dict)
    _lanes: dict[Lane, Segments] = field(default_factory=dict)
    _matched: dict[Lane, Int64s] = field(default_factory=dict)

    def note(self, process: int, events: Rows, operations: Iterable[Rows]) -> None:
        """Of a piece of a process's records the events, and the operations within windows by kind."""
        own = self._records.setdefault(process, EventRecords(process, len(self.windows.start_ns)))
        own.add(events)
        for rows in operations:
            own.see(rows["correlation_id"].astype(np.int64), self.windows.begun(rows["start_ns"]))

    def begin(self, owners: Mapping[Lane, int]) -> None:
        """Only lanes of an instance whose batches overlap are looked at."""
        for own in self._records.values():
            for lane, segments in own.lanes().items():
                number = owner_of(lane, owners)
                if number is not None and self.instances[number].overlaps:
                    self._lanes[lane] = segments
        self._records.clear()

    def processes(self) -> set[int]:
        """Those whose operations are asked for."""
        return {lane[0] for lane in self._lanes}

    def add(self, lanes: Lanes, rows: Rows) -> None:
        """Operations, and which of them are of which lane."""
        for lane, own in lanes:
            if (segments := self._lanes.get(lane)) is not None:
                segments.add(self._places(segments, rows[own]), rows["start_ns"][own], rows["end_ns"][own])

    def match(self, owners: Mapping[Lane, int]) -> None:
        """After all of `add`."""
        window_ns = np.stack([self.windows.start_ns, self.windows.end_ns], axis=1)
        for lane, segments in self._lanes.items():
            number = owner_of(lane, owners)
            if number is not None:
                self._matched[lane] = matched_rows(segments, self.instances[number], window_ns)

    def told(self, lanes: Lanes, rows: Rows) -> Int64s:
        """Of each operation the number of its batch in the instance of its lane, NOWHERE where it is not told."""
        found = np.full(len(rows), NOWHERE, np.int64)
        for lane, own in lanes:
            if (matched := self._matched.get(lane)) is not None:
                places = self._places(self._lanes[lane], rows[own])
                found[own] = np.where(places == NOWHERE, NOWHERE, matched[places])
        return found

    def _places(self, segments: Segments, rows: Rows) -> Int64s:
        return segments.places(rows["correlation_id"].astype(np.int64), self.windows.begun(rows["start_ns"]))
