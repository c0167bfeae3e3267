"""Counts of arrivals per bin (`second,count`): each arrival stands at the start of its bin.

The order and the instants inside a bin are lost; `tick_ns` is the width within which they may be spread again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import TraceUnit
from squall.scenarios.traces.parts.part import PART_ROWS, TracePart
from squall.scenarios.traces.readers.chunk import Chunk, Mending
from squall.scenarios.traces.readers.delimited import DelimitedSource

MOST_PER_BIN = 10**9


@dataclass(frozen=True)
class CountsSource:
    """Arrivals of a table of counts, whose only size column is the count. A `Source`."""

    table: DelimitedSource
    tick_ns: int | None
    size_names: tuple[str, ...] = ()
    has_sessions: bool = False
    reading: None = None

    @property
    def unit(self) -> TraceUnit | None:
        return self.table.unit

    @property
    def unit_is_assumed(self) -> bool:
        return self.table.unit_is_assumed

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        for chunk in self.table.chunks(mending):
            yield from _expanded(chunk)


def _expanded(chunk: Chunk) -> Iterator[Chunk]:
    """Arrivals of the bins of `chunk`, in chunks of about `PART_ROWS`; a bin that is larger has several."""
    (counts,) = chunk.part.sizes.values()
    bad = np.flatnonzero((counts < 0) | (counts > MOST_PER_BIN))
    if bad.size:
        index = int(bad[0])
        what = "is negative or empty" if counts[index] < 0 else f"is above {MOST_PER_BIN}"
        raise RowFault(chunk.row_of(index), f"the count {int(counts[index])} {what}; mend it")
    ends = np.cumsum(counts)
    for start in range(0, int(ends[-1]) if ends.size else 0, PART_ROWS):
        places = np.arange(start, min(start + PART_ROWS, int(ends[-1])))
        bins = np.searchsorted(ends, places, side="right")
        part = TracePart(chunk.part.stamp_ns[bins], {})
        yield Chunk(part, lambda index, bins=bins: chunk.row_of(int(bins[index])))  # type: ignore[misc]
