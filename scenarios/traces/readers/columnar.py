"""Parquet and Arrow (IPC file, also called Feather, and IPC stream): only the columns that are used are read.

A row's number is its place in the data, from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import NS_PER_UNIT, TraceUnit
from squall.scenarios.traces.parts.part import MOST_ROWS, PART_ROWS
from squall.scenarios.traces.readers.chunk import Chunk, Mending, chunk_of, session_numbers
from squall.scenarios.traces.readers.instants import INT64_MAX, Clock
from squall.scenarios.traces.readers.stamps import Reading

Container = Literal["parquet", "file", "stream"]
_READ_AHEAD_BYTES = 2**20
_DAY_NS = 86_400 * NS_PER_UNIT["s"]


@dataclass(frozen=True)
class ColumnarSource:
    """Rows of a Parquet or Arrow file. A `Source`. `number_unit` is not used where the type has its own."""

    path: Path
    container: Container
    stamp: str
    size_names: tuple[str, ...]
    session: str | None
    number_unit: TraceUnit
    unit: TraceUnit | None
    unit_is_assumed: bool
    tick_ns: int | None = None
    reading: Reading | None = None

    @property
    def has_sessions(self) -> bool:
        return self.session is not None

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        clock = Clock(self.number_unit)
        first = 1
        durations = None if self.reading is None else self.reading.durations
        taken = () if durations is None else durations.names
        ids = [] if self.session is None else [self.session]
        names = list(dict.fromkeys([self.stamp, *self.size_names, *ids, *taken]))
        for batch in record_batches(self.path, self.container, names):
            if batch.num_rows:
                yield self._chunk(batch, clock, first, mending)
            first += batch.num_rows

    def _chunk(self, batch: Any, clock: Clock, first: int, mending: Mending) -> Chunk:
        stamp_ns, faults = column_ns(batch.column(self.stamp), clock)
        if self.reading is not None and self.reading.durations is not None:
            taken = [_plain(batch.column(name)) for name in self.reading.durations.names]
            stamp_ns, faults = self.reading.durations.before(stamp_ns, taken, faults)
        sizes: dict[str, NDArray[np.int64]] = {}
        for name in self.size_names:
            sizes[name], bad = _whole_column(batch.column(name), name)
            faults += bad
        session = None if self.session is None else session_numbers(_plain(batch.column(self.session)))
        return chunk_of(stamp_ns, sizes, session, lambda index: first + index, faults, mending)


def schema_of(path: Path) -> tuple[Container, Any]:
    """Container and Arrow schema of a file that begins as one. Arrow's errors pass."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        magic = file.read(6)
    if magic[:4] == b"PAR1":
        with pq.ParquetFile(path) as parquet:
            return "parquet", parquet.schema_arrow
    with pa.OSFile(str(path)) as source:
        if magic == b"ARROW1":
            return "file", pa.ipc.open_file(source).schema
        return "stream", pa.ipc.open_stream(source).schema


def record_batches(path: Path, container: Container, names: list[str]) -> Iterator[Any]:
    """Record batches of at most `PART_ROWS` rows with the columns `names`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if container == "parquet":
        # Read-ahead of whole column chunks would hold a row group of any size.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_AHEAD_BYTES) as parquet:
            _refuse_many(parquet.metadata)
            yield from parquet.iter_batches(PART_ROWS, columns=names)
        return
    with pa.OSFile(str(path)) as source:
        if container == "file":
            options = pa.ipc.IpcReadOptions(included_fields=_places(path, names))
            reader = pa.ipc.open_file(source, options=options)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            options = pa.ipc.IpcReadOptions(included_fields=_places(path, names))
            batches = iter(pa.ipc.open_stream(source, options=options))
        for batch in batches:
            batch.validate(full=True)  # offsets and indices that lead out of their buffers
            for start in range(0, batch.num_rows, PART_ROWS):
                yield batch.slice(start, PART_ROWS)


def _refuse_many(metadata: Any) -> None:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    n_rows = sum(group.num_rows for group in groups)
    if n_rows > MOST_ROWS:
        raise RowFault(None, f"states {n_rows} rows, a trace has {MOST_ROWS} at most; cut it")


def _places(path: Path, names: list[str]) -> list[int]:
    schema = schema_of(path)[1]
    return [schema.get_field_index(name) for name in names]


def column_ns(column: Any, clock: Clock) -> tuple[NDArray[np.int64], list[tuple[int, str]]]:
    """ns of a column of any type that can be a time, and the faults: index and what.

    A float is taken by its shortest decimal form, the digits that whoever wrote it meant.
    """
    import pyarrow as pa

    column = _plain(column)
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _scaled(column.cast(pa.int64()), NS_PER_UNIT[kind.unit], clock.unit)
    if pa.types.is_date(kind):
        return _scaled(column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), _DAY_NS, clock.unit)
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return _scaled(column.cast(pa.int64()), NS_PER_UNIT[clock.unit], clock.unit)
    return clock.read(column.cast(pa.string()))


def _scaled(column: Any, factor: int, unit: TraceUnit) -> tuple[NDArray[np.int64], list[tuple[int, str]]]:
    empty = column.is_null().to_numpy(zero_copy_only=False)
    values: NDArray[np.int64] = column.fill_null(0).to_numpy() if column.null_count else column.to_numpy()
    beyond = (values > INT64_MAX // factor) | (values < -(INT64_MAX // factor))
    faults = [(index, "the timestamp is empty") for index in np.flatnonzero(empty).tolist()]
    faults += [
        (index, f"{values[index]} {unit} is too large for a time in ns (is its unit right?)")
        for index in np.flatnonzero(beyond).tolist()
    ]
    if not faults and factor == 1:
        return values, faults
    return np.where(beyond, 0, values) * factor, faults


def _whole_column(column: Any, name: str) -> tuple[NDArray[np.int64], list[tuple[int, str]]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _plain(column)
    faults: list[tuple[int, str]] = []
    if pa.types.is_uint64(column.type):
        beyond = pc.fill_null(pc.greater(column, pa.scalar(INT64_MAX, pa.uint64())), False)
        faults = [
            (index, f"column {name!r}: {column[index]} is not a whole number within 64 bits")
            for index in np.flatnonzero(beyond.to_numpy(zero_copy_only=False)).tolist()
        ]
        column = pc.if_else(beyond, pa.scalar(0, pa.uint64()), column)
    column = column.cast(pa.int64())
    return (column.fill_null(-1) if column.null_count else column).to_numpy(), faults


def _plain(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column


def is_stamp_type(kind: Any) -> bool:
    """Whether a column of this Arrow type can hold stamps."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    types = pa.types
    checks = (types.is_timestamp, types.is_date, types.is_integer, types.is_floating, types.is_decimal)
    return any(check(kind) for check in (*checks, types.is_string, types.is_large_string))


def states_unit(kind: Any) -> bool:
    """Whether an Arrow type says by itself what a value of it is in ns."""
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
