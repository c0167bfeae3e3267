"""Table `joined`: each scheduled arrival with the batch that served it and what that did, by request id.

    scheduled   sent        batch_start          batch_end        done
        │─ lag ──│── wait ──────│────── compute ──────│── reply ────│
        │                       response                            │

`scheduled`, `sent` and `done` are stamps of the client's node, `batch_start` and `batch_end` of the
server's: wait and reply carry the error of both clocks at `sent` and `batch_start`, `clock_error_ns`; compute, lag,
service and response carry none. `server_parts` says what wait and reply are made of.

A request that several batches name belongs to the one that starts first, or where a server executed several models to
the longest step on its critical path (`executions`). What the batch cost is repeated for each of
its requests; kernel_share_ns and gpu_share_ns are the request's own part. Where the rows of the batch are R, those of
its requests up to and with this one c, in order of request_id, and those before it b, its part of K is
floor(K c / R) - floor(K b / R): the parts of a whole batch add up to K. Requests that are not ours keep theirs. Of a
request id that stands in several rows, each has the batch, and the first in time has the part.

Table `steps` has all executions that such a request passed, and those of other models within them that name nobody
(`squall.analysis.join.critical_path`). A run in which no request passed several has no such table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.meanwhile import COLUMNS as GPU_COLUMNS
from squall.analysis.join.named_ids import count_named, n_repeated
from squall.analysis.join.server_parts import PARTS
from squall.analysis.join.slices import Slice
from squall.analysis.join.sources import ROWS, write_sources
from squall.analysis.storage.clock_errors import ClockErrors
from squall.analysis.storage.derived import DEVICE_COSTS
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, Spread, connect, in_turn
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import SealedFile
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import MissingTable
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

_ROW_BYTES = 8192
"""Memory for a row of a slice while it is made, so that two at a time take half of the limit."""
_LEAST_ROWS, _MOST_ROWS = 10_000, 500_000
"""In a slice: smaller ones cost more to begin than to make, larger ones are no faster."""

_UNKNOWN = -1
"""Of an error, which is never negative."""

_MEANWHILE = ("n_kernels", "kernel_ns", "kernel_busy_ns", *(f"gpu_{name}" for name in GPU_COLUMNS))
"""Columns that are told also of a request without a batch: what the GPU did while it was there."""
_EITHER = ", ".join(f"coalesce(b.{name}, w.{name}) AS {name}" for name in _MEANWHILE)
_COSTS = ", ".join(column.name for column in DEVICE_COSTS if column.name not in _MEANWHILE)
_EXECUTED = f"""
SELECT server, instance, instance_device, batch_id, start_ns AS batch_start_ns, end_ns AS batch_end_ns,
    rows AS batch_rows, n_requests AS batch_n_requests, gap_before_ns, {_COSTS}
FROM executed WHERE place BETWEEN getvariable('first_place') AND getvariable('last_place') ORDER BY place
"""
"""What a request has of its batch as it is. It is gathered by place, out of the query: 40 columns that are joined and
sorted with each request there took twice as long (200,000 requests, 2026-11-30)."""

_OWN = """
CREATE TEMP VIEW own_requests AS
FROM ({rows}) WHERE request_id BETWEEN getvariable('first') AND getvariable('last');
SET VARIABLE first_place = (
    SELECT min(place) FROM members WHERE request_id BETWEEN getvariable('first') AND getvariable('last'));
SET VARIABLE last_place = (
    SELECT max(place) FROM members WHERE request_id BETWEEN getvariable('first') AND getvariable('last'));
-- What the first n rows of all have of a whole: floor(whole n / all), whose products stay in int64.
CREATE TEMP MACRO up_to(whole, n, of_all) AS
    whole // of_all * least(n, of_all) + whole % of_all * least(n, of_all) // of_all;
"""
_JOINED = f"""
SELECT r.* EXCLUDE (is_first), b.place - getvariable('first_place') AS executed_row,
    -- response: the headline, from the instant that the schedule says
    r.done_ns - r.scheduled_ns AS response_ns,
    r.done_ns - r.sent_ns AS service_ns,
    r.sent_ns - r.scheduled_ns AS lag_ns,
    -- wait: network, front end of the server and queue together
    b.start_ns - r.sent_ns AS wait_ns,
    b.end_ns - b.start_ns AS compute_ns,
    -- reply: way out of the server, network and way into the client
    r.done_ns - b.end_ns AS reply_ns,

    -- what wait and reply are made of (`server_parts`): by Triton's trace of the request, else by the means of the
    -- second in which it ended, else by those of its phase
    CASE WHEN service_ns IS NULL OR compute_ns IS NULL THEN 'none'
        WHEN t.left_ns IS NOT NULL THEN 'trace'
        WHEN s.mean_network_ns IS NOT NULL OR p.mean_network_ns IS NOT NULL THEN 'statistics'
        ELSE 'none' END AS parts_level,
    CASE parts_level
        WHEN 'trace' THEN greatest(0, t.queue_start_ns - r.sent_ns + r.done_ns - t.left_ns)
        WHEN 'statistics' THEN coalesce(s.mean_network_ns, p.mean_network_ns) END AS network_ns,
    CASE parts_level
        WHEN 'trace' THEN t.input_end_ns - t.compute_start_ns
        WHEN 'statistics' THEN coalesce(s.mean_input_ns, p.mean_input_ns) END AS input_ns,
    CASE parts_level
        WHEN 'trace' THEN greatest(0, t.output_start_ns - t.input_end_ns - compute_ns)
        WHEN 'statistics' THEN coalesce(s.mean_handover_ns, p.mean_handover_ns) END AS handover_ns,
    CASE parts_level
        WHEN 'trace' THEN t.compute_end_ns - t.output_start_ns
        WHEN 'statistics' THEN coalesce(s.mean_output_ns, p.mean_output_ns) END AS output_ns,
    -- queue: by means what is left of the wait, half of network and handover lying before the batch
    CASE parts_level
        WHEN 'trace' THEN t.compute_start_ns - t.queue_start_ns
        WHEN 'statistics' THEN greatest(0, wait_ns - network_ns // 2 - input_ns - handover_ns // 2) END AS queue_ns,
    -- residual: what these do not explain
    service_ns - network_ns - queue_ns - input_ns - handover_ns - compute_ns - output_ns AS residual_ns,
    -- idle wait: from its arrival at the server, or the end of the batch before where that is later; the first of an
    -- instance was idle ever before
    CASE parts_level
        WHEN 'trace' THEN greatest(0, b.start_ns - greatest(t.queue_start_ns, b.start_ns - b.gap_before_ns))
        WHEN 'statistics' THEN greatest(0, b.start_ns - greatest(
            r.sent_ns + network_ns // 2, b.start_ns - b.gap_before_ns)) END AS idle_wait_ns,

    CASE WHEN b.source = 'trace' THEN 'batch' WHEN b.place IS NOT NULL THEN 'exact'
        WHEN w.n_kernels IS NOT NULL THEN 'window' ELSE 'none' END AS join_level,
    CASE WHEN w.n_kernels IS NOT NULL THEN 'window' ELSE coalesce(b.tie, 'none') END AS tie,
    coalesce(w.gpu_uuid, b.gpu_uuid, '') AS gpu_uuid,
    {_EITHER},
    -- its part of the batch, by rows; none for a repeated row of a request id
    CASE WHEN r.is_first THEN r.rows ELSE 0 END AS own_rows,
    up_to(b.kernel_ns, m.rows_before + own_rows, nullif(b.rows, 0))
        - up_to(b.kernel_ns, m.rows_before, nullif(b.rows, 0)) AS kernel_share_ns,
    up_to(b.kernel_busy_ns + b.copy_exposed_ns, m.rows_before + own_rows, nullif(b.rows, 0))
        - up_to(b.kernel_busy_ns + b.copy_exposed_ns, m.rows_before, nullif(b.rows, 0)) AS gpu_share_ns,
    -- clock error: of both nodes, at the send and the begin of the batch; 0 of one node
    CASE WHEN r.node <> b.node THEN b.error_ns END AS batch_error_ns,
    CASE WHEN r.node = b.node THEN 0::BIGINT END AS clock_error_ns
FROM own_requests r
-- what a user of Locust sends without us bears no id of ours
LEFT JOIN (FROM members WHERE request_id BETWEEN getvariable('first') AND getvariable('last')) m
    ON m.request_id = r.request_id AND (r.method IS NULL OR r.request_kind <> '')
LEFT JOIN (FROM executed WHERE place BETWEEN getvariable('first_place') AND getvariable('last_place')) b
    ON b.place = m.place
LEFT JOIN traces t ON t.request_id = m.request_id
LEFT JOIN means s ON s.server = b.server AND s.model = b.model AND s.second = r.done_ns // {NS_PER_S}
LEFT JOIN means p ON p.server = b.server AND p.model = b.model AND p.phase = r.phase
LEFT JOIN while_there w ON r.is_first AND w.request_id = r.request_id
"""
_ORDER = "request_id, sent_ns NULLS LAST, done_ns NULLS LAST, worker, scheduled_ns NULLS LAST"

_CLOCKS = """
SELECT node, list(from_ns ORDER BY from_ns), list(error_ns ORDER BY from_ns) FROM clocks GROUP BY node
"""

_STEPS = """
WITH step AS (
    SELECT s.*, e.* EXCLUDE (place), r.run, r.phase AS of_phase, r.sent_ns,
        s.is_on_path AND e.end_ns > e.start_ns AS is_around,
        -- several that take no time at one instant end before each other, one alone not before itself
        e.end_ns > e.start_ns OR count(*) OVER (PARTITION BY s.request_id, e.start_ns, e.end_ns) > 1 AS ends_first
    FROM stepped s JOIN executed e USING (place)
    JOIN own_requests r ON r.is_first AND r.request_id = s.request_id
    WHERE s.request_id BETWEEN getvariable('first') AND getvariable('last')),
-- Ends and starts of the steps of a request in order of time.
edge AS (
    SELECT request_id, place, start_ns AS at_ns, NULL AS ended_ns, if(end_ns > start_ns, 3, 1) AS rank FROM step
    UNION ALL SELECT request_id, NULL, end_ns, end_ns, if(ends_first, 0, 2) FROM step),
-- Of each step the latest end of another one by its start.
begun AS (
    SELECT request_id, place, max(ended_ns) OVER (
        PARTITION BY request_id ORDER BY at_ns, rank ROWS UNBOUNDED PRECEDING) AS ended_ns
    FROM edge QUALIFY place IS NOT NULL)
SELECT s.* EXCLUDE (tie, phase), s.of_phase AS phase, if(s.is_by_time, 'time', 'id') AS tie,
    -- wait: since then, or since the start of the step of the path that it lies within where that is later; else since
    -- the request was sent
    s.start_ns - coalesce(
        CASE WHEN NOT s.is_on_path AND s.end_ns <= o.end_ns THEN greatest(b.ended_ns, o.start_ns) ELSE b.ended_ns END,
        s.sent_ns) AS wait_ns
FROM step s JOIN begun b USING (request_id, place)
ASOF LEFT JOIN (SELECT request_id, start_ns, end_ns FROM step WHERE is_around) o
    ON o.request_id = s.request_id AND s.start_ns >= o.start_ns
"""
_STEP_ORDER = "request_id, start_ns, is_on_path, batch_id"

_LATENCY = "coalesce(response_ns, service_ns)"
_IS_ACCOUNTED = "outcome = 'ok' AND parts_level <> 'none'"
_SUMS = ", ".join(f"sum({column}) FILTER ({_IS_ACCOUNTED}) AS {column}" for column in PARTS)
_REPORT = f"""
SELECT count(*) AS n_requests, count(*) FILTER (outcome = 'ok') AS n_ok,
    count(*) FILTER (join_level = 'exact') AS n_exact,
    count(*) FILTER (outcome = 'ok' AND join_level = 'exact') AS n_ok_exact,
    histogram(join_level) AS n_by_level, histogram(parts_level) AS n_by_parts_level,
    count(*) FILTER (outcome = 'ok' AND tie <> 'none' AND n_kernels > 0) AS n_ok_kernels,
    median(abs(residual_ns) / greatest({_LATENCY}, 1)) FILTER ({_IS_ACCOUNTED}) AS residual_median_ratio,
    sum({_LATENCY}) FILTER ({_IS_ACCOUNTED}) AS latency_ns, {_SUMS}
FROM joined
"""


class JoinReport(Frozen):
    """How well requests, batches and kernels found each other, and what the parts of the latency leave unexplained."""

    n_requests: int
    n_ok: int
    n_exact: int
    n_ok_exact: int
    n_repeated_rows: int
    """Rows of `requests` beyond the first of their request id: 0 in a run that is whole."""
    n_by_level: dict[str, int] | None
    """Requests by join_level; levels without any are left out. None without requests."""
    n_by_parts_level: dict[str, int] | None
    """Requests by parts_level, likewise."""
    n_ok_kernels: int
    """Requests that ended ok and have kernels, of their batch or by time."""
    residual_median_ratio: float | None
    """Median of |residual| / latency over the requests that ended ok and have parts; None of none."""
    sums_ns: dict[str, int]
    """Over the same requests the sum of the latencies, `latency_ns`, and of each part; the parts add up to it."""
    n_duplicate_ids: int
    """Request ids that more than one batch of a model names; the first batch was taken."""
    n_foreign: int
    """Entries of batches that are not rows of `requests`: another client's, or an id we did not plan."""


def write_joined(
    store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES, spread: Spread = in_turn
) -> None:
    """Writes table `joined`, exactly one row per row of `requests`, in order of request_id, and `steps` where any
    request passed several executions.

    Reads the derived table `batch_costs`, and writes it first if the run has none. Without `batches` and
    `triton_traces` every row is joined at level `window` or `none`, its batch columns null. The rows do not depend on
    `memory_limit_bytes` and `spread`. Raises `MissingTable` if the run has no requests. The error of a clock that the
    manifest does not state is null.
    """
    if not store.has("requests"):
        raise MissingTable(f"{store.where} has no table requests")
    if not store.has("batch_costs"):
        write_batch_costs(store, memory_limit_bytes=memory_limit_bytes, spread=spread)
    rows_per_slice = min(_MOST_ROWS, max(_LEAST_ROWS, memory_limit_bytes // _ROW_BYTES))
    with store.passing() as folder:
        sources = write_sources(store, folder, rows_per_slice, memory_limit_bytes)
        files = {"requests": tuple(store.parts("requests")), **sources.files}
        for table, spans in (("joined", sources.spans), ("steps", sources.step_spans)):
            if table == "steps" and not spans:
                continue
            with store.replacing(table) as new:
                slices = [
                    Slice(
                        store.run_dir, store.where, memory_limit_bytes, files, number,
                        {"first": first, "last": last, "is_repeated": sources.is_repeated}, new,
                    )
                    for number, (first, last) in enumerate(spans)
                ]  # fmt: skip
                new.files.update(enumerate(spread(_write_slice, slices)))


def _write_slice(task: Slice) -> SealedFile:
    with task.connect() as connection:
        connection.execute(_OWN.format(rows=ROWS[task.variables["is_repeated"]]))
        if task.new.table == "steps":
            return task.write(connection, _STEPS, _STEP_ORDER)
        rows = connection.sql(f"SELECT * FROM ({_JOINED}) ORDER BY {_ORDER}").to_arrow_table()
        executed = connection.sql(_EXECUTED).to_arrow_table()
        clocks = connection.sql(_CLOCKS).fetchall()
    batches = executed.take(rows["executed_row"].combine_chunks())
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    columns |= dict(zip(batches.column_names, batches.columns, strict=True))
    of_both = pc.add(_errors_at_send(rows, clocks), columns["batch_error_ns"])
    columns["clock_error_ns"] = pc.coalesce(columns["clock_error_ns"], of_both)
    names = arrow_schema("joined").names
    return task.new.write(task.number, pa.table([columns[name] for name in names], names))


def _errors_at_send(rows: pa.Table, clocks: list[tuple[str, list[int], list[int | None]]]) -> pa.Array:
    """Returns the error of the clock of each row's node when the request was sent, or was due where it was not; null
    where it is not known. It is looked up here because an ASOF join by node took half of the query."""
    at_ns = pc.coalesce(rows["sent_ns"], rows["scheduled_ns"]).combine_chunks()
    errors_ns = np.full(rows.num_rows, _UNKNOWN, np.int64)
    for node, from_ns, error_ns in clocks:
        own = np.flatnonzero(pc.equal(rows["node"], node))
        errors = ClockErrors(np.array(from_ns), pa.array(error_ns, pa.int64()))
        errors_ns[own] = errors.at(at_ns.take(pa.array(own))).fill_null(_UNKNOWN)
    return pa.array(errors_ns, mask=errors_ns == _UNKNOWN)


def read_join_report(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> JoinReport:
    """The report of the `joined` table as it stands. Raises `MissingTable` if it was never written."""
    has_batches = store.has("batches")
    with connect(
        store, ["joined", "batches"] if has_batches else ["joined"], memory_limit_bytes
    ) as connection:
        answer = connection.execute(_REPORT)
        names = [column[0] for column in answer.description or []]
        found: dict[str, Any] = dict(zip(names, answer.fetchall()[0], strict=True))
        found["n_repeated_rows"] = n_repeated(connection, "joined")
        named = count_named(connection) if has_batches else (0, 0)
    sums_ns = {name: int(found.pop(name) or 0) for name in ("latency_ns", *PARTS)}
    return JoinReport(sums_ns=sums_ns, n_duplicate_ids=named[0], n_foreign=named[1], **found)
