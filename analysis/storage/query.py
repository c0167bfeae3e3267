"""A DuckDB connection over the tables of a run, out of core: nothing is loaded that a query does not need."""

from __future__ import annotations

import atexit
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Protocol, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.storage.held_folder import held_folder
from squall.analysis.storage.object_folder import (
    ObjectFile,
    ObjectFolder,
    Part,
    dataset_of,
    is_address,
    reason_in,
)
from squall.analysis.storage.parquet import literal, read_parquet
from squall.analysis.storage.part import disk_errors, plain
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError, MissingTable, StoreError

MEMORY_LIMIT_BYTES = 2 * 1024**3
"""What a query may hold in memory before it spills; runs are analysed on laptops."""
_GROUP_ROWS = 20_480
"""In a row group of what tasks share."""
_FILE_BYTES = 32 * 1024**2
"""Of such a file in object storage, about."""
_THREAD_BYTES = 128 * 1024**2
"""Memory that a thread of a query should have: its buffers are not spilled."""

Partition = TypeVar("Partition")
Answer = TypeVar("Answer")


class Spread(Protocol):
    """Calls a function with each partition, anywhere that sees the run directory; the answers, in their order.

    Function, partitions and answers pickle. The first failure raises, once nothing runs any more.
    """

    def __call__(
        self, function: Callable[[Partition], Answer], partitions: Sequence[Partition], /
    ) -> list[Answer]: ...


def in_turn(function: Callable[[Partition], Answer], partitions: Sequence[Partition], /) -> list[Answer]:
    """The `Spread` of this process alone: one partition after the other."""
    return [function(partition) for partition in partitions]


def in_threads(n_threads: int) -> Spread:
    """The `Spread` of this process over `n_threads` at a time: while one waits for the disk or Python, another counts.

    A partition holds its own share of memory, whatever the others do.
    """

    def call(function: Callable[[Partition], Answer], partitions: Sequence[Partition], /) -> list[Answer]:
        with ThreadPoolExecutor(n_threads) as pool:
            return list(pool.map(function, partitions))  # which begins no more once one has failed

    return call


_idle: dict[int, list[duckdb.DuckDBPyConnection]] = {}
"""Databases in memory that wait to be used again, by process: a fork has its parent's without their threads and must
not touch them. One costs 20 ms of CPU to open, most of it for the 3,000 functions that it registers, and a summary asks
for some twenty (DuckDB 2.0.0, a host of 2 cores, 2026-11-23)."""


@contextmanager
def database(temp_directory: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database of the caller's own that spills into `temp_directory`, for any thread.

    Its other settings are those of its last use: set all that you need. One that an error left, or that has spilled, is
    not used again.
    """
    try:
        whole = _idle.get(os.getpid(), []).pop()
    except IndexError:
        whole = duckdb.connect()
    try:
        whole.execute("SET temp_directory = $path", {"path": temp_directory})
        whole.execute("SET enable_external_file_cache = true")
        with whole.cursor() as connection:
            connection.execute("ATTACH ':memory:' AS own")
            connection.execute("USE own")
            yield connection
        # with all its tables and views; temporary ones went with their connection
        whole.execute("DETACH own")
        whole.execute("SET enable_external_file_cache = false")  # which lets go of what it held of files
    except BaseException:
        whole.close()
        raise
    try:
        whole.execute("SET temp_directory = ''")
    except duckdb.NotImplementedException:  # it has spilled and would go on doing so in the same place
        whole.close()
        return
    if os.getpid() not in _idle:
        _idle[os.getpid()] = []
        atexit.register(_close_idle)  # later than that, DuckDB's binding would write of leaks to stderr
    _idle[os.getpid()].append(whole)


def _close_idle() -> None:
    for one in _idle.pop(os.getpid(), []):
        one.close()


@contextmanager
def connect(
    store: RunStore, tables: Sequence[str], memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection in which each of `tables` is a view of its closed parts. Raises `MissingTable`.

    What does not fit in memory spills into the run directory, on the disk that holds the run anyway, or the system's
    temporary folder if that cannot be written, and is removed at the end. A query that fails raises `AnalysisError`.
    """
    for table in tables:
        if not store.has(table):
            raise MissingTable(f"{store.where} has no table {table}")
    with connect_at(store.run_dir, store.where, memory_limit_bytes) as connection:
        attach(connection, store, tables)
        yield connection


@contextmanager
def connect_at(run_dir: Path, where: str, memory_limit_bytes: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection without any view; `where` is what errors name the run by. Else as `connect`."""
    with ExitStack() as stack:
        try:
            spill = str(stack.enter_context(held_folder(run_dir)))
        except StoreError:
            spill = stack.enter_context(TemporaryDirectory(prefix="squall-spill-"))
        stack.enter_context(_errors_of(where))
        connection = stack.enter_context(database(spill))
        configure(connection, memory_limit_bytes)
        connection.execute("SET preserve_insertion_order = false")  # every query here orders; saves memory
        yield connection


@contextmanager
def over(
    tables: Mapping[str, pa.Table], memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection in which each of `tables`, which are in memory, is a view; what else a query needs spills into the
    system's temporary folder."""
    with database(passing_folder()) as connection:
        configure(connection, memory_limit_bytes)
        for name, table in tables.items():
            connection.register(name, table)
        yield connection


@contextmanager
def in_memory(**tables: pa.Table | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection in which each of `tables` of a run, held in memory, is a view with all columns that it can have:
    null where the run lacks them, and empty where the table is absent."""
    with over({}) as connection:
        for name, table in tables.items():
            connection.register(f"{name}_columns", arrow_schema(name).empty_table())
            told = ""
            if table is not None:
                connection.register(f"{name}_told", table)
                told = f"UNION ALL BY NAME FROM {name}_told"
            connection.execute(f"CREATE TEMP VIEW {name} AS FROM {name}_columns {told}")
        yield connection


def rows(
    connection: duckdb.DuckDBPyConnection, sql: str, given: Mapping[str, object] | None = None
) -> list[dict[str, Any]]:
    """What a query with the parameters `given` returns: each row by the names of its columns."""
    return records(connection.execute(sql, given))


def records(found: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """The rows of a query that was executed, each by the names of its columns."""
    names = [name for name, *_ in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def open_connection(
    store: RunStore, tables: Sequence[str], memory_limit_bytes: int
) -> duckdb.DuckDBPyConnection:
    """A connection with a view of each of `tables` for the caller to close; the run directory is only read.

    What spills lies in a folder that DuckDB makes when it first needs it, and removes when the connection ends.
    """
    connection = duckdb.connect(config={"temp_directory": passing_folder()})
    try:
        with _errors_of(store.where):
            configure(connection, memory_limit_bytes)
            attach(connection, store, tables)
    except BaseException:
        connection.close()
        raise
    return connection


def passing_folder() -> str:
    """A folder to spill into that does not exist yet and has a name that cannot be guessed: DuckDB makes and removes
    it."""
    return str(Path(gettempdir()) / f"squall-spill-{secrets.token_hex(8)}")


def configure(connection: duckdb.DuckDBPyConnection, memory_limit_bytes: int) -> None:
    """Sets what a query may use of memory and cores, and that it prints nothing."""
    # cores, or as many as a task of Ray is told are its own; fewer where each would have too little memory
    told = os.environ.get("OMP_NUM_THREADS", "")
    n_cores = int(told) if told.isdigit() else os.cpu_count() or 1
    n_threads = max(1, min(n_cores, memory_limit_bytes // _THREAD_BYTES))
    connection.execute("SET memory_limit = $limit", {"limit": f"{memory_limit_bytes // 1024} KiB"})
    connection.execute("SET enable_progress_bar = false")  # it would be written to stdout
    connection.execute(f"SET threads = {n_threads}")


def attach(connection: duckdb.DuckDBPyConnection, store: RunStore, tables: Iterable[str]) -> None:
    """Makes each of `tables` a view of its closed parts; one that the run has not is a view without rows."""
    for table in tables:
        add_view(connection, table, store.parts(table))


def add_view(connection: duckdb.DuckDBPyConnection, table: str, parts: Sequence[Part]) -> None:
    """A view of the Parquet files; where there are none, one of `table` without rows."""
    there = [part for part in parts if isinstance(part, ObjectFile)]
    here = [part for part in parts if isinstance(part, Path)]
    if there:
        with disk_errors(f"cannot read {there[0].folder}"):
            connection.register(f"{table}_there" if here else table, dataset_of(there))
    if here:
        of_there = f" UNION ALL BY NAME FROM {table}_there" if there else ""
        # temporary where what it is of is: what is registered goes with the connection
        kind = "TEMP VIEW" if there else "VIEW"
        connection.execute(f"CREATE {kind} IF NOT EXISTS {table} AS FROM {read_parquet(here)}{of_there}")
    if not parts:
        columns = [field.with_type(plain(field.type)) for field in arrow_schema(table)]
        connection.register(table, pa.schema(columns).empty_table())


def write_rows(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    folder: Path | ObjectFolder,
    name: str,
    given: Mapping[str, object] | None = None,
) -> tuple[Part, ...]:
    """Writes what a query returns, in its order, to Parquet files in `folder`, in small row groups: a slice reads a
    narrow stretch of them. The files; those in object storage are each made in memory."""
    if isinstance(folder, Path):
        path = folder / f"{name}.parquet"
        how = f"FORMAT parquet, COMPRESSION snappy, PARQUET_VERSION v2, ROW_GROUP_SIZE {_GROUP_ROWS}"
        connection.execute(f"COPY ({query}) TO {literal(str(path))} ({how})", given)
        return (path,)
    reader = connection.sql(query, params=given).to_arrow_reader(_GROUP_ROWS)
    files: list[Part] = []
    group = next(reader, None)
    while group is not None or not files:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, reader.schema) as writer:
            while group is not None and sink.tell() < _FILE_BYTES:
                writer.write(group)
                group = next(reader, None)
        file = ObjectFile(folder, f"{name}-{len(files):05d}.parquet")
        with disk_errors(f"cannot write {folder}"):
            folder.write(file.name, sink.getvalue())
        files.append(file)
    return tuple(files)


@contextmanager
def _errors_of(where: str) -> Iterator[None]:
    """Makes AnalysisError of DuckDB's errors, StoreError where the disk is full, and what it was of a signal that broke
    a query off."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow's: of rows that DuckDB hands to it
        if any(mark in str(error) for mark in ("No space left on device", "max_temp_directory_size")):
            raise StoreError(full_disk(where)) from error
        if reason := reason_in(str(error), of_objects=is_address(where)):
            raise StoreError(f"cannot read {where}: {reason}") from error
        if not isinstance(error, duckdb.Error):
            raise
        raise AnalysisError(f"{where}: {str(error).splitlines()[0]}") from error
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def full_disk(where: str) -> str:
    """What a full disk under the run directory ends an analysis with."""
    again = f"squall analyze {quote(where)}"
    return f"cannot write to {where}: no space left on device; with room, {again} makes it again"
