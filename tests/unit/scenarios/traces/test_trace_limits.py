"""Files at and beyond the limits of the libraries below: each is refused in one line, or read exactly."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.parts.part import TracePart
from squall.scenarios.traces.readers.instants import is_safe_as_json, is_safe_to_cast
from squall.scenarios.traces.reading import TraceOptions, read_trace
from squall.scenarios.traces.writing import whole_or_not, write_trace

S = 1_000_000_000


def written(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def fault_of(path: Path, options: TraceOptions | None = None) -> str:
    with pytest.raises(ScenarioError) as caught:
        read_trace(path, options or TraceOptions())
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


@pytest.mark.parametrize("digits", ["1e-999999999", "0." + "0" * 60 + "1", "1" * 40 + "e-40"])
@pytest.mark.parametrize("row", ["{}\n", '{{"timestamp": {}}}\n'])
def test_numbers_that_arrow_misreads_are_read_by_rows(tmp_path: Path, digits: str, row: str) -> None:
    """pyarrow 25 reads outside its memory for the first and gives other numbers for the others."""
    rows = "".join(row.format(text) for text in (digits, "1", "2.5"))
    stamps = read_trace(written(tmp_path, rows), TraceOptions(unit="s")).stamp_ns
    expected = 111_111_111 if digits.startswith("11") else 0
    assert stamps.tolist() == [expected, S, 5 * S // 2]


@pytest.mark.parametrize("digits", ["9" * 128, "1" + "0" * 128, "9" * 100_000])
@pytest.mark.parametrize("row", ["{}\n", '{{"timestamp": {}, "n": 1}}\n'])
def test_a_number_of_a_hundred_digits_is_too_large(tmp_path: Path, digits: str, row: str) -> None:
    """As decimal128 the first two became -1 s and 0 s."""
    path = written(tmp_path, row.format(1) + row.format(digits))
    assert fault_of(path, TraceOptions(unit="s")).startswith(("row 2: ",))


def test_ordinary_numbers_keep_the_fast_way() -> None:
    assert is_safe_to_cast(pa.array(["1700000000.123456789", "-5", "1e3", "1.7e+18"]))
    assert not is_safe_to_cast(pa.array(["1", "1e-9999"]))
    assert is_safe_as_json(b'{"timestamp": 1700000000123456789, "e5": [1, 2e3, -1.5E+10], "h": "1e9"}\n')
    assert not is_safe_as_json(b'{"timestamp": 1e-9999}\n')
    for shift in range(24):
        assert not is_safe_as_json(b" " * shift + b"1" * 47)


@pytest.mark.parametrize("row", ['2,"5', '2,"5\n"', "2,5\r3,6"])
def test_a_quote_or_a_carriage_return_swallows_no_rows(tmp_path: Path, row: str) -> None:
    """Arrow takes what follows an open quote, up to the end of the block, for one cell."""
    path = written(tmp_path, f"timestamp,name\n1,4\n{row}\n4,7\n")
    assert fault_of(path).startswith("row 3: the line is no CSV")
    assert read_trace(path, TraceOptions(repairs=("skip-bad",))).stamp_ns.tolist() == [S, 4 * S]


def test_two_objects_in_a_line_of_json_are_a_fault(tmp_path: Path) -> None:
    path = written(tmp_path, '{"timestamp": 1} {"timestamp": 2}\n{"timestamp": 3}\n')
    assert fault_of(path).startswith("row 1: not JSON: Extra data")


def test_a_session_that_is_no_unicode_is_a_session(tmp_path: Path) -> None:
    rows = '{"timestamp": 1, "user": "\\ud800"}\n{"timestamp": 2, "user": "\\ud800"}\n{"timestamp": 3, "user": "a"}\n'
    session = read_trace(written(tmp_path, rows)).session
    assert session is not None
    assert session[0] == session[1] != session[2]


@pytest.mark.parametrize("names", [("timestamp_ns", "timestamp_ns"), ("timestamp_ns", "a", "a")])
def test_a_column_that_is_there_twice_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1, 2])] * len(names), names=list(names)), path)
    assert fault_of(path) == f"the column {names[-1]!r} is there twice; rename one"


def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    """It has no writer: opening it would wait for ever."""
    os.mkfifo(tmp_path / "pipe.csv")
    assert fault_of(tmp_path / "pipe.csv") == "is a pipe or a device; write it to a file first"


@pytest.mark.parametrize(
    "row", ["0,1,1,Weibull,0.000001,1", "0,1,1,Gamma,0.00001,1", "0,1,1,Gamma,1e300,1", "1e300,1,1,Gamma,1,1"]
)
def test_a_client_window_that_cannot_be_drawn_names_its_row(tmp_path: Path, row: str) -> None:
    path = written(tmp_path, f"start,rate,cv,family,shape,scale\n{row}\n")
    assert fault_of(path).startswith("row 2: ")


def test_a_device_or_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    """As root a rename would put a file in the place of /dev/null."""
    os.mkfifo(tmp_path / "pipe.csv")
    part = TracePart(np.array([1, 2]), {})
    with pytest.raises(
        ScenarioError, match=r"pipe.csv: cannot be written: it is a folder, a device or a pipe"
    ):
        write_trace(tmp_path / "pipe.csv", "csv", [part])
    assert (tmp_path / "pipe.csv").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe.csv"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to("real.csv")
    written(tmp_path, "old", "real.csv")
    write_trace(tmp_path / "link.csv", "csv", [TracePart(np.array([1, 2]), {})])
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "timestamp_ns\n1\n2\n"


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = written(tmp_path, "old", "plot.png")

    def failing() -> None:
        with whole_or_not(path) as new:
            new.write_text("half")
            raise OSError("disk")

    with pytest.raises(ScenarioError, match="cannot be written: disk"):
        failing()
    assert path.read_text() == "old"
    assert [path] == list(tmp_path.iterdir())


def test_a_trace_before_1970_is_not_written(tmp_path: Path) -> None:
    part = TracePart(np.array([-3 * S // 2, 0]), {})
    with pytest.raises(ScenarioError, match="begins before 1970"):
        write_trace(tmp_path / "x", "csv", [part])
    assert list(tmp_path.iterdir()) == []
