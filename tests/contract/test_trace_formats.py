"""What holds for the rows of a trace whatever the format, and that what is written is read back."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from squall.scenarios.traces.formats import FORMATS
from squall.scenarios.traces.options import TraceUnit
from squall.scenarios.traces.part import TracePart, join_parts
from squall.scenarios.traces.reading import open_trace, read_trace
from squall.scenarios.traces.rows import Source
from squall.scenarios.traces.writing import WrittenFormat, write_trace
from tests.many_examples import examples
from tests.unit.scenarios.traces.test_trace_formats import CASES, Case, write_case

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


@examples(80, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def columnar(format: str) -> Case:
    table = pa.table(
        {"timestamp_ns": [0, S, S, 5 * S], "tokens": [7, 8, 9, 10], "session": ["a", "a", "b", ""]}
    )
    sink = pa.BufferOutputStream()
    if format == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return {"format": format, "bytes": sink.getvalue().to_pybytes().decode("latin-1")}


CLIENT_WINDOWS = """\
model,client,window_start_s,rate,cv,iat_family,shape,scale
,a,0,0.5,1.4,Gamma,0.5,4
,b,0,0.25,1,Weibull,1,4
,a,600,0.5,1,Gamma,1,2
"""
EXAMPLES: list[Case] = [
    *(case for case in CASES["read"] if "format" in case),
    {"format": "servegen", "text": CLIENT_WINDOWS},
    columnar("parquet"),
    columnar("arrow"),
]


def source_of(folder: Path, example: Case) -> Source:
    path, options = write_case(folder, example, "")
    return FORMATS[example["format"]].source(path, example["format"], options)


def test_every_format_has_an_example() -> None:
    assert {example["format"] for example in EXAMPLES} == {*FORMATS}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["format"])
def test_each_call_gives_every_row_from_the_first_on_with_its_number_in_the_file(
    example: Case, tmp_path: Path
) -> None:
    source = source_of(tmp_path, example)
    seen = []
    for _ in range(2):
        part = join_parts(list(source.parts()))
        assert part.stamp_ns.dtype == np.int64
        assert part.row is not None
        rows = part.row.tolist()
        if example["format"] != "servegen":  # whose rows are windows, of several clients at once
            assert rows == sorted(rows)
        assert min(rows) >= 1
        seen.append((part.stamp_ns.tolist(), rows))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["format"])
def test_what_a_source_says_of_its_rows_holds_for_them(example: Case, tmp_path: Path) -> None:
    source = source_of(tmp_path, example)
    assert source.unit is None or source.unit in get_args(TraceUnit)
    for part in source.parts():
        assert tuple(part.sizes) == source.size_names
        assert (part.session is not None) == (source.fields.session is not None)
