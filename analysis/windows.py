"""Table `windows`: the run in steps of 100 ms, for plots and for seeing a queue build up.

Windows are half-open and laid from the agreed start instant of the run, backwards and forwards, so that they
cover every scheduled arrival, every send and every end. Each row stands alone: quantiles here describe the window's
own requests, they estimate nothing and are never averaged. What ran on the GPUs is cut at the edges of windows; it is
known only of windows that a report covers from edge to edge.
"""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from analysis.latency import INFINITE_NS
from analysis.metrics.spans import covered_spans
from analysis.metrics.window_activity import window_activity
from analysis.ops import EVENT_TABLES
from analysis.query import MEMORY_LIMIT_BYTES, connect
from analysis.requests import is_open_load
from analysis.schema import TABLES
from analysis.store import RunStore
from analysis.timeline import assign_phase, phase_spans

WINDOW_NS = 100_000_000

# Failures count as infinite: the largest int64 stands for them here and becomes null in the table.
# Nearest ranks in whole numbers: ceil(n / 2) and ceil(95 n / 100). DuckDB's lists count from 1.
# `begin_ns` is the scheduled instant, in a closed loop the send; a request without either has no window.
_WINDOWS = """
WITH requests_here AS (SELECT *, coalesce(scheduled_ns, sent_ns) AS begin_ns FROM joined),
grid AS (
    SELECT unnest(range((max(greatest(begin_ns, coalesce(done_ns, 0))) - $origin_ns) // $window_ns + 1))
    AS w FROM requests_here),
begun AS (
    SELECT (begin_ns - $origin_ns) // $window_ns AS w, count(scheduled_ns) AS n,
        count(*) FILTER (outcome <> 'ok') AS n_failed,
        list_sort(list(CASE WHEN outcome = 'ok' THEN response_ns ELSE $infinite_ns END)
            FILTER (scheduled_ns IS NOT NULL)) AS responses
    FROM requests_here WHERE begin_ns IS NOT NULL GROUP BY 1),
sent AS (
    SELECT (sent_ns - $origin_ns) // $window_ns AS w, count(*) AS n,
        list_sort(list(CASE WHEN outcome = 'ok' THEN service_ns ELSE $infinite_ns END)) AS services
    FROM joined WHERE sent_ns IS NOT NULL GROUP BY 1),
ended AS (
    SELECT (done_ns - $origin_ns) // $window_ns AS w, count(*) AS n, count(*) FILTER (outcome = 'ok') AS n_ok
    FROM joined WHERE done_ns IS NOT NULL AND sent_ns IS NOT NULL GROUP BY 1),
dequeued AS (
    SELECT (greatest(sent_ns, coalesce(batch_start_ns, done_ns)) - $origin_ns) // $window_ns AS w, count(*)
    AS n FROM joined WHERE sent_ns IS NOT NULL AND coalesce(batch_start_ns, done_ns) IS NOT NULL GROUP BY 1)
SELECT $origin_ns + w * $window_ns AS t_ns, CAST($window_ns AS BIGINT) AS interval_ns,
    CASE WHEN $is_open THEN coalesce(begun.n, 0) END AS n_arrivals, coalesce(sent.n, 0) AS n_sent,
    coalesce(ended.n_ok, 0) AS n_done, coalesce(begun.n_failed, 0) AS n_failed,
    CAST(sum(coalesce(sent.n, 0) - coalesce(ended.n, 0)) OVER (ORDER BY w) AS BIGINT) AS in_flight,
    CAST(sum(coalesce(sent.n, 0) - coalesce(dequeued.n, 0)) OVER (ORDER BY w) AS BIGINT) AS queue_depth,
    nullif(responses[(begun.n + 1) // 2], $infinite_ns) AS response_p50_ns,
    nullif(responses[(95 * begun.n + 99) // 100], $infinite_ns) AS response_p95_ns,
    nullif(services[(sent.n + 1) // 2], $infinite_ns) AS service_p50_ns,
    nullif(services[(95 * sent.n + 99) // 100], $infinite_ns) AS service_p95_ns
FROM grid LEFT JOIN begun USING (w) LEFT JOIN sent USING (w) LEFT JOIN ended USING (w) LEFT JOIN dequeued
USING (w) ORDER BY w
"""

_BATCHES = """
SELECT (start_ns - $origin_ns) // $window_ns AS w, count(*) AS n_batches, avg(rows) AS batch_rows_mean
FROM {batches} WHERE start_ns >= $origin_ns GROUP BY 1
"""
_QUEUED = """
SELECT (batch_start_ns - $origin_ns) // $window_ns AS w, CAST(sum(queue_ns) // count(*) AS BIGINT) AS queue_mean_ns,
    CAST(sum(compute_ns) // count(*) AS BIGINT) AS compute_mean_ns
FROM joined WHERE batch_start_ns >= $origin_ns AND queue_ns IS NOT NULL GROUP BY 1
"""
_SAMPLES = """
SELECT (t_ns - $origin_ns) // $window_ns AS w, avg(util) FILTER (isfinite(util)) AS gpu_util,
    avg(sm_util) FILTER (isfinite(sm_util)) AS gpu_sm_util,
    avg(tensor_util) FILTER (isfinite(tensor_util)) AS gpu_tensor_util,
    avg(dram_util) FILTER (isfinite(dram_util)) AS gpu_dram_util
FROM gpu_samples WHERE t_ns >= $origin_ns GROUP BY 1
"""
_USED = ("joined", "batch_costs", "batches", "gpu_samples", *EVENT_TABLES)


def write_windows(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> int:
    """Writes table `windows` from `joined`, the batches, GPU samples and operations; returns its rows.

    Columns whose source the run has not are null, as are those of the GPU outside what a report covers. A run without
    requests has no windows. Raises `MissingTable` without `joined`.
    """
    tables = ["joined", *(name for name in _USED[1:] if store.has(name))]
    with connect(store, tables, memory_limit_bytes) as connection:
        origin_ns = _origin_ns(connection, store.manifest.get("start_ns"))
        grid = {"origin_ns": origin_ns, "window_ns": WINDOW_NS}
        settings = {**grid, "infinite_ns": INFINITE_NS, "is_open": is_open_load(store.manifest)}
        found = connection.sql(_WINDOWS, params=settings).to_arrow_table()
        columns = {name: found.column(name) for name in found.column_names}
        n = found.num_rows
        batches = _batch_table(connection, tables)
        if batches is not None:
            columns |= {"n_batches": pa.array([0] * n, pa.int64())}
            columns |= _by_window(connection, _BATCHES.format(batches=batches), grid, n, columns)
        else:
            columns["queue_depth"] = pa.nulls(n, pa.int64())
        columns |= _by_window(connection, _QUEUED, grid, n, columns)
        if "gpu_samples" in tables:
            columns |= _by_window(connection, _SAMPLES, grid, n, columns)
        covered = covered_spans(store, connection)
    columns |= window_activity(store, columns["t_ns"].to_numpy(), WINDOW_NS, covered, memory_limit_bytes)
    return store.replace_derived("windows", _complete(columns, n, store))


def _batch_table(connection: duckdb.DuckDBPyConnection, tables: list[str]) -> str | None:
    """The table that tells of batches, if any does."""
    for name in ("batch_costs", "batches"):
        if name in tables and connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchall():
            return name
    return None


def _origin_ns(connection: duckdb.DuckDBPyConnection, start_ns: int | None) -> int:
    """Start of the first window: the agreed start, or whole windows before it if anything was earlier."""
    query = "SELECT min(least(scheduled_ns, sent_ns)) FROM joined"
    ((first_ns,),) = connection.execute(query).fetchall()
    if first_ns is None:
        return start_ns or 0
    start_ns = first_ns if start_ns is None else start_ns
    return start_ns + (first_ns - start_ns) // WINDOW_NS * WINDOW_NS if first_ns < start_ns else start_ns


def _by_window(
    connection: duckdb.DuckDBPyConnection, query: str, grid: dict[str, Any], n: int, before: dict[str, Any]
) -> dict[str, pa.Array]:
    """The columns of `query` but its `w`, the number of a window; a window without a row keeps what was `before`."""
    rows = connection.sql(query, params=grid).to_arrow_table()
    windows = rows.column("w").to_pylist()
    columns = {}
    for name in rows.column_names[1:]:
        values = before[name].to_pylist() if name in before else [None] * n
        for window, value in zip(windows, rows.column(name).to_pylist(), strict=True):
            if window < n:
                values[window] = value
        columns[name] = pa.array(values, rows.schema.field(name).type)
    return columns


def _complete(columns: dict[str, Any], n: int, store: RunStore) -> pa.Table:
    """`columns` with run and phase, in the order of the schema; what is not there is null."""
    wanted = TABLES["windows"].columns
    columns = {"run": pa.array([store.run] * n, pa.string()), **columns}
    for column in wanted:
        columns.setdefault(column.name, pa.nulls(n, column.type))
    data = assign_phase(pa.table(columns), "t_ns", phase_spans(store.manifest))
    return data.select([column.name for column in wanted])
