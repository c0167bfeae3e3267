"""A query of a user's over the tables of one or several runs: each table a view, and nothing else within its reach."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from squall.analysis.storage.object_folder import Part, is_address, reason_in
from squall.analysis.storage.parquet import pattern_of
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, add_view, configure, passing_folder
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError, MissingTable, StoreError

if TYPE_CHECKING:
    import duckdb

_Found = TypeVar("_Found")
_ROWS = 10_000
"""Rows that are taken from DuckDB at once."""
_INTERRUPT_EVERY_S = 0.05
_LOCKS = (
    "SET errors_as_json = true",  # with the position in the query
    "SET allow_persistent_secrets = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class Answer:
    """The rows that a query returns, taken once, in their order."""

    def __init__(self, names: list[str], batches: Iterator[pa.RecordBatch]) -> None:
        self.names = names
        """of the columns; the second of one name is `name_1`"""
        self.batches = batches

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Each row as values of Python."""
        for batch in self.batches:
            yield from rows_of(batch)


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The same of some rows."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def named_tables(sql: str) -> list[str]:
    """The tables that a query can be over, those whose names it has in it; all where it has none. In the order of the
    schema."""
    words = set(re.findall(r"\w+", sql.lower()))
    return [name for name in TABLES if name in words] or [*TABLES]


@contextmanager
def answered(
    stores: Sequence[RunStore], sql: str, memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> Iterator[Answer]:
    """The answer to `sql`, one SELECT over the tables of the runs: each table has the rows of all of them, and its
    column `run` says whose.

    The query can read no file but the parts of these tables, write none, load no extension, change no setting and reach
    no network. What does not fit in memory spills into the system's temporary folder. KeyboardInterrupt ends it.
    Raises AnalysisError, in one line, with the place in `sql` where it is wrong, and MissingTable.
    """
    import duckdb

    parts = {
        name: [
            part.resolve() if isinstance(part, Path) else part
            for store in stores
            for part in store.parts(name)
        ]
        for name in named_tables(sql)
    }
    connection = duckdb.connect(config={"temp_directory": passing_folder()})
    with connection, ThreadPoolExecutor(1) as thread:

        def call(function: Callable[[], _Found]) -> _Found:
            with _errors_in(sql, stores):
                return _interruptibly(connection, thread, function)

        with _errors_in(sql, stores):
            _lock(connection, {name: paths for name, paths in parts.items() if paths}, memory_limit_bytes)
            _require_select(connection, sql)
            relation = _bound(connection, sql)
        reader = call(lambda: relation.to_arrow_reader(_ROWS))

        def batches() -> Iterator[pa.RecordBatch]:
            while (batch := call(lambda: next(reader, None))) is not None:
                yield batch

        yield Answer(_unique(reader.schema.names), batches())


def _lock(
    connection: duckdb.DuckDBPyConnection, parts: dict[str, list[Part]], memory_limit_bytes: int
) -> None:
    """Makes the views and takes all else from the connection's reach, for good."""
    configure(connection, memory_limit_bytes)
    paths = [part for of_table in parts.values() for part in of_table if isinstance(part, Path)]
    allowed = sorted({text for path in paths for text in (str(path), pattern_of(path))})
    connection.execute("SET allowed_paths = $paths", {"paths": allowed})
    for setting in _LOCKS:
        connection.execute(setting)
    for name, of_table in parts.items():
        add_view(connection, name, of_table)


def _require_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises AnalysisError unless it is one SELECT without anything else in it: a path that may be read may be written
    too, and COPY can stand in a WITH."""
    ((tree,),) = connection.execute("SELECT json_serialize_sql($sql)", {"sql": sql}).fetchall()
    if not tree.startswith('{"error":false,'):
        detail = json.loads(tree)
        if detail.get("error_type") != "not implemented":
            raise AnalysisError(_told(sql, str(detail.get("error_message")), detail))
    elif len(connection.extract_statements(sql)) == 1 and not _NO_SELECT.search(tree):
        return
    raise AnalysisError("one SELECT is taken, and no other statement; PIVOT only behind a table, with IN (…)")


_NO_SELECT = re.compile(
    r'[{,]"query_node":(?!\{"type":"(?:SELECT_NODE|SET_OPERATION_NODE|RECURSIVE_CTE_NODE|CTE_NODE)")'
)
"""What is named in a WITH and is no query, in a tree as JSON: in its texts there is a backslash before each quote."""


def _bound(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """The query, not begun: the rows of a relation come as they are made, those of `execute` all at once."""
    import duckdb

    try:
        return connection.sql(sql)
    except duckdb.Error:
        connection.execute(sql)  # fails alike, and names the place
        raise


def _interruptibly(
    connection: duckdb.DuckDBPyConnection, thread: ThreadPoolExecutor, function: Callable[[], _Found]
) -> _Found:
    """What `function` returns, called in that thread: DuckDB looks for signals only while it executes, not while rows
    are fetched."""
    future: Future[_Found] | None = None
    try:
        future = thread.submit(function)
        return future.result()
    except BaseException:
        while future is not None and not wait([future], _INTERRUPT_EVERY_S).done:
            connection.interrupt()  # again and again: one that comes before the query begins is without effect
        raise


def _unique(names: Sequence[str]) -> list[str]:
    unique: list[str] = []
    for name in names:
        number, free = 1, name
        while free in unique:
            number, free = number + 1, f"{name}_{number}"
        unique.append(free)
    return unique


@contextmanager
def _errors_in(sql: str, stores: Sequence[RunStore]) -> Iterator[None]:
    """Makes AnalysisError of what DuckDB raises, itself or by the rows that it hands to Arrow."""
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if reason := reason_in(str(error), of_objects=is_address(stores[0].where)):
            raise StoreError(f"cannot read {stores[0].where}: {reason}") from error
        found = re.search(r"\{.*\}", str(error), re.DOTALL)
        try:
            detail = json.loads(found[0]) if found else {}
        except ValueError:
            detail = {}
        message = str(detail.get("exception_message", error))
        if detail.get("type") == "Table" and detail.get("error_subtype") == "MISSING_ENTRY":
            known = ", ".join(name for name in TABLES if any(store.has(name) for store in stores))
            missing = f"there is no table {detail.get('name')}; there are {known or 'none'}"
            raise MissingTable(_told(sql, missing, detail)) from error
        raise AnalysisError(_told(sql, message, detail)) from error


def _told(sql: str, message: str, detail: dict[str, Any]) -> str:
    """A message of DuckDB's in one line, with where in the query it is of, by lines and columns from 1 on."""
    place = ""
    if str(detail.get("position", "")).isdecimal():
        before = sql.encode()[: int(detail["position"])].decode(errors="ignore")
        place = f"line {before.count(chr(10)) + 1}, column {len(before.rpartition(chr(10))[2]) + 1}: "
    near = (
        f"; near to it: {detail['candidates']}"
        if detail.get("candidates") and detail.get("type") != "Table"
        else ""
    )
    return f"query: {place}{message.partition(chr(10))[0]}{near}"
