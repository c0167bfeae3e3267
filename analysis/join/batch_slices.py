"""The executions of a run, dealt into slices of about the same number of events, each of a server and stretch of time.

How the events of a server are tied to its executions is one for all of them:

    range    by the batch ids that ranges gave the events, if any event of the server bears one
    window   by time, if none does: a call and what it launched belong to the execution that was open when the call
             began, alone. An execution that another of its server overlaps is not tied: what ran meanwhile is both's

A recording of a phase may lack the GPU's operations, or the calls: what they would tell is then unknown, not zero.

An execution of a decoupled model is not tied, for its work goes on after it; nor, by time, any of that server.

Of a server that the kernel library recorded an execution is tied only if one window holds it from its start to its end
(`squall.analysis.recorded`); one that launched nothing there has zeros. The library tells no launches unless asked, so
that by time an operation belongs to the execution that was open when it began on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from squall.analysis.clocks.timeline import phase_spans
from squall.analysis.join.executions import TRACE, add_executions
from squall.analysis.recorded import add_windows
from squall.analysis.storage.parquet import literal, read_parquet
from squall.analysis.storage.query import attach
from squall.analysis.storage.row_groups import RowGroup, read_columns, row_groups
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.collected import ProfiledPhase
from squall.analysis.tables.nsys import DEVICE_TABLES

if TYPE_CHECKING:
    import duckdb

RANGE, WINDOW, NONE = "range", "window", "none"
EVENT_BYTES = 500
"""Memory that an operation or a call takes while its slice is worked on, with room: each more of them took 330 on the
runs of tests/bench/big_runs.py (2-core EPYC, 2026-11-22)."""
MOST_EVENTS = 1_000_000
"""In a slice: larger ones are no faster."""
SLACK_NS = 1_000_000_000
"""An execution without a range of its own is looked for in the report this far around its own instants."""

AT = {**dict.fromkeys(DEVICE_TABLES, "launch_start_ns"), "cuda_api": "start_ns", "osrt": "start_ns"}
"""By table the instant that lies within the execution of an event: the thread's, not the GPU's."""

_TABLES = """
-- Batch that has an NVTX range.
CREATE TEMP TABLE ranges(
    server VARCHAR, instance VARCHAR, instance_device BIGINT, batch_id BIGINT, range_start_ns BIGINT,
    range_end_ns BIGINT, process BIGINT, thread BIGINT);
-- About how many events.
CREATE TEMP TABLE counts(server VARCHAR, phase VARCHAR, n_events BIGINT);
-- Server of which no event has a batch.
CREATE TEMP TABLE bare(server VARCHAR);
-- Bare server and phase in which its operations were recorded, and from when on.
CREATE TEMP TABLE windowed(server VARCHAR, phase VARCHAR, from_ns BIGINT);
-- Which kinds of events the reports hold.
CREATE TEMP TABLE recorded(server VARCHAR, phase VARCHAR, has_ops BOOLEAN, has_calls BOOLEAN);
"""
_RANGES = """
INSERT INTO ranges SELECT server, instance, instance_device, batch_id, min(start_ns) AS range_start_ns,
    arg_min(end_ns, start_ns) AS range_end_ns, arg_min(process, start_ns) AS process,
    arg_min(thread, start_ns) AS thread
FROM nvtx WHERE batch_id IS NOT NULL AND end_ns >= start_ns GROUP BY server, instance, instance_device, batch_id
"""

_BY_LIBRARY = "SELECT DISTINCT server FROM recorded_windows"

_WEIGHTS = """
-- Events a batch.
CREATE TEMP TABLE weights AS
SELECT server, phase, 1 + coalesce(max(n_events), 0) / count(*) AS weight
FROM executions LEFT JOIN counts USING (server, phase) GROUP BY server, phase
"""

# An instance is idle from the latest end `before` to its next start; `until` and `next` are of the whole server.
_SLICED = """
COPY (
    SELECT * EXCLUDE (before_ns, until_ns, next_ns, load, is_bare, from_ns),
        CASE WHEN before_ns IS NOT NULL THEN greatest(0, start_ns - before_ns) END AS gap_before_ns,
        CASE WHEN end_ns < start_ns OR (is_by_library AND NOT is_in_window) THEN 'none'
            WHEN (server, model) IN (SELECT (server, model) FROM decoupled) THEN 'none'
            WHEN NOT is_bare THEN 'range'
            WHEN server IN (SELECT server FROM decoupled) THEN 'none'
            WHEN (is_by_library OR start_ns >= from_ns) AND coalesce(until_ns <= start_ns, true)
                    AND coalesce(next_ns >= end_ns, true)
                THEN 'window'
            ELSE 'none' END AS tie,
        start_ns + CASE WHEN until_ns = start_ns THEN 1 ELSE 0 END AS open_from_ns,
        end_ns - CASE WHEN next_ns = end_ns THEN 1 ELSE 0 END AS open_to_ns,
        CAST(floor(load / $n_events) AS BIGINT) AS part
    FROM (
        SELECT e.*, range_start_ns, range_end_ns, process, thread, b.server IS NOT NULL AS is_bare, d.from_ns,
            l.server IS NOT NULL AS is_by_library, coalesce(end_ns <= closes_ns, false) AS is_in_window,
            coalesce(CASE WHEN is_by_library THEN is_in_window AND has_kernels ELSE k.has_ops END, false) AS has_ops,
            coalesce(CASE WHEN is_by_library THEN is_in_window AND v.has_copies ELSE k.has_ops END, false)
                AS has_copies,
            coalesce(CASE WHEN is_by_library THEN is_in_window AND v.has_calls ELSE k.has_calls END, false)
                AS has_calls,
            max(end_ns) OVER (PARTITION BY e.server, model, e.instance, e.instance_device ORDER BY start_ns, e.batch_id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns,
            max(end_ns) OVER (of_server ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns,
            lead(start_ns) OVER of_server AS next_ns,
            sum(weight) OVER (of_server ROWS UNBOUNDED PRECEDING) AS load
        FROM executions e JOIN weights w ON w.server = e.server AND w.phase = e.phase
        LEFT JOIN ranges r
            ON e.source <> '{trace}' AND r.server = e.server AND r.instance = e.instance
            AND r.instance_device = e.instance_device AND r.batch_id = e.batch_id
        LEFT JOIN bare b ON b.server = e.server
        LEFT JOIN windowed d ON d.server = e.server AND d.phase = e.phase
        LEFT JOIN recorded k ON k.server = e.server AND k.phase = e.phase
        LEFT JOIN ({by_library}) l ON l.server = e.server
        ASOF LEFT JOIN (
            SELECT server, start_ns AS opens_ns, end_ns AS closes_ns, has_kernels, has_copies, has_calls
            FROM recorded_windows) v ON v.server = e.server AND e.start_ns >= v.opens_ns
        WINDOW of_server AS (PARTITION BY e.server ORDER BY start_ns, end_ns, e.batch_id))
    ORDER BY server, start_ns
) TO {path} (FORMAT parquet, ROW_GROUP_SIZE 20480)
"""
_SLICES = f"""
SELECT server, part, CASE WHEN NOT bool_or(tie = '{WINDOW}') THEN [min(batch_id), max(batch_id)] END,
    min(coalesce(range_start_ns, start_ns - {SLACK_NS})), max(coalesce(range_end_ns, end_ns + {SLACK_NS}))
FROM {{file}} GROUP BY server, part ORDER BY server, part
"""


@dataclass(frozen=True)
class BatchSlice:
    """The rows of the file `executions` with this `server` and `part`, and where their events are. Pickles."""

    run: str
    executions: Path
    number: int
    """Of the slice among all, from 0."""
    server: str
    part: int
    groups: Mapping[str, Sequence[RowGroup]]
    """Row groups that may hold an event of the slice, by table; tables that the run has not are absent."""


def plan_slices(
    connection: duckdb.DuckDBPyConnection, store: RunStore, path: Path, memory_limit_bytes: int
) -> list[BatchSlice]:
    """Writes the executions of the run to the Parquet file `path`, by server and start, and returns their slices.

    Its columns are those of table `executions` and tie (`range`: if it has events), range_start_ns, range_end_ns,
    process, thread (of its range; null without one), has_ops, has_copies, has_calls (whether operations, copies among
    them, and calls of its server were recorded in its phase, by the library: in its window; true of a server on a node
    without a GPU, which has none), is_by_library (the library recorded its server), is_in_window (one of its windows
    holds all of it), gap_before_ns, open_from_ns, open_to_ns (the instants at which it alone was open, both included),
    part. Raises AnalysisError where two batches
    have one key.
    """
    add_executions(connection, store)
    there = attach(connection, store, (*AT, "nvtx"))
    groups = {
        table: row_groups(store.parts(table), ["server", "phase", AT[table], *_ids(table)])
        for table in AT
        if table in there
    }
    connection.execute(_TABLES)
    if "nvtx" in there:
        connection.execute(_RANGES)
    add_windows(connection, store)
    _add_bare(connection, [table for table in groups if table != "osrt"])
    _add_windowed(connection, store, [table for table in groups if table in DEVICE_TABLES])
    _add_recorded(connection, store, groups)
    _insert(connection, "counts", [(*key, n) for key, n in _counts(groups).items()])
    connection.execute(_WEIGHTS)
    n_events = max(min(memory_limit_bytes // 2 // EVENT_BYTES, MOST_EVENTS), 1)
    sliced = _SLICED.format(path=literal(str(path)), trace=TRACE, by_library=_BY_LIBRARY)
    connection.execute(sliced, {"n_events": n_events})
    slices = connection.execute(_SLICES.format(file=read_parquet([path]))).fetchall()
    return [
        BatchSlice(
            store.run, path, number, server, part,
            {table: _near(own, server, AT[table], (first_ns, last_ns), ids) for table, own in groups.items()},
        )
        for number, (server, part, ids, first_ns, last_ns) in enumerate(slices)
    ]  # fmt: skip


def _ids(table: str) -> list[str]:
    return [] if table == "osrt" else ["batch_id"]


def _near(
    groups: Iterable[RowGroup], server: str, at: str, span: tuple[int, int], ids: list[int] | None
) -> tuple[RowGroup, ...]:
    """The row groups that may hold an event of the server within the span, of a batch from the first id to the last.

    Events of a server that are tied by time have no batch: `ids` is None for these.
    """
    return tuple(
        group
        for group in groups
        if group.bounds["server"].may_hold(server, server)
        and (group.bounds[at].has_nulls or group.bounds[at].may_hold(*span))
        and (ids is None or "batch_id" not in group.bounds or group.bounds["batch_id"].may_hold(*ids))
    )


def _counts(groups: Mapping[str, Iterable[RowGroup]]) -> dict[tuple[str, str], int]:
    """About how many operations, or calls if they are more, a server had in a phase: a group counts for its last."""
    n_ops: dict[tuple[str, str], int] = {}
    n_calls: dict[tuple[str, str], int] = {}
    for table in (*DEVICE_TABLES, "cuda_api"):
        counts = n_calls if table == "cuda_api" else n_ops
        for group in groups.get(table, ()):
            key = (group.bounds["server"].greatest or "", group.bounds["phase"].greatest or "")
            counts[key] = counts.get(key, 0) + group.n_rows
    return {key: max(n_ops.get(key, 0), n_calls.get(key, 0)) for key in {*n_ops, *n_calls}}


def _add_bare(connection: duckdb.DuckDBPyConnection, tables: list[str]) -> None:
    """Fills `bare`. A server that the library recorded must have some event: without any its windows say that nothing
    ran."""
    rows = connection.execute(
        "SELECT DISTINCT server FROM executions EXCEPT SELECT DISTINCT server FROM ranges"
    ).fetchall()
    in_windows = {server for (server,) in connection.execute(_BY_LIBRARY).fetchall()}

    def has_events(server: str, condition: str) -> bool:
        query = f"SELECT 1 FROM {{table}} WHERE server = $server AND {condition} LIMIT 1"
        return any(connection.execute(query.format(table=t), {"server": server}).fetchall() for t in tables)

    bare = [
        (server,)
        for (server,) in rows
        if not has_events(server, "batch_id IS NOT NULL")
        and (server not in in_windows or has_events(server, "true"))
    ]
    _insert(connection, "bare", bare)


def _add_windowed(connection: duckdb.DuckDBPyConnection, store: RunStore, tables: list[str]) -> None:
    """Fills `windowed`."""
    late = store.manifest.profiled_phases
    starts = {
        span.name: span.start_ns + (late.get(span.name, ProfiledPhase()).profiled_after_ns or 0)
        for span in phase_spans(store.manifest)
    }
    queries = [
        f"SELECT DISTINCT server, phase FROM {table} SEMI JOIN bare USING (server)" for table in tables
    ]
    found = connection.execute(" UNION ".join(queries)).fetchall() if queries else []
    _insert(connection, "windowed", [(one, phase, starts.get(phase, -(2**63))) for one, phase in found])


def _add_recorded(
    connection: duckdb.DuckDBPyConnection, store: RunStore, groups: Mapping[str, Sequence[RowGroup]]
) -> None:
    """Fills `recorded`."""
    ops = {key for table in DEVICE_TABLES for key in _recorded(groups.get(table, ()))}
    calls = _recorded(groups.get("cuda_api", ()))
    without_gpu = {name for name in store.manifest.servers if store.manifest.is_without_gpu(name)}
    keys = connection.execute("SELECT DISTINCT server, phase FROM executions").fetchall()
    rows = [
        (*key, key in ops or key[0] in without_gpu, key in calls or key[0] in without_gpu) for key in keys
    ]
    _insert(connection, "recorded", rows)


def _recorded(groups: Iterable[RowGroup]) -> set[tuple[str, str]]:
    """Servers and phases of the rows. Read only where the statistics of a group do not say it."""
    found: set[tuple[str, str]] = set()
    words: tuple[list[str], list[str]] = ([], [])
    for group in groups:
        server, phase = group.bounds["server"], group.bounds["phase"]
        if server.is_one_value and phase.is_one_value:
            found.add((server.least, phase.least))
            continue
        columns = read_columns([group], [], {"server": words[0], "phase": words[1]})
        pairs = np.unique(np.column_stack((columns["server"], columns["phase"])), axis=0).tolist()
        found |= {(words[0][one], words[1][other]) for one, other in pairs}
    return found


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        places = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
