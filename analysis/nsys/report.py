"""A scrubbed nsys report: what it holds, and its events as our tables on the clock of the node.

Columns are read by name, never by version. nsys makes a table only when it has a row for it, so an absent table means
that nothing of the kind happened. Instants of a report count from the start of its collection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.nsys.allowed import ALLOWED, KERNEL, META, STRINGS, AllowedTable
from squall.analysis.storage.parquet import read_parquet
from squall.scenarios.errors import AnalysisError

if TYPE_CHECKING:
    import duckdb

ROWS_AT_A_TIME = 50_000
MEMORY_LIMIT_BYTES = 256 * 1024**2
"""What a query may hold before it spills: it runs on a node that serves."""
_THREADS = 2

_VIEWS: dict[str, AllowedTable] = {
    **{
        name: allowed
        for name, allowed in ALLOWED.items()
        if name not in META and not name.startswith("ENUM_")  # small, and read as a whole
    },
    STRINGS: AllowedTable(("id",), {"value": KERNEL}),
}


class NsysReport:
    """The folder that `squall.analysis.nsys.scrub.scrub` wrote. Raises AnalysisError where it is none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            files = {path.stem: path for path in folder.glob("*.parquet")}
            self._columns = {name: frozenset(pq.read_schema(path).names) for name, path in files.items()}
            self._rows: dict[str, int] = {
                name: pq.read_metadata(path).num_rows for name, path in files.items()
            }
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise AnalysisError(f"cannot read the scrubbed report {folder.name}: {reason}") from error
        if not files:
            raise AnalysisError(f"{folder.name} holds no scrubbed nsys report")

    @property
    def schema_version(self) -> str:
        """Version of nsys's export schema, such as 3.20.3; empty if the report does not say."""
        rows = (row for table in META for row in self._read(table))
        stated: dict[str, str] = {row["name"]: row["value"] for row in rows}
        return stated.get("EXPORT_SCHEMA_VERSION") or ""

    @property
    def start_utc_ns(self) -> int | None:
        """CLOCK_REALTIME of the node when the collection began, by nsys; None if the report does not say."""
        for row in self._read("TARGET_INFO_SESSION_START_TIME"):
            start_ns: int | None = row["utcEpochNs"]
            return start_ns
        return None

    def has(self, table: str) -> bool:
        """True if nsys's `table` has rows."""
        return bool(self._rows.get(table, 0))

    def _read(self, table: str) -> list[dict[str, Any]]:
        """The rows of a small table; none if the report has it not."""
        return pq.read_table(self._folder / f"{table}.parquet").to_pylist() if self.has(table) else []

    @contextmanager
    def connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A DuckDB connection with a view of each table of events, in nsys's names, absent columns null.

        A query that fails raises AnalysisError. What does not fit in memory spills beside the report.
        """
        import duckdb

        from squall.analysis.storage.query import database

        try:
            spill = TemporaryDirectory(prefix=".spill-", dir=self._folder.parent)
        except OSError:
            spill = TemporaryDirectory(prefix="squall-spill-")
        with spill as path, database(path) as connection:
            connection.execute("SET memory_limit = $limit", {"limit": f"{MEMORY_LIMIT_BYTES // 1024} KiB"})
            connection.execute(f"SET threads = {_THREADS}")
            connection.execute("SET preserve_insertion_order = false")  # every query here orders
            try:
                for name, allowed in _VIEWS.items():
                    self._make_view(connection, name, allowed)
                yield connection
            except (
                duckdb.Error,
                pa.ArrowException,
                OSError,
            ) as error:  # the latter two from a result's stream
                raise AnalysisError(f"{self._folder.name}: {str(error).splitlines()[0]}") from error

    def _make_view(self, connection: duckdb.DuckDBPyConnection, name: str, allowed: AllowedTable) -> None:
        found = self._columns.get(name, frozenset())
        columns = [
            f'"{column}"' if column in found else f'NULL::{kind} AS "{column}"'
            for kind, columns in (("BIGINT", allowed.numbers), ("VARCHAR", allowed.texts))
            for column in columns
        ]
        source = read_parquet([self._folder / f"{name}.parquet"]) if found else "(SELECT 1 WHERE false)"
        connection.execute(f'CREATE VIEW "{name}" AS SELECT {", ".join(columns)} FROM {source}')

    def strings(self) -> dict[int, str]:
        """StringIds as far as they were kept."""
        return {row["id"]: row["value"] for row in self._read(STRINGS)}

    def kinds(self, table: str) -> Mapping[int, tuple[str, str]]:
        """Symbol and label by number of one of nsys's ENUM tables; empty if the export has it not."""
        return {row["id"]: (row["name"] or "", row["label"] or "") for row in self._read(table)}
