"""What every source of a trace reads, whatever the format, and that what is written is read back."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squall.scenarios.traces.parts.options import TraceUnit
from squall.scenarios.traces.parts.part import TracePart
from squall.scenarios.traces.readers.chunk import Mending
from squall.scenarios.traces.reading import FORMATS, Format, TraceFormat, TraceOptions, open_trace, read_trace
from squall.scenarios.traces.writing import WrittenFormat, write_trace
from tests.trace_examples import SESSIONS, SIZES, STAMPS_NS, WITHOUT_SESSIONS, example_file

S = 1_000_000_000
WRITTEN: tuple[WrittenFormat, ...] = get_args(WrittenFormat)


@st.composite
def traces(draw: st.DrawFn) -> TracePart:
    """Rows within an hour, from the trace's own zero or from today, with two sizes and sessions."""
    origin_ns = draw(st.sampled_from([0, 1_700_000_000 * S]))
    offsets = sorted(draw(st.lists(st.integers(0, 3_600 * S), min_size=1, max_size=12)))
    n_rows = len(offsets)
    sizes = {}
    for name in ("ContextTokens", 'a, "b"'):
        values = draw(st.lists(st.integers(-1, 2**40), min_size=n_rows, max_size=n_rows))
        # a column all empty is no column
        sizes[name] = np.array([max(values[0], 0), *values[1:]], dtype=np.int64)
    numbers = st.one_of(st.integers(-1, 3), st.integers(0, 2**63 - 1))
    sessions = draw(st.lists(numbers, min_size=n_rows, max_size=n_rows))
    return TracePart(np.array(offsets, dtype=np.int64) + origin_ns, sizes, np.array(sessions, dtype=np.int64))


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces(), st.sampled_from(WRITTEN), st.integers(1, 12), st.sampled_from(["", ".gz", ".zst"]))
def test_what_is_written_is_read_back(
    tmp_path: Path, part: TracePart, format: WrittenFormat, piece_rows: int, suffix: str
) -> None:
    path = tmp_path / f"trace{'' if format == 'parquet' else suffix}"
    assert write_trace(path, format, part.pieces(piece_rows)) == len(part)
    assert open_trace(path).format == format
    back = read_trace(path)
    assert back.stamp_ns.tolist() == part.stamp_ns.tolist()
    assert {name: values.tolist() for name, values in back.sizes.items()} == {
        name: values.tolist() for name, values in part.sizes.items()
    }
    assert part.session is not None
    assert back.session is not None
    assert back.session.tolist() == part.session.tolist()


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_the_text_is_the_same_however_the_rows_are_cut_into_parts(
    format: WrittenFormat, tmp_path: Path
) -> None:
    part = TracePart(np.arange(9) * S, {"n": np.arange(9)}, np.array([3, 3, 5, -1, 3, 5, 5, 3, 7]))
    write_trace(tmp_path / "whole", format, [part])
    whole = (tmp_path / "whole").read_bytes()
    assert whole.endswith(b"\n")
    for most_rows in range(1, 9):
        write_trace(tmp_path / "parts", format, part.pieces(most_rows))
        assert (tmp_path / "parts").read_bytes() == whole


@pytest.mark.parametrize("format", FORMATS, ids=lambda one: one.name)
def test_an_example_is_recognised_and_read_exactly(format: Format, tmp_path: Path) -> None:
    path = example_file(tmp_path, format.name)
    assert open_trace(path).format == ("lines" if format.recognise is None else format.name)
    part = read_trace(path, TraceOptions(format=format.name))
    assert {name: values.tolist() for name, values in part.sizes.items()} == SIZES.get(format.name, {})
    assert (part.session is None) == (format.name in WITHOUT_SESSIONS)
    if format.name == "servegen":  # draws the instants
        return
    assert part.stamp_ns.tolist() == STAMPS_NS
    if part.session is not None:
        first = [part.session.tolist().index(number) for number in part.session.tolist()]
        assert first == [SESSIONS.index(name) for name in SESSIONS]


@pytest.mark.parametrize("format", FORMATS, ids=lambda one: one.name)
def test_each_call_gives_every_row_from_the_first_on_with_its_number_in_the_file(
    format: Format, tmp_path: Path
) -> None:
    source = format.read(example_file(tmp_path, format.name), TraceOptions(format=format.name))
    seen = []
    for _ in range(2):
        chunks = list(source.chunks(Mending(())))
        stamps = np.concatenate([chunk.part.stamp_ns for chunk in chunks])
        assert stamps.dtype == np.int64
        numbers = [chunk.row_of(index) for chunk in chunks for index in range(len(chunk.part))]
        if (
            format.name != "servegen"
        ):  # whose rows are windows, with any number of arrivals, of several clients at once
            assert stamps.size == len(STAMPS_NS)
            assert numbers == sorted(numbers)
        assert min(numbers) >= 1
        seen.append((stamps.tolist(), numbers))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("format", FORMATS, ids=lambda one: one.name)
def test_what_a_source_says_of_its_rows_holds_for_them(format: Format, tmp_path: Path) -> None:
    source = format.read(example_file(tmp_path, format.name), TraceOptions(format=format.name))
    assert source.unit is None or source.unit in get_args(TraceUnit)
    assert source.unit is not None or not source.unit_is_assumed
    assert source.tick_ns is None or source.tick_ns > 0
    for chunk in source.chunks(Mending(())):
        assert tuple(chunk.part.sizes) == source.size_names
        assert (chunk.part.session is not None) == source.has_sessions


def test_every_format_is_there_once() -> None:
    assert sorted(format.name for format in FORMATS) == sorted(get_args(TraceFormat))
