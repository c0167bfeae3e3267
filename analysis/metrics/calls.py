"""What threads of an instance called: CUDA calls by class, copies by kind, calls into the OS that blocked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.analysis.metrics.measures import Measures, ratio
from squall.analysis.metrics.operations import IS_WHOLE, KEY, OWNER, Row, by_group, covered, pieces

if TYPE_CHECKING:
    import duckdb

# By class within the batches of an instance, and of its processes outside any batch in what is measured of the phase.
# The blocking split: waits by name against copies that block though their names do not say so, of pageable memory.
_CALLS = f"""
WITH counted AS (
    SELECT grp, tie, recorded_by, s.phase, c.node, c.process, call_class, count(*) AS n,
        sum(c.end_ns - c.start_ns) AS ns
    FROM cuda_api c LEFT JOIN numbered USING ({KEY})
    LEFT JOIN spans s ON c.start_ns >= first_ns AND c.start_ns < last_ns
    WHERE c.end_ns >= c.start_ns GROUP BY ALL),
within AS (
    SELECT grp, call_class, sum(n) AS n, sum(ns) AS ns FROM counted WHERE grp IS NOT NULL AND {IS_WHOLE} GROUP BY ALL),
outside AS (
    SELECT p.grp, call_class, sum(n) AS n_outside, sum(ns) AS outside_ns
    FROM counted c JOIN instances i USING (phase)
    JOIN (SELECT DISTINCT grp, node, process FROM numbered WHERE process IS NOT NULL) p
        ON p.grp = i.grp AND p.node = c.node AND p.process = c.process
    WHERE c.grp IS NULL GROUP BY ALL),
classes AS (
    SELECT grp, call_class, coalesce(n, 0) AS n, coalesce(ns, 0) AS ns, coalesce(n_outside, 0) AS n_outside,
        coalesce(outside_ns, 0) AS outside_ns
    FROM within FULL JOIN outside USING (grp, call_class)),
totals AS (
    SELECT grp, sum(ns + outside_ns) AS api_ns,
        coalesce(sum(ns) FILTER (call_class = 'blocking sync'), 0) AS explicit_ns,
        coalesce(sum(ns) FILTER (call_class = 'blocking copy'), 0) AS copy_ns
    FROM classes GROUP BY grp)
SELECT grp, coalesce(any_value(api_ns), 0) AS api_ns,
    list({{
        'call_class': call_class, 'n': n, 'ns': ns, 'n_outside': n_outside, 'outside_ns': outside_ns,
        'per_batch_count': n / nullif(n_tied, 0), 'of_api_ratio': (ns + outside_ns) / nullif(api_ns, 0),
        'of_exec_ratio': ns / nullif(tied_exec_ns, 0), 'of_wall_ratio': (ns + outside_ns) / nullif(wall_ns, 0)}}
        ORDER BY ns + outside_ns DESC, call_class) FILTER (call_class IS NOT NULL) AS classes,
    coalesce(any_value(explicit_ns), 0) / nullif(any_value(tied_exec_ns), 0) AS explicit_wait_of_exec_ratio,
    (any_value(blocked_ns) - coalesce(any_value(explicit_ns), 0) - coalesce(any_value(copy_ns), 0))
        / nullif(any_value(tied_exec_ns), 0) AS pageable_copy_of_exec_ratio
FROM sums LEFT JOIN walls USING (grp) LEFT JOIN totals USING (grp) LEFT JOIN classes USING (grp) GROUP BY grp
"""

_COPIES = f"""
WITH kinds AS (
    SELECT grp, copy_kind, source_kind, destination_kind, count(*) AS n, sum(bytes) AS bytes,
        sum(m.end_ns - m.start_ns) AS device_ns, sum(launch_end_ns - launch_start_ns) AS call_ns,
        count(launch_start_ns) AS n_calls
    FROM memcpys m JOIN numbered USING ({KEY}) WHERE m.end_ns >= m.start_ns AND {IS_WHOLE} GROUP BY ALL)
SELECT grp, list({{
    'copy_kind': copy_kind, 'source_kind': source_kind, 'destination_kind': destination_kind, 'n': n, 'bytes': bytes,
    'mean_bytes': bytes / n, 'device_ns': device_ns, 'device_mean_ns': device_ns / n,
    'bytes_per_s': bytes * 1e9 / nullif(device_ns, 0), 'call_ns': call_ns,
    'call_mean_ns': call_ns / nullif(n_calls, 0),
    'is_pageable': 'pageable' IN (source_kind, destination_kind)}}
    ORDER BY copy_kind, source_kind, destination_kind) AS copies
FROM kinds GROUP BY grp
"""

# Calls of the threads of an instance, cut to what is measured of a recorded phase; `inside`: in ranges of batches.
_OS_WAITS = f"""
WITH ranges AS ({
    pieces("SELECT * FROM nvtx WHERE batch_id IS NOT NULL AND end_ns > start_ns", "node, process, thread")
}),
threads AS (SELECT DISTINCT {OWNER}, node, process, thread FROM picked WHERE thread IS NOT NULL),
calls AS (
    SELECT grp, node, process, thread, name, last_ns - first_ns AS wall_ns,
        greatest(start_ns, first_ns) AS start_ns, least(end_ns, last_ns) AS end_ns
    FROM (SELECT node, process, thread, name, start_ns, end_ns FROM osrt WHERE end_ns >= start_ns)
    JOIN threads USING (node, process, thread) JOIN instances USING ({OWNER})
    JOIN (FROM spans WHERE is_recorded) USING (phase) WHERE end_ns > first_ns AND start_ns < last_ns),
placed AS (
    SELECT c.*, {covered("c.end_ns", "b")} - {covered("c.start_ns", "a")} AS inside_ns
    FROM calls c
    ASOF LEFT JOIN ranges a
        ON c.node = a.node AND c.process = a.process AND c.thread = a.thread AND c.start_ns >= a.from_ns
    ASOF LEFT JOIN ranges b
        ON c.node = b.node AND c.process = b.process AND c.thread = b.thread AND c.end_ns >= b.from_ns),
named AS (
    SELECT grp, process, thread, name, count(*) AS n, count(*) FILTER (inside_ns > 0) AS n_inside,
        sum(end_ns - start_ns) AS ns, sum(inside_ns) AS inside_ns, any_value(wall_ns) AS wall_ns
    FROM placed GROUP BY grp, process, thread, name)
SELECT grp, list({{
    'process': process, 'thread': thread, 'name': name, 'n': n, 'n_inside': n_inside, 'ns': ns, 'inside_ns': inside_ns,
    'of_wall_ratio': ns / wall_ns, 'inside_of_wall_ratio': inside_ns / wall_ns}}
    ORDER BY process, thread, ns DESC, name) AS os_waits
FROM named GROUP BY grp
"""


def call_figures(connection: duckdb.DuckDBPyConnection) -> dict[int, Row]:
    """CUDA calls of each group by class, and their shares. Needs `sums` and `walls`."""
    return {
        grp: {**row, "classes": row["classes"] or ()} for grp, row in by_group(connection, _CALLS).items()
    }


def copy_figures(connection: duckdb.DuckDBPyConnection) -> dict[int, list[Row]]:
    """Figures of each kind of copy and of memory, of the groups that have any."""
    return {grp: row["copies"] for grp, row in by_group(connection, _COPIES).items()}


def os_waits(connection: duckdb.DuckDBPyConnection) -> dict[int, list[Row]]:
    """Of each group a row for each of its threads and each name, of phases that were recorded.

    A call may run on while its range ends: each part counts where it lies. Nested calls count twice, as nsys lists
    them.
    """
    return {grp: row["os_waits"] for grp, row in by_group(connection, _OS_WAITS).items()}


def copy_measures(copies: list[Row], kernel_ns: int | None) -> Measures:
    """The measures of the copies of an instance whose batches are tied to the profile; none of no copies."""
    n, n_bytes, device_ns = (sum(row[name] for row in copies) for name in ("n", "bytes", "device_ns"))
    return {
        "copy_mean_bytes": ratio(n_bytes, n),
        "pageable_bytes_ratio": ratio(sum(row["bytes"] for row in copies if row["is_pageable"]), n_bytes),
        "copy_to_kernel_ratio": ratio(device_ns, kernel_ns),
    }
