"""Sessions that are no Unicode are read; a file is written whole, in the place of no device, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.parts.part import TracePart
from squall.scenarios.traces.reading import read_trace
from squall.scenarios.traces.writing import whole_or_not, write_trace

S = 1_000_000_000


def written(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_session_that_is_no_unicode_is_a_session(tmp_path: Path) -> None:
    rows = '{"timestamp": 1, "user": "\\ud800"}\n{"timestamp": 2, "user": "\\ud800"}\n{"timestamp": 3, "user": "a"}\n'
    session = read_trace(written(tmp_path, rows)).session
    assert session is not None
    assert session[0] == session[1] != session[2]


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


def test_a_name_that_passes_cannot_be_foreseen(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with whole_or_not(tmp_path / "trace.csv") as passing:
            names.add(passing.name)
            passing.write_text("1\n")
    assert len(names) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]
