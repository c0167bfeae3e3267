"""One Parquet part being written, and what holds it to its table.

A part has a name that nobody can foresee, with `.open` at its end, until its footer is on the disk: nothing reads a
torn file as whole, and nothing is written through what lies in a folder of somebody else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.storage.beneath import FileOpener, new_file, passing_name
from squall.analysis.storage.schema import TABLES, arrow_schema
from squall.scenarios.errors import SchemaMismatch, StoreError


class OpenPart:
    """A part of one table being written at `path` + `.open`. Methods raise OSError or pa.ArrowException."""

    def __init__(self, path: Path, table: str, open_file: FileOpener = new_file) -> None:
        self.n_rows = 0
        self.path = path
        self._open_path = passing_name(path, ".open")
        self._file = open_file(self._open_path)
        try:
            schema = arrow_schema(table)
            # whole numbers as differences, text by dictionary: cheaper to write and read, and smaller, than
            # dictionaries for all, which most columns of numbers outgrow
            self._writer = pq.ParquetWriter(
                self._file,
                schema,
                compression="zstd",
                use_dictionary=[field.name for field in schema if pa.types.is_dictionary(field.type)],
                column_encoding={
                    field.name: "DELTA_BINARY_PACKED" for field in schema if field.type == pa.int64()
                },
            )
        except BaseException:
            self._file.close()
            raise

    def write(self, rows: pa.Table) -> None:
        """Adds `rows`, which `conform` made, as row groups."""
        self.n_rows += rows.num_rows
        self._writer.write_table(rows)

    def close(self) -> None:
        """Writes the footer, brings the file to the disk and gives it its name."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._open_path.rename(self.path)

    def drop(self) -> int:
        """Removes the unfinished file and returns the rows it had been handed. A full disk raises nothing."""
        self._writer.is_open = False  # else its finaliser tries to write the footer again, and fails again
        for release in (self._file.close, self._open_path.unlink):
            with suppress(
                OSError
            ):  # the disk already refused; the `.open` name keeps the rest from being read
                release()
        return self.n_rows


@dataclass(frozen=True)
class NewParts:
    """The folder in which a derived table is made anew, `RunStore.replacing`: parts are written there in any order,
    from any process that sees the run directory, and take the place of the old ones together. Pickles."""

    table: str
    folder: Path
    open_file: FileOpener = new_file
    mark: str = ""
    """In the names of the parts, where those of before keep theirs beside them."""

    def write(self, number: int, data: pa.Table | pa.RecordBatchReader) -> int:
        """Writes part `number` (0, 1, …: their order is that of the table), whole or not, and returns its rows.

        A reader is written batch by batch, so the part need not fit in memory. Raises `StoreError` (disk) and
        `SchemaMismatch`; what the query behind a reader raises passes.
        """
        with disk_errors(f"cannot write {self.table} to {self.folder}"):
            part = OpenPart(self.folder / f"part-{number:05d}{self.mark}.parquet", self.table, self.open_file)
            try:
                # at least one piece, so that an empty table is written as empty
                for rows in (
                    [data] if isinstance(data, pa.Table) else chain([data.schema.empty_table()], data)
                ):
                    part.write(conform(self.table, rows))
                part.close()
            except BaseException:  # be it the disk or the query that the rows come from
                part.drop()
                raise
        return part.n_rows


def conform(table: str, data: pa.Table | pa.RecordBatch) -> pa.Table:
    """`data` with exactly the columns, order, types and metadata of `table`.

    Text may come plain or dictionary-encoded and is encoded here; no value is cast. Raises
    `SchemaMismatch` that names the first differing column.
    """
    if table not in TABLES:
        raise SchemaMismatch(f"the schema has no table {table!r}")
    schema = arrow_schema(table)
    names = zip_longest(data.schema.names, schema.names, fillvalue="nothing")
    for position, (name, own) in enumerate(names):
        if name != own:
            raise SchemaMismatch(f"{table}: column {position} is {name}, not {own}")
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    columns = []
    for field, column in zip(schema, data.columns, strict=True):
        if column.null_count and not field.nullable:
            raise SchemaMismatch(f"{table}.{field.name} holds {column.null_count} nulls and may hold none")
        if column.type != field.type:
            column = _converted(f"{table}.{field.name}", column, field.type)
        columns.append(column)
    return pa.table(columns, schema=schema)


def _converted(name: str, column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """`column` of a column without any value, for which pyarrow has a type of its own, or of text."""
    is_text = pa.types.is_dictionary(type_)
    can_be = (pa.null(), pa.string(), pa.large_string()) if is_text else (pa.null(),)
    if plain(column.type) not in can_be:
        raise SchemaMismatch(f"{name} is {column.type}, not {type_}")
    values = column.cast(plain(type_))
    return values.dictionary_encode() if is_text else values


def plain(type_: pa.DataType) -> pa.DataType:
    """What a query reads: text may stand plain or by dictionary."""
    return type_.value_type if pa.types.is_dictionary(type_) else type_


@contextmanager
def disk_errors(told: str) -> Iterator[None]:
    """Makes StoreError, in one line that begins with `told`, of errors of a disk, of object storage and of Arrow."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{told}: {error_reason(error)}") from error


def error_reason(error: Exception) -> str:
    """Why an operation failed, without path and number: `read-only file system`."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error).splitlines()[0] if str(error) else type(error).__name__
