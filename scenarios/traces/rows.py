"""Rows of a file, as Arrow columns, into arrivals: instants, sizes and sessions in numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.faults import RowFault
from squall.scenarios.traces.instants import INT64_MAX, Clock, Faults, StampKind, each_text, parse_whole
from squall.scenarios.traces.options import Repair, TraceUnit
from squall.scenarios.traces.part import PART_ROWS, TracePart, session_number
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
    def names(self) -> list[str]:
        """Of all, each once."""
        others = [name for name in (self.session, self.parent) if name is not None]
        return [*dict.fromkeys([self.stamp, *self.durations, *others, *self.sizes])]


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows of a file: an Arrow array of each column that is read, and the number of each row in the file.

    `faults`: what is wrong with whole rows.
    """

    columns: Mapping[str, Any]
    row: NDArray[np.int64]
    faults: Faults = field(default_factory=dict)


ReadRows = Callable[[Fields, Clock], Iterator[Rows]]
"""The rows of a file from the first on, in the order of the file."""


@dataclass(frozen=True, eq=False)
class Source:
    """The arrivals of one file. `kind` of its stamps, `number_unit` and `unit` of those that are numbers.

    `unit_is_assumed`: neither the user, the column's name nor the format says it. `reading`: which columns the stamps
    come from, None where the format leaves no choice; where durations are taken off, rows are out of the order of time
    and a begin may be before the zero of the trace. `are_gaps`: stamps are gaps, to be summed. `are_counts`: a row
    is a bin, whose count the size column is. `repairs`: those that are asked for.
    """

    read: ReadRows
    fields: Fields
    number_unit: TraceUnit
    kind: StampKind = "number"
    unit_is_assumed: bool = False
    reading: Reading | None = None
    are_gaps: bool = False
    are_counts: bool = False
    repairs: tuple[Repair, ...] = ()

    @property
    def unit(self) -> TraceUnit | None:
        """Of the numbers; None where stamps are dates."""
        return None if self.kind == "date" else self.number_unit

    @property
    def size_names(self) -> tuple[str, ...]:
        return () if self.are_counts else self.fields.sizes

    @property
    def durations(self) -> Durations | None:
        return None if self.reading is None else self.reading.durations

    def parts(self) -> Iterator[TracePart]:
        """The rows in the order of the file, none of them empty. Raises RowFault for one that cannot be read or is
        below 0, unless the repair of that is asked for."""
        if self.durations is not None:
            self.durations.n_absent = 0
        clock = Clock(self.number_unit, self.kind)
        roots: dict[str | None, int] = {}
        end_ns = 0
        for rows in self.read(self.fields, clock):
            part = self._part(rows, clock, roots)
            for piece in _expanded(part) if self.are_counts else [part]:
                piece = self._clipped(piece)
                if self.are_gaps and len(piece):
                    piece = _summed(piece, end_ns)
                    end_ns = int(piece.stamp_ns[-1])
                if len(piece):
                    yield piece

    def _part(self, rows: Rows, clock: Clock, roots: dict[str | None, int]) -> TracePart:
        columns, fields, faults = rows.columns, self.fields, dict(rows.faults)
        stamp_ns = clock.read(columns[fields.stamp], faults)
        sizes = {name: _whole_numbers(columns[name], name, faults) for name in fields.sizes}
        if self.durations is not None:
            stamp_ns = stamp_ns - self.durations.total_ns(columns, faults)
        session = None
        if fields.parent is not None:
            session = _first_of_chain(columns[fields.session or ""], columns[fields.parent], roots)
        elif fields.session is not None:
            session = each_text(columns[fields.session], lambda text: session_number(text or ""), {})
        part = TracePart(stamp_ns, sizes, session, rows.row)
        if not faults:
            return part
        if "skip-bad" not in self.repairs:
            index = min(faults)
            raise RowFault(int(rows.row[index]), f"{faults[index]}; mend it or ask for the repair skip-bad")
        return part.take(np.delete(np.arange(len(part)), list(faults)))

    def _clipped(self, part: TracePart) -> TracePart:
        """Numbers below 0 refused, or set to 0 where that is asked for."""
        negative = np.flatnonzero(part.stamp_ns < 0)
        if not negative.size or self.unit is None or self.durations is not None:
            return part
        if "clip-negative" not in self.repairs:
            what = f"{'interval' if self.are_gaps else 'timestamp'} {seconds_text(int(part.stamp_ns[negative[0]]))} s"
            fault = f"the {what} is negative; mend it or ask for the repair clip-negative"
            raise RowFault(part.row_of(negative[0]), fault)
        return TracePart(np.maximum(part.stamp_ns, 0), part.sizes, part.session, part.row)


def _whole_numbers(column: Any, name: str, faults: Faults) -> NDArray[np.int64]:
    """(n,) int64 of a column of whole numbers or their texts, -1 where it is empty."""
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        try:
            return column.cast(pa.int64()).fill_null(-1).to_numpy()  # type: ignore[no-any-return]
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


def _summed(part: TracePart, start_ns: int) -> TracePart:
    """The running sum of gaps, from `start_ns`. Raises RowFault for a sum beyond int64.

    perf_analyzer sends at the running sum of the gaps, so that the first request waits for the first gap
    (docs/inference_load_modes.md of perf_analyzer, "Custom Interval Mode").
    """
    if start_ns + float(part.stamp_ns.sum(dtype=np.float64)) > 0.99 * INT64_MAX:
        what = "the sum of the intervals leaves 2^63 ns (292 years); is the unit right?"
        raise RowFault(part.row_of(0), what)
    return TracePart(start_ns + np.cumsum(part.stamp_ns), {}, row=part.row)


def _expanded(part: TracePart) -> Iterator[TracePart]:
    """An arrival at the start of its bin for each of the count, in parts of `PART_ROWS`."""
    (counts,) = part.sizes.values()
    bad = np.flatnonzero((counts < 0) | (counts > MOST_PER_BIN))
    if bad.size:
        count = int(counts[bad[0]])
        what = "is negative or empty" if count < 0 else f"is above {MOST_PER_BIN}"
        raise RowFault(part.row_of(bad[0]), f"the count {count} {what}; mend it")
    bins = TracePart(part.stamp_ns, {}, row=part.row)
    ends = np.cumsum(counts)
    n_arrivals = int(ends[-1]) if ends.size else 0
    for start in range(0, n_arrivals, PART_ROWS):
        places = np.arange(start, min(start + PART_ROWS, n_arrivals))
        yield bins.take(np.searchsorted(ends, places, side="right"))


def seconds_text(ns: int) -> str:
    """`ns` as exact seconds."""
    text = f"{abs(ns) // 10**9}.{abs(ns) % 10**9:09d}".rstrip("0").rstrip(".")
    return f"-{text}" if ns < 0 else text
