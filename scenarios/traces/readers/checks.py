"""What holds for the rows of every format: order, sign, span, one unit; and the repairs that a user asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import NS_PER_UNIT
from squall.scenarios.traces.parts.part import PART_ROWS, TracePart, join_parts
from squall.scenarios.traces.readers.chunk import Chunk, Mending, Source
from squall.scenarios.traces.readers.instants import INT64_MAX, epoch_unit
from squall.scenarios.units import digits_text

SORT_ROWS = 2**22
"""How many rows late a row may come for the repair `sort`: it holds at most twice as many."""

_ONE_UNIT = (990.0, 1100.0)  # neighbours whose ratio lies here differ by a unit's 1000, not by a gap
_SURE_AFTER_ROWS = 100
_SURE_ABOVE_NS = 10**8  # a smallest number that is an epoch stamp in its unit, at 1 ns a unit


def checked_parts(source: Source, mending: Mending, sort_rows: int = SORT_ROWS) -> Iterator[TracePart]:
    """Rows of `source` in the order of time, in parts of at most `PART_ROWS`, repaired as asked for.

    Raises RowFault for the first row that breaks a rule, and at the end where there was no row.
    """
    whole = _Rules(source, mending)
    chunks = (whole.check(chunk) for chunk in source.chunks(mending) if len(chunk.part))
    if whole.sorts:
        parts = whole.check_units(_sorted_parts(chunks, mending, sort_rows))
    else:
        parts = (chunk.part for chunk in chunks)
    if mending.asks("drop-duplicates"):
        parts = _without_duplicates(parts, mending)
    n_rows = 0
    for part in parts:
        n_rows += len(part)
        yield from part.pieces(PART_ROWS) if len(part) > PART_ROWS else ([part] if len(part) else [])
    if not n_rows:
        raise RowFault(None, "the trace has no arrivals")


class _Rules:
    """The checks of rows in the order of the file, over chunks that follow each other."""

    def __init__(self, source: Source, mending: Mending) -> None:
        self._source = source
        self._mending = mending
        self._n_rows = 0
        self._first_ns = 0
        self._last_ns = 0

    @property
    def sorts(self) -> bool:
        """Whether rows are put in order: where that was asked for, and where durations were taken off ends."""
        return self._mending.asks("sort") or self._is_less

    @property
    def _is_less(self) -> bool:
        return self._source.reading is not None and self._source.reading.durations is not None

    def check(self, chunk: Chunk) -> Chunk:
        """`chunk` with negative numbers clipped if that was asked for. Raises RowFault."""
        chunk = self._clipped(chunk)
        stamp_ns = chunk.part.stamp_ns
        if not self._n_rows:
            self._check_unit(int(stamp_ns[0]), chunk.row_of(0))
            self._first_ns = self._last_ns = int(stamp_ns[0])
        before_ns = np.concatenate([[self._last_ns], stamp_ns[:-1]])
        if not self.sorts:
            self._check_one_unit(before_ns, stamp_ns, chunk.row_of)
            self._check_order(before_ns, stamp_ns, chunk)
            if int(stamp_ns[-1]) - self._first_ns > INT64_MAX:
                row = chunk.row_of(len(chunk.part) - 1)
                raise RowFault(row, "the trace spans more than 2^63 ns (292 years); is its unit right?")
        self._n_rows += len(chunk.part)
        self._last_ns = int(stamp_ns[-1])
        return chunk

    def check_units(self, parts: Iterable[TracePart]) -> Iterator[TracePart]:
        """`parts` that were put in order; which row of the file is at fault is not known then. Raises RowFault."""
        self._n_rows = 0
        last_ns: int | None = None
        for part in parts:
            first_ns = int(part.stamp_ns[0]) if last_ns is None else last_ns
            before_ns = np.concatenate([[first_ns], part.stamp_ns[:-1]])
            self._check_one_unit(before_ns, part.stamp_ns, lambda _: None)
            self._n_rows += len(part)
            last_ns = int(part.stamp_ns[-1])
            yield part

    def _clipped(self, chunk: Chunk) -> Chunk:
        is_number = self._source.unit is not None and not self._is_less
        negative = np.flatnonzero(chunk.part.stamp_ns < 0) if is_number else np.empty(0)
        if not negative.size:
            return chunk
        if not self._mending.asks("clip-negative"):
            index = int(negative[0])
            what = f"the timestamp {_seconds(int(chunk.part.stamp_ns[index]))} s is negative"
            raise RowFault(chunk.row_of(index), f"{what}; mend it or ask for the repair clip-negative")
        self._mending.count("clip-negative", int(negative.size))
        part = chunk.part
        return Chunk(TracePart(np.maximum(part.stamp_ns, 0), part.sizes, part.session), chunk.row_of)

    def _check_unit(self, stamp_ns: int, row: int) -> None:
        unit = self._source.unit
        if unit is None or not self._source.unit_is_assumed:
            return
        looks = epoch_unit(stamp_ns // NS_PER_UNIT[unit])
        if looks is not None and looks != unit:
            what = (
                f"{stamp_ns // NS_PER_UNIT[unit]} would be read as {unit} but looks like {looks} since 1970"
            )
            raise RowFault(row, f"{what}; state the unit")

    def _check_one_unit(
        self, before: NDArray[np.int64], after: NDArray[np.int64], row_of: Callable[[int], int | None]
    ) -> None:
        """Refuses a jump by a factor of about 1000, 10^6 or 10^9 between neighbours, up or down.

        It is taken for a change of unit only where a gap is out of the question: after 100 rows, or from numbers
        as large as epoch stamps.
        """
        if self._source.unit is None:
            return
        small, large = np.minimum(before, after), np.maximum(before, after)
        jumps = np.flatnonzero((small > 0) & (large / _ONE_UNIT[0] >= small))
        for index in jumps.tolist():
            ratio = float(large[index]) / float(small[index])
            sure = self._n_rows + index >= _SURE_AFTER_ROWS
            sure = sure or int(small[index]) // NS_PER_UNIT[self._source.unit] >= _SURE_ABOVE_NS
            if sure and any(_ONE_UNIT[0] <= ratio / 1000**power <= _ONE_UNIT[1] for power in (0, 1, 2)):
                how = "larger" if after[index] > before[index] else "smaller"
                times = f"{digits_text(ratio, 4)} times {how}"
                what = f"the timestamp is {times} than the one before: two units in one column?"
                raise RowFault(row_of(index), f"{what} write all in one unit, or cut the trace here")

    def _check_order(self, before: NDArray[np.int64], after: NDArray[np.int64], chunk: Chunk) -> None:
        late = np.flatnonzero(after < before)
        if late.size:
            index = int(late[0])
            back = _seconds(int(before[index]) - int(after[index]))
            what = f"time goes back by {back} s; sort the trace or ask for the repair sort"
            raise RowFault(chunk.row_of(index), what)


def _sorted_parts(chunks: Iterable[Chunk], mending: Mending, sort_rows: int) -> Iterator[TracePart]:
    """Parts in the order of time, equal stamps in the order of the file.

    Gathers twice `sort_rows` rows, sorts them and yields the earlier half.
    """
    held: list[TracePart] = []
    n_held = 0
    highest_ns = done_ns = -INT64_MAX - 1
    for chunk in chunks:
        stamp_ns = chunk.part.stamp_ns
        highest = np.maximum.accumulate(np.concatenate([[highest_ns], stamp_ns]))
        if mending.asks("sort"):
            mending.count("sort", int((stamp_ns < highest[:-1]).sum()))
        highest_ns = int(highest[-1])
        late = np.flatnonzero(stamp_ns < done_ns)
        if late.size:
            what = (
                f"comes more than {sort_rows} rows late, which the repair sort does not hold; sort the trace"
            )
            raise RowFault(chunk.row_of(int(late[0])), what)
        held.append(chunk.part)
        n_held += len(chunk.part)
        if n_held >= 2 * sort_rows:
            part = _in_order(join_parts(held))
            yield part.take(slice(0, n_held - sort_rows))
            done_ns = int(part.stamp_ns[n_held - sort_rows - 1])
            held, n_held = [part.take(slice(n_held - sort_rows, None))], sort_rows
    if held:
        yield _in_order(join_parts(held))


def _in_order(part: TracePart) -> TracePart:
    if bool((part.stamp_ns[1:] >= part.stamp_ns[:-1]).all()):
        return part
    return part.take(np.argsort(part.stamp_ns, kind="stable"))


def _without_duplicates(parts: Iterable[TracePart], mending: Mending) -> Iterator[TracePart]:
    """The first row of each stamp, of parts in the order of time."""
    last_ns: int | None = None
    for part in parts:
        if not len(part):
            continue
        new = np.concatenate(
            [[last_ns is None or int(part.stamp_ns[0]) != last_ns], np.diff(part.stamp_ns) != 0]
        )
        mending.count("drop-duplicates", int(new.size - new.sum()))
        last_ns = int(part.stamp_ns[-1])
        yield part.take(new)


def _seconds(ns: int) -> str:
    """`ns` as exact seconds."""
    text = f"{abs(ns) // 10**9}.{abs(ns) % 10**9:09d}".rstrip("0").rstrip(".")
    return f"-{text}" if ns < 0 else text
