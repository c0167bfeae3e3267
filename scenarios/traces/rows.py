"""Rows of a file, as Arrow columns, into arrivals: instants, sizes and sessions in numpy arrays.

What holds for the rows of every format is checked here: order, span, one unit; and the repairs are done that a user
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from squall.scenarios.arrays import Int64s
from squall.scenarios.records import Frozen
from squall.scenarios.traces.faults import RowFault, faults_of
from squall.scenarios.traces.instants import (
    INT64_MAX,
    Clock,
    Faults,
    StampKind,
    each_text,
    epoch_unit,
    parse_whole,
)
from squall.scenarios.traces.options import NS_PER_UNIT, Repair, TraceUnit
from squall.scenarios.traces.part import PART_ROWS, TracePart, join_parts, session_number
from squall.scenarios.traces.stamps import Reading
from squall.scenarios.units import digits_text

MOST_PER_BIN = 10**9
SORT_ROWS = 2**22
"""How many rows late a row may come for the repair `sort`: it holds at most twice as many."""

_BEFORE_ALL_NS = -INT64_MAX - 1
_ONE_UNIT = (990.0, 1100.0)  # neighbours whose ratio lies here differ by a unit's 1000, not by a gap
_SURE_AFTER_ROWS = 100
_SURE_ABOVE_NS = 10**8  # a smallest number that is an epoch stamp in its unit, at 1 ns a unit


class Fields(Frozen):
    """Names of the columns of a file that are read."""

    stamp: str
    sizes: tuple[str, ...] = ()
    session: str | None = None
    durations: tuple[str, ...] = ()
    parent: str | None = None

    @property
    def names(self) -> list[str]:
        """Of all, each once."""
        names = (self.stamp, *self.durations, self.session, self.parent, *self.sizes)
        return [*dict.fromkeys(name for name in names if name is not None)]


class Rows(Frozen, eq=False):
    """Consecutive rows of a file: an Arrow array of each column that is read, and the number of each row in the file.

    `faults`: what is wrong with whole rows.
    """

    columns: Mapping[str, Any]
    row: Int64s
    faults: Faults = field(default_factory=dict)


ReadRows = Callable[[Fields, Clock], Iterator[Rows]]
"""The rows of a file from the first on, in the order of the file."""


class Source(Frozen, eq=False):
    """A trace file of a `format`, ready to be read. Each iteration reads it from the start.

    `kind` of its stamps, `number_unit` and `unit` of those that are numbers.

    `reading`: which columns the stamps come from; where durations are taken off, rows are out of the order of time and
    a begin may be before the zero of the trace. `unit_is_assumed`: neither the user, the column's name nor the format
    says it. `are_gaps`: stamps are gaps, to be summed. `are_counts`: a row is a bin, whose count the size column is.
    `repairs`: those that are asked for.
    """

    path: Path
    format: str
    read: ReadRows
    fields: Fields
    reading: Reading
    number_unit: TraceUnit
    kind: StampKind
    unit_is_assumed: bool
    are_gaps: bool
    are_counts: bool
    repairs: tuple[Repair, ...]

    @property
    def unit(self) -> TraceUnit | None:
        """Of the numbers; None where stamps are dates."""
        return None if self.kind == "date" else self.number_unit

    @property
    def size_names(self) -> tuple[str, ...]:
        return () if self.are_counts else self.fields.sizes

    def __iter__(self) -> Iterator[TracePart]:
        """Rows in the order of time, at least one, in parts of at most `PART_ROWS`, repaired as asked for.

        Raises ScenarioError for the first row that breaks a rule, and at the end where there was no row.
        """
        with faults_of(self.path, "trace file"):
            parts = self.parts()
            if "sort" in self.repairs or self.fields.durations:
                parts = _sorted(parts)
            last_ns = _BEFORE_ALL_NS
            for part in _in_one_order_and_unit(parts, self):
                stamp_ns = part.stamp_ns
                if "drop-duplicates" in self.repairs:
                    part = part.take(stamp_ns != np.concatenate([[last_ns], stamp_ns[:-1]]))
                last_ns = int(stamp_ns[-1])
                yield from replace(part, row=None).pieces()
            if last_ns == _BEFORE_ALL_NS:
                raise RowFault(None, "the trace has no arrivals")

    def parts(self) -> Iterator[TracePart]:
        """The rows in the order of the file, none of them empty. Raises RowFault for one that cannot be read or is
        below 0, unless the repair of that is asked for."""
        self.reading.n_absent = 0
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
        if fields.durations:
            stamp_ns = stamp_ns - self.reading.taken_ns(columns, faults)
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
        if not negative.size or self.unit is None or self.fields.durations:
            return part
        if "clip-negative" not in self.repairs:
            what = f"{'interval' if self.are_gaps else 'timestamp'} {seconds_text(int(part.stamp_ns[negative[0]]))} s"
            fault = f"the {what} is negative; mend it or ask for the repair clip-negative"
            raise RowFault(part.row_of(negative[0]), fault)
        return replace(part, stamp_ns=np.maximum(part.stamp_ns, 0))


def _whole_numbers(column: Any, name: str, faults: Faults) -> Int64s:
    """(n,) int64 of a column of whole numbers or their texts, -1 where it is empty."""
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        try:
            return column.cast(pa.int64()).fill_null(-1).to_numpy()  # type: ignore[no-any-return]
        except pa.ArrowInvalid:  # beyond 64 bits
            pass
    return each_text(column, parse_whole, faults, f"column {name!r}: ")


def _first_of_chain(ids: Any, parents: Any, roots: dict[str | None, int]) -> Int64s:
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


def _in_one_order_and_unit(parts: Iterable[TracePart], source: Source) -> Iterator[TracePart]:
    """The same rows. Refuses a step back, more than 2^63 ns in all, and a change of unit between two rows.

    A jump by a factor of about 1000, 10^6 or 10^9, up or down, is taken for a change of unit only where a gap is out of
    the question: after 100 rows, or from numbers as large as epoch stamps.
    """
    n_rows = first_ns = last_ns = 0
    for part in parts:
        after = part.stamp_ns
        if not n_rows:
            first_ns = last_ns = int(after[0])
            _refuse_unit(source, first_ns, part.row_of(0))
        before = np.concatenate([[last_ns], after[:-1]])
        small, large = np.minimum(before, after), np.maximum(before, after)
        is_jump = (small > 0) & (large / _ONE_UNIT[0] >= small) & (source.unit is not None)
        for index in np.flatnonzero(is_jump).tolist():
            ratio = float(large[index]) / float(small[index])
            is_sure = n_rows + index >= _SURE_AFTER_ROWS
            is_sure = is_sure or int(small[index]) // NS_PER_UNIT[source.number_unit] >= _SURE_ABOVE_NS
            if is_sure and any(_ONE_UNIT[0] <= ratio / 1000**power <= _ONE_UNIT[1] for power in (0, 1, 2)):
                side = "larger" if after[index] > before[index] else "smaller"
                what = f"the timestamp is {digits_text(ratio, 4)} times {side} than the one before"
                mend = "write all in one unit, or cut the trace here"
                raise RowFault(part.row_of(index), f"{what}: two units in one column? {mend}")
        late = np.flatnonzero(after < before)
        if late.size:
            back = seconds_text(int(before[late[0]]) - int(after[late[0]]))
            what = f"time goes back by {back} s; sort the trace or ask for the repair sort"
            raise RowFault(part.row_of(late[0]), what)
        last_ns = int(after[-1])
        if last_ns - first_ns > INT64_MAX:
            what = "the trace spans more than 2^63 ns (292 years); is its unit right?"
            raise RowFault(part.row_of(-1), what)
        n_rows += len(after)
        yield part


def _refuse_unit(source: Source, first_ns: int, row: int | None) -> None:
    """Refuses a unit that was assumed where the first number is an instant since 1970 in another."""
    number = first_ns // NS_PER_UNIT[source.number_unit]
    looks = epoch_unit(number)
    if source.unit is not None and source.unit_is_assumed and looks not in (None, source.unit):
        what = f"{number} would be read as {source.unit} but looks like {looks} since 1970"
        raise RowFault(row, f"{what}; state the unit")


def _sorted(parts: Iterable[TracePart]) -> Iterator[TracePart]:
    """The rows in the order of time, equal stamps in the order of the file.

    Gathers twice `SORT_ROWS` rows, sorts them and yields the earlier half.
    """
    held: list[TracePart] = []
    done_ns = _BEFORE_ALL_NS
    for part in parts:
        late = np.flatnonzero(part.stamp_ns < done_ns)
        if late.size:
            what = f"comes more than {SORT_ROWS} rows late, which the repair sort does not hold"
            raise RowFault(part.row_of(late[0]), f"{what}; sort the trace")
        held.append(part)
        if sum(map(len, held)) >= 2 * SORT_ROWS:
            whole = _in_order(held)
            n_done = len(whole) - SORT_ROWS
            done_ns = int(whole.stamp_ns[n_done - 1])
            yield whole.take(slice(0, n_done))
            held = [whole.take(slice(n_done, None))]
    if held:
        yield _in_order(held)


def _in_order(parts: list[TracePart]) -> TracePart:
    part = join_parts(parts)
    return part.take(np.argsort(part.stamp_ns, kind="stable"))


def seconds_text(ns: int) -> str:
    """`ns` as exact seconds."""
    text = f"{abs(ns) // 10**9}.{abs(ns) % 10**9:09d}".rstrip("0").rstrip(".")
    return f"-{text}" if ns < 0 else text
