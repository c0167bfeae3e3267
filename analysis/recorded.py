"""Which stretches of a server's time were recorded on the GPU, on the run clock, whoever recorded them.

    nsys      whole measured phases, of all servers alike     `profiled_phases` of the manifest
    library   windows of one server each                      table `recordings`

    asked for          holds                 asked to end       nothing costs any more
    begun_ns ──────── start_ns ═══════════════ end_ns ─────────── done_ns

A window holds all that starts and ends in [start_ns, end_ns): of what reaches over an edge nobody knows. In
[begun_ns, done_ns) recording may cost the server something. A server has windows or reports, never both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.storage.collected import ProfiledPhase
from squall.analysis.storage.parquet import literal
from squall.analysis.storage.query import attach
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import phase_spans
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import duckdb

TABLE = "recordings"
Stretch = tuple[int, int]
"""Half-open, on the run clock."""

_KINDS = "list_contains(string_split({kinds}, ','), '{kind}')"
_WINDOWS = f"""
-- Stretch of a server that the kernel library recorded, and what of it.
CREATE TEMP TABLE recorded_windows AS
SELECT server, start_ns, end_ns, {_KINDS.format(kinds="kinds", kind="kernels")} AS has_kernels,
    {_KINDS.format(kinds="kinds", kind="copies")} AS has_copies,
    {_KINDS.format(kinds="kinds", kind="runtime")} OR {_KINDS.format(kinds="kinds", kind="driver")} AS has_calls
FROM recordings WHERE end_ns > start_ns
"""

_KEY = "server, instance, instance_device, batch_id"
_WHOLE = f"""(recorded_by <> 'library' OR ({_KEY}) IN (SELECT ({_KEY}) FROM batch_costs WHERE tie = 'range')
    OR (batch_id IS NULL AND server NOT IN (SELECT server FROM batch_costs WHERE tie = 'window')))"""
"""No edge of a window cuts what it belongs to. What the library recorded and time alone ties is never so."""


class Windows(Frozen, eq=False):
    """The windows of a server in order of time, (n,) int64 each; no two overlap.

    `start_ns` is `end_ns` where recording never held before it was asked to end: such a window has a cost and no rows.
    """

    begun_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s
    done_ns: Int64s

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Windows:
        """Of (begun_ns, start_ns, end_ns, done_ns) in any order."""
        found = np.array(sorted(map(tuple, rows)), np.int64).reshape(-1, 4)
        begun, start, end, done = found.T
        return cls(begun, start, np.maximum(start, end), np.maximum.accumulate(done))

    def hold(self, first_ns: Int64s, last_ns: Int64s) -> Bools:
        """Whether each [first, last] lies wholly in one window; (n,)."""
        if not len(self.start_ns):
            return np.zeros(len(first_ns), np.bool_)
        at = self.begun(first_ns)
        return np.asarray((at >= 0) & (last_ns <= self.end_ns[np.maximum(at, 0)]))

    def begun(self, at_ns: Int64s) -> Int64s:
        """Of each instant the number of the window that began last; -1: none had. (n,)"""
        return np.searchsorted(self.start_ns, at_ns, side="right") - 1

    def held(self) -> tuple[Stretch, ...]:
        """All that they hold, in order; none is empty."""
        return self.within(int(self.start_ns[0]), int(self.end_ns[-1])) if len(self.start_ns) else ()

    def within(self, first_ns: int, last_ns: int) -> tuple[Stretch, ...]:
        """What they hold of [first, last), in order; none is empty."""
        start, end = np.maximum(self.start_ns, first_ns), np.minimum(self.end_ns, last_ns)
        is_there = start < end
        return tuple(zip(start[is_there].tolist(), end[is_there].tolist(), strict=True))


def whole(connection: duckdb.DuckDBPyConnection, starts_ns: Iterable[int], has_windows: bool) -> str:
    """SQL, of a row of operations beside `batch_costs`: no edge of what was recorded cuts the batch that it belongs to.

    `starts_ns`: of the measured phases, on the run clock. A report holds a phase: of a batch that began before it, in a
    phase that was not recorded, it has the rest, and its costs nothing. `has_windows`: there is a table `recordings`.
    """
    edges = " OR ".join(f"(start_ns < {at_ns} AND end_ns > {at_ns})" for at_ns in starts_ns) or "false"
    cut = connection.execute(
        f"SELECT {_KEY} FROM batch_costs WHERE kernel_ns IS NULL AND ({edges})"
    ).fetchall()  # one an instance and phase at most
    of_cut = " OR ".join(
        f"(batch_id = {batch} AND server = {literal(server)} AND instance = {literal(instance)}"
        f" AND instance_device = {device})"
        for server, instance, device, batch in cut
    )
    of_report = f"(batch_id IS NULL OR NOT ({of_cut}))" if cut else "true"
    return f"{of_report} AND {_WHOLE}" if has_windows else of_report


def library_windows(store: RunStore) -> dict[str, Windows]:
    """The windows of each server that the kernel library recorded, by name; empty where it recorded none."""
    if not store.has(TABLE):
        return {}
    names = ("server", "begun_ns", "start_ns", "end_ns", "done_ns")
    rows = store.read(TABLE, list(names))
    by_server: dict[str, list[tuple[int, int, int, int]]] = {}
    for server, *window in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        by_server.setdefault(server, []).append(tuple(window))
    return {server: Windows.of(windows) for server, windows in by_server.items()}


def add_windows(connection: duckdb.DuckDBPyConnection, store: RunStore) -> None:
    """Makes table `recorded_windows`, of what the library recorded; empty where it recorded nothing."""
    attach(connection, store, (TABLE,))
    connection.execute(_WINDOWS)


def profiled_after_ns(stated: Mapping[str, ProfiledPhase], phase: str) -> int | None:
    """From when after its start nsys recorded a phase, as the manifest says; negative: from before it; None: not."""
    one = stated.get(phase)
    return one.profiled_after_ns or 0 if one is not None and one.is_profiled else None


def report_stretches(store: RunStore) -> list[Stretch]:
    """What reports of nsys cover of the run, in order of time; a recording may begin before its phase."""
    found: list[Stretch] = []
    for phase in phase_spans(store.manifest):
        late_ns = profiled_after_ns(store.manifest.profiled_phases, phase.name)
        if late_ns is not None:
            start_ns = phase.start_ns + late_ns
            found.append((max(start_ns, found[-1][1] if found else start_ns), phase.end_ns))
    return [(start_ns, end_ns) for start_ns, end_ns in found if start_ns < end_ns]


def common_stretches(every: Iterable[Sequence[Stretch]]) -> tuple[Stretch, ...]:
    """What all of them cover; each in order of time and disjoint, as the answer is. () of none."""
    lists = [tuple(one) for one in every]
    return reduce(_both, lists) if lists else ()


def _both(some: tuple[Stretch, ...], others: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
    found: list[Stretch] = []
    one = other = 0
    while one < len(some) and other < len(others):
        start_ns = max(some[one][0], others[other][0])
        end_ns = min(some[one][1], others[other][1])
        if start_ns < end_ns:
            found.append((start_ns, end_ns))
        if some[one][1] <= others[other][1]:
            one += 1
        else:
            other += 1
    return tuple(found)
