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

from pathlib import Path
from typing import TYPE_CHECKING, Any

from squall.analysis.join.executions import add_executions
from squall.analysis.recorded import add_windows
from squall.analysis.storage.collected import ProfiledPhase
from squall.analysis.storage.object_folder import ObjectFolder, Part
from squall.analysis.storage.query import add_view, attach, rows, write_rows
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import phase_spans

if TYPE_CHECKING:
    import duckdb

EVENTS = ("kernels", "memcpys", "memsets", "cuda_api", "nvtx", "osrt")
EVENT_BYTES = 500
"""Memory that an operation or a call takes while its slice is worked on, with room."""
MOST_EVENTS = 1_000_000
"""In a slice: larger ones are no faster."""

# An instance is idle from the latest end `before` to its next start; `until` and `next` are of the whole server.
_SLICED = """
    WITH
    -- Batch that has an NVTX range.
    ranges AS MATERIALIZED (
        SELECT server, instance, instance_device, batch_id, min(start_ns) AS range_start_ns,
            arg_min(end_ns, start_ns) AS range_end_ns, arg_min(process, start_ns) AS process,
            arg_min(thread, start_ns) AS thread
        FROM nvtx WHERE batch_id IS NOT NULL AND end_ns >= start_ns GROUP BY ALL),
    -- How much the reports hold of a server and phase.
    recorded AS MATERIALIZED (
        SELECT server, phase, count(*) FILTER (is_op) AS n_ops, count(*) FILTER (NOT is_op) AS n_calls,
            count(batch_id) > 0 AS has_ids
        FROM (
            SELECT server, phase, batch_id, true AS is_op FROM kernels
            UNION ALL SELECT server, phase, batch_id, true FROM memcpys
            UNION ALL SELECT server, phase, batch_id, true FROM memsets
            UNION ALL SELECT server, phase, batch_id, false FROM cuda_api)
        GROUP BY server, phase),
    -- Server of which no event has a batch. One that the library recorded must have some event: without any its windows
    -- say that nothing ran.
    bare AS (
        SELECT server FROM (SELECT DISTINCT server FROM executions) ANTI JOIN ranges USING (server)
        LEFT JOIN (SELECT server, bool_or(has_ids) AS has_ids FROM recorded GROUP BY server) USING (server)
        WHERE NOT coalesce(has_ids, server IN (SELECT server FROM recorded_windows))),
    -- Instant from which a phase was recorded, of one that was not from before all.
    phase_starts AS (SELECT unnest($phases::VARCHAR[]) AS phase, unnest($starts_ns::BIGINT[]) AS from_ns),
    -- Server that has no GPU: no operation means that there was none.
    without_gpu AS (SELECT unnest($without_gpu::VARCHAR[]) AS server),
    -- Events a batch.
    weights AS (
        SELECT server, phase, 1 + coalesce(greatest(max(n_ops), max(n_calls)), 0) / count(*) AS weight
        FROM executions LEFT JOIN recorded USING (server, phase) GROUP BY server, phase)
    SELECT * EXCLUDE (before_ns, until_ns, next_ns, load, from_ns),
        CASE WHEN before_ns IS NOT NULL THEN greatest(0, start_ns - before_ns) END AS gap_before_ns,
        CASE WHEN end_ns < start_ns OR (is_by_library AND NOT is_in_window) THEN 'none'
            WHEN (server, model) IN (SELECT (server, model) FROM decoupled) THEN 'none'
            WHEN NOT is_bare THEN 'range'
            WHEN server IN (SELECT server FROM executions SEMI JOIN decoupled USING (server, model)) THEN 'none'
            WHEN (is_by_library OR start_ns >= from_ns) AND coalesce(until_ns <= start_ns, true)
                    AND coalesce(next_ns >= end_ns, true)
                THEN 'window'
            ELSE 'none' END AS tie,
        start_ns + CASE WHEN until_ns = start_ns THEN 1 ELSE 0 END AS open_from_ns,
        end_ns - CASE WHEN next_ns = end_ns THEN 1 ELSE 0 END AS open_to_ns,
        CAST(floor(load / $n_events) AS BIGINT) AS part
    FROM (
        SELECT e.*, range_start_ns, range_end_ns, process, thread, b.server IS NOT NULL AS is_bare,
            CASE WHEN k.n_ops > 0 THEN coalesce(d.from_ns, -9223372036854775808) END AS from_ns,
            l.server IS NOT NULL AS is_by_library, coalesce(end_ns <= closes_ns, false) AS is_in_window,
            CASE WHEN is_by_library THEN is_in_window AND has_kernels
                ELSE coalesce(k.n_ops > 0, false) OR g.server IS NOT NULL END AS has_ops,
            CASE WHEN is_by_library THEN is_in_window AND v.has_copies
                ELSE coalesce(k.n_ops > 0, false) OR g.server IS NOT NULL END AS has_copies,
            CASE WHEN is_by_library THEN is_in_window AND v.has_calls
                ELSE coalesce(k.n_calls > 0, false) OR g.server IS NOT NULL END AS has_calls,
            max(end_ns) OVER (PARTITION BY e.server, model, e.instance, e.instance_device ORDER BY start_ns, e.batch_id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns,
            max(end_ns) OVER (of_server ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns,
            lead(start_ns) OVER of_server AS next_ns,
            sum(weight) OVER (of_server ROWS UNBOUNDED PRECEDING) AS load
        FROM executions e JOIN weights w ON w.server = e.server AND w.phase = e.phase
        LEFT JOIN ranges r
            ON e.source <> 'trace' AND r.server = e.server AND r.instance = e.instance
            AND r.instance_device = e.instance_device AND r.batch_id = e.batch_id
        LEFT JOIN bare b ON b.server = e.server
        LEFT JOIN recorded k ON k.server = e.server AND k.phase = e.phase
        LEFT JOIN phase_starts d ON d.phase = e.phase
        LEFT JOIN without_gpu g ON g.server = e.server
        LEFT JOIN (SELECT DISTINCT server FROM recorded_windows) l ON l.server = e.server
        ASOF LEFT JOIN (
            SELECT server, start_ns AS opens_ns, end_ns AS closes_ns, has_kernels, has_copies, has_calls
            FROM recorded_windows) v ON v.server = e.server AND e.start_ns >= v.opens_ns
        WINDOW of_server AS (PARTITION BY e.server ORDER BY start_ns, end_ns, e.batch_id))
    ORDER BY server, start_ns
"""
_SLICES = """
SELECT server, part, bool_or(is_bare) AS is_bare, bool_or(is_by_library) AS is_by_library,
    min(batch_id) AS first_id, max(batch_id) AS last_id, min(open_from_ns) AS opens_ns, max(open_to_ns) AS closes_ns,
    min(coalesce(range_start_ns, start_ns)) AS first_ns, max(coalesce(range_end_ns, end_ns)) AS last_ns
FROM sliced GROUP BY server, part ORDER BY server, part
"""
"""Executions `part` of a server, and what their events are found by: their ids, or the instants at which they were
open, and those from which to which their threads may have waited."""


def plan_slices(
    connection: duckdb.DuckDBPyConnection,
    store: RunStore,
    folder: Path | ObjectFolder,
    memory_limit_bytes: int,
) -> tuple[tuple[Part, ...], list[dict[str, Any]]]:
    """Writes the executions of the run to Parquet files in `folder`, by server and start, and returns these, and their
    slices, each by the names of `_SLICES`.

    Columns: those of `executions`, range_start_ns, range_end_ns, process, thread (of its range), tie (range or window:
    it may be tied so; none: it cannot be), has_ops, has_copies, has_calls (the server's were recorded in its phase, or
    in its window; of a server without a GPU, which has none, they were), is_bare (no event of its server has a batch),
    is_by_library (the library recorded its server), is_in_window (one of its windows holds all of it), gap_before_ns,
    open_from_ns, open_to_ns (the instants at which it alone was open, both included), part. Raises AnalysisError where
    two batches have one key.
    """
    add_executions(connection, store)
    attach(connection, store, EVENTS)
    add_windows(connection, store)
    manifest, late = store.manifest, store.manifest.profiled_phases
    starts_ns = {
        span.name: span.start_ns + (late.get(span.name, ProfiledPhase()).profiled_after_ns or 0)
        for span in phase_spans(manifest)
    }
    facts: dict[str, Any] = {
        "phases": [*starts_ns],
        "starts_ns": [*starts_ns.values()],
        "without_gpu": [name for name in manifest.servers if manifest.is_without_gpu(name)],
        "n_events": max(min(memory_limit_bytes // 2 // EVENT_BYTES, MOST_EVENTS), 1),
    }
    files = write_rows(connection, _SLICED, folder, "executions", facts)
    add_view(connection, "sliced", files)
    return files, rows(connection, _SLICES)
