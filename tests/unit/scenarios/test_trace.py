"""Trace files: every form read to the ns, every fault named with file and row."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.errors import ScenarioError
from scenarios.trace import Trace, TraceUnit, read_trace

S = 1_000_000_000


def write(folder: Path, text: str, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "unit", "offsets_ns"),
    [
        ("0\n0.5\n\n1e0\n", None, [0, S // 2, S]),
        ("1000\n1003\n1003\n", "ms", [0, 3_000_000, 3_000_000]),
        ("9007199254740993\n9007199254740994", "ns", [0, 1]),  # above 2^53: a float would merge them
        ("1700000000.000000001\n1700000000.000000003\n", None, [0, 2]),
        ("0\n0.30000000000000004\n", None, [0, 300_000_000]),  # digits below 1 ns are cut
        ("0\r\n1\r\n", "us", [0, 1000]),
        ("timestamp,tokens\n3,8\n4.25,9\n", None, [0, 1_250_000_000]),
        ("tokens, Timestamp \n8,3\n9,4\n", "ms", [0, 1_000_000]),
        (
            "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.6805900,374\n2023-11-16 18:16:50.995169123,9\n",
            None,
            [0, 64_314_579_123],
        ),
        ("timestamp\n2023-12-31T23:59:59Z\n2024-01-01T01:00:00+01:00\n", None, [0, S]),
        ('{"timestamp": 0, "input_length": 3}\n{"timestamp": 27482}\n', None, [0, 27_482_000_000]),
        ('{"timestamp": 1.000000001}\n{"timestamp": 1.000000003}\n', "s", [0, 2]),
    ],
)
def test_every_form_is_read_exactly(
    tmp_path: Path, text: str, unit: TraceUnit | None, offsets_ns: list[int]
) -> None:
    offsets = read_trace(write(tmp_path, text), unit)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == offsets_ns


def test_a_compressed_trace_is_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"timestamp\n5\n7\n"))
    assert read_trace(path).tolist() == [0, 2 * S]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the trace has no arrivals"),
        ("timestamp,tokens\n", "the trace has no arrivals"),
        ("0\n1\nsoon\n", "row 3: 'soon' is not a time"),
        ("0\n1\nnan\n", "row 3: 'nan' is not a time"),
        ("0\n1e999999\n", "row 2: 1e+999999 is too large for a time"),
        ('{"timestamp": 1e400}\n', "row 1: 1e+400 is too large for a time"),
        ("0\n2\n1.5\n", "row 3: time goes back by 500000000 ns, sort the trace first"),
        ("time,tokens\n1,2\n", "row 1: neither a time nor a header with a column 'timestamp'"),
        ("tokens,timestamp\n1,2\n3\n", "row 3: has 1 columns, timestamp is column 2"),
        ("timestamp\n2023-13-01 00:00:00\n", "row 2: month must be in 1..12"),
        ('{"timestamp": 1}\n{"timestamp": "2"}\n', "row 2: has no number 'timestamp'"),
        ('{"timestamp": 1}\n{"timestamp": true}\n', "row 2: has no number 'timestamp'"),
        ('{"timestamp": 1}\n[]\n', "row 2: has no number 'timestamp'"),
        ('{"timestamp": 1}\n{"timestamp": NaN}\n', "row 2: has no number 'timestamp'"),
        ('{"timestamp": 1\n', "row 1: not JSON: Expecting ',' delimiter"),
        ("0\n1e30\n", "the trace spans more than 2^63 ns, is its unit right?"),
    ],
)
def test_a_fault_is_named_with_file_and_row(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ScenarioError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.txt: no such trace file"):
        read_trace(tmp_path / "none.txt")
    with pytest.raises(ScenarioError, match=r"bad\.gz: cannot be read as a trace: Not a gzipped file"):
        read_trace(write(tmp_path, "0\n", "bad.gz"))
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(b"0\n1\n" * 1000)[:-20])
    with pytest.raises(ScenarioError, match=r"cut\.gz: cannot be read as a trace"):
        read_trace(cut)
    binary = tmp_path / "binary"
    binary.write_bytes(b"0\n\xff\xfe\n")
    with pytest.raises(ScenarioError, match="binary: cannot be read as a trace"):
        read_trace(binary)


def test_a_trace_is_cut_at_the_horizon_and_ends_where_it_is_shorter() -> None:
    trace = Trace(np.array([0, 1, 5, 9], dtype=np.int64))
    rng = np.random.default_rng(0)
    assert trace.offsets_ns(rng, 5).tolist() == [0, 1]
    assert trace.offsets_ns(rng, 100).tolist() == [0, 1, 5, 9]
    assert (trace.expected_count(5), trace.expected_count(6)) == (2, 3)


def test_the_rate_of_a_trace_is_its_count_per_second() -> None:
    trace = Trace(np.array([0, 1, S - 1, S, 3 * S], dtype=np.int64))
    assert trace.rate_hz(np.array([0, S // 2, S, 2 * S, 3 * S, 9 * S])).tolist() == [3, 3, 1, 0, 1, 0]


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=40).map(sorted), st.integers(1, 10), st.integers(0, 99)
)
def test_spreading_moves_each_arrival_within_its_tick_only(
    ticks: list[int], width_ns: int, seed: int
) -> None:
    recorded = np.array(ticks, dtype=np.int64) * width_ns
    spread = Trace(recorded, width_ns).offsets_ns(np.random.default_rng(seed), 10**6)
    assert (np.diff(spread) >= 0).all()
    assert (spread // width_ns * width_ns).tolist() == recorded.tolist()


def test_spreading_is_uniform_in_the_tick_and_keeps_the_expected_count() -> None:
    trace = Trace(np.zeros(10_000, dtype=np.int64), 3 * S)
    offsets = trace.offsets_ns(np.random.default_rng(1), 3 * S)
    # mean of n uniforms on [0, 3 s): standard error 3/sqrt(12 n) s
    assert abs(offsets.mean() / S - 1.5) < 4 * 3 / np.sqrt(12 * 10_000)
    assert trace.expected_count(S) == pytest.approx(10_000 / 3)
