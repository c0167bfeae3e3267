"""A DuckDB connection over the tables of a run, out of core: nothing is loaded that a query does not need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from analysis.store import RunStore
from scenarios.errors import AnalysisError, MissingTable

MEMORY_LIMIT_BYTES = 2 * 1024**3
"""What a query may hold in memory before it spills; runs are analysed on laptops."""


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
            raise MissingTable(f"{store.run_dir} has no table {table}")
    with _spill_directory(store.run_dir) as spill, duckdb.connect() as connection:
        connection.execute("SET temp_directory = $path", {"path": spill})
        connection.execute("SET memory_limit = $limit", {"limit": f"{memory_limit_bytes // 1024} KiB"})
        connection.execute("SET preserve_insertion_order = false")  # every query here orders; saves memory
        for table in tables:
            connection.read_parquet([str(part) for part in store.path(table)]).create_view(table)
        try:
            yield connection
        except duckdb.Error as error:
            raise AnalysisError(f"{store.run_dir}: {str(error).splitlines()[0]}") from error


@contextmanager
def _spill_directory(run_dir: Path) -> Iterator[str]:
    """A directory for spilling: in the run directory, or the system's own if that cannot be written."""
    try:
        directory = TemporaryDirectory(prefix=".spill-", dir=run_dir)
    except OSError:
        directory = TemporaryDirectory(prefix="squall-spill-")
    with directory as path:
        yield path
