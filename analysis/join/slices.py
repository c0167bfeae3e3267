"""A slice of the work on a derived table: what it reads, as Parquet files, and the part that it makes of them.

A slice needs nothing of another one, so that slices are made in any order, by any process that sees the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squall.analysis.storage.object_folder import Part
from squall.analysis.storage.part import NewParts
from squall.analysis.storage.query import add_view, connect_at
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import SealedFile
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import duckdb


_LEAST_BYTES = 128 * 1024**2
"""What the queries of the smallest slice need, whose columns by the dozen have buffers each."""


class Slice(Frozen):
    """Part `number` of a table. Pickles."""

    run_dir: Path
    where: str
    """What errors name the run by."""
    memory_limit_bytes: int
    """Of the analysis, which works on two slices at a time."""
    files: Mapping[str, tuple[Part, ...]]
    """By the view that its queries read; none of a table that the run has not."""
    number: int
    variables: Mapping[str, Any]
    """Which rows its queries are about, as variables of these."""
    new: NewParts

    @contextmanager
    def connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection with the views and the variables. A query that fails raises AnalysisError."""
        memory_bytes = max(self.memory_limit_bytes // 2, _LEAST_BYTES)
        with connect_at(self.run_dir, self.where, memory_bytes) as connection:
            for view, paths in self.files.items():
                add_view(connection, view, paths)
            for name, value in self.variables.items():
                connection.execute(f"SET VARIABLE {name} = $value", {"value": value})
            yield connection

    def write(self, connection: duckdb.DuckDBPyConnection, query: str, order: str) -> SealedFile:
        """Writes the columns of the table, which `query` has by name, and returns the part. Raises `StoreError`
        (disk)."""
        names = ", ".join(arrow_schema(self.new.table).names)
        rows = connection.sql(f"SELECT {names} FROM ({query}) ORDER BY {order}").to_arrow_table()
        return self.new.write(self.number, rows)
