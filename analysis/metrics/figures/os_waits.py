"""OS-runtime calls of the threads that run batches: by name, inside their ranges and outside, over the wall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.intervals import Covered, Pieces, Union
from squall.analysis.metrics.measures import instance_key, ratio
from squall.analysis.metrics.spans import PhaseSpan

if TYPE_CHECKING:
    import duckdb

_THREADS = """
SELECT node, process, thread, server, instance, instance_device, model FROM picked
WHERE thread IS NOT NULL GROUP BY ALL ORDER BY ALL
"""
_RANGES = """
SELECT start_ns, end_ns FROM nvtx
WHERE batch_id IS NOT NULL AND node = $node AND process = $process AND thread = $thread AND end_ns > start_ns
ORDER BY start_ns, end_ns
"""
_CALLS = """
SELECT name, start_ns, end_ns FROM osrt
WHERE node = $node AND process = $process AND thread = $thread AND end_ns >= start_ns
    AND end_ns > $first_ns AND start_ns < $last_ns
"""
_ROWS = 200_000


@dataclass(frozen=True)
class OsWait:
    """Calls of one name by one thread, cut to the measured part; `…inside…`: what lies within its ranges of batches."""

    process: int
    thread: int
    name: str
    n: int
    n_inside: int
    ns: int
    inside_ns: int
    of_wall_ratio: float | None
    inside_of_wall_ratio: float | None


def os_wait_figures(
    connection: duckdb.DuckDBPyConnection, phases: Sequence[PhaseSpan]
) -> dict[tuple[str, str], list[OsWait]]:
    """By phase and instance, a row for each of its threads and each name, of phases that a report covers.

    Calls are cut to the covered part of the phase. A call may run on while its range ends: each part counts where it
    lies. Nested calls count twice, as nsys lists them.
    """
    found: dict[tuple[str, str], list[OsWait]] = {}
    for node, process, thread, *owner in connection.execute(_THREADS).fetchall():
        where = {"node": node, "process": process, "thread": thread}
        ranges = connection.execute(_RANGES, where).fetchnumpy()
        union, _ = Union(-(1 << 62)).add(
            *(np.asarray(ranges[name], np.int64) for name in ("start_ns", "end_ns"))
        )
        for phase in phases:
            if phase.covered_ns:
                rows = _thread_rows(connection, where, union, phase.wall_ns)
                found.setdefault((phase.name, instance_key(*owner)), []).extend(rows)
    return found


def _thread_rows(
    connection: duckdb.DuckDBPyConnection, where: dict[str, Any], ranges: Pieces, span: tuple[int, int]
) -> list[OsWait]:
    first_ns, last_ns = span
    inside = Covered.of(*ranges)
    sums: dict[str, Int64s] = {}
    parameters = {**where, "first_ns": first_ns, "last_ns": last_ns}
    for piece in connection.sql(_CALLS, params=parameters).to_arrow_reader(_ROWS):
        start = np.maximum(piece["start_ns"].to_numpy(), first_ns)
        end = np.minimum(piece["end_ns"].to_numpy(), last_ns)
        within = inside.between(start, end)
        names = np.array(piece["name"].to_pylist(), dtype=object)
        for name in sorted(set(names.tolist())):
            own = names == name
            total, part = int((end - start)[own].sum()), int(within[own].sum())
            n = np.array([int(own.sum()), int((within[own] > 0).sum()), total, part], np.int64)
            sums[name] = sums.get(name, np.zeros(4, np.int64)) + n
    wall_ns = last_ns - first_ns
    rows = [
        OsWait(
            process=where["process"],
            thread=where["thread"],
            name=name,
            n=int(n),
            n_inside=int(n_inside),
            ns=int(total),
            inside_ns=int(part),
            of_wall_ratio=ratio(int(total), wall_ns),
            inside_of_wall_ratio=ratio(int(part), wall_ns),
        )
        for name, (n, n_inside, total, part) in sums.items()
    ]
    return sorted(rows, key=lambda row: -row.ns)
