"""Tables on the run's clock, and the phase of each row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.timeline import (
    RunPhase,
    assign_phase,
    measure_spans,
    phase_of,
    phase_spans,
    to_run_clock,
)
from squall.scenarios.errors import AnalysisError

INSTANTS = st.none() | st.integers(-(2**61), 2**61)


@given(instants=st.lists(INSTANTS, min_size=1), offset_ns=st.integers(-(2**61), 2**61))
def test_only_instants_shift_and_nulls_stay(instants: list[int | None], offset_ns: int) -> None:
    columns = dict.fromkeys(TABLES["requests"].instants, instants)
    data = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    data = data.append_column("queue_ns", [instants])
    shifted = to_run_clock("requests", data, ClockTrack.constant(offset_ns))
    expected = [None if t is None else t + offset_ns for t in instants]
    assert shifted.to_pydict() == {**dict.fromkeys(columns, expected), "queue_ns": instants}


def test_each_instant_is_mapped_by_the_offset_that_holds_there() -> None:
    track = ClockTrack(np.array([0, 10, 20]), np.array([100, 110, 90]), np.array([1, 1, 1]))
    data = pa.table({"t_ns": pa.chunked_array([[0, 5], [10, 15, None, 20, 30]], pa.int64())})
    found = to_run_clock("worker_samples", data, track)["t_ns"].to_pylist()
    assert found == [100, 110, 120, 115, None, 110, 100]


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"interval_ns": [1]}, "worker_samples has no column t_ns"),
        ({"t_ns": [2**63 - 1]}, "overflow"),
    ],
)
def test_what_cannot_shift_is_an_error_not_a_silent_skip(columns: dict[str, list[int]], error: str) -> None:
    with pytest.raises((AnalysisError, pa.ArrowInvalid), match=error):
        to_run_clock("worker_samples", pa.table(columns), ClockTrack.constant(1))


SPANS = [RunPhase("a", "warmup", 0, 10), RunPhase("b", "measure", 10, 20), RunPhase("a2", "measure", 25, 30)]


@given(instants=st.lists(st.none() | st.integers(-5, 40)), n_phases=st.integers(0, 3))
def test_phases_are_half_open_and_empty_outside(instants: list[int | None], n_phases: int) -> None:
    spans = SPANS[:n_phases]
    expected = [
        next((s.name for s in spans if t is not None and s.start_ns <= t < s.end_ns), "") for t in instants
    ]
    assert phase_of(pa.array(instants, pa.int64()), spans[::-1]).to_pylist() == expected


def test_overlapping_phases_are_refused() -> None:
    with pytest.raises(AnalysisError, match="phases a and c overlap"):
        phase_of(pa.array([1]), [SPANS[0], RunPhase("c", "measure", 9, 12)])


def test_phase_replaces_the_column_where_it_stands_or_comes_second() -> None:
    data = pa.table({"run": ["r"], "phase": [""], "t_ns": [12]})
    for one in (data, data.drop_columns(["phase"])):
        found = assign_phase("host_samples", one, SPANS).to_pydict()
        assert list(found.items()) == [("run", ["r"]), ("phase", ["b"]), ("t_ns", [12])]


def test_spans_are_those_of_the_manifest_in_order_of_time() -> None:
    manifest = read_manifest({"phases": [span._asdict() for span in SPANS[::-1]]})
    assert phase_spans(manifest) == tuple(SPANS)
    assert [span.name for span in measure_spans(manifest)] == ["b", "a2"]
    assert measure_spans(read_manifest({})) == ()
