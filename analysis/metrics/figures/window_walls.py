"""The wall of instances that were recorded in windows: what their windows hold.

    windows      [──────────────────]                [──────────────────]
    executions ────┐    ┌─────┐  ┌───────┐     ┌────┐    ┌─────┐     ┌────
                cut│····│held │··│  cut  │     │    │····│held │·····│ cut

Executions and idle time are known at any instant and count as far as windows hold them. What the GPU did is known of
executions that a window holds from start to end alone: those that an edge cuts are taken to have been like them, so
that the parts of the held ones, times all execution in windows over theirs, stand for all. Executions as long as a
window are never held, and longer ones less often than short ones.

    |W ∩ [a, b]|   length of windows between two instants, for every gap, wait and execution at once (`Covered`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.intervals import Covered
from squall.analysis.metrics.figures.batch_figures import BODY_IDLE, GroupKey, Row
from squall.analysis.metrics.measures import instance_key
from squall.analysis.metrics.spans import PhaseSpan
from squall.analysis.recorded import Stretch, Windows, common_stretches

if TYPE_CHECKING:
    import duckdb

_OWNER = ("server", "instance", "instance_device", "model")
_PARTS = ("busy_ns", "body_idle_ns", "head_ns", "tail_ns")
_FAR_NS = 1 << 61

# A batch with the idle time before it; of the first one of an instance that has no beginning.
_ROWS = f"""
SELECT server, instance, instance_device, model, phase, start_ns, greatest(start_ns, end_ns) AS end_ns,
    coalesce(start_ns - gap_before_ns, -{_FAR_NS}) AS free_ns, gap_before_ns IS NULL AS is_first,
    coalesce(idle_wait_ns, 0) AS waited_ns, idle_wait_ns IS NOT NULL AS is_known, tie <> 'none' AS is_whole,
    head_ns IS NULL AS is_unprofiled, kernel_busy_ns + copy_exposed_ns AS busy_ns, {BODY_IDLE} AS body_idle_ns,
    head_ns, tail_ns
FROM batch_costs LEFT JOIN waits USING (server, instance, instance_device, model, batch_id)
WHERE server = $server AND (phase = $phase OR (greatest(start_ns, end_ns) >= $first_ns
    AND coalesce(start_ns - gap_before_ns, start_ns) < $last_ns))
ORDER BY instance, instance_device, model, start_ns, batch_id
"""
_LAST = """
SELECT instance, instance_device, model, max(greatest(start_ns, end_ns)) FROM batch_costs WHERE server = $server
GROUP BY ALL
"""
_UNSERVED = "SELECT from_ns, to_ns FROM unserved WHERE server = $server AND model = $model ORDER BY from_ns"


def window_walls(
    connection: duckdb.DuckDBPyConnection, windows: Mapping[str, Windows], phases: Sequence[PhaseSpan]
) -> dict[GroupKey, Row]:
    """Rows as `batch_figures.walls` gives them, of the instances of servers in `windows` that began a batch in a phase
    in which their server has any. Needs `batch_costs`, `waits` and `unserved`."""
    found: dict[GroupKey, Row] = {}
    for server, own in windows.items():
        last = _last_ends(connection, server)
        for phase in phases:
            held = own.within(phase.start_ns, phase.end_ns)
            for owner, rows in _instances(connection, server, phase.name, held).items():
                if phase.name in rows["phase"].to_pylist():
                    never = _unserved(connection, server, owner[-1])
                    wall = _wall(rows, phase.name, held, last[owner[1:]], never)
                    found[phase.name, instance_key(*owner)] = wall
    return found


def _last_ends(connection: duckdb.DuckDBPyConnection, server: str) -> dict[tuple[Any, ...], int]:
    """Instant at which each instance ended its last batch."""
    rows = connection.execute(_LAST, {"server": server}).fetchall()
    return {tuple(owner): end_ns for *owner, end_ns in rows}


def _unserved(connection: duckdb.DuckDBPyConnection, server: str, model: str) -> tuple[Stretch, ...]:
    return tuple(connection.execute(_UNSERVED, {"server": server, "model": model}).fetchall())


def _instances(
    connection: duckdb.DuckDBPyConnection, server: str, phase: str, held: Sequence[Stretch]
) -> dict[tuple[Any, ...], pa.Table]:
    """The batches of each instance that began in the phase, or may meet what is `held`, or the idle time before."""
    if not held:
        return {}
    span = {"server": server, "phase": phase, "first_ns": held[0][0], "last_ns": held[-1][1]}
    rows = connection.sql(_ROWS, params=span).to_arrow_table().combine_chunks()
    keys = list(zip(*(rows.column(name).to_pylist() for name in _OWNER), strict=True))
    edges = [at for at in range(len(keys)) if not at or keys[at] != keys[at - 1]]
    ends = [*edges[1:], len(keys)] if edges else []
    return {keys[low]: rows.slice(low, high - low) for low, high in zip(edges, ends, strict=True)}


def _wall(rows: pa.Table, phase: str, held: Sequence[Stretch], last_ns: int, never: Sequence[Stretch]) -> Row:
    windows, silent = _covered(held), _covered(common_stretches([held, never]))
    start, end, free, waited = (
        _numbers(rows, name) for name in ("start_ns", "end_ns", "free_ns", "waited_ns")
    )
    is_first, is_known, is_whole, is_unprofiled = (
        _claims(rows, name) for name in ("is_first", "is_known", "is_whole", "is_unprofiled")
    )
    is_own = is_whole & (np.array(rows.column("phase").to_pylist(), np.object_) == phase)
    wait_from = np.maximum(free, start - waited)
    idle = windows.between(free, start)
    # who waits: for the next batch until it starts, and whom nobody ever served, before
    waits = windows.between(wait_from, start) + silent.between(free, wait_from)
    after, never_after = (_after(one, last_ns) for one in (windows, silent))
    held_ns = (end - start)[is_own]
    exec_ns = int(windows.between(start, end).sum())
    rate = exec_ns / int(held_ns.sum()) if held_ns.sum() else 0.0
    is_profiled = is_own & ~is_unprofiled
    return {
        "wall_ns": sum(last - first for first, last in held),
        "edges_ns": int(idle[is_first].sum()) + after,
        "exec_ns": exec_ns,
        "unprofiled_ns": rate * int((end - start)[is_own & is_unprofiled].sum()) if rate else exec_ns,
        **{name: _total(rows, name, is_profiled, rate) for name in _PARTS},
        "between_ns": int(idle[~is_first].sum()),
        "waiting_ns": int(waits[~is_first].sum()),
        "edges_waiting_ns": int(waits[is_first].sum()) + never_after,
        "unknown_ns": int(idle[~is_first & ~is_known].sum()),
        "n_known": int(is_known.sum()),
    }


def _covered(stretches: Sequence[Stretch]) -> Covered:
    start, end = np.array(stretches, np.int64).reshape(-1, 2).T
    return Covered.of(start, end)


def _after(covered: Covered, at_ns: int) -> int:
    return int(covered.between(np.array([at_ns]), np.array([_FAR_NS]))[0])


def _numbers(rows: pa.Table, name: str) -> Int64s:
    return np.asarray(rows.column(name).to_numpy(), np.int64)


def _claims(rows: pa.Table, name: str) -> Bools:
    return np.asarray(rows.column(name).to_numpy(), np.bool_)


def _total(rows: pa.Table, name: str, chosen: Bools, rate: float) -> float | None:
    """`rate` times the sum over the chosen rows; None of none."""
    values = rows.column(name).fill_null(0).to_numpy()[chosen]
    return rate * int(values.sum()) if len(values) else None
