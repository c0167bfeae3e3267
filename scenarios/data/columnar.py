"""Parquet and Arrow (IPC file, also called Feather, and IPC stream): a column for each input, lists for open dims."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from squall.scenarios.data.source import Cell, Entry, Source, Wanted, fault
from squall.scenarios.data.values import array_of
from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.tables import Container, schema_of

_BATCH_ROWS = 1_024
_READ_AHEAD_BYTES = 2**20


class ColumnarSource(Source):
    """A Parquet or Arrow file. Row groups of Parquet without a wanted row are not read."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path = path
        self._container: Container
        self._container, schema = schema_of(path)
        twice = [name for index, name in enumerate(schema.names) if name in schema.names[:index]]
        if twice:
            raise RowFault(None, f"has two columns {twice[0]!r}")
        self.names = tuple(schema.names)
        if self._container == "parquet":
            with pq.ParquetFile(path) as parquet:
                groups = range(parquet.num_row_groups)
                self._group_rows = [parquet.metadata.row_group(index).num_rows for index in groups]
            self.n_entries = sum(self._group_rows)
        else:
            with pa.memory_map(str(path)) as mapped:
                self.n_entries = sum(batch.num_rows for batch in _batches(mapped, self._container))

    def read(self, wanted: Wanted, names: Collection[str]) -> Iterator[tuple[int, Entry]]:
        """See `Source`."""
        columns = [name for name in self.names if name in names]
        for first, batch in self._record_batches(wanted, columns):
            here = np.flatnonzero(wanted[first : first + batch.num_rows])
            if not here.size:
                continue
            cells = {name: _cells_of(batch.column(name), name, first) for name in columns}
            for index in here.tolist():
                found = {name: cell_at(index) for name, cell_at in cells.items()}
                yield first + index, {name: cell for name, cell in found.items() if cell is not None}

    def _record_batches(self, wanted: Wanted, columns: list[str]) -> Iterator[tuple[int, Any]]:
        """(number of the first row, rows), a few rows at a time."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._container != "parquet":
            with pa.memory_map(str(self._path)) as mapped:
                first = 0
                for batch in _batches(mapped, self._container):
                    for start in range(0, batch.num_rows, _BATCH_ROWS):
                        yield first + start, batch.slice(start, _BATCH_ROWS).select(columns)
                    first += batch.num_rows
            return
        ends = np.cumsum(self._group_rows).tolist()
        with pq.ParquetFile(self._path, pre_buffer=False, buffer_size=_READ_AHEAD_BYTES) as parquet:
            for group, (n_rows, end) in enumerate(zip(self._group_rows, ends, strict=True)):
                first = end - n_rows
                if not wanted[first:end].any():
                    continue
                for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns):
                    yield first, batch
                    first += batch.num_rows


def _batches(mapped: Any, container: Container) -> Iterator[Any]:
    import pyarrow as pa

    if container == "stream":
        yield from pa.ipc.open_stream(mapped)
        return
    reader = pa.ipc.open_file(mapped)
    yield from (reader.get_batch(index) for index in range(reader.num_record_batches))


def _cells_of(column: Any, name: str, first: int) -> Callable[[int], Cell | None]:
    """The cell of a row of `column`, whose first row is the entry `first`; None for null."""
    import pyarrow as pa

    types = pa.types
    if isinstance(column, pa.ExtensionArray):
        column = column.storage if not isinstance(column.type, pa.FixedShapeTensorType) else column
    if isinstance(column.type, pa.FixedShapeTensorType):
        tensors = column.to_numpy_ndarray()
        return lambda index: _present(column, index, tensors[index])
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if types.is_null(kind):
        return lambda _: None
    if _is_text(kind):
        return lambda index: _text_cell(column, index, name, first)
    if _is_number(kind):
        values = column.fill_null(False if types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False)
        return lambda index: _present(column, index, values[index])
    is_list = types.is_list(kind) or types.is_large_list(kind)
    if is_list and _is_number(kind.value_type) and not column.values.null_count:
        flat, offsets = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()
        return lambda index: _present(column, index, flat[offsets[index] : offsets[index + 1]])
    if _is_nested(kind) or _is_binary(kind):
        return lambda index: _nested_cell(column, index, name, first)
    raise RowFault(
        None, f"column {name!r} is {kind}, which no input takes; use numbers, booleans, text or lists"
    )


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    is_sized = types.is_fixed_size_binary(kind) and not types.is_decimal(kind)
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind) or is_sized
    )


def _is_nested(kind: Any) -> bool:
    """Lists of what a cell can hold."""
    import pyarrow as pa

    types = pa.types
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
        if types.is_dictionary(kind):
            kind = kind.value_type
        if _is_number(kind) or _is_text(kind) or _is_binary(kind):
            return True
    return False


def _present(column: Any, index: int, value: Any) -> Cell | None:
    is_null = column.null_count and not column[index].is_valid
    return None if is_null else np.asarray(value)


def _text_cell(column: Any, index: int, name: str, first: int) -> Cell | None:
    try:
        text = column[index].as_py()
    except UnicodeDecodeError as error:
        raise fault(first + index, f"column {name!r} is not UTF-8 text") from error
    return array_of(text) if text is not None else None


def _nested_cell(column: Any, index: int, name: str, first: int) -> Cell | None:
    try:
        value = column[index].as_py()
        return array_of(value) if value is not None else None
    except UnicodeDecodeError as error:
        raise fault(first + index, f"column {name!r} is not UTF-8 text") from error
    except ValueError as error:
        raise fault(first + index, f"column {name!r} {error}") from error
