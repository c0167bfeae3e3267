"""Table `batch_costs`: what every execution did on CPU and GPU, and where its time went.

    execution   start ├─────────────────────────────────────────────┤ end
    operations        ┆  head  ├██████┤      ├████┤  ├███┤   tail   ┆
    blocking calls    ┆               ├───┤        ├────────────┤   ┆
    body                       ├──────┼───┼──┼────┼──┼───┤
                                busy   sync launch busy

    length = head + (kernel busy + copy exposed + sync wait + launch idle) + tail

Operations are tied to executions by the batch that ingest gave them, never by correlation id alone; `batch_slices` says
how where they have none. An execution whose range was still open when the recording stopped is tied to what was
recorded of it; one without any event, of a server whose events have batches, was not recorded. Where no operation, or
no call, of its server was recorded in the phase, what that would tell of it is null.

Of what the kernel library recorded in windows an execution has all or nothing: one that no window holds from its start
to its end is tied `none`, whatever kernels of it there are, and one in a window that launched nothing has zeros.

All is SQL but the unions of intervals, `unions`: with window functions a trial over 6 million events took 2.7 times the
CPU time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.intervals import Covered
from squall.analysis.join.batch_slices import EVENTS, plan_slices
from squall.analysis.join.slices import Slice
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, Spread, connect, in_turn
from squall.analysis.storage.sealed import SealedFile
from squall.analysis.storage.store import RunStore

if TYPE_CHECKING:
    import duckdb

_BATCHES = """
-- Execution of the slice by `row`, from 0: its scope is its range, else its own span, to which OS waits are cut.
CREATE TEMP TABLE batch AS
SELECT *, row_number() OVER (ORDER BY start_ns, instance, instance_device, model, batch_id) - 1 AS row,
    greatest(start_ns, end_ns) AS until_ns, coalesce(range_start_ns, start_ns) AS scope_start_ns,
    coalesce(range_end_ns, until_ns) AS scope_end_ns
FROM executions WHERE server = getvariable('server') AND part = getvariable('part')
"""
_OPS = " UNION ALL ".join(
    f"""
    SELECT server, instance, instance_device, batch_id, start_ns, end_ns, launch_start_ns, process, gpu_uuid,
        coalesce(launch_start_ns, CASE WHEN getvariable('is_by_library') THEN start_ns END) AS at_ns,
        {table == "kernels"} AS is_kernel
    FROM {table}
    """
    for table in ("kernels", "memcpys", "memsets")
)
_COPIES = """
SELECT server, instance, instance_device, batch_id, start_ns, end_ns, bytes, copy_kind,
    coalesce(launch_start_ns, CASE WHEN getvariable('is_by_library') THEN start_ns END) AS at_ns,
    'pageable' IN (source_kind, destination_kind) AS is_pageable,
    -- the call behind it by number: process ids have 22 bits on Linux, CUPTI's correlation ids 32
    (process << 32) + correlation_id AS call
FROM memcpys
"""
_CALLS = """
SELECT server, instance, instance_device, batch_id, start_ns, end_ns, start_ns AS at_ns, process, thread, call_class,
    correlation_id, (process << 32) + correlation_id AS call
FROM cuda_api
"""
_BY_RANGE = """
CREATE TEMP TABLE {table} AS
SELECT b.row, {columns} FROM ({events}) e
JOIN batch b ON b.tie = 'range' AND b.source <> 'trace'
    AND e.instance = b.instance AND e.instance_device = b.instance_device AND e.batch_id = b.batch_id
WHERE e.server = getvariable('server') AND e.end_ns >= e.start_ns
    AND e.batch_id BETWEEN getvariable('first_id') AND getvariable('last_id')
"""
_BY_TIME = """
CREATE TEMP TABLE {table} AS
SELECT b.row, {columns} FROM ({events}) e
ASOF JOIN (FROM batch WHERE tie = 'window' AND open_from_ns <= open_to_ns) b ON e.at_ns >= b.open_from_ns
WHERE e.server = getvariable('server') AND e.end_ns >= e.start_ns AND e.at_ns <= b.open_to_ns
    AND e.at_ns BETWEEN getvariable('opens_ns') AND getvariable('closes_ns')
"""
_OP_COLUMNS = "e.start_ns, e.end_ns, launch_start_ns, e.process, gpu_uuid, is_kernel"
_COPY_COLUMNS = "e.end_ns - e.start_ns AS copy_ns, bytes, copy_kind, is_pageable, call"
_CALL_COLUMNS = """
e.start_ns, e.end_ns, e.process, e.thread, correlation_id,
CASE WHEN call_class IN ('launch', 'graph launch') THEN 1 WHEN call_class = 'blocking sync' THEN 2
    WHEN call_class = 'allocation' THEN 3 ELSE 0 END AS kind,
-- an asynchronous copy of pageable memory blocks as the blocking calls do
call_class IN ('blocking sync', 'blocking copy') OR coalesce(
    CASE WHEN call_class = 'async copy' THEN call END IN (SELECT call FROM copies WHERE is_pageable), false) AS blocks
"""
_EVENTS = (("ops", _OP_COLUMNS, _OPS), ("copies", _COPY_COLUMNS, _COPIES), ("calls", _CALL_COLUMNS, _CALLS))

_SUMS = """
-- Operations of a batch, added up: kernels, and with copies and sets.
CREATE TEMP TABLE op_sums AS
SELECT row, sum(n_kernels) AS n_kernels, sum(n_ops) - sum(n_kernels) AS n_copies, sum(kernel_ns) AS kernel_ns,
    sum(op_ns) - sum(kernel_ns) AS copy_ns, min(first_op_ns) AS first_op_ns, max(last_op_ns) AS last_op_ns,
    max(last_launch_ns) AS last_launch_ns,
    -- of the GPUs with any operation the one with most kernel time, by name first
    first(gpu_uuid ORDER BY kernel_ns DESC, gpu_uuid) AS gpu_uuid
FROM (
    SELECT row, gpu_uuid, count(*) AS n_ops, sum(is_kernel::INT) AS n_kernels, sum(end_ns - start_ns) AS op_ns,
        sum(if(is_kernel, end_ns - start_ns, 0)) AS kernel_ns, min(start_ns) AS first_op_ns,
        max(end_ns) AS last_op_ns, max(launch_start_ns) AS last_launch_ns
    FROM ops GROUP BY row, gpu_uuid)
GROUP BY row;

-- Its CUDA calls, likewise.
CREATE TEMP TABLE call_sums AS
SELECT row, sum((kind = 1)::INT) AS n_launches, sum(blocks::INT) AS n_blocks,
    -- calls that block and end before some operation of the batch is launched
    sum(coalesce(blocks AND c.end_ns < o.last_launch_ns, false)::INT) AS n_mid_blocks,
    min(start_ns) AS first_call_ns, max(c.end_ns) AS last_call_ns
FROM calls c LEFT JOIN op_sums o USING (row) GROUP BY row;

-- Process and thread of a batch: of its range, else of its first call; of one that the library recorded without calls
-- the process of its first operation.
CREATE TEMP TABLE ran_in AS
SELECT b.row, coalesce(b.process, c.process, o.process) AS process, coalesce(b.thread, c.thread) AS thread
FROM batch b
LEFT JOIN (
    SELECT DISTINCT ON (row) c.row, c.process, c.thread FROM calls c JOIN batch b USING (row) WHERE b.process IS NULL
    ORDER BY c.row, c.start_ns, c.end_ns, c.correlation_id) c USING (row)
LEFT JOIN (
    SELECT row, min(process) AS process FROM ops JOIN op_sums USING (row)
    WHERE getvariable('is_by_library') AND start_ns = first_op_ns GROUP BY row) o USING (row);

-- Whether events tell of a batch, whatever its phase: one at the edge of a recording begins in another. Of one that
-- the library recorded its windows say what there is.
CREATE TEMP TABLE told AS
SELECT row, tie, tie <> 'none' AND (has_ops OR has_own_ops) AS has_ops,
    tie <> 'none' AND (has_copies OR has_own_ops) AS has_copies,
    tie <> 'none' AND (has_calls OR has_own_calls) AS has_calls
FROM (
    SELECT b.* EXCLUDE (tie), o.row IS NOT NULL AND NOT is_by_library AS has_own_ops,
        c.row IS NOT NULL AND NOT is_by_library AS has_own_calls,
        CASE WHEN b.tie = 'range' AND o.row IS NULL AND c.row IS NULL AND range_start_ns IS NULL
            AND NOT is_in_window THEN 'none' ELSE b.tie END AS tie
    FROM batch b LEFT JOIN op_sums o USING (row) LEFT JOIN call_sums c USING (row))
"""
_SPANS = """
-- Of a batch its own span, that of its operations within it (its end, twice, where it has none), and that of all
-- events with it.
SELECT row, start_ns, until_ns, least(greatest(coalesce(first_op_ns, until_ns), start_ns), until_ns) AS begin_ns,
    least(greatest(coalesce(last_op_ns, until_ns), begin_ns), until_ns) AS done_ns,
    least(start_ns, first_op_ns, first_call_ns) AS first_ns,
    greatest(until_ns, last_op_ns, last_call_ns) AS last_ns
FROM batch LEFT JOIN op_sums USING (row) LEFT JOIN call_sums USING (row) ORDER BY row
"""
_COSTS = f"""
WITH copy_sums AS (
    SELECT row, sum(copy_ns) FILTER (copy_kind = 'HtoD') AS h2d_ns, sum(copy_ns) FILTER (copy_kind = 'DtoH') AS d2h_ns,
        sum(bytes) FILTER (copy_kind = 'HtoD') AS h2d_bytes, sum(bytes) FILTER (copy_kind = 'DtoH') AS d2h_bytes,
        sum(bytes) FILTER (is_pageable) AS pageable_bytes
    FROM copies GROUP BY row),
-- Time of its thread in OS-runtime calls that start in its scope, cut to that: each adds what those before it left.
os_waits AS (
    SELECT row, sum(greatest(0, least(end_ns, scope_end_ns) - greatest(start_ns, reached_ns))) AS os_wait_ns
    FROM (
        SELECT s.row, s.scope_end_ns, o.start_ns, o.end_ns, max(o.end_ns) OVER (
            PARTITION BY s.row ORDER BY o.start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached_ns
        FROM osrt o ASOF JOIN (
            SELECT b.*, r.process, r.thread FROM (SELECT row, scope_start_ns, scope_end_ns FROM batch) b
            JOIN ran_in r USING (row) JOIN told t USING (row) WHERE t.tie <> 'none' AND r.thread IS NOT NULL) s
            ON o.process = s.process AND o.thread = s.thread AND o.start_ns >= s.scope_start_ns
        WHERE o.server = getvariable('server') AND o.end_ns >= o.start_ns AND o.start_ns < s.scope_end_ns
            AND o.start_ns BETWEEN getvariable('first_ns') AND getvariable('last_ns'))
    GROUP BY row)
SELECT b.* EXCLUDE (tie, process, thread), t.tie, getvariable('run') AS run, coalesce(o.gpu_uuid, '') AS gpu_uuid,
    CASE WHEN is_tied THEN r.process END AS process,
    CASE WHEN is_tied AND r.process IS NOT NULL THEN r.thread END AS thread,
    -- what operations tell
    CASE WHEN t.has_ops THEN coalesce(o.n_kernels, 0)::BIGINT END AS n_kernels,
    CASE WHEN t.has_ops THEN coalesce(o.kernel_ns, 0)::BIGINT END AS kernel_ns,
    CASE WHEN t.has_ops THEN u.kernel_busy_ns END AS kernel_busy_ns,
    -- what copies tell too
    CASE WHEN has_all THEN coalesce(o.n_copies, 0)::BIGINT END AS n_copies,
    CASE WHEN has_all THEN coalesce(o.copy_ns, 0)::BIGINT END AS copy_ns,
    CASE WHEN has_all THEN coalesce(m.h2d_ns, 0)::BIGINT END AS h2d_ns,
    CASE WHEN has_all THEN coalesce(m.d2h_ns, 0)::BIGINT END AS d2h_ns,
    CASE WHEN has_all THEN coalesce(m.h2d_bytes, 0)::BIGINT END AS h2d_bytes,
    CASE WHEN has_all THEN coalesce(m.d2h_bytes, 0)::BIGINT END AS d2h_bytes,
    CASE WHEN has_all THEN coalesce(m.pageable_bytes, 0)::BIGINT END AS pageable_bytes,
    -- a copy or set ran and no kernel did
    CASE WHEN has_all THEN u.busy_ns - u.kernel_busy_ns END AS copy_exposed_ns,
    -- head: before the first operation; tail: after the last
    CASE WHEN has_all THEN s.begin_ns - s.start_ns END AS head_ns,
    CASE WHEN has_all THEN s.until_ns - s.done_ns END AS tail_ns,
    CASE WHEN has_all THEN u.overrun_ns END AS overrun_ns,
    -- what calls tell
    CASE WHEN t.has_calls THEN coalesce(c.n_launches, 0)::BIGINT END AS n_launches,
    CASE WHEN t.has_calls THEN u.launch_ns END AS launch_ns,
    CASE WHEN t.has_calls THEN u.blocked_ns END AS blocked_ns,
    CASE WHEN t.has_calls THEN coalesce(c.n_blocks, 0)::BIGINT END AS n_blocks,
    CASE WHEN t.has_calls THEN u.sync_ns END AS sync_ns,
    CASE WHEN t.has_calls THEN u.alloc_ns END AS alloc_ns,
    CASE WHEN t.has_calls THEN u.api_ns END AS api_ns,
    -- what both tell
    CASE WHEN has_all AND t.has_calls THEN u.blocked_busy_ns END AS blocked_busy_ns,
    CASE WHEN has_all AND t.has_calls THEN coalesce(c.n_mid_blocks, 0)::BIGINT END AS n_mid_blocks,
    -- sync wait: GPU idle between first and last operation, the thread in a call that blocks
    CASE WHEN has_all AND t.has_calls THEN u.sync_wait_ns END AS sync_wait_ns,
    -- launch idle: GPU idle there otherwise, for nothing had been launched yet
    CASE WHEN has_all AND t.has_calls THEN s.done_ns - s.begin_ns - u.busy_ns - u.sync_wait_ns END AS launch_idle_ns,
    CASE WHEN is_tied AND r.process IS NOT NULL AND r.thread IS NOT NULL AND getvariable('has_osrt')
        THEN coalesce(w.os_wait_ns, 0)::BIGINT END AS os_wait_ns
FROM batch b
JOIN (SELECT *, tie <> 'none' AS is_tied, has_ops AND has_copies AS has_all FROM told) t USING (row)
JOIN ran_in r USING (row) JOIN unions u USING (row) JOIN ({_SPANS}) s USING (row)
LEFT JOIN op_sums o USING (row) LEFT JOIN copy_sums m USING (row) LEFT JOIN call_sums c USING (row)
LEFT JOIN os_waits w USING (row)
"""


def write_batch_costs(
    store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES, spread: Spread = in_turn
) -> int:
    """Writes derived table `batch_costs`, a row per execution, and returns its rows; a part a slice.

    Rows come by server and start. Each slice is worked on within the memory limit, wherever `spread` has it done.
    Without a report every row is tied `none`. Raises AnalysisError where two batches have one key.
    """
    with (
        store.replacing("batch_costs") as new,
        store.passing() as folder,
    ):
        with connect(store, [], memory_limit_bytes) as connection:
            executions, planned = plan_slices(connection, store, folder, memory_limit_bytes)
        files = {"executions": executions} | {
            table: tuple(store.parts(table)) for table in EVENTS if table != "nvtx"
        }
        of_run = {"run": store.run, "has_osrt": store.has("osrt")}
        slices = [
            Slice(store.run_dir, store.where, memory_limit_bytes, files, number, one | of_run, new)
            for number, one in enumerate(planned)
        ]
        new.files.update(enumerate(spread(_write_slice, slices)))
        return sum(file.rows for file in new.files.values())


def _write_slice(task: Slice) -> SealedFile:
    tied = _BY_TIME if task.variables["is_bare"] else _BY_RANGE
    with task.connect() as connection:
        connection.execute(_BATCHES)
        for table, columns, events in _EVENTS:
            connection.execute(tied.format(table=table, columns=columns, events=events))
        connection.execute(_SUMS)
        spans = _columns(connection, _SPANS)
        found = unions(
            spans,
            _columns(connection, "SELECT row, start_ns, end_ns, is_kernel FROM ops"),
            _columns(connection, "SELECT row, start_ns, end_ns, kind, blocks FROM calls"),
        )
        connection.register("unions", pa.table({"row": spans["row"], **found}))
        return task.write(connection, _COSTS, "row")


def _columns(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    found: dict[str, Any] = connection.sql(query).fetchnumpy()
    return found


def unions(spans: dict[str, Any], ops: dict[str, Any], calls: dict[str, Any]) -> dict[str, Int64s]:
    """Columns of `batch_costs` by name, (n_batches,) each, of which several intervals may cover the same time, and
    `busy_ns`, that of all operations within the batch.

    `ops` and `calls` come in any order; `row` is the batch of each. Times of calls are unions too: a call within
    another counts once.

    Batches overlap in time, so each gets a place of its own on one axis that holds all of its events; places come one
    after another with a ns between them. A union over the axis then is the union of each batch, and one sort and one
    running maximum serve them all.
    """
    bounds = np.concatenate(([0], np.cumsum(spans["last_ns"] - spans["first_ns"] + 1)))
    shift = bounds[:-1] - spans["first_ns"]
    first, begin, end, last = (
        spans[name] + shift for name in ("start_ns", "begin_ns", "done_ns", "until_ns")
    )

    def on_axis(events: dict[str, Any]) -> dict[str, Any]:
        place = shift[events["row"]]
        start = events["start_ns"] + place
        order = np.argsort(start, kind="stable")  # nearly sorted as it comes: runs are merged
        return {**{name: values[order] for name, values in events.items()},
                "start": start[order], "end": (events["end_ns"] + place)[order]}  # fmt: skip

    def covered(events: dict[str, Any], chosen: Bools | slice = slice(None)) -> Covered:
        return Covered.of(events["start"][chosen], events["end"][chosen])

    def by_batch(some: Covered) -> Int64s:
        return np.diff(some.before(bounds))

    ops, calls = on_axis(ops), on_axis(calls)
    on_gpu, kernels = covered(ops), covered(ops, ops["is_kernel"])
    blocking = covered(calls, calls["blocks"])
    launches, syncs, allocations = (covered(calls, calls["kind"] == kind) for kind in (1, 2, 3))
    blocked_from, blocked_to = blocking.stretches()
    row = np.searchsorted(bounds, blocked_from, side="right") - 1
    in_body_from, in_body_to = (np.clip(at, begin[row], end[row]) for at in (blocked_from, blocked_to))
    waited = in_body_to - in_body_from - on_gpu.between(in_body_from, in_body_to)
    return {
        "busy_ns": on_gpu.between(first, last),
        "kernel_busy_ns": kernels.between(first, last),
        "overrun_ns": on_gpu.between(last, bounds[1:] - 1),
        "launch_ns": by_batch(launches),
        "sync_ns": by_batch(syncs),
        "alloc_ns": by_batch(allocations),
        "api_ns": by_batch(covered(calls)),
        "blocked_ns": by_batch(blocking),
        "blocked_busy_ns": _total(row, on_gpu.between(blocked_from, blocked_to), len(first)),
        "sync_wait_ns": _total(row, waited, len(first)),
    }


def _total(row: Int64s, values: Int64s, n_rows: int) -> Int64s:
    """Sum of `values` by `row`; exact while a sum stays below 2^53."""
    return np.bincount(row, weights=values, minlength=n_rows).astype(np.int64)
