"""What a format does not hold is said, texts have the form that others read, and a failure leaves the old file."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.formats import TraceFormat
from squall.scenarios.traces.parts.part import TracePart, join_parts
from squall.scenarios.traces.reading import read_trace
from squall.scenarios.traces.writing import format_for, lost_in, write_trace

S = 1_000_000_000


def test_what_a_format_cannot_hold_is_said() -> None:
    part = TracePart(np.array([S + 1]), {"bytes": np.array([3])}, np.array([4]))
    assert lost_in("parquet", part) == ()
    assert lost_in("common-log", part) == ("the digits of an instant below 1 s",)
    assert lost_in("intervals", part) == (
        "the size column 'bytes'",
        "the sessions",
        "the digits of an instant below 1 us",
        "the instant of the first arrival: the file begins at 0",
    )
    assert lost_in("servegen", part)[0].startswith("every instant: ")
    assert lost_in("mooncake", TracePart(np.array([0]), {"input_length": np.array([3])})) == ()


def test_rows_without_a_session_stay_without(tmp_path: Path) -> None:
    part = TracePart(np.array([0, S]), {}, np.array([-1, 7]))
    for format in ("csv", "jsonl", "parquet", "arrow", "burstgpt", "common-log"):
        write_trace(tmp_path / format, format, [part])
        session = read_trace(tmp_path / format).session
        assert session is not None
        assert session.tolist() == [-1, 7]


def test_fixed_schedules_and_intervals_have_the_form_that_perf_analyzer_reads(tmp_path: Path) -> None:
    part = TracePart(np.array([S, 3 * S, 3 * S + 999]), {})
    write_trace(tmp_path / "a", "fixed-schedule", part.pieces(2))
    data = json.loads((tmp_path / "a").read_text())["data"]
    assert data == [{"payload": [{}], "timestamp": [ms]} for ms in (0, 2000, 2000)]
    write_trace(tmp_path / "b", "intervals", part.pieces(2))
    assert (tmp_path / "b").read_text() == "0\n2000000\n0\n"


def test_counts_hold_every_second_between_the_first_and_the_last(tmp_path: Path) -> None:
    part = TracePart(np.array([5 * S, 5 * S + 1, 7 * S, 9 * S]), {})
    for piece_rows in (1, 2, 3, 4):
        write_trace(tmp_path / "a", "counts", part.pieces(piece_rows))
        assert (tmp_path / "a").read_text() == "second,count\n5,2\n6,0\n7,1\n8,0\n9,1\n"
    far = TracePart(np.array([0, 2 * 10**7 * S]), {})
    with pytest.raises(ScenarioError, match="over 10000000 seconds without arrivals; cut the trace first"):
        write_trace(tmp_path / "b", "counts", [far])


def test_a_new_file_can_be_read_by_others(tmp_path: Path) -> None:
    write_trace(tmp_path / "a", "lines", [TracePart(np.array([0]), {})])
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~mask


def test_the_format_is_the_stated_one_or_that_of_the_name() -> None:
    assert format_for(Path("a.csv.gz")) == "csv"
    assert format_for(Path("a.feather")) == "arrow"
    assert format_for(Path("a.csv"), "azure-llm") == "azure-llm"
    for path, stated, said in (
        ("a.log", None, "a.log: the ending says no format; name one of azure-llm, "),
        ("a.csv", "azure", "'azure' is no trace format, did you mean 'azure-llm'? allowed are azure-llm, "),
        ("a.parquet.gz", None, "a.parquet.gz: parquet is compressed by itself; leave .gz out of the name"),
    ):
        with pytest.raises(ScenarioError) as caught:
            format_for(Path(path), stated)
        assert str(caught.value).startswith(said)


FULL: list[TraceFormat] = ["csv", "parquet"]


@pytest.mark.parametrize("format", FULL)
def test_a_full_disk_is_one_line_and_leaves_the_old_file(
    tmp_path: Path, format: TraceFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ScenarioError) as caught:
        write_trace(path, format, [TracePart(np.array([0]), {})])
    assert str(caught.value) == f"{path}: cannot be written: No space left on device"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    def parts() -> Iterator[TracePart]:
        yield TracePart(np.array([5]), {})
        raise ScenarioError("the source broke")

    path = tmp_path / "a.parquet"
    path.write_text("old")
    with pytest.raises(ScenarioError, match="the source broke"):
        write_trace(path, "parquet", parts())
    with pytest.raises(ScenarioError, match="the rows are not in the order of time; sort them first"):
        write_trace(path, "csv", [TracePart(np.array([5]), {}), TracePart(np.array([4]), {})])
    with pytest.raises(ScenarioError, match="the trace has no arrivals"):
        write_trace(path, "csv", [])
    with pytest.raises(ScenarioError, match="a size column is named 'timestamp_ns'"):
        write_trace(path, "csv", [TracePart(np.array([5]), {"timestamp_ns": np.array([5])})])
    with pytest.raises(ScenarioError, match=r"none/a: cannot be written: No such file or directory"):
        write_trace(tmp_path / "none" / "a", "csv", [TracePart(np.array([5]), {})])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_columns_of_one_part_are_equally_long() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        TracePart(np.array([0, 1]), {"n": np.array([1])})
    with pytest.raises(ValueError, match="no parts to join"):
        join_parts([])
