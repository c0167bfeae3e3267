"""Table `windows`: the run in steps of 100 ms, for plots and for seeing a queue build up.

Windows are half-open and laid from the agreed start instant of the run, backwards and forwards, so that they
cover every scheduled arrival, every send and every end. Each row stands alone: quantiles here describe the window's
own requests, they estimate nothing and are never averaged.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

from analysis.latency import INFINITE_NS
from analysis.query import connect
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
FROM batches WHERE start_ns >= $origin_ns GROUP BY 1
"""


def write_windows(store: RunStore) -> int:
    """Writes table `windows` from `joined` and `batches`, and returns its rows. Raises `MissingTable`.

    Without `batches` the columns that need it are null. A run without requests has no windows.
    """
    has_batches = store.has("batches")
    with connect(store, ["joined", "batches"] if has_batches else ["joined"]) as connection:
        origin_ns = _origin_ns(connection, store.manifest.get("start_ns"))
        grid = {"origin_ns": origin_ns, "window_ns": WINDOW_NS}
        settings = {**grid, "infinite_ns": INFINITE_NS, "is_open": is_open_load(store.manifest)}
        found = connection.sql(_WINDOWS, params=settings).to_arrow_table()
        per_window = connection.sql(_BATCHES, params=grid).fetchall() if has_batches else None
    return store.replace_derived("windows", _complete(found, per_window, store))


def _origin_ns(connection: duckdb.DuckDBPyConnection, start_ns: int | None) -> int:
    """Start of the first window: the agreed start, or whole windows before it if anything was earlier."""
    query = "SELECT min(least(scheduled_ns, sent_ns)) FROM joined"
    ((first_ns,),) = connection.execute(query).fetchall()
    if first_ns is None:
        return start_ns or 0
    start_ns = first_ns if start_ns is None else start_ns
    return start_ns + (first_ns - start_ns) // WINDOW_NS * WINDOW_NS if first_ns < start_ns else start_ns


def _complete(found: pa.Table, per_window: list[tuple[int, int, float]] | None, store: RunStore) -> pa.Table:
    """`found` with run, phase and the batch columns, in the order of the schema."""
    n = found.num_rows
    n_batches: list[int | None] = [None if per_window is None else 0] * n
    rows_mean: list[float | None] = [None] * n
    for w, n_begun, mean in per_window or []:
        if w < n:
            n_batches[w], rows_mean[w] = n_begun, mean
    columns = {
        **{name: found.column(name) for name in found.column_names},
        "run": pa.array([store.run] * n, pa.string()),
        "n_batches": pa.array(n_batches, pa.int64()),
        "batch_rows_mean": pa.array(rows_mean, pa.float64()),
    }
    for column in TABLES["windows"].columns:
        columns.setdefault(column.name, pa.nulls(n, column.type))
    if per_window is None:
        columns["queue_depth"] = pa.nulls(n, pa.int64())
    data = assign_phase(pa.table(columns), "t_ns", phase_spans(store.manifest))
    return data.select([column.name for column in TABLES["windows"].columns])
