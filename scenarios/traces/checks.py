"""What holds for the rows of every format: order, sign, span, one unit; and the repairs that a user asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from squall.scenarios.traces.instants import INT64_MAX, epoch_unit
from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import NS_PER_UNIT, TraceUnit
from squall.scenarios.traces.parts.part import TracePart, join_parts
from squall.scenarios.traces.rows import Chunk, Mending, Source
from squall.scenarios.units import digits_text

SORT_ROWS = 2**22
"""How many rows late a row may come for the repair `sort`: it holds at most twice as many."""

_ONE_UNIT = (990.0, 1100.0)  # neighbours whose ratio lies here differ by a unit's 1000, not by a gap
_SURE_AFTER_ROWS = 100
_SURE_ABOVE_NS = 10**8  # a smallest number that is an epoch stamp in its unit, at 1 ns a unit


def checked_parts(source: Source, mending: Mending) -> Iterator[TracePart]:
    """Rows of `source` in the order of time, in parts of at most `PART_ROWS`, repaired as asked for.

    Raises RowFault for the first row that breaks a rule, and at the end where there was no row.
    """
    chunks = _clipped(source, mending)
    if mending.asks("sort") or source.durations is not None:
        chunks = _sorted(chunks, mending)
    last_ns = -INT64_MAX - 1  # before every stamp
    is_empty = True
    for chunk in _in_one_order_and_unit(chunks, source.unit):
        part = chunk.part
        if mending.asks("drop-duplicates"):
            before_ns = np.concatenate([[last_ns], part.stamp_ns[:-1]])
            is_new = before_ns != part.stamp_ns
            mending.count("drop-duplicates", int(is_new.size - is_new.sum()))
            last_ns = int(part.stamp_ns[-1])
            part = part.take(is_new)
        is_empty = is_empty and not len(part)
        yield from part.pieces()
    if is_empty:
        raise RowFault(None, "the trace has no arrivals")


def _clipped(source: Source, mending: Mending) -> Iterator[Chunk]:
    """Chunks in the order of the file, none empty. Refuses numbers below 0, or clips them if that was asked for."""
    unit = source.unit
    is_first = True
    for chunk in source.chunks(mending):
        part = chunk.part
        is_number = unit is not None and source.durations is None
        negative = np.flatnonzero((part.stamp_ns < 0) & is_number)
        if negative.size:
            if not mending.asks("clip-negative"):
                what = f"the timestamp {_seconds(int(part.stamp_ns[negative[0]]))} s is negative"
                row = chunk.row_of(int(negative[0]))
                raise RowFault(row, f"{what}; mend it or ask for the repair clip-negative")
            mending.count("clip-negative", int(negative.size))
            chunk = Chunk(TracePart(np.maximum(part.stamp_ns, 0), part.sizes, part.session), chunk.row_of)
        if not len(part):
            continue
        if is_first and unit is not None and source.unit_is_assumed:
            number = int(chunk.part.stamp_ns[0]) // NS_PER_UNIT[unit]
            looks = epoch_unit(number)
            if looks is not None and looks != unit:
                what = f"{number} would be read as {unit} but looks like {looks} since 1970"
                raise RowFault(chunk.row_of(0), f"{what}; state the unit")
        is_first = False
        yield chunk


def _in_one_order_and_unit(chunks: Iterable[Chunk], unit: TraceUnit | None) -> Iterator[Chunk]:
    """The same chunks. Refuses a step back, more than 2^63 ns in all, and a change of unit between two rows.

    A jump by a factor of about 1000, 10^6 or 10^9, up or down, is taken for a change of unit only where a gap is out of
    the question: after 100 rows, or from numbers as large as epoch stamps.
    """
    n_rows = 0
    first_ns = last_ns = None
    for chunk in chunks:
        after = chunk.part.stamp_ns
        first_ns = int(after[0]) if first_ns is None else first_ns
        before = np.concatenate([[first_ns if last_ns is None else last_ns], after[:-1]])
        small, large = np.minimum(before, after), np.maximum(before, after)
        is_jump = (small > 0) & (large / _ONE_UNIT[0] >= small)
        for index in np.flatnonzero(is_jump).tolist() if unit is not None else ():
            ratio = float(large[index]) / float(small[index])
            is_sure = n_rows + index >= _SURE_AFTER_ROWS
            is_sure = is_sure or int(small[index]) // NS_PER_UNIT[unit or "s"] >= _SURE_ABOVE_NS
            if is_sure and any(_ONE_UNIT[0] <= ratio / 1000**power <= _ONE_UNIT[1] for power in (0, 1, 2)):
                times = (
                    f"{digits_text(ratio, 4)} times {'larger' if after[index] > before[index] else 'smaller'}"
                )
                what = f"the timestamp is {times} than the one before: two units in one column?"
                raise RowFault(chunk.row_of(index), f"{what} write all in one unit, or cut the trace here")
        late = np.flatnonzero(after < before)
        if late.size:
            back = _seconds(int(before[late[0]]) - int(after[late[0]]))
            what = f"time goes back by {back} s; sort the trace or ask for the repair sort"
            raise RowFault(chunk.row_of(int(late[0])), what)
        last_ns = int(after[-1])
        if last_ns - first_ns > INT64_MAX:
            what = "the trace spans more than 2^63 ns (292 years); is its unit right?"
            raise RowFault(chunk.row_of(len(after) - 1), what)
        n_rows += len(after)
        yield chunk


def _sorted(chunks: Iterable[Chunk], mending: Mending) -> Iterator[Chunk]:
    """The rows in the order of time, equal stamps in the order of the file; their rows in the file are not known.

    Gathers twice `SORT_ROWS` rows, sorts them and yields the earlier half.
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
                f"comes more than {SORT_ROWS} rows late, which the repair sort does not hold; sort the trace"
            )
            raise RowFault(chunk.row_of(int(late[0])), what)
        held.append(chunk.part)
        n_held += len(chunk.part)
        if n_held >= 2 * SORT_ROWS:
            part = _in_order(held)
            n_done = n_held - SORT_ROWS
            done_ns = int(part.stamp_ns[n_done - 1])
            yield Chunk(part.take(slice(0, n_done)), lambda _: None)
            held, n_held = [part.take(slice(n_done, None))], SORT_ROWS
    if held:
        yield Chunk(_in_order(held), lambda _: None)


def _in_order(parts: list[TracePart]) -> TracePart:
    part = join_parts(parts)
    if bool((part.stamp_ns[1:] >= part.stamp_ns[:-1]).all()):
        return part
    return part.take(np.argsort(part.stamp_ns, kind="stable"))


def _seconds(ns: int) -> str:
    """`ns` as exact seconds."""
    text = f"{abs(ns) // 10**9}.{abs(ns) % 10**9:09d}".rstrip("0").rstrip(".")
    return f"-{text}" if ns < 0 else text
