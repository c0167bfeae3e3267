"""Where the time of instances goes, from the costs of their batches: sums over batches, and the wall in parts.

What head, sync wait, launch idle and the other parts of one batch are: `squall.analysis.join.batch_costs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.analysis.metrics.operations import KEY, OWNER, Row, by_group, covered, number_batches, pieces

if TYPE_CHECKING:
    import duckdb

_SUMMED = (
    "kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns", "head_ns", "tail_ns", "launch_ns",
    "blocked_ns", "blocked_busy_ns", "n_mid_blocks", "n_blocks", "n_launches", "kernel_ns", "os_wait_ns", "overrun_ns",
)  # fmt: skip

_LEFT = "end_ns - start_ns - head_ns - kernel_busy_ns - copy_exposed_ns - tail_ns"
BODY_IDLE = f"CASE WHEN {_LEFT} IS NOT NULL THEN coalesce(sync_wait_ns + launch_idle_ns, {_LEFT}) END"
"""SQL: idle between the first and the last operation of a batch. Where no calls tell its two parts apart it is what is
left of the batch; where they do, that the parts of a wall add up is a check."""

_MEANS = ("head_ns", "tail_ns", "kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns")
# Over the batches in `picked`; what the profile tells over those that are tied to it.
_SUMS = f"""
CREATE TEMP TABLE sums AS
WITH summed AS (
    SELECT phase, {OWNER}, any_value(node) AS node, count(*) AS n_own, count(*) FILTER (tie <> 'none') AS n_tied,
        count(*) FILTER (tie = 'range') AS n_ranged, sum(end_ns - start_ns) AS exec_ns,
        sum(end_ns - start_ns) FILTER (tie <> 'none') AS tied_exec_ns, sum(rows) AS n_rows,
        coalesce(mode(gpu_uuid) FILTER (gpu_uuid <> ''), '') AS gpu_uuid,
        sum({BODY_IDLE}) FILTER (tie <> 'none') AS idle_ns,
        {", ".join(f"sum({name}) FILTER (tie <> 'none') AS {name}" for name in _SUMMED)}
    FROM picked GROUP BY ALL)
SELECT grp, key, s.* EXCLUDE (exec_ns, n_rows, idle_ns), n_tied AS n_profiled,
    kernel_busy_ns + copy_exposed_ns AS gpu_ns,
    os_wait_ns / nullif(tied_exec_ns, 0) AS os_wait_of_exec_ratio,
    {{
        'exec': tied_exec_ns / nullif(n_tied, 0),
        {", ".join(f"'{name.removesuffix('_ns')}': {name} / nullif(n_tied, 0)" for name in _MEANS)}
    }} AS mean_ns,
    {{
        'n_batches': n_own::DOUBLE,
        'profiled_ratio': n_tied / n_own,
        'exec_mean_ns': exec_ns / n_own,
        'batch_rows_mean': n_rows / n_own,
        'head_tail_of_exec_ratio': (head_ns + tail_ns) / nullif(tied_exec_ns, 0),
        'body_busy_ratio': gpu_ns / nullif(gpu_ns + idle_ns, 0),
        'body_idle_of_exec_ratio': idle_ns / nullif(tied_exec_ns, 0),
        'gpu_busy_of_exec_ratio': gpu_ns / nullif(tied_exec_ns, 0),
        'blocked_of_exec_ratio': blocked_ns / nullif(tied_exec_ns, 0),
        'blocked_gpu_busy_ratio': blocked_busy_ns / nullif(blocked_ns, 0),
        'mid_blocks_per_batch': n_mid_blocks / nullif(n_tied, 0),
        'launches_per_batch': n_launches / nullif(n_tied, 0),
        'launch_of_exec_ratio': launch_ns / nullif(tied_exec_ns, 0),
        'copy_exposed_of_body_ratio': copy_exposed_ns / nullif(gpu_ns + idle_ns, 0)
    }} AS measures
FROM summed s JOIN instances USING (phase, {OWNER})
"""

# A report. Wall of an instance: from the start of what is measured, or the end of a batch that reached into it, to its
# end, or the end of the last batch begun in it. A row is a batch with the idle time before it: of the first one that
# since the wall began. `waited_ns`: as long of it a request of the batch waited.
_LAID = f"""
CREATE TEMP TABLE laid AS
WITH own AS (
    SELECT b.*, s.first_ns, s.last_ns FROM batch_costs b JOIN spans s USING (phase)
    WHERE b.start_ns >= s.first_ns AND (server, phase) NOT IN (SELECT (server, phase) FROM held)),
earlier AS (
    SELECT s.phase, {OWNER}, max(b.end_ns) AS before_ns
    FROM batch_costs b JOIN spans s ON b.start_ns < s.first_ns GROUP BY ALL),
ends AS (
    SELECT phase, {OWNER}, min((start_ns, batch_id)) AS first_batch, max(end_ns) AS last_end_ns,
        greatest(any_value(first_ns), coalesce(any_value(before_ns), any_value(first_ns))) AS wall_start_ns,
        greatest(any_value(last_ns), max(end_ns)) AS wall_end_ns
    FROM own LEFT JOIN earlier USING (phase, {OWNER}) GROUP BY ALL)
SELECT phase, {OWNER}, own.start_ns, own.end_ns, wall_start_ns, wall_end_ns, last_end_ns, tie, head_ns, tail_ns,
    kernel_busy_ns + copy_exposed_ns AS busy_ns, {BODY_IDLE} AS body_idle_ns, w.idle_wait_ns,
    (own.start_ns, batch_id) = first_batch AS is_first,
    CASE WHEN is_first THEN greatest(0, own.start_ns - wall_start_ns)
        WHEN own.start_ns > first_batch[1] THEN gap_before_ns ELSE 0 END AS idle_ns,
    least(idle_ns, coalesce(w.idle_wait_ns, 0)) AS waited_ns
FROM own JOIN ends USING (phase, {OWNER}) LEFT JOIN waits w USING ({OWNER}, batch_id)
"""
_OF_REPORTS = f"""
SELECT phase, {OWNER}, any_value(wall_end_ns - wall_start_ns) AS wall_ns,
    sum(idle_ns) FILTER (is_first) + any_value(wall_end_ns - last_end_ns) AS edges_ns,
    sum(end_ns - start_ns) AS exec_ns,
    coalesce(sum(end_ns - start_ns) FILTER (tie = 'none' OR head_ns IS NULL), 0) AS unprofiled_ns,
    sum(busy_ns) FILTER (tie <> 'none') AS busy_ns, sum(body_idle_ns) FILTER (tie <> 'none') AS body_idle_ns,
    sum(head_ns) FILTER (tie <> 'none') AS head_ns, sum(tail_ns) FILTER (tie <> 'none') AS tail_ns,
    coalesce(sum(idle_ns) FILTER (NOT is_first), 0) AS between_ns,
    coalesce(sum(waited_ns) FILTER (NOT is_first), 0) + coalesce(any_value(unserved_ns), 0) AS waiting_ns,
    sum(waited_ns) FILTER (is_first) + coalesce(any_value(edges_unserved_ns), 0) AS edges_waiting_ns,
    coalesce(sum(idle_ns) FILTER (NOT is_first AND idle_wait_ns IS NULL), 0) AS unknown_ns,
    count(idle_wait_ns) AS n_known
FROM laid LEFT JOIN unserved_waits USING (phase, {OWNER}) GROUP BY ALL
"""
# Of the idle time in which no request of the next batch waited, that in which one waited that was never served.
_UNSERVED_WAITS = f"""
SELECT phase, {OWNER}, sum(ns) FILTER (is_edge) AS edges_unserved_ns, sum(ns) FILTER (NOT is_edge) AS unserved_ns
FROM (
    SELECT phase, p.server, instance, instance_device, p.model, is_edge, sign * {covered("t_ns", "u")} AS ns
    FROM (
        SELECT phase, {OWNER}, is_first AS is_edge, unnest([start_ns - idle_ns, start_ns - waited_ns]) AS t_ns,
            unnest([-1, 1]) AS sign
        FROM laid WHERE idle_ns > waited_ns
        UNION ALL
        SELECT DISTINCT phase, {OWNER}, true, unnest([last_end_ns, wall_end_ns]), unnest([-1, 1]) FROM laid) p
    ASOF LEFT JOIN unserved u ON p.server = u.server AND p.model = u.model AND p.t_ns >= u.from_ns)
GROUP BY ALL
"""

# Windows of the kernel library.
#
#     windows      [──────────────────]                [──────────────────]
#     executions ────┐    ┌─────┐  ┌───────┐     ┌────┐    ┌─────┐     ┌────
#                 cut│····│held │··│  cut  │     │    │····│held │·····│ cut
#
# Executions and idle time are known at any instant and count as far as windows hold them. What the GPU did is known of
# executions that a window holds from start to end alone: those that an edge cuts are taken to have been like them, so
# that the parts of the held ones, times all execution in windows over theirs, stand for all. Executions as long as a
# window are never held, and longer ones less often than short ones.
_FAR_NS = 1 << 61
# A batch with the idle time before it; of the first one of an instance that has no beginning.
_IN_WINDOWS = f"""
SELECT h.phase, {OWNER}, start_ns, greatest(start_ns, end_ns) AS end_ns, b.phase = h.phase AS is_of_phase,
    coalesce(start_ns - gap_before_ns, -{_FAR_NS}) AS free_ns, gap_before_ns IS NULL AS is_first,
    idle_wait_ns IS NOT NULL AS is_known, tie <> 'none' AND b.phase = h.phase AS is_held,
    head_ns IS NOT NULL AS is_profiled,
    kernel_busy_ns + copy_exposed_ns AS busy_ns, {BODY_IDLE} AS body_idle_ns, head_ns, tail_ns,
    greatest(free_ns, start_ns - coalesce(idle_wait_ns, 0)) AS wait_ns
FROM batch_costs b LEFT JOIN waits USING ({OWNER}, batch_id)
JOIN (SELECT server, phase, min(start_ns) AS first_ns, max(end_ns) AS last_ns FROM held GROUP BY ALL) h USING (server)
WHERE b.phase = h.phase
    OR (greatest(start_ns, end_ns) >= first_ns AND coalesce(start_ns - gap_before_ns, start_ns) < last_ns)
"""
# What windows of a phase hold of a server, and of that the time in which requests waited for a model that never served.
_COVERS = """
SELECT DISTINCT h.phase, server, model, false AS is_unserved, h.start_ns, h.end_ns
FROM held h JOIN (SELECT DISTINCT server, model FROM batch_costs) USING (server)
UNION ALL
SELECT phase, server, model, true, greatest(start_ns, from_ns), least(end_ns, to_ns)
FROM held JOIN unserved USING (server) WHERE start_ns < to_ns AND end_ns > from_ns
"""
_OF_WINDOWS = f"""
WITH rows_here AS ({_IN_WINDOWS}),
covers AS ({pieces(_COVERS, "phase, server, model, is_unserved")}),
-- length of both at once: what windows cover before the end of a stretch, less what before its start
points AS (
    SELECT phase, {OWNER}, is_first, is_known, unnest([
        {{'part': 'exec', 'is_unserved': false, 't_ns': start_ns, 'sign': -1}},
        {{'part': 'exec', 'is_unserved': false, 't_ns': end_ns, 'sign': 1}},
        {{'part': 'idle', 'is_unserved': false, 't_ns': free_ns, 'sign': -1}},
        {{'part': 'idle', 'is_unserved': false, 't_ns': start_ns, 'sign': 1}},
        -- waits: for the next batch until it starts, and before for one that never came
        {{'part': 'wait', 'is_unserved': false, 't_ns': wait_ns, 'sign': -1}},
        {{'part': 'wait', 'is_unserved': false, 't_ns': start_ns, 'sign': 1}},
        {{'part': 'wait', 'is_unserved': true, 't_ns': free_ns, 'sign': -1}},
        {{'part': 'wait', 'is_unserved': true, 't_ns': wait_ns, 'sign': 1}}], recursive := true)
    FROM rows_here
    UNION ALL  -- after the last batch of all
    SELECT phase, {OWNER}, true, true, unnest([
        {{'part': 'idle', 'is_unserved': false, 't_ns': last_ns, 'sign': -1}},
        {{'part': 'idle', 'is_unserved': false, 't_ns': {_FAR_NS}, 'sign': 1}},
        {{'part': 'wait', 'is_unserved': true, 't_ns': last_ns, 'sign': -1}},
        {{'part': 'wait', 'is_unserved': true, 't_ns': {_FAR_NS}, 'sign': 1}}], recursive := true)
    FROM (SELECT {OWNER}, max(greatest(start_ns, end_ns)) AS last_ns FROM batch_costs GROUP BY ALL)
    JOIN (SELECT DISTINCT phase, {OWNER} FROM rows_here WHERE is_of_phase) USING ({OWNER})),
lengths AS (
    SELECT p.phase, p.server, instance, instance_device, p.model, part, is_first, is_known,
        sign * {covered("t_ns", "c")} AS ns
    FROM points p ASOF LEFT JOIN covers c ON p.phase = c.phase AND p.server = c.server AND p.model = c.model
        AND p.is_unserved = c.is_unserved AND p.t_ns >= c.from_ns),
spent AS (
    SELECT phase, {OWNER}, coalesce(sum(ns) FILTER (part = 'exec'), 0) AS exec_ns,
        coalesce(sum(ns) FILTER (part = 'idle' AND is_first), 0) AS edges_ns,
        coalesce(sum(ns) FILTER (part = 'idle' AND NOT is_first), 0) AS between_ns,
        coalesce(sum(ns) FILTER (part = 'idle' AND NOT is_first AND NOT is_known), 0) AS unknown_ns,
        coalesce(sum(ns) FILTER (part = 'wait' AND is_first), 0) AS edges_waiting_ns,
        coalesce(sum(ns) FILTER (part = 'wait' AND NOT is_first), 0) AS waiting_ns
    FROM lengths GROUP BY ALL),
executed AS (
    SELECT phase, {OWNER}, count(*) FILTER (is_known) AS n_known, bool_or(is_of_phase) AS has_any,
        coalesce(sum(end_ns - start_ns) FILTER (is_held), 0) AS held_ns,
        coalesce(sum(end_ns - start_ns) FILTER (is_held AND NOT is_profiled), 0) AS unprofiled_ns,
        {
    ", ".join(
        f"sum(coalesce({name}, 0)) FILTER (is_held AND is_profiled) AS {name}"
        for name in ("busy_ns", "body_idle_ns", "head_ns", "tail_ns")
    )
}
    FROM rows_here GROUP BY ALL),
rated AS (SELECT *, CASE WHEN held_ns > 0 THEN exec_ns / held_ns ELSE 0 END AS rate
    FROM spent JOIN executed USING (phase, {OWNER}) WHERE has_any)
SELECT phase, {OWNER}, h.wall_ns, edges_ns, exec_ns,
    CASE WHEN rate > 0 THEN rate * unprofiled_ns ELSE exec_ns END AS unprofiled_ns,
    rate * busy_ns AS busy_ns, rate * body_idle_ns AS body_idle_ns, rate * head_ns AS head_ns,
    rate * tail_ns AS tail_ns,
    between_ns, waiting_ns, edges_waiting_ns, unknown_ns, n_known
FROM rated JOIN (SELECT server, phase, sum(end_ns - start_ns) AS wall_ns FROM held GROUP BY ALL) h USING (server, phase)
"""

WALL_ERROR_RATIO = 0.001
"""Executions of one instance do not overlap. Where they do by more of the wall than this, its parts are not assessed:
several instances stand behind one name, as in Triton's trace."""
UNKNOWN_WAIT_RATIO = 0.01
"""Gaps before batches of whose requests none is known to have waited or not (foreign ones) count as empty up to this
part of all gaps; beyond it the gaps are not told apart."""

# At the edges waits are of no request; the inside of batches is known where there is a profile.
_WALLS = f"""
CREATE TEMP TABLE walls AS
WITH unserved_waits AS ({_UNSERVED_WAITS}),
parts AS ({{parts}}),
known AS (
    SELECT *, n_known > 0 AND unknown_ns <= {UNKNOWN_WAIT_RATIO}::DOUBLE * between_ns AS is_known,
        CASE WHEN is_known THEN edges_waiting_ns ELSE 0 END AS outside_ns,
        abs(exec_ns + between_ns + edges_ns - wall_ns) <= {WALL_ERROR_RATIO}::DOUBLE * wall_ns AS adds_up
    FROM parts)
SELECT grp, wall_ns::BIGINT AS wall_ns,
    CASE WHEN wall_ns > 0 AND adds_up THEN {{{{
        'wall_edges_ratio': (edges_ns - outside_ns) / wall_ns,
        'wall_between_ratio': (between_ns + outside_ns) / wall_ns,
        'wall_between_waiting_ratio': CASE WHEN is_known THEN (waiting_ns + outside_ns) / wall_ns END,
        'wall_between_empty_ratio': CASE WHEN is_known THEN (between_ns - waiting_ns) / wall_ns END,
        'wall_unprofiled_ratio': unprofiled_ns / wall_ns,
        'wall_gpu_busy_ratio': busy_ns / wall_ns,
        'wall_head_ratio': CASE WHEN busy_ns IS NOT NULL THEN head_ns / wall_ns END,
        'wall_body_idle_ratio': CASE WHEN busy_ns IS NOT NULL THEN body_idle_ns / wall_ns END,
        'wall_tail_ratio': CASE WHEN busy_ns IS NOT NULL THEN tail_ns / wall_ns END
    }}}} END AS measures
FROM known JOIN instances USING (phase, {OWNER})
"""


def pick(connection: duckdb.DuckDBPyConnection, keys: str | None = None) -> None:
    """Makes `picked`, the batches that figures are of: those that the query `keys` (`operations.KEY`) names, else all;
    and of them `instances` and `numbered`. Once in a connection."""
    if keys is None:
        connection.execute("CREATE TEMP VIEW picked AS FROM batch_costs")
    else:
        connection.execute(f"CREATE TEMP TABLE picked AS FROM batch_costs SEMI JOIN ({keys}) USING ({KEY})")
    number_batches(connection)


def batch_sums(connection: duckdb.DuckDBPyConnection) -> dict[int, Row]:
    """Makes `sums` over the batches in `picked`, and returns them by group: sums, means and measures."""
    connection.execute(_SUMS)
    return by_group(connection, "FROM sums ORDER BY grp")


def walls(connection: duckdb.DuckDBPyConnection, has_windows: bool) -> dict[int, Row]:
    """Makes `walls`, the wall of each instance in each phase of `spans` and the measures of its parts, and returns them
    by group; none of the measures where executions overlap.

    Needs `batch_costs`, `waits`, `unserved`, and `held`: the windows of each server in each phase, if any has them.
    """
    connection.execute(_LAID)
    parts = f"{_OF_REPORTS} UNION ALL FROM ({_OF_WINDOWS})" if has_windows else _OF_REPORTS
    connection.execute(_WALLS.format(parts=parts))
    return by_group(connection, "FROM walls")
