"""Parquet parts being written, and what holds them to their table.

A part has a name that nobody can foresee, with `.open` or `.new` at its end, until its footer is on the disk: nothing
reads a torn file as whole, and nothing is written through what lies in a folder of somebody else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.storage.beneath import FileOpener, new_file, passing_name, write_atomically
from squall.analysis.storage.object_folder import SCHEME, ObjectFolder, reason_in
from squall.analysis.storage.schema import TABLES, arrow_schema
from squall.analysis.storage.sealed import SealedFile
from squall.scenarios.errors import SchemaMismatch, StoreError
from squall.scenarios.records import Frozen

_GROUP_ROWS = 2**18
"""Rows of a group of a part that is made anew, at most: a slice reads whole groups."""


class OpenPart:
    """A part of one table being written at `path` + `.open`. Methods raise OSError or pa.ArrowException."""

    def __init__(self, path: Path, table: str, open_file: FileOpener = new_file) -> None:
        self.n_rows = 0
        self.path = path
        self._open_path = passing_name(path, ".open")
        self._file = open_file(self._open_path)
        try:
            self._writer = _writer(self._file, arrow_schema(table))
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


def _writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    # whole numbers as differences, text by dictionary: cheaper to write and read, and smaller, than dictionaries for
    # all, which most columns of numbers outgrow
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        use_dictionary=[column.name for column in schema if pa.types.is_dictionary(column.type)],
        column_encoding={
            column.name: "DELTA_BINARY_PACKED" for column in schema if column.type == pa.int64()
        },
    )


class NewParts(Frozen):
    """A derived table that is made anew, `RunStore.replacing`: parts are written in any order, by any process that sees
    `folder`, and take the place of the old ones together. Pickles."""

    table: str
    folder: Path | ObjectFolder
    """Where the parts are made, or the run in object storage, where they get their last name at once."""
    open_file: FileOpener = new_file
    mark: str = ""
    """In the names of the parts, where those of before keep theirs beside them."""
    files: dict[int, SealedFile] = field(default_factory=dict)
    """The parts, by number, that this process wrote; those that others wrote are to be added."""

    def write(self, number: int, data: pa.Table | pa.RecordBatchReader) -> SealedFile:
        """Writes part `number` (0, 1, …: their order is that of the table), whole or not, and returns what it is.

        The part, as it is compressed, is held in memory. Raises `StoreError` (disk) and `SchemaMismatch`; what the
        query behind a reader raises passes.
        """
        name = f"part-{number:05d}{self.mark}.parquet"
        path, sink = f"tables/{self.table}/{name}", pa.BufferOutputStream()
        n_rows = 0
        with disk_errors(f"cannot write {self.table} to {self.folder}"):
            with _writer(sink, arrow_schema(self.table)) as writer:
                # at least one piece, so that an empty table is written as empty
                for rows in (
                    [data] if isinstance(data, pa.Table) else chain([data.schema.empty_table()], data)
                ):
                    writer.write_table(conform(self.table, rows), _GROUP_ROWS)
                    n_rows += len(rows)
            content = sink.getvalue()
            if isinstance(self.folder, ObjectFolder):
                self.folder.write(path, content)
            else:
                write_atomically(self.folder / name, [content], self.open_file)
        digest = hashlib.sha256(content).hexdigest()
        file = SealedFile(path=path, rows=n_rows, bytes=content.size, sha256=digest)
        self.files[number] = file
        return file


def conform(table: str, data: pa.Table | pa.RecordBatch) -> pa.Table:
    """`data` with exactly the columns, order, types and metadata of `table`.

    Text may come plain or dictionary-encoded and is encoded here; no value is cast. Raises
    `SchemaMismatch` that names the first differing column.
    """
    if table not in TABLES:
        raise SchemaMismatch(f"the schema has no table {table!r}")
    schema = arrow_schema(table)
    names = zip_longest(data.schema.names, schema.names, fillvalue="nothing")
    for position, (name, expected) in enumerate(names):
        if name != expected:
            raise SchemaMismatch(f"{table}: column {position} is {name}, not {expected}")
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    columns = []
    for own, column in zip(schema, data.columns, strict=True):
        if column.null_count and not own.nullable:
            raise SchemaMismatch(f"{table}.{own.name} holds {column.null_count} nulls and may hold none")
        if column.type != own.type:
            column = _converted(f"{table}.{own.name}", column, own.type)
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
        raise StoreError(f"{told}: {error_reason(error, of_objects=SCHEME in told)}") from error


def error_reason(error: Exception, of_objects: bool = False) -> str:
    """Why an operation failed, without path and number: `read-only file system`. `of_objects`: see `reason_in`."""
    if reason := reason_in(str(error), of_objects):
        return reason
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error).splitlines()[0] if str(error) else type(error).__name__
