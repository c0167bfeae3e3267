"""Every format that is written is read back: instants, sizes and sessions to what the format holds."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.formats import record_of
from squall.scenarios.traces.parts.part import TracePart, join_parts
from squall.scenarios.traces.reading import TraceFormat, TraceOptions, open_trace, read_trace
from squall.scenarios.traces.writing import format_for, lost_in, write_trace

S = 1_000_000_000
INSTANTS: list[TraceFormat] = [name for name in get_args(TraceFormat) if name != "servegen"]
FROM_FIRST = ("intervals", "fixed-schedule")
TOKENS = ("ContextTokens", "GeneratedTokens")
RENAMED = {
    "mooncake": ("input_length", "output_length"),
    "bailian": ("input_length", "output_length"),
    "burstgpt": ("Request tokens", "Response tokens"),
}


def pattern(session: NDArray[np.int64]) -> list[int]:
    """Which rows share a session: the index of the first row with the same number."""
    return [session.tolist().index(number) for number in session.tolist()]


@st.composite
def traces(draw: st.DrawFn) -> TracePart:
    """Rows within an hour, from the trace's own zero or from today, with the tokens of Azure and sessions."""
    origin_ns = draw(st.sampled_from([0, 1_700_000_000 * S]))
    offsets = sorted(draw(st.lists(st.integers(0, 3_600 * S), min_size=1, max_size=12)))
    n_rows = len(offsets)
    sizes = {}
    for name in TOKENS:
        values = draw(st.lists(st.integers(-1, 2**40), min_size=n_rows, max_size=n_rows))
        sizes[name] = np.array(
            [max(values[0], 0), *values[1:]], dtype=np.int64
        )  # a column all empty is no column
    numbers = st.one_of(st.integers(0, 3), st.integers(0, 2**63 - 1))
    sessions = draw(st.lists(numbers, min_size=n_rows, max_size=n_rows))
    stamp_ns = np.array(offsets, dtype=np.int64) + origin_ns
    return TracePart(stamp_ns, sizes, np.array(sessions, dtype=np.int64))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces(), st.sampled_from(INSTANTS), st.integers(1, 12), st.sampled_from(["", ".gz", ".zst"]))
def test_what_is_written_is_read_back(
    tmp_path: Path, part: TracePart, format: TraceFormat, piece_rows: int, suffix: str
) -> None:
    suffix = "" if format in ("parquet", "arrow") else suffix
    path = tmp_path / f"trace{suffix}"
    assert write_trace(path, format, part.pieces(piece_rows)) == len(part)
    named = TraceOptions(format="intervals") if format == "intervals" else TraceOptions()
    assert open_trace(path, named).format == format
    back = read_trace(path, named)

    step_ns = record_of(format).resolution_ns
    first_ns = part.stamp_ns[0] // step_ns * step_ns if format in FROM_FIRST else 0
    assert back.stamp_ns.tolist() == (part.stamp_ns // step_ns * step_ns - first_ns).tolist()

    lost = lost_in(format, part)
    for name, new_name in zip(TOKENS, RENAMED.get(format, TOKENS), strict=True):
        is_lost = f"the size column {name!r}" in lost
        assert is_lost == (new_name not in back.sizes)
        assert is_lost or back.sizes[new_name].tolist() == part.sizes[name].tolist()
    assert part.session is not None
    if "the sessions" in lost:
        assert back.session is None
    else:
        assert back.session is not None
        assert pattern(back.session) == pattern(part.session)
        if format != "bailian":
            assert back.session.tolist() == part.session.tolist()
    said = [phrase for phrase in lost if "digits" in phrase or "first arrival" in phrase]
    assert bool(said) == (back.stamp_ns.tolist() != part.stamp_ns.tolist())


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
