"""The phases that figures are of, and of which stretches of each kernels were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from squall.analysis.metrics.operations import add_table
from squall.analysis.recorded import (
    Stretch,
    Windows,
    common_stretches,
    library_windows,
    profiled_after_ns,
    report_stretches,
)
from squall.analysis.storage.nsys import EVENT_TABLES
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, measure_spans, phase_spans

if TYPE_CHECKING:
    import duckdb


class PhaseSpan(NamedTuple):
    """A phase, half-open on the run clock, and the stretches of it that were recorded, in order and disjoint.

    A report covers one stretch, from some instant to the end of the phase; the kernel library records windows
    (`in_windows`). Of several servers in windows: what all of them share.
    """

    name: str
    start_ns: int
    end_ns: int
    covered_ns: tuple[Stretch, ...]
    in_windows: bool = False

    @property
    def wall_ns(self) -> Stretch:
        """The part of the phase that figures are of which need no kernels: what a report covers, else all of it."""
        if self.covered_ns and not self.in_windows:
            return self.covered_ns[0]
        return self.start_ns, self.end_ns

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """What was recorded, an empty one where windows of several servers share nothing; all of the phase where
        nothing was recorded at all."""
        return self.covered_ns or ((self.start_ns, self.start_ns if self.in_windows else self.end_ns),)


def measured_phases(store: RunStore, connection: duckdb.DuckDBPyConnection) -> list[PhaseSpan]:
    """The measure phases of the run, in order of time. `connection` has a view of each event table of the run."""
    return _spans(store, connection, only_measure=True)


def add_spans(
    connection: duckdb.DuckDBPyConnection, phases: Sequence[PhaseSpan], windows: Mapping[str, Windows]
) -> None:
    """Makes of the phases tables `spans` (what figures are of which need no kernels), `stretches`
    (`PhaseSpan.stretches`), `cells` (what was recorded), and `held`: the windows of each server in each phase."""
    of_phases = [(one.name, *one.wall_ns, one.end_ns - one.start_ns, bool(one.covered_ns)) for one in phases]
    stretches = [(phase.name, *one) for phase in phases for one in phase.stretches]
    cells = [(phase.name, *one) for phase in phases for one in phase.covered_ns]
    held = [
        (server, phase.name, *one)
        for server, own in windows.items()
        for phase in phases
        for one in own.within(phase.start_ns, phase.end_ns)
    ]
    name, number = pa.string(), pa.int64()
    stretch = {"phase": name, "start_ns": number, "end_ns": number}
    columns = {
        "phase": name,
        "first_ns": number,
        "last_ns": number,
        "length_ns": number,
        "is_recorded": pa.bool_(),
    }
    add_table(connection, "spans", columns, of_phases)
    add_table(connection, "stretches", stretch, stretches)
    add_table(connection, "cells", {"cell": number, **stretch}, [(at, *one) for at, one in enumerate(cells)])
    add_table(connection, "held", {"server": name, **stretch}, held)


def covered_spans(store: RunStore, connection: duckdb.DuckDBPyConnection) -> list[Stretch]:
    """The stretches of the run that were recorded, in order of time; a recording may begin before its phase."""
    windows = library_windows(store)
    stated = store.manifest.profiled_phases
    if not windows and not stated:
        return [one for phase in _spans(store, connection, only_measure=False) for one in phase.covered_ns]
    every = [held for one in windows.values() if (held := one.held())]
    of_reports = report_stretches(store) if stated else []
    return list(common_stretches([*every, of_reports] if of_reports else every))


def _spans(store: RunStore, connection: duckdb.DuckDBPyConnection, only_measure: bool) -> list[PhaseSpan]:
    manifest = store.manifest
    windows = list(library_windows(store).values())
    is_stated = bool(manifest.profiled_phases or windows)
    with_events = set() if is_stated else _phases_with_events(store, connection)
    return [
        _span(store, phase, windows, phase.name in with_events)
        for phase in (measure_spans(manifest) if only_measure else phase_spans(manifest))
    ]


def _span(store: RunStore, phase: RunPhase, windows: list[Windows], has_events: bool) -> PhaseSpan:
    """Servers that have no window in the phase do not take from what the others have."""
    found = [one for one in (each.within(phase.start_ns, phase.end_ns) for each in windows) if one]
    of_reports: tuple[Stretch, ...] = ()
    late_ns = profiled_after_ns(store.manifest.profiled_phases, phase.name)
    if has_events or late_ns is not None:
        first_ns = phase.start_ns + max(0, late_ns or 0)
        of_reports = ((first_ns, phase.end_ns),) if first_ns < phase.end_ns else ()
    covered = common_stretches([*found, of_reports] if of_reports else found)
    return PhaseSpan(phase.name, phase.start_ns, phase.end_ns, covered, bool(found))


def _phases_with_events(store: RunStore, connection: duckdb.DuckDBPyConnection) -> set[str]:
    queries = [f"SELECT phase FROM {table}" for table in EVENT_TABLES if store.has(table)]
    rows = connection.execute(" UNION ".join(queries)).fetchall() if queries else []
    return {phase for (phase,) in rows}
