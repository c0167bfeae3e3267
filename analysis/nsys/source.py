"""An nsys export as it lies on its node, SQLite file or folder of Parquet files, read by name and in pieces."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squall.scenarios.errors import AnalysisError

ROWS_AT_A_TIME = 25_000
_VALUES_AT_A_TIME = 12_000
"""SQLite's values are taken as Python objects of 32 bytes: these stay in a core's second-level cache until they are in
an array. At 25,000 rows of a kernel table the same took 1.7 times the CPU time (2 cores of 512 KiB, 2026-11-22)."""
_MOST_VALUE_BYTES = 16 * 1024**2
_KNOWN = {"StringIds", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "EXPORT_META_DATA"}


class Export(Protocol):
    """The tables of an export. Methods raise AnalysisError where the file is broken."""

    def columns(self, table: str) -> tuple[str, ...]:
        """Its columns; none if there is no such table: nsys makes a table only when it has a row for it."""

    def tables(self) -> tuple[str, ...]:
        """Names of all tables, sorted."""

    def read(self, table: str, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[pa.Table]:
        """Those columns in pieces: numbers as int64, texts as string; rows in the order of the export."""


@contextmanager
def open_export(path: Path) -> Iterator[Export]:
    """The export at `path`. Raises AnalysisError, in one line that names no path, if it is none or is broken."""
    if not path.exists():
        raise AnalysisError(f"there is no nsys export {path.name}")
    try:
        if path.is_dir():
            export: ParquetExport | SqliteExport = ParquetExport(path)
        else:
            export = SqliteExport(path)
        try:
            if not _KNOWN & set(export.tables()):
                raise AnalysisError(f"{path.name} is not an nsys export: it has none of the tables of nsys")
            yield export
        finally:
            export.close()
    except (sqlite3.Error, pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].replace(str(path), path.name)
        raise AnalysisError(f"cannot read the nsys export {path.name}: {reason}") from error


class SqliteExport:
    """An export by `--type=sqlite`."""

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        self._file.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._file.execute("PRAGMA trusted_schema = OFF")  # its own SQL, were there any, reaches nothing
        self._file.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
        self._most_rows = path.stat().st_size

    def close(self) -> None:
        self._file.close()

    def tables(self) -> tuple[str, ...]:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY name"
        return tuple(name for (name,) in self._file.execute(query))

    def columns(self, table: str) -> tuple[str, ...]:
        if table not in self.tables():  # a view, or what a module computes
            return ()
        return tuple(row[1] for row in self._file.execute(f"PRAGMA table_info({_quoted(table)})"))

    def read(self, table: str, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[pa.Table]:
        names = [*numbers, *texts]
        selected = ", ".join(map(_quoted, names))
        cursor = self._file.execute(f"SELECT {selected} FROM {_quoted(table)}")
        n_rows = max(_VALUES_AT_A_TIME // len(names), 1)
        fetched = iter(lambda: cursor.fetchmany(n_rows), [])
        pieces = (_as_table(table, numbers, texts, rows) for rows in self._counted(fetched))
        while joined := list(islice(pieces, -(-ROWS_AT_A_TIME // n_rows))):
            yield pa.concat_tables(joined).combine_chunks()

    def _counted(self, fetched: Iterator[list[tuple[Any, ...]]]) -> Iterator[list[tuple[Any, ...]]]:
        """Raises AnalysisError at more rows than the file has bytes: pages may name each other in circles."""
        n_rows = 0
        for rows in fetched:
            n_rows += len(rows)
            if n_rows > self._most_rows:
                raise AnalysisError("the nsys export has more rows than bytes: it is broken")
            yield rows


class ParquetExport:
    """An export by `--type=parquetdir`: a file for each table."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.name.removesuffix(".parquet"): path for path in folder.glob("*.parquet")}

    def close(self) -> None:
        """Nothing is held open."""

    def tables(self) -> tuple[str, ...]:
        return tuple(sorted(self._files))

    def columns(self, table: str) -> tuple[str, ...]:
        return tuple(pq.read_schema(self._files[table]).names) if table in self._files else ()

    def read(self, table: str, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[pa.Table]:
        names = [*numbers, *texts]
        with pq.ParquetFile(self._files[table]) as file:
            for batch in file.iter_batches(ROWS_AT_A_TIME, columns=names):
                arrays = [_as_int64(table, name, batch.column(name)) for name in numbers]
                arrays += [_as_strings(batch.column(name)) for name in texts]
                yield pa.table(arrays, names=names)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _no_number(table: str, column: str) -> AnalysisError:
    return AnalysisError(f"the nsys export's {table}.{column} holds something that is no whole number")


def _int64(table: str, column: str, values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(np.frombuffer(array("q", values), np.int64))
    except TypeError:  # nulls, or something else
        pass
    try:
        found = pa.array(values)  # of its own type: as int64 it would cut off fractions
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise _no_number(table, column) from error
    return _as_int64(table, column, found)


def _as_table(
    table: str, numbers: Sequence[str], texts: Sequence[str], rows: list[tuple[Any, ...]]
) -> pa.Table:
    values = list(zip(*rows, strict=True))
    arrays = [_int64(table, name, values[i]) for i, name in enumerate(numbers)]
    arrays += [_strings(values[len(numbers) + i]) for i in range(len(texts))]
    return pa.table(arrays, names=[*numbers, *texts])


def _strings(values: Sequence[Any]) -> pa.Array:
    """SQLite columns may hold any type: what is no text is null."""
    return pa.array([value if isinstance(value, str) else None for value in values], pa.string())


def _as_int64(table: str, column: str, values: pa.Array) -> pa.Array:
    """`values` as SQLite has them: 64 bits unsigned become signed, bit by bit; instants ns."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    type_ = values.type
    if pa.types.is_uint64(type_):
        return values.view(pa.int64())
    if pa.types.is_timestamp(type_):
        return values.cast(pa.timestamp("ns", type_.tz)).view(pa.int64())
    if pa.types.is_duration(type_):
        return values.cast(pa.duration("ns")).view(pa.int64())
    if not (
        pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_null(type_)
    ):
        raise _no_number(table, column)
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise _no_number(table, column) from error


def _as_strings(values: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()])
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return pc.cast(values, pa.string())
    return pa.nulls(len(values), pa.string())
