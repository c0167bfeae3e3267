"""Where the time of instances goes, from the costs of their batches: the wall in parts, and sums over batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from squall.analysis.metrics.measures import INSTANCE, Measures, instance_key, ratio
from squall.analysis.metrics.spans import PhaseSpan

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]
GroupKey = tuple[str, str]
"""Phase and key of the instance."""

_SUMS = (
    "kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns", "head_ns", "tail_ns", "launch_ns",
    "blocked_ns", "blocked_busy_ns", "n_mid_blocks", "n_blocks", "n_launches", "n_kernels", "n_copies", "kernel_ns",
    "copy_ns", "pageable_bytes", "sync_ns", "alloc_ns", "api_ns", "os_wait_ns", "overrun_ns",
)  # fmt: skip

_LEFT = "end_ns - start_ns - head_ns - kernel_busy_ns - copy_exposed_ns - tail_ns"
BODY_IDLE = f"CASE WHEN {_LEFT} IS NOT NULL THEN coalesce(sync_wait_ns + launch_idle_ns, {_LEFT}) END"
"""SQL: idle between the first and the last operation of a batch. Where no calls tell its two parts apart it is what is
left of the batch; where they do, that the parts of a wall add up is a check."""

# `picked` has the batches that count, with all columns of batch_costs.
_BATCH_SUMS = f"""
SELECT phase, server, instance, instance_device, model, any_value(node) AS node, count(*) AS n,
    count(*) FILTER (tie <> 'none') AS n_tied, count(*) FILTER (tie = 'range') AS n_ranged,
    CAST(sum(end_ns - start_ns) AS BIGINT) AS exec_ns,
    CAST(sum(end_ns - start_ns) FILTER (tie <> 'none') AS BIGINT) AS tied_exec_ns, CAST(sum(rows) AS BIGINT) AS n_rows,
    coalesce(mode(gpu_uuid) FILTER (gpu_uuid <> ''), '') AS gpu_uuid,
    CAST(sum({BODY_IDLE}) FILTER (tie <> 'none') AS BIGINT) AS body_idle_ns,
    {", ".join(f"CAST(sum({name}) FILTER (tie <> 'none') AS BIGINT) AS {name}" for name in _SUMS)}
FROM picked GROUP BY ALL ORDER BY ALL
"""

# Wall of an instance: from the start of what is measured, or the end of a batch that reached into it, to its end, or
# the end of the last batch begun in it. `spans` has the phases, `waits` how long requests waited while it was idle.
# A row is a batch with the idle time before it: of the first one that since the wall began.
_LAID = """
CREATE TEMP VIEW laid AS
WITH own AS (
    SELECT b.*, s.first_ns, s.last_ns FROM batch_costs b JOIN spans s USING (phase) WHERE b.start_ns >= s.first_ns),
before AS (
    SELECT s.phase, server, instance, instance_device, model, max(b.end_ns) AS before_ns
    FROM batch_costs b JOIN spans s ON b.start_ns < s.first_ns GROUP BY ALL),
ends AS (
    SELECT phase, server, instance, instance_device, model, min((start_ns, batch_id)) AS first_batch,
        max(end_ns) AS last_end,
        greatest(any_value(first_ns), coalesce(any_value(before_ns), any_value(first_ns))) AS wall_start,
        greatest(any_value(last_ns), max(end_ns)) AS wall_end
    FROM own LEFT JOIN before USING (phase, server, instance, instance_device, model) GROUP BY ALL)
SELECT own.*, e.* EXCLUDE (phase, server, instance, instance_device, model), w.idle_wait_ns,
    (own.start_ns, own.batch_id) = first_batch AS is_first,
    CASE WHEN is_first THEN greatest(0, own.start_ns - wall_start)
        WHEN own.start_ns > first_batch[1] THEN gap_before_ns ELSE 0 END AS idle_ns,
    least(idle_ns, coalesce(w.idle_wait_ns, 0)) AS waited_ns
FROM own JOIN ends e USING (phase, server, instance, instance_device, model)
LEFT JOIN waits w USING (server, instance, instance_device, model, batch_id)
"""
_WALLS = """
SELECT phase, server, instance, instance_device, model, any_value(wall_end - wall_start) AS wall_ns,
    CAST(sum(idle_ns) FILTER (is_first) AS BIGINT) + any_value(wall_end - last_end) AS edges_ns,
    CAST(sum(end_ns - start_ns) AS BIGINT) AS exec_ns,
    CAST(sum(end_ns - start_ns) FILTER (tie = 'none' OR head_ns IS NULL) AS BIGINT) AS unprofiled_ns,
    CAST(sum(kernel_busy_ns + copy_exposed_ns) FILTER (tie <> 'none') AS BIGINT) AS busy_ns,
    CAST(sum({body_idle}) FILTER (tie <> 'none') AS BIGINT) AS body_idle_ns,
    CAST(sum(head_ns) FILTER (tie <> 'none') AS BIGINT) AS head_ns,
    CAST(sum(tail_ns) FILTER (tie <> 'none') AS BIGINT) AS tail_ns,
    CAST(coalesce(sum(idle_ns) FILTER (NOT is_first), 0) AS BIGINT) AS between_ns,
    CAST(coalesce(sum(waited_ns) FILTER (NOT is_first), 0) AS BIGINT) AS waiting_ns,
    CAST(sum(waited_ns) FILTER (is_first) AS BIGINT) AS edges_waiting_ns,
    CAST(coalesce(sum(idle_ns) FILTER (NOT is_first AND idle_wait_ns IS NULL), 0) AS BIGINT) AS unknown_ns,
    count(idle_wait_ns) AS n_known
FROM laid GROUP BY ALL
"""
# Of the idle time in which no request of the next batch waited, that in which one waited that was never served: length
# of both at once = what lies of `unserved` before the end of a stretch, less what lies before its start.
_UNSERVED_WAITS = """
WITH idle AS (
    SELECT phase, server, instance, instance_device, model, is_first AS is_edge, start_ns - idle_ns AS from_ns,
        start_ns - waited_ns AS to_ns FROM laid WHERE idle_ns > waited_ns
    UNION ALL
    SELECT phase, server, instance, instance_device, model, true, any_value(last_end), any_value(wall_end)
    FROM laid GROUP BY ALL),
points AS (
    SELECT phase, server, instance, instance_device, model, is_edge, from_ns AS t_ns, -1 AS sign FROM idle
    UNION ALL
    SELECT phase, server, instance, instance_device, model, is_edge, to_ns, 1 FROM idle)
SELECT p.phase, p.server, p.instance, p.instance_device, p.model, p.is_edge,
    CAST(sum(sign * coalesce(u.before_ns + least(p.t_ns - u.from_ns, u.to_ns - u.from_ns), 0)) AS BIGINT)
FROM points p ASOF LEFT JOIN unserved u ON p.server = u.server AND p.model = u.model AND p.t_ns >= u.from_ns
GROUP BY ALL
"""
_WINDOW_TIED = """
SELECT phase, node, process, CAST(sum(n_kernels + n_copies) AS BIGINT) FROM batch_costs
WHERE tie = 'window' AND process IS NOT NULL GROUP BY ALL
"""
WALL_ERROR_RATIO = 0.001
"""Executions of one instance do not overlap. Where they do by more of the wall than this, its parts are not assessed:
several instances stand behind one name, as in Triton's trace."""
UNKNOWN_WAIT_RATIO = 0.01
"""Gaps before batches of whose requests none is known to have waited or not (foreign ones) count as empty up to this
part of all gaps; beyond it the gaps are not told apart."""


def pick_all(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes `picked` of all batches; `pick` and `pick_all` once in a connection."""
    connection.execute("CREATE TEMP VIEW picked AS FROM batch_costs")


def pick(connection: duckdb.DuckDBPyConnection, keys: str) -> None:
    """Makes `chosen` of the query `keys` (server, instance, instance_device, batch_id), and `picked` of these."""
    connection.execute(f"CREATE TEMP TABLE chosen AS SELECT DISTINCT * FROM ({keys})")
    connection.execute(
        "CREATE TEMP TABLE picked AS FROM batch_costs "
        "SEMI JOIN chosen USING (server, instance, instance_device, batch_id)"
    )


def add_spans(connection: duckdb.DuckDBPyConnection, phases: Sequence[PhaseSpan]) -> None:
    """Makes `spans`: of each phase the part that walls are of."""
    connection.execute("CREATE TEMP TABLE spans(phase VARCHAR, first_ns BIGINT, last_ns BIGINT)")
    for phase in phases:
        connection.execute("INSERT INTO spans VALUES ($1, $2, $3)", [phase.name, *phase.wall_ns])


def batch_sums(connection: duckdb.DuckDBPyConnection) -> dict[GroupKey, Row]:
    """Sums over the batches in `picked`, by phase and instance; device columns over those that are tied."""
    return _by_group(connection, _BATCH_SUMS)


def walls(connection: duckdb.DuckDBPyConnection) -> dict[GroupKey, Row]:
    """The wall of each instance in each phase of `spans`, in parts. Needs `batch_costs`, `waits` and `unserved`."""
    connection.execute(_LAID)
    found = _by_group(connection, _WALLS.format(body_idle=BODY_IDLE))
    if connection.execute("SELECT 1 FROM unserved LIMIT 1").fetchall():
        for phase, *owner, is_edge, ns in connection.execute(_UNSERVED_WAITS).fetchall():
            row = found[phase, instance_key(*owner)]
            row["edges_waiting_ns" if is_edge else "waiting_ns"] += ns
    return found


def window_tied(connection: duckdb.DuckDBPyConnection) -> dict[tuple[str, str, int], int]:
    """By phase, node and process, operations that a window ties to a batch: their rows do not bear its id."""
    rows = connection.execute(_WINDOW_TIED).fetchall()
    return {(phase, node, process): n or 0 for phase, node, process, n in rows}


def _by_group(connection: duckdb.DuckDBPyConnection, query: str) -> dict[GroupKey, Row]:
    cursor = connection.execute(query)
    names = [one[0] for one in cursor.description or []]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {(row["phase"], instance_key(*(row[name] for name in INSTANCE))): row for row in rows}


def wall_measures(wall: Mapping[str, Any] | None) -> Measures:
    """The wall_… measures; None each where executions overlap, those of the inside of batches without a profile."""
    if wall is None or not wall["wall_ns"]:
        return {}
    parts = wall["exec_ns"] + wall["between_ns"] + wall["edges_ns"]
    if abs(parts - wall["wall_ns"]) > WALL_ERROR_RATIO * wall["wall_ns"]:
        return {}
    is_known = wall["n_known"] and wall["unknown_ns"] <= UNKNOWN_WAIT_RATIO * wall["between_ns"]
    waited_ns = wall["edges_waiting_ns"] if is_known else 0  # at the edges, which are of no request
    found = {
        "wall_edges_ratio": wall["edges_ns"] - waited_ns,
        "wall_between_ratio": wall["between_ns"] + waited_ns,
    }
    if is_known:
        found["wall_between_waiting_ratio"] = wall["waiting_ns"] + waited_ns
        found["wall_between_empty_ratio"] = wall["between_ns"] - wall["waiting_ns"]
    found["wall_unprofiled_ratio"] = wall["unprofiled_ns"] or 0
    if wall["busy_ns"] is not None:
        found |= {
            "wall_gpu_busy_ratio": wall["busy_ns"],
            "wall_head_ratio": wall["head_ns"],
            "wall_body_idle_ratio": wall["body_idle_ns"],
            "wall_tail_ratio": wall["tail_ns"],
        }
    return {name: ratio(value, wall["wall_ns"]) for name, value in found.items()}


def batch_measures(sums: Mapping[str, Any]) -> Measures:
    """The measures that follow from sums over batches."""
    exec_ns, n_tied = sums["tied_exec_ns"], sums["n_tied"]
    busy_ns = _plus(sums, "kernel_busy_ns", "copy_exposed_ns")
    idle_ns = sums["body_idle_ns"]
    body_ns = None if busy_ns is None or idle_ns is None else busy_ns + idle_ns
    return {
        "n_batches": float(sums["n"]),
        "profiled_ratio": ratio(n_tied, sums["n"]),
        "exec_mean_ns": ratio(sums["exec_ns"], sums["n"]),
        "batch_rows_mean": ratio(sums["n_rows"], sums["n"]),
        "head_tail_of_exec_ratio": ratio(_plus(sums, "head_ns", "tail_ns"), exec_ns),
        "body_busy_ratio": ratio(busy_ns, body_ns),
        "body_idle_of_exec_ratio": ratio(idle_ns, exec_ns),
        "gpu_busy_of_exec_ratio": ratio(busy_ns, exec_ns),
        "blocked_of_exec_ratio": ratio(sums["blocked_ns"], exec_ns),
        "blocked_gpu_busy_ratio": ratio(sums["blocked_busy_ns"], sums["blocked_ns"]),
        "mid_blocks_per_batch": ratio(sums["n_mid_blocks"], n_tied),
        "launches_per_batch": ratio(sums["n_launches"], n_tied),
        "launch_of_exec_ratio": ratio(sums["launch_ns"], exec_ns),
        "copy_exposed_of_body_ratio": ratio(sums["copy_exposed_ns"], body_ns),
    }


def batch_means(sums: Mapping[str, Any]) -> Measures:
    """Means over the tied batches, ns."""
    n_tied = sums["n_tied"]
    names = ("head_ns", "tail_ns", "kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns")
    return {
        "exec": ratio(sums["tied_exec_ns"], n_tied),
        **{name.removesuffix("_ns"): ratio(sums[name], n_tied) for name in names},
    }


def _plus(sums: Mapping[str, Any], *names: str) -> int | None:
    values = [sums[name] for name in names]
    return None if None in values else sum(values)
