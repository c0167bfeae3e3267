"""Bad traces: one line that names file, row and mend; or the repair that was asked for, counted."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces import rows
from squall.scenarios.traces.options import TraceOptions, TraceUnit
from squall.scenarios.traces.reading import read_trace
from squall.scenarios.traces.text import LONGEST_LINE_BYTES
from tests.many_examples import examples

S = 1_000_000_000
PEAK_KIB = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
"""Prints the peak of this program; `ru_maxrss` of a child would count what its parent held at the fork."""
ROOT = Path(__file__).parents[4]


def write(folder: Path, data: str | bytes, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def fault_of(path: Path, options: TraceOptions | None = None) -> str:
    """The one line that reading `path` fails with, without the file's name."""
    with pytest.raises(ScenarioError) as caught:
        read_trace(path, options or TraceOptions())
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


HUNDRED = "".join(f"{n}\n" for n in range(100, 300))
LONG: list[tuple[str | bytes, str]] = [
    (HUNDRED + "300000\n", "row 201: the timestamp is 1,003 times larger than the one before: two units"),
    (b"0\n" * 50_000 + b"\x00\n", "row 50001: a NUL byte: this is no text; name the format"),
    ("0\n" + "7" * (LONGEST_LINE_BYTES + 1), "row 2: the line is longer than"),
    ("timestamp" + ",x" * 2_000 + "\n1" + ",2" * 2_000 + "\n", "row 1: has 2001 columns; cut it"),
    ("1\n" + "9" * 100_000 + "\n", "row 2: "),
    ('{"timestamp": 1}\n{"timestamp": ' + "9" * 100_000 + "}\n", "row 2: "),
]


@pytest.mark.parametrize(("data", "what"), LONG)
def test_a_fault_in_a_long_file_has_its_row(tmp_path: Path, data: str | bytes, what: str) -> None:
    assert fault_of(write(tmp_path, data)).startswith(what)


def test_a_fault_behind_many_rows_has_its_row(tmp_path: Path) -> None:
    n_rows = 640_000  # two blocks of text
    stamps = np.arange(n_rows)
    text = "\n".join(map(str, stamps.tolist()))
    assert fault_of(write(tmp_path, text + "\nx\n")).startswith(f"row {n_rows + 1}: 'x' is not a time")
    assert fault_of(write(tmp_path, text + "\n\n5\n")).startswith(
        f"row {n_rows + 2}: time goes back by 639994 s"
    )


def test_a_long_pause_is_no_change_of_unit(tmp_path: Path) -> None:
    assert len(read_trace(write(tmp_path, HUNDRED + "150000\n"))) == 201  # 500 times
    assert len(read_trace(write(tmp_path, "0\n" * 200 + "1000\n"))) == 201


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(list(range(40))), st.integers(1, 50))
def test_sorting_gives_every_row(tmp_path: Path, stamps: list[int], sort_rows: int) -> None:
    path = write(tmp_path, "".join(f"{stamp}\n" for stamp in stamps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "SORT_ROWS", sort_rows)
        found = read_trace(path, TraceOptions(repair=("sort",)))
    assert found.stamp_ns.tolist() == [n * S for n in range(40)]


def test_a_row_later_than_the_sort_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_rows = 640_000  # two blocks: a block is always sorted whole
    path = write(tmp_path, "\n".join(map(str, range(1, n_rows + 1))) + "\n0\n")
    assert len(read_trace(path, TraceOptions(repair=("sort",)))) == n_rows + 1
    monkeypatch.setattr(rows, "SORT_ROWS", 100)
    said = fault_of(path, TraceOptions(repair=("sort",)))
    assert said.startswith(f"row {n_rows + 1}: comes more than 100 rows late")


def test_the_file_itself_may_be_the_fault(tmp_path: Path) -> None:
    assert fault_of(tmp_path / "none.csv") == "no such trace file"
    assert fault_of(tmp_path) == "is a directory; name one trace file in it"
    packed = gzip.compress(b"0\n1\n" * 10_000)
    assert fault_of(write(tmp_path, packed[:-20], "a.gz")).startswith("cannot be read, is it whole?")
    assert fault_of(write(tmp_path, packed[:40], "b.gz")).startswith("cannot be read, is it whole?")
    flipped = packed[:20] + bytes([packed[20] ^ 255]) + packed[21:]
    assert "; fetch it again" in fault_of(write(tmp_path, flipped, "c.gz"))
    zstd = pa.compress(os.urandom(300_000).hex().encode() + b"\n", "zstd", asbytes=True)
    assert "fetch it again" in fault_of(write(tmp_path, zstd[:-50], "d.zst"), TraceOptions(format="lines"))
    assert fault_of(write(tmp_path, "0\n", "e.gz")).startswith(
        "the name ends in .gz but the bytes are not gzip"
    )


def test_a_permission_error_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, "0\n")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        assert fault_of(path) == "no permission to read it"


def test_an_arrow_file_whose_indices_lead_out_of_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.arrow"
    words = pa.DictionaryArray.from_arrays(pa.array([0, 77_777_777], pa.int32()), pa.array(["a"]), safe=False)
    batch = pa.record_batch({"timestamp_ns": pa.array([1, 2]), "session": words})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    assert fault_of(path).startswith("cannot be read, is it whole? ")


HUGE = pa.array([1, 2**64 - 1], pa.uint64())


@pytest.mark.parametrize(("columns", "unit", "what"), [
    ({"tim": [1]}, None, "no column 'timestamp': the nearest are 'tim'"),
    ({"timestamp": [1]}, None, "the column 'timestamp' is int64 without a unit; state the unit: ns, us, ms or s"),
    ({"timestamp": [[1]]}, None, "the column 'timestamp' is list<"),
    ({"timestamp": [1, None]}, "s", "row 2: the timestamp is empty; mend it"),
    ({"timestamp": [0.5, float("nan")]}, "s", "row 2: 'nan' is not a time"),
    ({"timestamp": [2**40]}, "s", "row 1: '1099511627776' s is too large"),
    ({"timestamp": [2, 1]}, "s", "row 2: time goes back by 1 s"),
    ({"timestamp": HUGE}, "ns", "row 2: '18446744073709551615' ns is"),
    ({"ts_s": [1, 2], "n": HUGE}, None, "row 2: column 'n': '18446744073709551615' is not"),
    ({f"x{n}": [1] for n in range(2_001)}, None, "has 2001 columns"),
])  # fmt: skip
def test_faults_of_parquet_are_named(
    tmp_path: Path, columns: dict[str, object], unit: TraceUnit | None, what: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert fault_of(tmp_path / "a.parquet", TraceOptions(unit=unit)).startswith(what)


def test_parquet_that_is_cut_or_has_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for names in (["timestamp_ns"] * 2, ["timestamp_ns", "a", "a"]):
        pq.write_table(pa.Table.from_arrays([pa.array([1])] * len(names), names=names), path)
        assert fault_of(path) == f"the column {names[-1]!r} is there twice; rename one"
    pq.write_table(pa.table({"timestamp_ns": [1, None, 3]}), path)
    assert read_trace(path, TraceOptions(repair=("skip-bad",))).stamp_ns.tolist() == [1, 3]
    path.write_bytes(path.read_bytes()[:-20])
    assert fault_of(path).startswith("cannot be read, is it whole? ")
    assert fault_of(write(tmp_path, b"ARROW1" + b"x" * 99)).startswith("cannot be read, is it whole? ")


def told_and_peak_kib(path: Path) -> tuple[str, int]:
    """What another program says of the trace, and the most memory that it had."""
    code = (
        "import sys; from pathlib import Path; from squall.scenarios.traces.reading import open_trace\n"
        "try: print(sum(len(part) for part in open_trace(Path(sys.argv[1]))))\n"
        "except Exception as error: print(error)\n" + PEAK_KIB
    )
    run = [sys.executable, "-c", code, str(path)]
    said, peak_kib = subprocess.run(run, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    return said, int(peak_kib)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_a_gigabyte_of_one_line_is_refused_in_bounded_memory(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "long.csv"
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as file:
        file.write(b"timestamp\n")
        for _ in range(1024):
            file.write(b"7" * 2**20)
    said, peak_kib = told_and_peak_kib(path)
    assert said.startswith(f"{path}: row 2: the line is longer than")
    assert peak_kib < 300 * 1024  # Python with pyarrow is about 90 MiB


@pytest.mark.slow
def test_a_large_parquet_of_one_row_group_streams_in_bounded_memory(tmp_path: Path) -> None:
    n_rows = 20_000_000
    path = tmp_path / "large.parquet"
    numbers = np.arange(n_rows) * 1_000
    pq.write_table(pa.table({"timestamp_ns": numbers, "n": numbers % 1_000}), path, row_group_size=n_rows)
    said, peak_kib = told_and_peak_kib(path)
    assert said == str(n_rows)
    # held whole, the two columns alone are 320 MB
    assert peak_kib < 300 * 1024
