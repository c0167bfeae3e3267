from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.clocks.timeline import (
    RunPhase,
    assign_phase,
    measure_spans,
    phase_of,
    phase_spans,
    to_run_clock,
)
from squall.analysis.clocks.track import ClockTrack
from squall.analysis.schema import TABLES
from squall.analysis.tables.manifest import read_manifest
from squall.scenarios.errors import AnalysisError

INSTANTS = st.integers(-(2**61), 2**61)


@given(instants=st.lists(st.none() | INSTANTS, min_size=1), offset_ns=INSTANTS)
def test_only_instants_shift_and_nulls_stay(instants: list[int | None], offset_ns: int) -> None:
    columns = {
        name: pa.array(instants, pa.int64())
        for name in ("scheduled_ns", "sent_ns", "first_byte_ns", "done_ns")
    }
    data = pa.table({**columns, "rows": pa.array(range(len(instants)))})
    shifted = to_run_clock("requests", data, ClockTrack.constant(offset_ns))
    expected = [None if t is None else t + offset_ns for t in instants]
    for name in TABLES["requests"].instants:
        assert shifted[name].to_pylist() == expected
    assert shifted["rows"].to_pylist() == list(range(len(instants)))
    assert shifted.schema.names == data.schema.names


def test_each_instant_is_mapped_by_the_offset_that_holds_there() -> None:
    track = ClockTrack(np.array([0, 10, 20]), np.array([100, 110, 90]), np.array([1, 1, 1]))
    data = pa.table({"t_ns": pa.chunked_array([[0, 5], [10, 15, None, 20, 30]], pa.int64())})
    assert to_run_clock("worker_samples", data, track)["t_ns"].to_pylist() == [
        100,
        110,
        120,
        115,
        None,
        110,
        100,
    ]


def test_spans_are_not_shifted() -> None:
    data = pa.table({"t_ns": [10], "interval_ns": [3], "cpu_ns": [2]})
    assert to_run_clock("worker_samples", data, ClockTrack.constant(100)).to_pylist() == [
        {"t_ns": 110, "interval_ns": 3, "cpu_ns": 2}
    ]


def test_a_missing_instant_column_is_an_error_not_a_silent_skip() -> None:
    with pytest.raises(AnalysisError, match="worker_samples has no column t_ns"):
        to_run_clock("worker_samples", pa.table({"interval_ns": [1]}), ClockTrack.constant(1))


def test_an_overflowing_shift_is_an_error() -> None:
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        to_run_clock("worker_samples", pa.table({"t_ns": [2**63 - 1]}), ClockTrack.constant(1))


SPANS = [RunPhase("a", "warmup", 0, 10), RunPhase("b", "measure", 10, 20), RunPhase("a2", "measure", 25, 30)]


@given(instants=st.lists(st.none() | st.integers(-5, 40)))
def test_phases_are_half_open_and_empty_outside(instants: list[int | None]) -> None:
    expected = [
        next((s.name for s in SPANS if t is not None and s.start_ns <= t < s.end_ns), "") for t in instants
    ]
    assert phase_of(pa.array(instants, pa.int64()), SPANS[::-1]).to_pylist() == expected


def test_without_phases_every_row_lies_outside() -> None:
    assert phase_of(pa.array([1, 2]), []).to_pylist() == ["", ""]


def test_overlapping_phases_are_refused() -> None:
    with pytest.raises(AnalysisError, match="phases a and c overlap"):
        phase_of(pa.array([1]), [SPANS[0], RunPhase("c", "measure", 9, 12)])


def test_phase_replaces_the_column_where_it_stands_or_comes_second() -> None:
    data = pa.table({"run": ["r"], "phase": [""], "t_ns": [12]})
    assert assign_phase("host_samples", data, SPANS).to_pylist() == [{"run": "r", "phase": "b", "t_ns": 12}]
    added = assign_phase("host_samples", data.drop_columns(["phase"]), SPANS)
    assert added.schema.names == ["run", "phase", "t_ns"]


def test_measure_spans_are_those_of_that_kind_in_order_of_time() -> None:
    manifest = {"phases": [span._asdict() for span in SPANS[::-1]]}
    assert phase_spans(read_manifest(manifest)) == tuple(SPANS)
    assert [span.name for span in measure_spans(read_manifest(manifest))] == ["b", "a2"]
    assert measure_spans(read_manifest({})) == ()
