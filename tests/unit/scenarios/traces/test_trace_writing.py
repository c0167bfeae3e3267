"""The three formats that are written, and that a file is written whole, in the place of no device, or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.part import TracePart
from squall.scenarios.traces.writing import WrittenFormat, format_for, whole_or_not, write_trace

S = 1_000_000_000


def of(*stamps: int, **sizes: int) -> TracePart:
    return TracePart(np.array(stamps), {name: np.array([size]) for name, size in sizes.items()})


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Path]:
    """A file that a failed write leaves as it was, alone in its folder."""
    path = tmp_path / "a.parquet"
    path.write_text("old")
    yield path
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


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


@pytest.mark.parametrize(("name", "stated", "format"), [
    ("a.csv.gz", None, "csv"), ("a.ndjson.zst", None, "jsonl"), ("a.csv", "parquet", "parquet"),
])  # fmt: skip
def test_the_format_is_the_stated_one_or_that_of_the_name(name: str, stated: str | None, format: str) -> None:
    assert format_for(Path(name), stated) == format


@pytest.mark.parametrize(("name", "stated", "said"), [
    ("a.log", None, "a.log: .* name one of parquet, csv, jsonl"),
    ("a.csv", "azure-llm", "'azure-llm' is no format that traces are written in"),
    ("a.parquet.gz", None, "a.parquet.gz: parquet is compressed by itself; leave .gz out of the name"),
])  # fmt: skip
def test_other_formats_are_refused(name: str, stated: str | None, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        format_for(Path(name), stated)


@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl"])
def test_a_full_disk_is_one_line_and_leaves_the_old_file(
    old: Path, format: WrittenFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ScenarioError, match=f"^{old}: cannot be written: No space left on device$"):
        write_trace(old, format, [of(0)])


def broken() -> Iterator[TracePart]:
    yield of(5)
    raise ScenarioError("the source broke")


@pytest.mark.parametrize(("parts", "said"), [
    (broken(), "the source broke"),
    ([of(5), of(4)], "the rows are not in the order of time; sort them first"),
    ([of(5, 4)], "the rows are not in the order of time; sort them first"),
    ([], "the trace has no arrivals"),
    ([of(-3 * S // 2, 0)], "begins before 1970"),
    ([of(5, timestamp_ns=5)], "a size column is named 'timestamp_ns'"),
])  # fmt: skip
def test_what_cannot_be_written_leaves_the_old_file(old: Path, parts: Iterable[TracePart], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        write_trace(old, "parquet", parts)


def test_a_device_or_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    """As root a rename would put a file in the place of /dev/null."""
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(
        ScenarioError, match=r"pipe.csv: cannot be written: it is a folder, a device or a pipe"
    ):
        write_trace(tmp_path / "pipe.csv", "csv", [of(1, 2)])
    assert (tmp_path / "pipe.csv").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe.csv"]


def test_a_link_stays_and_its_file_is_replaced_with_the_rights_of_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to("real.csv")
    write_trace(tmp_path / "link.csv", "csv", [of(1, 2)])
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "timestamp_ns\n1\n2\n"
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "real.csv").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_name_that_passes_cannot_be_foreseen(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with whole_or_not(tmp_path / "trace.csv") as passing:
            names.add(passing.name)
            passing.write_text("1\n")
    assert len(names) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]


def test_columns_of_one_part_are_equally_long() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        TracePart(np.array([0, 1]), {"n": np.array([1])})
