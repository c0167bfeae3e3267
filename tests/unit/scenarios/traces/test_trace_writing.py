"""The three formats that are written, what is said of others, and that a failure leaves the old file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.parts.part import TracePart, join_parts
from squall.scenarios.traces.reading import read_trace
from squall.scenarios.traces.writing import WrittenFormat, format_for, write_trace

S = 1_000_000_000
FORMATS: tuple[WrittenFormat, ...] = ("parquet", "csv", "jsonl")


def test_rows_without_a_session_stay_without(tmp_path: Path) -> None:
    part = TracePart(np.array([0, S]), {}, np.array([-1, 7]))
    for format in FORMATS:
        write_trace(tmp_path / format, format, [part])
        session = read_trace(tmp_path / format).session
        assert session is not None
        assert session.tolist() == [-1, 7]


def test_a_new_file_can_be_read_by_others(tmp_path: Path) -> None:
    write_trace(tmp_path / "a", "csv", [TracePart(np.array([0]), {})])
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~mask


def test_the_form_of_a_text_is_that_of_its_columns(tmp_path: Path) -> None:
    part = TracePart(
        np.array([0, S + 1]), {"n": np.array([-1, 2]), 'a,"b': np.array([3, 4])}, np.array([-1, 7])
    )
    write_trace(tmp_path / "a", "csv", [part])
    assert (tmp_path / "a").read_text() == (
        'timestamp_ns,n,"a,""b",session\n0,,3,\n1000000001,2,4,session-0000000000000007\n'
    )
    write_trace(tmp_path / "a", "jsonl", [part])
    assert (tmp_path / "a").read_text() == (
        '{"timestamp_ns": 0, "n": null, "a,\\"b": 3, "session": ""}\n'
        '{"timestamp_ns": 1000000001, "n": 2, "a,\\"b": 4, "session": "session-0000000000000007"}\n'
    )


def test_the_format_is_the_stated_one_or_that_of_the_name() -> None:
    assert format_for(Path("a.csv.gz")) == "csv"
    assert format_for(Path("a.ndjson.zst")) == "jsonl"
    assert format_for(Path("a.csv"), "parquet") == "parquet"
    others = "no format that traces are written in; name one of parquet, csv, jsonl"
    for path, stated, said in (
        ("a.log", None, f"a.log: the ending says {others}"),
        ("a.feather", None, f"a.feather: the ending says {others}"),
        ("a.csv", "azure-llm", f"'azure-llm' is {others}"),
        ("a.parquet.gz", None, "a.parquet.gz: parquet is compressed by itself; leave .gz out of the name"),
    ):
        with pytest.raises(ScenarioError) as caught:
            format_for(Path(path), stated)
        assert str(caught.value) == said


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_one_line_and_leaves_the_old_file(
    tmp_path: Path, format: WrittenFormat, monkeypatch: pytest.MonkeyPatch
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
