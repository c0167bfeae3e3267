"""OS-runtime calls and NVTX ranges out of an nsys SQLite export, on UTC ns of the node that was profiled.

The export is read by the tables and columns it has, never by its version number. nsys makes a table only
when it has a row for it, so an absent table means that nothing of the kind happened. Since 2025.6 rows come
in no order (release notes), so every query here orders.

`start` and `end` count from the start of the collection; `TARGET_INFO_SESSION_START_TIME.utcEpochNs +
start` is CLOCK_REALTIME of that node (measured: median error about 1 us, largest 55 us, 2,100 stamped
calls, nsys 2022.4 and 2023.4, 2-core Debian 12).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from analysis.part import conform
from analysis.schema import arrow_schema
from scenarios.errors import AnalysisError

RANGE_PREFIX = "squall|"
"""Our ranges read `squall|<instance>|<batch_id>`; the model in models/backend writes them."""

# globalTid holds pid and tid in 24 bits each: hardware, VM | pid << 24 | tid (nsys export schema reference).
_PID = "((e.globalTid >> 24) & 16777215)"
_TID = "(e.globalTid & 16777215)"

_OS_RUNTIME = 27
"""ENUM_NSYS_EVENT_CLASS of a call; class 31 in the same table marks a process, not a call."""
_PUSH_POP_OR_START_END = "(59, 60)"
"""NVTX event types that have two ends: push/pop and start/end ranges (ENUM_NSYS_EVENT_TYPE)."""


Row = tuple[int, int, str, int, int, str]
"""process, thread, thread_name, start_ns, end_ns, name"""


def read_osrt(sqlite_path: Path, run: str, node: str, server: str) -> pa.Table:
    """Table `osrt`, ordered by start; no rows if nothing was traced. `assign_phase` fills the empty `phase`.

    Raises `AnalysisError` if the file is not an nsys export or its session has no UTC start.
    """
    with closing(_open(sqlite_path)) as export:
        names = "coalesce((SELECT value FROM StringIds s WHERE s.id = e.nameId), '')"
        kept = f"e.eventClass = {_OS_RUNTIME}" if "eventClass" in _columns(export, "OSRT_API") else "1"
        rows = _events(export, "OSRT_API", f"{names} AS name", kept)
    columns = [*_event_columns(rows, run, node, server), _text(row[5] for row in rows)]
    return conform("osrt", pa.table(columns, names=arrow_schema("osrt").names))


def read_nvtx(sqlite_path: Path, run: str, node: str, server: str) -> pa.Table:
    """Table `nvtx`: ranges that were closed, ordered by start; see `read_osrt`.

    A range still open when the collection stopped has no end and is left out.
    """
    with closing(_open(sqlite_path)) as export:
        text = _nvtx_text(export)
        kept = f"e.eventType IN {_PUSH_POP_OR_START_END} AND e.end IS NOT NULL"
        rows = _events(export, "NVTX_EVENTS", f"{text} AS name", kept)
    ours = [parse_range(row[5]) for row in rows]
    columns = [
        *_event_columns(rows, run, node, server),
        _text(row[5] for row in rows),
        _text(instance for instance, _ in ours),
        pa.array([batch_id for _, batch_id in ours], pa.int64()),
    ]
    return conform("nvtx", pa.table(columns, names=arrow_schema("nvtx").names))


def parse_range(text: str) -> tuple[str, int | None]:
    """Instance and batch of a range that our model opened; ("", None) for any other text."""
    if not text.startswith(RANGE_PREFIX):
        return "", None
    instance, _, batch_id = text[len(RANGE_PREFIX) :].rpartition("|")
    return (instance, int(batch_id)) if instance and batch_id.isdecimal() else ("", None)


def _open(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise AnalysisError(f"there is no nsys export at {path}")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.DatabaseError as error:
        connection.close()
        raise AnalysisError(f"{path} is not an nsys SQLite export: {error}") from error
    return connection


def _has(export: sqlite3.Connection, table: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return export.execute(query, (table,)).fetchone() is not None


def _columns(export: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in export.execute(f"PRAGMA table_info({table})")}


def _utc_start_ns(export: sqlite3.Connection) -> int:
    table = "TARGET_INFO_SESSION_START_TIME"
    row = export.execute(f"SELECT utcEpochNs FROM {table}").fetchone() if _has(export, table) else None
    if row is None or row[0] is None:
        raise AnalysisError("the nsys export does not say when its collection started in UTC")
    return int(row[0])


def _nvtx_text(export: sqlite3.Connection) -> str:
    """SQL for the text of a range: given in place, or registered and in StringIds."""
    if not _has(export, "NVTX_EVENTS"):
        return "''"
    sources = [f"e.{name}" for name in ("text",) if name in _columns(export, "NVTX_EVENTS")]
    if "textId" in _columns(export, "NVTX_EVENTS") and _has(export, "StringIds"):
        sources.append("(SELECT value FROM StringIds s WHERE s.id = e.textId)")
    return f"coalesce({', '.join([*sources, repr('')])}, '')"


def _events(export: sqlite3.Connection, table: str, name: str, kept: str) -> list[Row]:
    """The events of `table` that `kept` holds for, ordered by start."""
    if not _has(export, table):
        return []
    utc_start_ns = _utc_start_ns(export)
    thread_name = "''"
    if _has(export, "ThreadNames") and _has(export, "StringIds"):
        thread_name = (
            "coalesce((SELECT value FROM ThreadNames t JOIN StringIds s ON s.id = t.nameId"
            " WHERE t.globalTid = e.globalTid LIMIT 1), '')"
        )
    query = (
        f"SELECT {_PID}, {_TID}, {thread_name}, e.start + ?, e.end + ?, {name} FROM {table} e"
        f" WHERE {kept} AND e.globalTid IS NOT NULL ORDER BY e.start, e.end, e.globalTid"
    )
    try:
        return export.execute(query, (utc_start_ns, utc_start_ns)).fetchall()
    except sqlite3.DatabaseError as error:
        raise AnalysisError(f"cannot read {table} of the nsys export: {error}") from error


def _event_columns(rows: Sequence[Row], run: str, node: str, server: str) -> list[pa.Array]:
    """The columns that every event table begins with, in the order of the schema."""
    same = [pa.array([text] * len(rows), pa.string()) for text in (run, "", node, server)]
    process, thread, start, end = (pa.array([row[i] for row in rows], pa.int64()) for i in (0, 1, 3, 4))
    return [*same, process, thread, _text(row[2] for row in rows), start, end]


def _text(values: Iterable[str]) -> pa.Array:
    return pa.array(list(values), pa.string()).dictionary_encode()
