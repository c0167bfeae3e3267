"""Traces that are made to take a reader's time, memory or file: each is read in linear time, or refused in one line."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces import logs, text
from squall.scenarios.traces.instants import is_safe_to_cast
from squall.scenarios.traces.reading import TraceOptions, open_trace, read_trace

TIME = "[01/Jan/2020:00:00:00 +0000] "
PATTERNS = {
    "combined": logs.COMBINED, "common": logs.COMMON, "alb": logs.ALB, "elb": logs.ELB, "envoy": logs.ENVOY,
    "haproxy": logs.HAPROXY,
}  # fmt: skip
LONG = {
    "letters": "a",
    "digits": "1",
    "a request begins": f'{TIME}"',
    "a reply begins": '" 200 5 "',
    "brackets": "[ ",
    "hosts": "a:1 [",
    "blanks": " ",
    "an Envoy line begins": '[2020-01-01T00:00:00Z] "',
}


def cost_s(work: Callable[[], object]) -> float:
    """The best of five."""
    found = []
    for _ in range(5):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


@pytest.mark.parametrize("piece", LONG)
@pytest.mark.parametrize("log", PATTERNS)
def test_a_long_line_takes_linear_time_to_recognise(log: str, piece: str) -> None:
    long_line = f"host - - {LONG[piece] * 2**18}".encode()[: 2**18]
    short_line = long_line[: 2**17]
    short, long = (cost_s(partial(logs.has_line, PATTERNS[log], line)) for line in (short_line, long_line))
    assert long < 3 * short + 0.002  # a clock's own steps


@pytest.mark.parametrize("piece", LONG)
def test_the_head_of_a_long_log_is_read(tmp_path: Path, piece: str) -> None:
    whole = f'h - - {TIME}"GET / HTTP/1.1" 200 5'
    path = tmp_path / "access.log"
    path.write_text(f"{whole}\nhost - - {LONG[piece] * (65_000 // len(LONG[piece]))}\n{whole}\n")
    assert len(read_trace(path, TraceOptions(repair=("skip-bad",)))) == 2


def begins(folder: Path, duration: str) -> list[int]:
    """Of a request of 1 s that ends at 9 s, and of one of `duration` that ends at 10 s."""
    path = folder / "t.csv"
    path.write_text(f'end_time_s,duration_s\n9,1\n10,"{duration}"\n')
    return read_trace(path, TraceOptions(duration_columns=("duration_s",))).stamp_ns.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("duration", "said"), [
    *((text, "is no duration") for text in ("1" * 10_000, "1" * 100_000 + "x", "0.1, " * 10_000, "1:" * 10_000)),
    *((text, "is too long for a duration") for text in ("1e999999999", "9e999999", "1" * 900)),
])  # fmt: skip
def test_a_duration_of_thousands_of_characters_or_beyond_any_number_is_none(
    tmp_path: Path, duration: str, said: str
) -> None:
    with pytest.raises(ScenarioError, match=f"row 3: column 'duration_s': .* {said}"):
        begins(tmp_path, duration)


@pytest.mark.parametrize(("duration", "ns"), [
    ("0.1, 0.2 : 0.3", 9_400_000_000), ("0e999999999", 10_000_000_000), ("1e-999999999", 10_000_000_000),
    ("1m2.5s", -52_500_000_000), ("45ms", 9_955_000_000), ("-1", 10_000_000_000),
])  # fmt: skip
def test_a_duration_is_taken_off_the_end(tmp_path: Path, duration: str, ns: int) -> None:
    assert begins(tmp_path, duration) == sorted([8 * 10**9, ns])


def test_ordinary_numbers_are_cast_by_arrow_and_odd_ones_are_not() -> None:
    fast = '{"timestamp": 1700000000123456789, "e5": [1, 2e3, -1.5E+10], "h": "1e9"}'
    assert is_safe_to_cast(pa.array(["1700000000.123456789", "-5", "1e3", "1.7e+18", fast]))
    for odd in ("1e-9999", '{"timestamp": 1e-9999}', *(" " * shift + "1" * 47 for shift in range(24))):
        assert not is_safe_to_cast(pa.array(["1", odd]))


def test_a_file_of_more_rows_than_any_trace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, table = tmp_path / "many.txt.gz", tmp_path / "many.parquet"
    packed.write_bytes(gzip.compress(b"1\n2\n3\n"))
    pq.write_table(pa.table({"timestamp_ns": pa.array([1, 2, 3])}), table)
    monkeypatch.setattr(text, "MOST_ROWS", 3)
    assert len(read_trace(packed)) == len(read_trace(table)) == 3
    monkeypatch.setattr(text, "MOST_ROWS", 2)
    for path in (packed, table):
        with pytest.raises(ScenarioError, match=r"has more than 2 rows, which a trace has at most; cut it"):
            read_trace(path)


def test_a_session_that_is_no_unicode_is_a_session(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    users = enumerate(["\\ud800", "\\ud800", "a"])
    path.write_text("".join(f'{{"timestamp": {place}, "user": "{user}"}}\n' for place, user in users))
    session = read_trace(path).session
    assert session is not None
    assert session[0] == session[1] != session[2]


@pytest.mark.parametrize(
    "format", [None, "csv", "lines", "parquet", "servegen", "common-log", "fixed-schedule"]
)
def test_a_pipe_is_not_waited_for(tmp_path: Path, format: str | None) -> None:
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    with pytest.raises(ScenarioError, match="is a pipe or a device; write it to a file first"):
        open_trace(path, TraceOptions(format=format))


def test_a_pipe_in_a_folder_of_client_windows_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chunk-1-trace.csv")
    with pytest.raises(ScenarioError, match="is a pipe or a device"):
        read_trace(tmp_path, TraceOptions(format="servegen"))
