"""A DuckDB connection over the tables of a run, out of core: nothing is loaded that a query does not need."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory, gettempdir
from typing import Protocol, TypeVar

import duckdb

from squall.analysis.storage.databases import database
from squall.analysis.storage.held_folder import held_folder
from squall.analysis.storage.places.duckdb_files import read_parquet, register_places
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError, MissingTable, StoreError

MEMORY_LIMIT_BYTES = 2 * 1024**3
"""What a query may hold in memory before it spills; runs are analysed on laptops."""


THREAD_BYTES = 128 * 1024**2
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


def literal(text: str) -> str:
    """`text` as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def in_turn(function: Callable[[Partition], Answer], partitions: Sequence[Partition], /) -> list[Answer]:
    """The `Spread` of this process alone: one partition after the other."""
    return [function(partition) for partition in partitions]


def in_threads(n_threads: int) -> Spread:
    """The `Spread` of this process over `n_threads` at a time: while one waits for the disk or Python, another counts.

    A partition holds its own share of memory, whatever the others do.
    """

    def call(function: Callable[[Partition], Answer], partitions: Sequence[Partition], /) -> list[Answer]:
        with ThreadPoolExecutor(n_threads) as pool:
            running = [pool.submit(function, partition) for partition in partitions]
            try:
                return [one.result() for one in running]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    return call


@contextmanager
def connect(
    store: RunStore, tables: Sequence[str], memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection in which each of `tables` is a view of its closed parts. Raises `MissingTable`.

    What does not fit in memory spills into the run directory, on the disk that holds the run anyway, and is
    removed at the end. A query that fails raises `AnalysisError`.
    """
    for table in tables:
        if not store.has(table):
            raise MissingTable(f"{store.where} has no table {table}")
    with _spill_directory(store.run_dir) as spill, _errors_of(store.where), database(spill) as connection:
        _set_up(connection, store, tables, memory_limit_bytes)
        connection.execute("SET preserve_insertion_order = false")  # every query here orders; saves memory
        yield connection


def open_connection(
    store: RunStore, tables: Sequence[str], memory_limit_bytes: int
) -> duckdb.DuckDBPyConnection:
    """A connection with a view of each of `tables` for the caller to close; the run directory is only read.

    What spills lies in a folder that DuckDB makes when it first needs it, and removes when the connection ends.
    """
    connection = duckdb.connect()
    spill = Path(gettempdir()) / f"squall-spill-{secrets.token_hex(8)}"
    try:
        with _errors_of(store.where):
            connection.execute("SET temp_directory = $path", {"path": str(spill)})
            _set_up(connection, store, tables, memory_limit_bytes)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(
    connection: duckdb.DuckDBPyConnection,
    store: RunStore,
    tables: Sequence[str],
    memory_limit_bytes: int,
) -> None:
    connection.execute("SET memory_limit = $limit", {"limit": f"{memory_limit_bytes // 1024} KiB"})
    connection.execute("SET enable_progress_bar = false")  # it would be written to stdout
    connection.execute(f"SET threads = {_n_threads(memory_limit_bytes)}")
    attach(connection, store, tables)


def attach(connection: duckdb.DuckDBPyConnection, store: RunStore, tables: Sequence[str]) -> tuple[str, ...]:
    """Those of `tables` that the run has, in that order; each is a view of `connection` from now on."""
    paths = {table: store.parts(table) for table in tables}
    if store.is_far:
        register_places(connection)
    there = {table: parts for table, parts in paths.items() if parts}
    for table, parts in there.items():
        connection.execute(f"CREATE VIEW IF NOT EXISTS {table} AS FROM {read_parquet(parts)}")
    return tuple(there)


def _n_threads(memory_limit_bytes: int) -> int:
    """Cores, or as many as a task of Ray is told are its own; fewer where each would have less than 128 MiB."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    n_cores = int(told) if told.isdigit() else os.cpu_count() or 1
    return max(1, min(n_cores, memory_limit_bytes // THREAD_BYTES))


@contextmanager
def _errors_of(where: str) -> Iterator[None]:
    """Makes AnalysisError of DuckDB's errors, StoreError where the disk is full, and what it was of a signal that broke
    a query off."""
    try:
        yield
    except duckdb.Error as error:
        if is_full_disk(str(error)):
            raise StoreError(full_disk(where)) from error
        raise AnalysisError(f"{where}: {str(error).splitlines()[0]}") from error
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def is_full_disk(words: str) -> bool:
    """Whether DuckDB or Arrow says, in whatever words, that the disk is full."""
    return any(mark in words for mark in ("No space left on device", "max_temp_directory_size"))


def full_disk(where: str) -> str:
    """What a full disk under the run directory ends an analysis with."""
    again = f"squall analyze {quote(where)}"
    return f"cannot write to {where}: no space left on device; with room, {again} makes it again"


@contextmanager
def scratch_folder(run_dir: Path) -> Iterator[Path]:
    """A folder for what the parts of a spread query share, seen wherever the run directory is; gone at the end."""
    with ExitStack() as stack:
        try:
            path = stack.enter_context(held_folder(".scratch-", run_dir))
        except OSError as error:
            raise StoreError(f"cannot write to {run_dir}: {error.strerror or error}") from error
        yield path


@contextmanager
def _spill_directory(run_dir: Path) -> Iterator[str]:
    """A directory for spilling: in the run directory, or the system's own if that cannot be written."""
    with ExitStack() as stack:
        try:
            path = str(stack.enter_context(held_folder(".spill-", run_dir)))
        except OSError:
            path = stack.enter_context(TemporaryDirectory(prefix="squall-spill-"))
        yield path
