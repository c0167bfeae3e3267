"""The records of trace formats: all of them, in an order in which none takes another's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.formats import FORMATS, closed, record_of
from squall.scenarios.traces.parts.options import TraceFormat
from squall.scenarios.traces.parts.part import TracePart
from squall.scenarios.traces.reading import TraceOptions, open_trace, read_trace
from squall.scenarios.traces.writing import write_trace
from tests.unit.scenarios.traces.test_trace_formats import CASES

S = 1_000_000_000
UNKNOWN = [
    ("when,what\n1,2\n", "row 1: no column 'timestamp': there are 'when', 'what'; name the column"),
    ("\n1,2\n", "row 2: '1,2' is a row of values, a table needs a header first; add one, or name the format"),
    (
        "PK\3\4 archive",
        "row 1: 'PK\\x03\\x04 archive' is neither a time nor a header with a timestamp column",
    ),
]


LOGS = {"alb-log", "elb-log", "envoy-log", "haproxy-log", "w3c-log"}
"""Read and never written; `tests/unit/cluster/commands/test_trace_logs.py` has them."""
ELSEWHERE = {"bailian", "servegen", "intervals", "parquet", "arrow", *LOGS}
"""Formats whose examples are no text that stands for itself."""


def test_every_format_has_an_example() -> None:
    assert {format for _, format, *_ in CASES} | ELSEWHERE == set(get_args(TraceFormat))


def test_the_records_are_those_of_the_names() -> None:
    assert {one.name for one in FORMATS} == set(get_args(TraceFormat))


@pytest.mark.parametrize("name", get_args(TraceFormat))
def test_a_name_without_its_record_is_refused(name: TraceFormat) -> None:
    with pytest.raises(
        TypeError, match=rf"FORMATS of squall.scenarios.traces.formats: '{name}' of TraceFormat"
    ):
        closed([one for one in FORMATS if one.name != name])


def test_a_record_without_a_name_or_with_the_name_or_ending_of_another_is_refused() -> None:
    stranger = replace(record_of("csv"), name="tsv", endings=())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'tsv' is no TraceFormat"):
        closed([*FORMATS, stranger])
    with pytest.raises(TypeError, match="'csv' stands twice"):
        closed([*FORMATS, replace(record_of("csv"), endings=())])
    with pytest.raises(TypeError, match=r"'\.txt' stands twice"):
        closed(
            [
                *(one for one in FORMATS if one.name != "counts"),
                replace(record_of("counts"), endings=(".txt",)),
            ]
        )


@pytest.mark.parametrize(("text", "what"), UNKNOWN)
def test_a_file_of_no_format_is_refused_with_all_that_was_tried(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        open_trace(tmp_path / "trace.csv")
    said = str(caught.value).removeprefix(f"{tmp_path / 'trace.csv'}: ")
    assert said.startswith(what)
    tried = said.partition("(it is none of ")[2].removesuffix(")").split(", ")
    assert tried == [one.name for one in FORMATS if one.name != "intervals"]


@pytest.mark.parametrize("name", [one.name for one in FORMATS if one.write is not None])
def test_a_file_is_recognised_as_the_format_it_is_written_in(tmp_path: Path, name: TraceFormat) -> None:
    sizes = {one: np.arange(5) for one in ("input_length", "output_length", "bytes")}
    part = TracePart(np.arange(5) * 1_000 * S, sizes, np.arange(5))
    write_trace(tmp_path / "trace", name, [part])
    is_shown = record_of(name).recognise is not None
    assert open_trace(tmp_path / "trace").format == (name if is_shown else "lines")
    assert open_trace(tmp_path / "trace", TraceOptions(format=name)).format == name


def test_a_table_is_a_csv_by_the_column_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "two").write_text("What,When\n5,1\n6,2\n")
    (tmp_path / "one").write_text("When\n1\n2\n")
    for name in ("two", "one"):
        options = TraceOptions(column="when")
        assert open_trace(tmp_path / name, options).format == "csv"
        assert read_trace(tmp_path / name, options).stamp_ns.tolist() == [S, 2 * S]
