"""What holds for the rows of every format: order, span, one unit; and the repairs that a user asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from squall.scenarios.traces.faults import RowFault
from squall.scenarios.traces.instants import INT64_MAX, epoch_unit
from squall.scenarios.traces.options import NS_PER_UNIT
from squall.scenarios.traces.part import TracePart, join_parts
from squall.scenarios.traces.rows import Source, seconds_text
from squall.scenarios.units import digits_text

SORT_ROWS = 2**22
"""How many rows late a row may come for the repair `sort`: it holds at most twice as many."""

_BEFORE_ALL_NS = -INT64_MAX - 1
_ONE_UNIT = (990.0, 1100.0)  # neighbours whose ratio lies here differ by a unit's 1000, not by a gap
_SURE_AFTER_ROWS = 100
_SURE_ABOVE_NS = 10**8  # a smallest number that is an epoch stamp in its unit, at 1 ns a unit


def checked_parts(source: Source) -> Iterator[TracePart]:
    """Rows of `source` in the order of time, in parts of at most `PART_ROWS`, repaired as asked for.

    Raises RowFault for the first row that breaks a rule, and at the end where there was no row.
    """
    parts = _of_one_epoch(source)
    if "sort" in source.repairs or source.durations is not None:
        parts = _sorted(parts)
    last_ns = _BEFORE_ALL_NS
    for part in _in_one_order_and_unit(parts, source):
        stamp_ns = part.stamp_ns
        if "drop-duplicates" in source.repairs:
            part = part.take(stamp_ns != np.concatenate([[last_ns], stamp_ns[:-1]]))
        last_ns = int(stamp_ns[-1])
        yield from replace(part, row=None).pieces()
    if last_ns == _BEFORE_ALL_NS:
        raise RowFault(None, "the trace has no arrivals")


def _of_one_epoch(source: Source) -> Iterator[TracePart]:
    """The rows; refuses a unit that was assumed where the first number is an instant since 1970 in another."""
    is_doubtful = source.unit is not None and source.unit_is_assumed
    for part in source.parts():
        if is_doubtful:
            number = int(part.stamp_ns[0]) // NS_PER_UNIT[source.number_unit]
            looks = epoch_unit(number)
            if looks not in (None, source.number_unit):
                what = f"{number} would be read as {source.number_unit} but looks like {looks} since 1970"
                raise RowFault(part.row_of(0), f"{what}; state the unit")
        is_doubtful = False
        yield part


def _in_one_order_and_unit(parts: Iterable[TracePart], source: Source) -> Iterator[TracePart]:
    """The same rows. Refuses a step back, more than 2^63 ns in all, and a change of unit between two rows.

    A jump by a factor of about 1000, 10^6 or 10^9, up or down, is taken for a change of unit only where a gap is out of
    the question: after 100 rows, or from numbers as large as epoch stamps.
    """
    n_rows = 0
    first_ns = last_ns = None
    for part in parts:
        after = part.stamp_ns
        first_ns = int(after[0]) if first_ns is None else first_ns
        before = np.concatenate([[first_ns if last_ns is None else last_ns], after[:-1]])
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
