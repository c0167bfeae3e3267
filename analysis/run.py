"""`Run`: a run directory opened to read, for notebooks. Nothing is ever written to it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.report.summary_file import Summary
from squall.analysis.shown import html_text
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, open_connection
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError, MissingTable

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars

OPEN = "OPEN"


class Run:
    """One run directory, sealed or not, as it is when it is opened. `open_run` makes it."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    @property
    def path(self) -> Path:
        """The run directory; of a run in object storage a folder for what is passing."""
        return self._store.run_dir

    @property
    def name(self) -> str:
        """Name of the run: the name of the directory when it was made."""
        return self._store.run

    @property
    def is_sealed(self) -> bool:
        """Whether its raw tables will never change again."""
        return self._store.is_sealed

    @property
    def manifest(self) -> Manifest:
        """What ran, where, when: `python -m squall.analysis.storage.schema` prints its fields."""
        return self._store.manifest

    @property
    def verdict(self) -> Verdict:
        """What the run was sealed with; status `OPEN` while it is not. Neither that nor an aborted one has checks."""
        return self._store.manifest.verdict or Verdict(status=OPEN)

    @property
    def summary(self) -> Summary:
        """The figures of the run, those of summary.json. Raises StoreError where there are none (yet), or those of
        another version of squall."""
        return Summary.read(self._store)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of its tables, in the order of the schema. One whose source was not there is absent."""
        return tuple(self._store.tables())

    def table(self, name: str, columns: Sequence[str] | None = None, phase: str | None = None) -> pa.Table:
        """The rows of a table, in the order written: all columns or `columns`, in that order, of all phases or one.

        `phase` "" is before the first phase and after the last. Raises MissingTable, and AnalysisError for a column or
        phase that there is not.
        """
        known = self._columns(name)
        wanted = list(known if columns is None else columns)
        if unknown := [column for column in wanted if column not in known]:
            raise AnalysisError(f"{name} has no column {unknown[0]}; it has {', '.join(known)}")
        if phase is None:
            return self._store.read(name, wanted)
        phases = [one.name for one in self._store.manifest.phases]
        if phase and phase not in phases:
            raise AnalysisError(f"{self._store.where} has no phase {phase}; it has {', '.join(phases)}")
        return self._store.read(name, wanted, pc.field("phase") == phase)

    def pandas(
        self, name: str, columns: Sequence[str] | None = None, phase: str | None = None
    ) -> pandas.DataFrame:
        """`table` as a data frame. Texts are categories; a column that may be null has pandas' nullable type, so that
        an instant in ns keeps its last digits. Raises ModuleNotFoundError where pandas is not installed.
        """
        library = _installed("pandas")
        nullable = {pa.int64(): library.Int64Dtype(), pa.bool_(): library.BooleanDtype()}
        found = self.table(name, columns, phase)
        return library.DataFrame(
            {
                field.name: column.to_pandas(types_mapper=nullable.get if field.nullable else None)
                for field, column in zip(found.schema, found.columns, strict=True)
            }
        )

    def polars(
        self, name: str, columns: Sequence[str] | None = None, phase: str | None = None
    ) -> polars.DataFrame:
        """`table` as a data frame of Polars. Raises ModuleNotFoundError where that is not installed."""
        return _installed("polars").from_arrow(self.table(name, columns, phase))

    def duckdb(self, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> duckdb.DuckDBPyConnection:
        """A new connection in which every table of the run is a view. A query that needs more memory spills into the
        system's temporary folder; close the connection, or let it go, when done."""
        return open_connection(self._store, self.tables, memory_limit_bytes)

    def __repr__(self) -> str:
        return f"<run {self.name}: {self.verdict.status}, {len(self.tables)} tables>"

    def _repr_html_(self) -> str:
        verdict = self.verdict
        reasons = "".join(f"<li>{html_text(reason)}</li>" for reason in verdict.reasons)
        return (
            f"<p><b>{html_text(self.name)}</b> {html_text(verdict.status)}</p>"
            f"{f'<ul>{reasons}</ul>' if reasons else ''}<p>{html_text(', '.join(self.tables))}</p>"
        )

    def _columns(self, name: str) -> list[str]:
        if name not in self.tables:
            raise MissingTable(
                f"{self._store.where} has no table {name}; it has {', '.join(self.tables) or 'none'}"
            )
        return [column.name for column in TABLES[name].columns]


def open_run(path: Path | str) -> Run:
    """The run directory at `path`, or at an address such as `s3://bucket/prefix/RUN`, sealed, open or aborted. Raises
    StoreError where it is none."""
    return Run(RunStore.open(path))


def _installed(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        told = f"{package} is not installed: pip install {package}, or take Run.table, which needs it not"
        raise ModuleNotFoundError(told, name=package) from error
