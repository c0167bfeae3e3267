"""One Parquet part being written, and the file operations that a run directory rests on.

A part has a name that nobody can foresee, with `.open` at its end, until its footer is on the disk: nothing reads a
torn file as whole, and nothing is written through what lies in a folder of somebody else.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.schema import TABLES, arrow_schema
from squall.analysis.storage.beneath import new_file, passing_name
from squall.analysis.storage.places.place import Part, bytes_of, metadata_of, name_of, sha256_of
from squall.analysis.tables.sealed import SealedFile, SealedTable
from squall.scenarios.errors import SchemaMismatch, StoreError

FileOpener = Callable[[Path], BinaryIO]
"""Makes the file at a path, where nothing may lie yet, for binary writing. Handed in so that a test can fill the
disk."""


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Whole numbers as differences, text by dictionary: cheaper to write and read, and smaller, than dictionaries for
    all, which most columns of numbers outgrow."""
    texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    numbers = [field.name for field in schema if field.type == pa.int64()]
    return {
        "use_dictionary": texts,
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
    }


class OpenPart:
    """A part of one table being written at `path` + `.open`. Methods raise OSError or pa.ArrowException."""

    def __init__(self, path: Path, table: str, open_file: FileOpener) -> None:
        self.n_rows = 0
        self.path = path
        self._open_path = passing_name(path, ".open")
        self._file = open_file(self._open_path)
        try:
            schema = arrow_schema(table)
            self._writer = pq.ParquetWriter(self._file, schema, compression="zstd", **_encodings(schema))
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
            try:
                release()
            except OSError:
                continue  # the disk already refused; the `.open` name keeps the rest from being read
        return self.n_rows


@dataclass(frozen=True)
class NewParts:
    """The folder in which a derived table is made anew, `RunStore.replacing`: parts are written there in any order,
    from any process that sees the run directory, and take the place of the old ones together. Pickles."""

    table: str
    folder: Path
    open_file: FileOpener = new_file

    def write(self, number: int, data: pa.Table | pa.RecordBatchReader) -> int:
        """Writes part `number` (0, 1, …: their order is that of the table), whole or not, and returns its rows.

        A reader is written batch by batch, so the part need not fit in memory. Raises `StoreError` (disk) and
        `SchemaMismatch`; what the query behind a reader raises passes.
        """
        path = self.folder / f"part-{number:05d}.parquet"
        try:
            part = OpenPart(path, self.table, self.open_file)
            with _dropped_on_failure(part):
                for batch in _batches(data):
                    part.write(conform(self.table, batch))
                part.close()
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"cannot write {self.table} to {path.parent}: {error_reason(error)}") from error
        return part.n_rows


def swap_folders(new: Path, current: Path, old: Path) -> None:
    """Puts folder `new` in the place of `current`, if that is there, and removes what was there. Raises OSError.

    Between the two renames `current` is missing and `old` is whole: whoever is killed there leaves that. Any other
    failure puts the old folder back.
    """
    try:
        if current.exists():
            current.rename(old)
        new.rename(current)
    except BaseException:
        restore_folder(current, old)
        raise
    shutil.rmtree(old, ignore_errors=True)


def restore_folder(current: Path, old: Path) -> None:
    """Ends a swap that was cut short: `old` becomes `current` again where that is missing, else it goes."""
    if old.exists() and not current.exists():
        old.rename(current)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _dropped_on_failure(part: OpenPart) -> Iterator[None]:
    """Removes `part` if anything fails within, be it the disk or the query that the rows come from."""
    try:
        yield
    except BaseException:
        part.drop()
        raise


def _batches(data: pa.Table | pa.RecordBatchReader) -> Iterator[pa.Table]:
    """`data` in pieces; at least one, so that an empty table is written as empty."""
    if isinstance(data, pa.Table):
        yield data
        return
    yield data.schema.empty_table()
    for batch in data:
        yield pa.Table.from_batches([batch])


def conform(table: str, data: pa.Table | pa.RecordBatch) -> pa.Table:
    """`data` with exactly the columns, order, types and metadata of `table`.

    Text may come plain or dictionary-encoded and is encoded here; no value is cast. Raises
    `SchemaMismatch` that names the first differing column.
    """
    if table not in TABLES:
        raise SchemaMismatch(f"the schema has no table {table!r}")
    wanted = arrow_schema(table)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    for position, field in enumerate(wanted):
        found = data.schema.names[position] if position < data.num_columns else "nothing"
        if found != field.name:
            raise SchemaMismatch(f"{table}: column {position} is {found}, not {field.name}")
    if data.num_columns > len(wanted):
        raise SchemaMismatch(f"{table}: column {data.schema.names[len(wanted)]} is not in the schema")
    columns = [_conform_column(table, field, data.column(field.name)) for field in wanted]
    return pa.table(columns, schema=wanted)


def _conform_column(table: str, field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.null_count and not field.nullable:
        raise SchemaMismatch(f"{table}.{field.name} holds {column.null_count} nulls and may hold none")
    if column.type == field.type:
        return column
    if pa.types.is_null(column.type):  # pyarrow's type for a column without any value
        return pa.chunked_array([pa.nulls(len(column), field.type)])
    if pa.types.is_dictionary(field.type) and _is_text(column.type):
        return column.cast(pa.string()).dictionary_encode()
    raise SchemaMismatch(f"{table}.{field.name} is {column.type}, not {field.type}")


def _is_text(type_: pa.DataType) -> bool:
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    return bool(pa.types.is_string(value) or pa.types.is_large_string(value))


def write_atomically(path: Path, content: bytes, open_file: FileOpener) -> None:
    """Puts `content` at `path`: the old file or the whole new one, at every instant. Raises OSError."""
    temporary = passing_name(path, ".new")
    try:
        with open_file(temporary) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def table_entry(run_dir: Path, parts: Sequence[Part]) -> SealedTable:
    """What a sealed manifest states of a table: its rows, and the rows, bytes and sha256 of each file."""
    files = tuple(
        SealedFile(
            path=name_of(part, run_dir),
            rows=metadata_of(part).num_rows,
            bytes=bytes_of(part),
            sha256=sha256_of(part),
        )
        for part in parts
    )
    return SealedTable(rows=sum(file.rows for file in files), files=files)


def differences(run_dir: Path, parts: Sequence[Part], entry: SealedTable | None) -> list[str]:
    """How the files `parts` differ from a manifest's table `entry`, a line each; empty if they do not."""
    stated = {file.path: file.sha256 for file in (entry or SealedTable()).files}
    found = {name_of(part, run_dir): sha256_of(part) for part in parts}
    lines = [f"{name} is missing" for name in stated if name not in found]
    lines += [f"{name} is not in the manifest" for name in found if name not in stated]
    changed = [name for name in found if name in stated and stated[name] != found[name]]
    return lines + [f"{name} has changed since the seal" for name in changed]


def error_reason(error: Exception) -> str:
    """Why an operation failed, without path and number: `read-only file system`."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def make_unique(parent: Path, stem: str) -> Path:
    """Makes `parent` if need be and a new directory `<stem>-<4 hex>` in it. Raises OSError."""
    parent.mkdir(parents=True, exist_ok=True)
    for _ in range(16):
        run_dir = parent / f"{stem}-{secrets.token_hex(2)}"
        try:
            run_dir.mkdir()
        except FileExistsError:
            continue
        for name in ("tables", "nsys", "logs"):
            (run_dir / name).mkdir()
        return run_dir
    raise FileExistsError(f"{stem}: 16 names in a row are taken")
