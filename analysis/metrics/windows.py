"""Table `windows`: the run in steps of 100 ms, for plots and for seeing a queue build up.

Windows are half-open and laid from the agreed start instant of the run, backwards and forwards, so that they
cover every scheduled arrival, every send and every end within `SLACK_NS` of the phases. Each row stands alone:
quantiles here describe the window's own requests, they estimate nothing and are never averaged. What ran on the GPUs is
cut at the edges of windows; it is known only of windows that a recording covers from edge to edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Int64s
from squall.analysis.intervals import joined_up
from squall.analysis.metrics.activity import Activity, activity
from squall.analysis.metrics.operations import add_lanes, add_operations, add_table
from squall.analysis.metrics.spans import covered_spans
from squall.analysis.recorded import Stretch
from squall.analysis.requests.requests import is_open_load
from squall.analysis.statistics.latency import INFINITE_NS
from squall.analysis.storage.nsys import DEVICE_TABLES, EVENT_TABLES
from squall.analysis.storage.part import conform
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.schema import TABLES, arrow_schema
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, assign_phase, phase_spans

WINDOW_NS = 100_000_000
SLACK_NS = 3600 * 10**9
"""How far before the first phase and after the last one windows may lie: one stray instant makes no days of windows."""
_MOST_WINDOWS = 36_000
"""Windows made at a time: of an hour."""

# Failures count as infinite: the largest int64 stands for them here and becomes null in the table.
# Nearest ranks in whole numbers: ceil(n / 2) and ceil(95 n / 100). DuckDB's lists count from 1.
# `begin_ns` is the scheduled instant, in a closed loop the send; a request without either has no window.
# $origin_ns and $end_ns are those of the windows made at a time; what was sent, dequeued or ended before counts in the
# two running numbers.
_WINDOWS = """
WITH requests_here AS (SELECT *, coalesce(scheduled_ns, sent_ns) AS begin_ns FROM joined),
grid AS (SELECT range AS w FROM range($n_windows)),
begun AS (
    SELECT (begin_ns - $origin_ns) // $window_ns AS w, count(scheduled_ns) AS n,
        count(*) FILTER (outcome <> 'ok') AS n_failed,
        list_sort(list(CASE WHEN outcome = 'ok' THEN response_ns ELSE $infinite_ns END)
            FILTER (scheduled_ns IS NOT NULL)) AS responses
    FROM requests_here WHERE begin_ns >= $origin_ns AND begin_ns < $end_ns GROUP BY 1),
sent AS (
    SELECT (sent_ns - $origin_ns) // $window_ns AS w, count(*) AS n,
        list_sort(list(CASE WHEN outcome = 'ok' THEN service_ns ELSE $infinite_ns END)) AS services
    FROM joined WHERE sent_ns >= $origin_ns AND sent_ns < $end_ns GROUP BY 1),
ended AS (
    SELECT (done_ns - $origin_ns) // $window_ns AS w, count(*) AS n, count(*) FILTER (outcome = 'ok') AS n_ok
    FROM joined WHERE done_ns >= $origin_ns AND done_ns < $end_ns AND sent_ns IS NOT NULL GROUP BY 1),
left_queue AS (
    SELECT sent_ns, done_ns, CASE WHEN coalesce(batch_start_ns, done_ns) IS NOT NULL
        THEN greatest(sent_ns, coalesce(batch_start_ns, done_ns)) END AS t_ns
    FROM joined WHERE sent_ns IS NOT NULL),
dequeued AS (
    SELECT (t_ns - $origin_ns) // $window_ns AS w, count(*) AS n
    FROM left_queue WHERE t_ns >= $origin_ns AND t_ns < $end_ns GROUP BY 1),
before AS (
    SELECT count(*) FILTER (sent_ns < $origin_ns) AS n_sent, count(*) FILTER (done_ns < $origin_ns) AS n_ended,
        count(*) FILTER (t_ns < $origin_ns) AS n_dequeued
    FROM left_queue)
SELECT $origin_ns + w * $window_ns AS t_ns, CAST($window_ns AS BIGINT) AS interval_ns,
    CASE WHEN $is_open THEN coalesce(begun.n, 0) END AS n_arrivals, coalesce(sent.n, 0) AS n_sent,
    coalesce(ended.n_ok, 0) AS n_done, coalesce(begun.n_failed, 0) AS n_failed,
    CAST(n_sent - n_ended + sum(coalesce(sent.n, 0) - coalesce(ended.n, 0)) OVER (ORDER BY w) AS BIGINT) AS in_flight,
    {queue_depth} AS queue_depth, {n_batches} AS n_batches, {of_sources}
    queue_mean_ns, compute_mean_ns,
    nullif(responses[(begun.n + 1) // 2], $infinite_ns) AS response_p50_ns,
    nullif(responses[(95 * begun.n + 99) // 100], $infinite_ns) AS response_p95_ns,
    nullif(services[(sent.n + 1) // 2], $infinite_ns) AS service_p50_ns,
    nullif(services[(95 * sent.n + 99) // 100], $infinite_ns) AS service_p95_ns
FROM grid LEFT JOIN begun USING (w) LEFT JOIN sent USING (w) LEFT JOIN ended USING (w) LEFT JOIN dequeued USING (w)
LEFT JOIN ({queued}) USING (w) {sources} CROSS JOIN before
ORDER BY w
"""

_QUEUE_DEPTH = """CAST(n_sent - n_dequeued
    + sum(coalesce(sent.n, 0) - coalesce(dequeued.n, 0)) OVER (ORDER BY w) AS BIGINT)"""
_BATCHES = """
SELECT (start_ns - $origin_ns) // $window_ns AS w, count(*) AS batch_count, avg(rows) AS batch_rows_mean
FROM {batches} WHERE start_ns >= $origin_ns AND start_ns < $end_ns GROUP BY 1
"""
_QUEUED = """
SELECT (batch_start_ns - $origin_ns) // $window_ns AS w, CAST(sum(queue_ns) // count(*) AS BIGINT) AS queue_mean_ns,
    CAST(sum(compute_ns) // count(*) AS BIGINT) AS compute_mean_ns
FROM joined WHERE batch_start_ns >= $origin_ns AND batch_start_ns < $end_ns AND queue_ns IS NOT NULL GROUP BY 1
"""
_UTILS = ("util", "sm_util", "tensor_util", "dram_util")
_SAMPLES = f"""
SELECT (t_ns - $origin_ns) // $window_ns AS w,
    {", ".join(f"avg({name}) FILTER (isfinite({name})) AS gpu_{name}" for name in _UTILS)}
FROM gpu_samples WHERE t_ns >= $origin_ns AND t_ns < $end_ns AND mig_instance = '' {{of_gpus}} GROUP BY 1
"""
# Windows that a recording covers from edge to edge, as cells numbered from the first window of the run on.
_CELLS = """
CREATE TEMP TABLE cells AS
SELECT cell, {origin_ns} + cell * {window_ns} AS start_ns, start_ns + {window_ns} AS end_ns
FROM (
    SELECT unnest(range(
        greatest(start_ns - {origin_ns} + {window_ns} - 1, 0) // {window_ns},
        least((end_ns - {origin_ns}) // {window_ns}, {n_windows}))) AS cell
    FROM recorded)
ORDER BY cell
"""
_ACTIVE = ("gpu_kernel_ratio", "gpu_busy_ratio", "gpu_copy_ratio", "copy_overlap_ratio", "gpu_streams_mean")
_OF_GPUS = "AND gpu_uuid IN ({uuids})"
_UUIDS = "SELECT DISTINCT gpu_uuid FROM {table} WHERE gpu_uuid <> ''"
_USED = ("joined", "batch_costs", "batches", "gpu_samples", *EVENT_TABLES)
_EXTREMES = (
    "SELECT min(least(scheduled_ns, sent_ns)), max(greatest(scheduled_ns, sent_ns, done_ns)) FROM joined"
)
_OUTSIDE = """
SELECT count(*) FROM joined
WHERE least(scheduled_ns, sent_ns) < $first_ns OR greatest(scheduled_ns, sent_ns, done_ns) > $last_ns
"""


class _Grid(NamedTuple):
    """Windows that lie end to end from `origin_ns` on."""

    origin_ns: int
    n: int

    def piece(self, first: int) -> dict[str, int]:
        """The windows from number `first` on that are made at a time, for the query."""
        n = min(_MOST_WINDOWS, self.n - first)
        origin_ns = self.origin_ns + first * WINDOW_NS
        return {"origin_ns": origin_ns, "end_ns": origin_ns + n * WINDOW_NS, "n_windows": n}


def write_windows(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> int:
    """Writes table `windows` from `joined`, the batches, GPU samples and operations; returns its rows.

    Columns whose source the run has not are null, as are those of the GPU outside what a report covers. A run without
    requests has no windows. An hour of windows is made at a time, so that a long run needs no more memory than a short
    one, but for what ran on the GPUs. Raises `MissingTable` without `joined`.
    """
    tables = ["joined", *(name for name in _USED[1:] if store.has(name))]
    with connect(store, tables, memory_limit_bytes) as connection:
        grid = _grid(connection, store)
        has_activity = _add_activity(connection, tables, grid, covered_spans(store, connection))
        settings = {
            "window_ns": WINDOW_NS,
            "infinite_ns": INFINITE_NS,
            "is_open": is_open_load(store.manifest),
        }
        query, spans = _query(connection, tables, has_activity), phase_spans(store.manifest)

        def pieces() -> Iterator[pa.RecordBatch]:
            for first in range(0, grid.n, _MOST_WINDOWS):
                found = connection.sql(query, params={**settings, **grid.piece(first)}).to_arrow_table()
                yield from _complete(found, store.run, spans)

        reader = pa.RecordBatchReader.from_batches(arrow_schema("windows"), pieces())
        return store.replace_derived("windows", reader)


def window_notes(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> list[str]:
    """A line where requests of `joined` lie, in part or as a whole, outside what windows may cover; else none."""
    limits = _limits_ns(store)
    if limits is None:
        return []
    with connect(store, ["joined"], memory_limit_bytes) as connection:
        found = connection.execute(_OUTSIDE, {"first_ns": limits[0], "last_ns": limits[1]}).fetchall()
    ((n_outside,),) = found
    if not n_outside:
        return []
    return [
        f"requests with an instant more than {SLACK_NS // (3600 * 10**9)} h off the phases of the run: {n_outside:,}; "
        "table windows does not reach there, table joined has them"
    ]


def _limits_ns(store: RunStore) -> tuple[int, int] | None:
    """First and last instant that windows may cover; None where the manifest states no phase."""
    spans = phase_spans(store.manifest)
    if not spans:
        return None
    return min(one.start_ns for one in spans) - SLACK_NS, max(one.end_ns for one in spans) + SLACK_NS


def _grid(connection: duckdb.DuckDBPyConnection, store: RunStore) -> _Grid:
    """From the agreed start, or whole windows before it if anything was earlier, to the window of the last instant."""
    ((first_ns, last_ns),) = connection.execute(_EXTREMES).fetchall()
    start_ns = store.manifest.start_ns
    if first_ns is None:
        return _Grid(start_ns or 0, 0)
    least_ns, most_ns = _limits_ns(store) or (first_ns, last_ns)
    first_ns, last_ns = max(first_ns, least_ns), min(last_ns, most_ns)
    origin_ns = (
        first_ns if start_ns is None else start_ns + min(0, (first_ns - start_ns) // WINDOW_NS) * WINDOW_NS
    )
    return _Grid(origin_ns, max(0, (last_ns - origin_ns) // WINDOW_NS + 1))


def _add_activity(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[str], grid: _Grid, recorded: Sequence[Stretch]
) -> bool:
    """Makes `window_activity` of the windows that lie in one of the stretches that were `recorded`, those that touch
    taken as one; False where the run has no operations or no stretch."""
    gpus = add_lanes(connection, tables) if recorded else []
    if not gpus:
        return False
    whole = joined_up(*np.array(recorded, np.int64).T)
    stretch = {"start_ns": pa.int64(), "end_ns": pa.int64()}
    add_table(connection, "recorded", stretch, np.stack(whole, 1).tolist())
    places = {"origin_ns": grid.origin_ns, "window_ns": WINDOW_NS, "n_windows": grid.n}
    connection.execute(_CELLS.format(**places))
    starts_ns = connection.execute("SELECT start_ns FROM cells ORDER BY cell").fetchnumpy()["start_ns"]
    if len(starts_ns):
        add_operations(connection, tables, "lanes")
        found = activity(connection, len(gpus), with_gaps=False)
        connection.register("window_activity", _active(starts_ns, found))
    return bool(len(starts_ns))


def _active(starts_ns: Int64s, found: Activity) -> pa.Table:
    """Means over the GPUs, each as long as the window. A ratio of overlap is null without a copy, streams without an
    operation."""
    any_ns, kernel_ns, copy_ns, overlap_ns, stream_ns = (
        one.sum(axis=1)
        for one in (found.any_ns, found.kernel_ns, found.copy_ns, found.overlap_ns, found.stream_ns)
    )
    wall_ns = found.any_ns.shape[1] * WINDOW_NS
    ratios = (
        *(pa.array(part_ns / wall_ns) for part_ns in (kernel_ns, any_ns, copy_ns)),
        *(
            pa.array(part_ns / np.maximum(whole_ns, 1), mask=whole_ns == 0)
            for part_ns, whole_ns in ((overlap_ns, copy_ns), (stream_ns, any_ns))
        ),
    )
    return pa.table({"start_ns": starts_ns, **dict(zip(_ACTIVE, ratios, strict=True))})


def _query(connection: duckdb.DuckDBPyConnection, tables: Sequence[str], has_activity: bool) -> str:
    """The windows in order of time, with what the run's `tables` tell of each."""
    batches, sources, columns = _batch_table(connection, tables), "", ""
    if batches is not None:
        sources += f"LEFT JOIN ({_BATCHES.format(batches=batches)}) USING (w) "
        columns += "batch_rows_mean, "
    if "gpu_samples" in tables:
        sources += f"LEFT JOIN ({_SAMPLES.format(of_gpus=_of_gpus(connection, tables))}) USING (w) "
        columns += "".join(f"gpu_{name}, " for name in _UTILS)
    if has_activity:
        sources += "LEFT JOIN window_activity a ON a.start_ns = $origin_ns + w * $window_ns "
        columns += "".join(f"{name}, " for name in _ACTIVE)
    return _WINDOWS.format(
        queue_depth="NULL::BIGINT" if batches is None else _QUEUE_DEPTH,
        n_batches="NULL::BIGINT" if batches is None else "coalesce(batch_count, 0)",
        of_sources=columns, queued=_QUEUED, sources=sources,
    )  # fmt: skip


def _of_gpus(connection: duckdb.DuckDBPyConnection, tables: Sequence[str]) -> str:
    """A condition that takes the samples of the GPUs that operations ran on, as activity is of these; of all GPUs
    where no operation says which that was."""
    queries = [_UUIDS.format(table=table) for table in DEVICE_TABLES if table in tables]
    uuids = " UNION ".join(queries)
    is_known = bool(uuids) and bool(connection.execute(f"{uuids} LIMIT 1").fetchall())
    return _OF_GPUS.format(uuids=uuids) if is_known else ""


def _batch_table(connection: duckdb.DuckDBPyConnection, tables: Sequence[str]) -> str | None:
    """The table that tells of batches, if any does."""
    for name in ("batch_costs", "batches"):
        if name in tables and connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchall():
            return name
    return None


def _complete(found: pa.Table, run: str, spans: Sequence[RunPhase]) -> list[pa.RecordBatch]:
    """`found` with run and phase, in the order of the schema; what is not there is null."""
    wanted = TABLES["windows"].columns
    columns = {name: found.column(name) for name in found.column_names}
    columns["run"] = pa.array([run] * found.num_rows, pa.string())
    for column in wanted:
        columns.setdefault(column.name, pa.nulls(found.num_rows, column.type))
    data = assign_phase("windows", pa.table(columns), spans).select([column.name for column in wanted])
    return list(conform("windows", data).combine_chunks().to_batches())
