"""What a source of rows yields, before the checks that hold for every format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import Repair, TraceUnit
from squall.scenarios.traces.parts.part import TracePart, session_number
from squall.scenarios.traces.readers.stamps import Reading


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows in the order of the file, and the row number in the file of each: `row_of(index)`."""

    part: TracePart
    row_of: Callable[[int], int]


@dataclass
class Mending:
    """The repairs that were asked for, and how many rows each touched so far."""

    repairs: tuple[Repair, ...]
    repaired: dict[Repair, int] = field(default_factory=dict)

    def asks(self, repair: Repair) -> bool:
        return repair in self.repairs

    def count(self, repair: Repair, n_rows: int) -> None:
        self.repaired[repair] = self.repaired.get(repair, 0) + n_rows


class Source(Protocol):
    """The rows of one file in one format. `chunks` starts at the first row each time it is called.

    `unit` of the numbers that are stamps; None where they are dates. `unit_is_assumed`: neither the user, the
    column's name nor the format's own definition says it. `tick_ns`: the width of a bin of counts. `reading`: which
    columns the stamps come from, None where the format leaves no choice; where durations are taken off, rows are out of
    the order of time and a begin may be before the zero of the trace.
    """

    @property
    def reading(self) -> Reading | None: ...
    @property
    def unit(self) -> TraceUnit | None: ...
    @property
    def unit_is_assumed(self) -> bool: ...
    @property
    def size_names(self) -> tuple[str, ...]: ...
    @property
    def has_sessions(self) -> bool: ...
    @property
    def tick_ns(self) -> int | None: ...
    def chunks(self, mending: Mending) -> Iterator[Chunk]: ...


def chunk_of(
    stamp_ns: NDArray[np.int64],
    sizes: Mapping[str, NDArray[np.int64]],
    session: NDArray[np.int64] | None,
    row_of: Callable[[int], int],
    faults: Sequence[tuple[int, str]],
    mending: Mending,
) -> Chunk:
    """The rows without those that have `faults` (index and what), which are left out if that was asked for.

    Raises RowFault for the first of them if it was not.
    """
    part = TracePart(stamp_ns, sizes, session)
    if not faults:
        return Chunk(part, row_of)
    if not mending.asks("skip-bad"):
        index, what = min(faults)
        raise RowFault(row_of(index), f"{what}; mend it or ask for the repair skip-bad")
    good = np.ones(stamp_ns.size, dtype=np.bool_)
    good[[index for index, _ in faults]] = False
    mending.count("skip-bad", int(stamp_ns.size - good.sum()))
    kept = np.flatnonzero(good)
    return Chunk(part.take(good), lambda index: row_of(int(kept[index])))


def session_numbers(texts: Any) -> NDArray[np.int64]:
    """`session_number` of each value of an Arrow array of texts or integers, (n,) int64; -1 for null."""
    import pyarrow as pa

    encoded = texts.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    values = [session_number(_text(value)) for value in encoded.dictionary.to_pylist()]
    numbers = np.array([*values, session_number("")], dtype=np.int64)
    places: NDArray[np.int64] = encoded.indices.fill_null(len(values)).to_numpy()
    return numbers[places]


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return "" if value is None else str(value)
