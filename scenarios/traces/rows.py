"""Rows of a file as columns, whatever its format, made into arrivals: instants, sizes and sessions in numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.instants import INT64_MAX, Clock, Faults, StampKind, each_text, parse_whole
from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import Repair, TraceUnit
from squall.scenarios.traces.parts.part import PART_ROWS, TracePart, session_number
from squall.scenarios.traces.stamps import Durations, Reading

MOST_PER_BIN = 10**9


@dataclass(frozen=True)
class Fields:
    """Names of the columns of a file that are read."""

    stamp: str
    sizes: tuple[str, ...] = ()
    session: str | None = None
    durations: tuple[str, ...] = ()
    parent: str | None = None

    @property
    def texts(self) -> list[str]:
        """Of all but the sizes."""
        return [self.stamp, *self.durations, *(name for name in (self.session, self.parent) if name)]

    @property
    def names(self) -> list[str]:
        """Of all, each once."""
        return [*dict.fromkeys([*self.texts, *self.sizes])]


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows of a file: an Arrow array of each column that is read.

    `row_of`: the row number in the file of an index. `faults`: what is wrong with whole rows. `again`: the same rows
    read one by one, which says what is wrong with each; None where these are read so.
    """

    columns: Mapping[str, Any]
    row_of: Callable[[int], int]
    faults: Faults = field(default_factory=dict)
    again: Callable[[], Rows] | None = None


ReadRows = Callable[[Fields, Clock], Iterator[Rows]]
"""The rows of a file from the first on, in the order of the file."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows in the order of the file, and the row number in the file of each: `row_of(index)`."""

    part: TracePart
    row_of: Callable[[int], int | None]


@dataclass
class Mending:
    """The repairs that were asked for, and how many rows each touched so far."""

    repairs: tuple[Repair, ...]
    repaired: dict[Repair, int] = field(default_factory=dict)

    def asks(self, repair: Repair) -> bool:
        return repair in self.repairs

    def count(self, repair: Repair, n_rows: int) -> None:
        self.repaired[repair] = self.repaired.get(repair, 0) + n_rows


@dataclass(frozen=True, eq=False)
class Source:
    """The arrivals of one file. `kind` of its stamps, `number_unit` and `unit` of those that are numbers.

    `unit_is_assumed`: neither the user, the column's name nor the format says it. `reading`: which columns the stamps
    come from, None where the format leaves no choice; where durations are taken off, rows are out of the order of time
    and a begin may be before the zero of the trace. `are_gaps`: stamps are gaps, to be summed. `tick_ns`: the width of
    a bin, whose count the size column is.
    """

    read: ReadRows
    fields: Fields
    number_unit: TraceUnit
    kind: StampKind = "number"
    unit_is_assumed: bool = False
    reading: Reading | None = None
    are_gaps: bool = False
    tick_ns: int | None = None

    @property
    def unit(self) -> TraceUnit | None:
        return None if self.kind == "date" else self.number_unit

    @property
    def size_names(self) -> tuple[str, ...]:
        return () if self.tick_ns is not None else self.fields.sizes

    @property
    def durations(self) -> Durations | None:
        return None if self.reading is None else self.reading.durations

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        """The rows from the first on. Raises RowFault for one that cannot be read, unless such are to be skipped."""
        clock = Clock(self.number_unit, self.kind)
        roots: dict[str | None, int] = {}
        end_ns = 0
        for rows in self.read(self.fields, clock):
            chunk = self._chunk(rows, clock, roots, mending)
            if self.are_gaps and len(chunk.part):
                chunk = _summed(chunk, end_ns, mending)
                end_ns = int(chunk.part.stamp_ns[-1])
            yield from [chunk] if self.tick_ns is None else _expanded(chunk)

    def _chunk(self, rows: Rows, clock: Clock, roots: dict[str | None, int], mending: Mending) -> Chunk:
        faults = dict(rows.faults)
        stamp_ns = clock.read(rows.columns[self.fields.stamp], faults)
        sizes = {name: _whole_numbers(rows.columns[name], name, faults) for name in self.fields.sizes}
        if faults and rows.again is not None:
            return self._chunk(rows.again(), clock, roots, mending)
        if self.durations is not None:
            total_ns, is_absent = self.durations.total_ns(rows.columns, faults)
            stamp_ns = stamp_ns - total_ns
            self.durations.n_absent += int(is_absent.sum())
        session = None
        if self.fields.parent is not None:
            session = _first_of_chain(
                rows.columns[self.fields.session or ""], rows.columns[self.fields.parent], roots
            )
        elif self.fields.session is not None:
            session = each_text(rows.columns[self.fields.session], _session_number, {})
        part = TracePart(stamp_ns, sizes, session)
        if not faults:
            return Chunk(part, rows.row_of)
        if not mending.asks("skip-bad"):
            index = min(faults)
            raise RowFault(rows.row_of(index), f"{faults[index]}; mend it or ask for the repair skip-bad")
        mending.count("skip-bad", len(faults))
        good = np.delete(np.arange(len(part)), list(faults))
        return Chunk(part.take(good), lambda index: rows.row_of(int(good[index])))


def _session_number(text: str | None) -> int:
    return session_number(text or "")


def _whole_numbers(column: Any, name: str, faults: Faults) -> NDArray[np.int64]:
    """(n,) int64 of a column of whole numbers or their texts, -1 where it is empty."""
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        try:
            whole = column.cast(pa.int64())
            return (whole.fill_null(-1) if whole.null_count else whole).to_numpy()  # type: ignore[no-any-return]
        except pa.ArrowInvalid:  # beyond 64 bits
            pass
    return each_text(column, parse_whole, faults, f"column {name!r}: ")


def _first_of_chain(ids: Any, parents: Any, roots: dict[str | None, int]) -> NDArray[np.int64]:
    """Session of each row: that of the first request of its conversation; `roots` has those of all ids so far.

    A parent that never came begins a conversation of its own.
    """
    numbers = []
    for own, parent in zip(*(column.cast("string").to_pylist() for column in (ids, parents)), strict=True):
        number = roots.get(parent, session_number(own or ""))
        if own is not None:
            roots[own] = number
        numbers.append(number)
    return np.array(numbers, dtype=np.int64)


def _summed(chunk: Chunk, start_ns: int, mending: Mending) -> Chunk:
    """The running sum of gaps, from `start_ns`. Raises RowFault for a negative gap and a sum beyond int64.

    perf_analyzer sends at the running sum of the gaps, so that the first request waits for the first gap
    (docs/inference_load_modes.md of perf_analyzer, "Custom Interval Mode").
    """
    gaps_ns = chunk.part.stamp_ns
    negative = np.flatnonzero(gaps_ns < 0)
    if negative.size and not mending.asks("clip-negative"):
        what = "the interval is negative; mend it or ask for the repair clip-negative"
        raise RowFault(chunk.row_of(int(negative[0])), what)
    if negative.size:
        mending.count("clip-negative", int(negative.size))
    gaps_ns = np.maximum(gaps_ns, 0)
    if start_ns + float(gaps_ns.sum(dtype=np.float64)) > 0.99 * INT64_MAX:
        what = "the sum of the intervals leaves 2^63 ns (292 years); is the unit right?"
        raise RowFault(chunk.row_of(0), what)
    return Chunk(TracePart(start_ns + np.cumsum(gaps_ns), {}), chunk.row_of)


def _expanded(chunk: Chunk) -> Iterator[Chunk]:
    """An arrival at the start of its bin for each of the count, in chunks of about `PART_ROWS`."""
    (counts,) = chunk.part.sizes.values()
    bad = np.flatnonzero((counts < 0) | (counts > MOST_PER_BIN))
    if bad.size:
        count = int(counts[bad[0]])
        what = "is negative or empty" if count < 0 else f"is above {MOST_PER_BIN}"
        raise RowFault(chunk.row_of(int(bad[0])), f"the count {count} {what}; mend it")
    ends = np.cumsum(counts)
    n_arrivals = int(ends[-1]) if ends.size else 0
    for start in range(0, n_arrivals, PART_ROWS):
        places = np.arange(start, min(start + PART_ROWS, n_arrivals))
        bins = np.searchsorted(ends, places, side="right")
        part = TracePart(chunk.part.stamp_ns[bins], {})
        yield Chunk(part, lambda index, bins=bins: chunk.row_of(int(bins[index])))  # type: ignore[misc]
