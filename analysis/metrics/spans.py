"""The phases that figures are of, and what of each a report covers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from squall.analysis.clocks.timeline import measure_spans, phase_spans
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.collected import ProfiledPhase
from squall.analysis.tables.nsys import EVENT_TABLES

if TYPE_CHECKING:
    import duckdb


class PhaseSpan(NamedTuple):
    """A phase, half-open on the run clock, and what of it a report covers; None: no report does."""

    name: str
    start_ns: int
    end_ns: int
    covered_ns: tuple[int, int] | None

    @property
    def wall_ns(self) -> tuple[int, int]:
        """The part of the phase that figures are of: what is covered, else all of it."""
        return self.covered_ns or (self.start_ns, self.end_ns)


def measured_phases(store: RunStore, connection: duckdb.DuckDBPyConnection) -> list[PhaseSpan]:
    """The measure phases of the run, in order of time. `connection` has a view of each event table of the run."""
    return _spans(store, connection, only_measure=True)


def covered_spans(store: RunStore, connection: duckdb.DuckDBPyConnection) -> list[tuple[int, int]]:
    """The stretches of the run that a report covers, in order of time; a recording may begin before its phase."""
    stated = store.manifest.profiled_phases
    phases = phase_spans(store.manifest)
    if not stated:
        spans = [phase.covered_ns for phase in _spans(store, connection, only_measure=False)]
        return [span for span in spans if span is not None]
    found: list[tuple[int, int]] = []
    for phase in phases:
        late_ns = _late_ns(stated, phase.name)
        if late_ns is not None:
            start_ns = max(phase.start_ns + late_ns, found[-1][1] if found else phase.start_ns + late_ns)
            found.append((start_ns, phase.end_ns))
    return [(start_ns, end_ns) for start_ns, end_ns in found if start_ns < end_ns]


def _spans(store: RunStore, connection: duckdb.DuckDBPyConnection, only_measure: bool) -> list[PhaseSpan]:
    manifest = store.manifest
    stated = manifest.profiled_phases
    with_events = set() if stated else _phases_with_events(store, connection)
    found = []
    for phase in measure_spans(manifest) if only_measure else phase_spans(manifest):
        covered: tuple[int, int] | None = None
        if phase.name in with_events:
            covered = (phase.start_ns, phase.end_ns)
        elif (late_ns := _late_ns(stated, phase.name)) is not None:
            first_ns = phase.start_ns + max(0, late_ns)
            covered = (first_ns, phase.end_ns) if first_ns < phase.end_ns else None
        found.append(PhaseSpan(phase.name, phase.start_ns, phase.end_ns, covered))
    return found


def _late_ns(stated: Mapping[str, ProfiledPhase], phase: str) -> int | None:
    """From when after its start a phase is profiled, as the manifest says; negative: from before it; None: not."""
    one = stated.get(phase)
    return one.profiled_after_ns or 0 if one is not None and one.is_profiled else None


def _phases_with_events(store: RunStore, connection: duckdb.DuckDBPyConnection) -> set[str]:
    queries = [f"SELECT DISTINCT phase FROM {table}" for table in EVENT_TABLES if store.has(table)]
    return {phase for query in queries for (phase,) in connection.execute(query).fetchall()}
