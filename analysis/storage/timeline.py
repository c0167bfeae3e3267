"""One clock for all tables: node clocks to the run clock, and instants to phases.

    node monotonic ns ──(+ offset at that instant, known within ± its error)──► run clock: UTC ns of the driver

Raw stamps of two nodes do not compare before this; after it they do, within the sum of both error bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.columns import PhaseAt
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.manifest import Manifest, PhaseFacts
from squall.analysis.storage.schema import TABLES
from squall.scenarios.errors import AnalysisError

_LEAST_NS = np.iinfo(np.int64).min
MEASURE = "measure"
"""Kind of the phases whose numbers count."""


class RunPhase(NamedTuple):
    """A phase of the run: half-open [start_ns, end_ns) on the run clock."""

    name: str
    kind: str
    start_ns: int
    end_ns: int


def to_run_clock(table: str, data: pa.Table, clock: ClockTrack) -> pa.Table:
    """`data` with every instant column of `table` mapped to the run clock; nulls stay, spans stay.

    Raises AnalysisError where a column is missing, and pyarrow's ArrowInvalid where an instant leaves int64.
    """
    for name in TABLES[table].instants:
        position = data.schema.get_field_index(name)
        if position < 0:
            raise AnalysisError(f"{table} has no column {name} to shift to the run clock")
        column = data.column(position)
        offsets = clock.offsets_at(pc.fill_null(column, 0).to_numpy())
        shifted = pc.add_checked(column, pa.array(offsets, pa.int64()))
        data = data.set_column(position, data.schema.field(position), shifted)
    return data


def phase_spans(manifest: Manifest) -> tuple[RunPhase, ...]:
    """The phases that the manifest states, in order of time; empty if it states none."""
    return _ordered(manifest.phases)


def measure_spans(manifest: Manifest) -> tuple[RunPhase, ...]:
    """The phases whose numbers count: those of kind `measure`, in order of time."""
    return tuple(span for span in phase_spans(manifest) if span.kind == MEASURE)


def planned_measure_spans(manifest: Manifest) -> tuple[RunPhase, ...]:
    """`measure_spans`, as the schedule has them, of a run that ended before its time too."""
    facts = manifest.decided.phases if manifest.decided is not None else manifest.phases
    return tuple(span for span in _ordered(facts) if span.kind == MEASURE)


def _ordered(facts: Iterable[PhaseFacts]) -> tuple[RunPhase, ...]:
    rows = [RunPhase(p.name, p.kind, p.start_ns, p.end_ns) for p in facts]
    return tuple(sorted(rows, key=lambda span: span.start_ns))


def assign_phase(table: str, data: pa.Table, spans: Sequence[RunPhase]) -> pa.Table:
    """`data` with `phase` set to the span that holds the instant by which `table` has its phases; empty outside spans,
    and for nulls. Rows of a table that brings its phases keep theirs.

    Spans are half-open [start, end) on the run clock and must not overlap; else `AnalysisError`. A `phase`
    column is replaced where it stands, or added as the second column, where the schema has it.
    """
    rule = TABLES[table].phase
    if not isinstance(rule, PhaseAt):
        return data
    phase = phase_of(data.column(rule.instant), spans)
    position = data.schema.get_field_index("phase")
    if position < 0:
        return data.add_column(min(1, data.num_columns), pa.field("phase", phase.type, False), phase)
    return data.set_column(position, data.schema.field(position).with_type(phase.type), phase)


def phase_of(instants: pa.ChunkedArray | pa.Array, spans: Sequence[RunPhase]) -> pa.DictionaryArray:
    """Name of the span that holds each instant, dictionary-encoded; see `assign_phase`."""
    ordered = sorted(spans, key=lambda span: span.start_ns)
    for before, after in pairwise(ordered):
        if after.start_ns < before.end_ns:
            raise AnalysisError(f"phases {before.name} and {after.name} overlap")
    starts = np.array([span.start_ns for span in ordered], dtype=np.int64)
    ends = np.array([*(span.end_ns for span in ordered), _LEAST_NS], dtype=np.int64)
    values = pc.fill_null(instants, _LEAST_NS).to_numpy()
    index = np.searchsorted(starts, values, side="right") - 1  # -1, the last of `ends`, before all phases
    index = np.where(values < ends[index], index, len(ordered))
    names = pa.array([*(span.name for span in ordered), ""], pa.string())
    return names.dictionary_encode().take(pa.array(index, pa.int32()))
