"""Parquet and Arrow (IPC file, also called Feather, and IPC stream): a column for each input, lists for open dims."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from squall.scenarios.data.source import Cell, Entries, Source, Wanted, fault
from squall.scenarios.data.values import array_of
from squall.scenarios.traces.faults import RowFault
from squall.scenarios.traces.tables import record_batches, schema_of, stated_rows

_BATCH_ROWS = 1_024
_NUMBER = re.compile(r"u?int\d+|halffloat|float|double|bool")
_TAKEN = re.compile(
    rf"{_NUMBER.pattern}|null|(large_)?(string|binary)|(string|binary)_view|fixed_size_binary\[\d+\]"
)
"""Types of cells, and of the elements of their lists."""


class ColumnarSource(Source):
    """A Parquet or Arrow file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        schema = schema_of(path)
        self.names = tuple(schema.names)
        twice = [name for index, name in enumerate(self.names) if name in self.names[:index]]
        if twice:
            raise RowFault(None, f"has two columns {twice[0]!r}")
        self._types = {field.name: field.type for field in schema}
        stated = stated_rows(path)
        batches = record_batches(path, self.names[:1]) if stated is None else ()
        self.n_entries = sum(batch.num_rows for batch in batches) if stated is None else stated

    def read(self, wanted: Wanted, names: Sequence[str]) -> Entries:
        """See `Source`."""
        for name in names:
            _refuse_type(name, self._types[name])
        first = 0
        for batch in record_batches(self._path, names, _BATCH_ROWS):
            for index in np.flatnonzero(wanted[first : first + batch.num_rows]).tolist():
                number = first + index
                cells = {name: _cell(batch.column(name)[index], name, number) for name in names}
                yield number, {name: cell for name, cell in cells.items() if cell is not None}
            first += batch.num_rows
            if first >= wanted.size:
                return


def _refuse_type(name: str, kind: Any) -> None:
    element = kind
    while hasattr(element, "value_type") or hasattr(element, "storage_type"):
        element = getattr(element, "value_type", None) or element.storage_type
    if not _TAKEN.fullmatch(str(element)):
        raise RowFault(
            None, f"column {name!r} is {kind}, which no input takes; use numbers, booleans, text or lists"
        )


def _cell(scalar: Any, name: str, number: int) -> Cell | None:
    """The cell of an Arrow scalar of the entry `number`; None for null."""
    import pyarrow as pa

    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.FixedShapeTensorScalar):
        return scalar.to_numpy()  # type: ignore[no-any-return]
    if isinstance(scalar, pa.ExtensionScalar | pa.DictionaryScalar):
        return _cell(scalar.value, name, number)
    kind = scalar.type
    if _NUMBER.fullmatch(str(kind)):
        return np.asarray(scalar.as_py(), kind.to_pandas_dtype())
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list and _NUMBER.fullmatch(str(kind.value_type)) and not scalar.values.null_count:
        return scalar.values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    try:
        return array_of(scalar.as_py())
    except UnicodeDecodeError as error:
        raise fault(number, f"column {name!r} is not UTF-8 text") from error
    except ValueError as error:
        raise fault(number, f"column {name!r} {error}") from error
