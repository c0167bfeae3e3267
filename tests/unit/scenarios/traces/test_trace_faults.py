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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces import checks
from squall.scenarios.traces.formats import FORMATS
from squall.scenarios.traces.parts.options import TraceOptions
from squall.scenarios.traces.parts.part import join_parts
from squall.scenarios.traces.reading import open_trace, read_trace
from squall.scenarios.traces.text import LONGEST_LINE_BYTES

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
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FAULTS: list[tuple[str | bytes, str]] = [
    ("", "the file is empty; it needs at least one row"),
    ("\n \n", "the file is empty; it needs at least one row"),
    ("timestamp,tokens\n", "the trace has no arrivals"),
    ("second,count\n0,0\n", "the trace has no arrivals"),
    ("0\n2\n1.5\n", "row 3: time goes back by 0.5 s; sort the trace or ask for the repair sort"),
    ("0\n1\n\nsoon\n", "row 4: 'soon' is not a time; mend it or ask for the repair skip-bad"),
    ("timestamp\n1\n  \nsoon\n", "row 4: 'soon' is not a time; mend it"),
    ("1\n  \n2\nsoon\n", "row 4: 'soon' is not a time; mend it"),
    ("0\n1\nnan\n", "row 3: 'nan' is not a time; mend it"),
    ("0\ninf\n", "row 2: 'inf' is not a time; mend it"),
    ("0\n1_0\n", "row 2: '1_0' is not a time; mend it"),
    ("timestamp,n\n0,1\nNaN,1\n", "row 3: 'NaN' is not a time; mend it"),
    ("timestamp,n\n0,1\n,1\n", "row 3: the timestamp is empty; mend it"),
    ("-1\n1\n", "row 1: the timestamp -1 s is negative; mend it or ask for the repair clip-negative"),
    ("0\n1e30\n", "row 2: '1e30' s is too large for a time in ns (is its unit right?); mend it"),
    ("0\n9300000000\n", "row 2: '9300000000' s is too large for a time in ns"),
    ("2400-01-01\n", "row 1: '2400-01-01' is beyond the years 1678 to 2261"),
    ("2023-13-01 00:00:00\n", "row 1: '2023-13-01 00:00:00' is not a time: month must be in 1..12; mend it"),
    ("1700000000123\n",
     "row 1: '1700000000123' s is too large for a time in ns (it looks like ms since 1970: state the unit)"),
    ('{"timestamp": 1700000000.5}\n',
     "row 1: 1700000000 would be read as ms but looks like s since 1970; state the unit"),
    ('{"ts_ms": 1700000000}\n{"ts_ms": 1700000000000}\n',
     "row 2: the timestamp is 1,000 times larger than the one before: two units in one column?"),
    ('{"timestamp": 1700000000000}\n{"timestamp": 1700000001}\n',
     "row 2: the timestamp is 1,000 times smaller than the one before: two units in one column?"),
    (HUNDRED + "300000\n", "row 201: the timestamp is 1,003 times larger than the one before: two units"),
    ("5\n2023-11-16 00:00:00\n",
     "row 2: '2023-11-16 00:00:00' is a date and time where the rows before have a number; use one of the two"),
    ("time\n2023-11-16\n5\n", "row 3: '5' is a number where the rows before have a date and time; use one of the two"),
    ("timestmp,tokens\n1,2\n", "row 1: no column 'timestamp': the nearest are 'timestmp'; name the column"),
    ("a,b\n1,2\n", "row 1: no column 'timestamp': there are 'a', 'b'; name the column"),
    ("1,2\n3,4\n", "row 1: '1,2' is a row of values, a table needs a header first; add one, or name the format"),
    ("tokens,timestamp\n1,2\n3\n", "row 3: has 1 column, the header has 2; mend it"),
    ("tokens,timestamp\n1,2\n3,4,5\n", "row 3: has 3 columns, the header has 2; mend it"),
    ('timestamp,text\n1,"a\n2",b\n', "row 2: the line is no CSV: unexpected end of data (a line break in quotes"),
    (b"timestamp,n\n1,2\n\xff\xfe,2\n", "row 3: the line is not UTF-8; mend it"),
    (b"\x00\x01\x02" * 99, "row 1: a NUL byte: this is no text, Parquet or Arrow file; name the format"),
    (b"0\n" * 50_000 + b"\x00\n", "row 50001: a NUL byte: this is no text; name the format"),
    (AZURE + "2023-11-16 18:15:46,2,x\n",
     "row 2: column 'GeneratedTokens': 'x' is not a whole number within 64 bits; mend it"),
    ("second,count\n0,2\n1,-2\n", "row 3: the count -2 is negative or empty; mend it"),
    ("second,count\n0,99999999999\n", "row 2: the count 99999999999 is above 1000000000; mend it"),
    ('{"timestamp": 1}\n{"time": 2}\n', "row 2: has no timestamp 'timestamp'; mend it"),
    ('{"timestamp": 1}\n{"timestamp": true}\n', "row 2: the timestamp 'timestamp' is neither a number nor a text"),
    ('{"timestamp": 1}\n[]\n', "row 2: is no JSON object; mend it"),
    ('{"timestamp": 1}\n{"timestamp": 2\n', "row 2: not JSON: "),
    ('{"timestamp": 1}\n{"timestamp": NaN}\n', "row 2: 'nan' is not a time; mend it"),
    ('{"timestamp": 1, "input_length": 2, "output_length": 3}\n{"timestamp": 2, "input_length": "x"}\n',
     "row 2: column 'input_length': 'x' is not a whole number within 64 bits"),
    ('{"n": 1}\n', "row 1: no column 'timestamp': there are 'n'; name the column"),
    ('{"data": [{"timestamp": [1]}, {"timestamp": ["x"]}]}', "row 2: the timestamp is empty; mend it"),
    ('{"data": [{"timestamp": [1]},\n {"timestamp": [}]}', "row 2: not JSON: "),
    ('h - - [10/Oct/2000:13:55:36 -0700] "G" 200 1\nfoo\n', "row 2: is no line of an access log"),
    ('h - - [10/Oct/2000:13:55:36 -0700] "G" 200 1\nh - - [10/Ocx/2000:13:55:36 -0700] "G" 200 1\n',
     "row 2: 'Ocx' is no month; mend it"),
    ('h - - [10/Oct/2000:13:55:36 -0700] "G" 200 1\nh - - [10/Oct/2000:13:55:35 -0700] "G" 200 1\n',
     "row 2: time goes back by 1 s; sort the trace or ask for the repair sort"),
    ("0,1.5,1.0,Levy,1.0,0.66\n", "row 1: the family 'Levy' is not one of Gamma, Weibull, Exponential; mend it"),
    ("0,nan,1.0,Gamma,1.0,0.66\n", "row 1: the rate 'nan' is not a number of 0 or more; mend it"),
    *((f"start,rate,cv,family,shape,scale\n{row}\n", "row 2: ") for row in (
        "0,1,1,Weibull,0.000001,1", "0,1,1,Gamma,0.00001,1", "0,1,1,Gamma,1e300,1", "1e300,1,1,Gamma,1,1")),
    # Arrow takes what follows an open quote, up to the end of the block, for one cell
    *((f"timestamp,name\n1,4\n{row}\n4,7\n", "row 3: the line is no CSV") for row in ('2,"5', '2,"5\n"', "2,5\r3,6")),
    ('{"timestamp": 1} {"timestamp": 2}\n{"timestamp": 3}\n', "row 1: not JSON: Extra data"),
    # as decimal128 a number of a hundred digits becomes -1 or 0
    *((form.format(1) + form.format(digits), "row 2: ") for digits in ("9" * 128, "1" + "0" * 128, "9" * 100_000)
      for form in ("{}\n", '{{"timestamp": {}, "n": 1}}\n')),
    ("0\n" + "7" * (LONGEST_LINE_BYTES + 1), "row 2: the line is longer than"),
    ("timestamp" + ",x" * 2_000 + "\n1" + ",2" * 2_000 + "\n", "row 1: has 2001 columns; cut it"),
    ("when,what\n1,2\n", "row 1: no column 'timestamp': there are 'when', 'what'; name the column"),
    ("\n1,2\n", "row 2: '1,2' is a row of values, a table needs a header first; add one, or name the format"),
    ("PK\3\4 archive", "row 1: 'PK\\x03\\x04 archive' is neither a time nor a header with a timestamp column"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "what"), FAULTS)
def test_a_fault_is_one_line_with_file_row_and_mend(tmp_path: Path, data: str | bytes, what: str) -> None:
    assert fault_of(write(tmp_path, data)).startswith(what)


STATED: list[tuple[str, TraceOptions, str | list[int]]] = [
    ("sent_at,done_at\n1,2\n", TraceOptions(column="sent"), "row 1: no column 'sent': the nearest are 'sent_at'"),
    ("sent_at,done_at\n1,2\n", TraceOptions(column="done_at"), [2 * S]),
    (AZURE.replace("Tokens", "", 1) + "2023-11-16 18:15:46,2,3\n", TraceOptions(format="azure-llm"),
     "row 1: no column 'ContextTokens': the nearest are 'Context'"),
    ("1700000000123\n1700000000124\n", TraceOptions(unit="us"), [1_700_000_000_123_000, 1_700_000_000_124_000]),
    ("1\n2\n", TraceOptions(session="a"), "no column 'a': format lines has none of that kind"),
    # pyarrow 25 reads outside its memory for the first and gives other numbers for the others
    *((form.format(digits) + form.format("1") + form.format("2.5"), TraceOptions(unit="s"), [ns, S, 5 * S // 2])
      for digits, ns in (("1e-999999999", 0), ("0." + "0" * 60 + "1", 0), ("1" * 40 + "e-40", 111_111_111))
      for form in ("{}\n", '{{"timestamp": {}}}\n')),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "expected"), STATED)
def test_what_is_stated_holds(
    tmp_path: Path, text: str, options: TraceOptions, expected: str | list[int]
) -> None:
    path = write(tmp_path, text)
    if isinstance(expected, str):
        assert fault_of(path, options).startswith(expected)
    else:
        assert read_trace(path, options).stamp_ns.tolist() == expected


def test_a_file_of_no_format_names_all_that_were_tried(tmp_path: Path) -> None:
    tried = fault_of(write(tmp_path, "when,what\n1,2\n")).partition("(it is none of ")[2].removesuffix(")")
    assert tried.split(", ") == [one.name for one in FORMATS if one.name != "intervals"]


def test_a_fault_behind_many_rows_has_its_row(tmp_path: Path) -> None:
    n_rows = 640_000  # two blocks of text
    stamps = np.arange(n_rows)
    text = "\n".join(map(str, stamps.tolist()))
    assert fault_of(write(tmp_path, text + "\nx\n")).startswith(f"row {n_rows + 1}: 'x' is not a time")
    assert fault_of(write(tmp_path, text + "\n\n5\n")).startswith(
        f"row {n_rows + 2}: time goes back by 639994 s"
    )


def test_a_long_pause_is_no_change_of_unit(tmp_path: Path) -> None:
    assert len(read_trace(write(tmp_path, "1\n2\n2000\n"))) == 3
    assert len(read_trace(write(tmp_path, HUNDRED + "150000\n"))) == 201  # 500 times
    assert len(read_trace(write(tmp_path, "0\n" * 200 + "1000\n"))) == 201


@pytest.mark.parametrize(
    ("data", "options", "stamp_ns", "repaired"),
    [
        ("0\n2\n1\n3\n1\n", ("sort",), [0, S, S, 2 * S, 3 * S], {"sort": 2}),
        ("0\nx\n1\n\n2,5\n3\n", ("skip-bad",), [0, S, 3 * S], {"skip-bad": 2}),
        ('timestamp,name\n1,4\n2,"5\n"\n4,7\n', ("skip-bad",), [S, 4 * S], {"skip-bad": 2}),
        ("timestamp,n\n0,1\n1\n2,3\n,4\n", ("skip-bad",), [0, 2 * S], {"skip-bad": 2}),
        ('{"timestamp": 0}\n{"timestamp": 0}\n{\n{"a": 1}\n', ("skip-bad",), [0, 0], {"skip-bad": 2}),
        ("0\n0\n1\n1\n1\n2\n", ("drop-duplicates",), [0, S, 2 * S], {"drop-duplicates": 3}),
        ("-3\n-1\n1\n", ("clip-negative",), [0, 0, S], {"clip-negative": 2}),
        ("1\n-1\nx\n0\n1\n", ("sort", "skip-bad", "drop-duplicates", "clip-negative"), [0, S],
         {"skip-bad": 1, "clip-negative": 1, "sort": 2, "drop-duplicates": 2}),
    ],
)  # fmt: skip
def test_a_repair_that_was_asked_for_is_done_and_counted(
    tmp_path: Path, data: str, options: tuple[str, ...], stamp_ns: list[int], repaired: dict[str, int]
) -> None:
    reader = open_trace(write(tmp_path, data), TraceOptions(repairs=options))  # type: ignore[arg-type]
    assert join_parts(list(reader)).stamp_ns.tolist() == stamp_ns
    assert reader.repaired == repaired
    assert join_parts(list(reader)).stamp_ns.tolist() == stamp_ns
    assert reader.repaired == repaired  # counted anew, not on top


def test_duplicate_stamps_are_legal(tmp_path: Path) -> None:
    reader = open_trace(write(tmp_path, "0\n0\n1\n"))
    assert sum(map(len, reader)) == 3
    assert reader.repaired == {}


def test_no_repair_is_done_that_was_not_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "0\nx\n-1\n")
    assert fault_of(path, TraceOptions(repairs=("sort", "drop-duplicates", "clip-negative"))).startswith(
        "row 2: 'x'"
    )
    assert fault_of(path, TraceOptions(repairs=("skip-bad",))).startswith(
        "row 3: the timestamp -1 s is negative"
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(list(range(40))), st.integers(1, 50))
def test_sorting_gives_every_row(tmp_path: Path, stamps: list[int], sort_rows: int) -> None:
    path = write(tmp_path, "".join(f"{stamp}\n" for stamp in stamps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "SORT_ROWS", sort_rows)
        found = read_trace(path, TraceOptions(repairs=("sort",)))
    assert found.stamp_ns.tolist() == [n * S for n in range(40)]


def test_a_row_later_than_the_sort_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_rows = 640_000  # two blocks: a block is always sorted whole
    path = write(tmp_path, "\n".join(map(str, range(1, n_rows + 1))) + "\n0\n")
    assert len(read_trace(path, TraceOptions(repairs=("sort",)))) == n_rows + 1
    monkeypatch.setattr(checks, "SORT_ROWS", 100)
    said = fault_of(path, TraceOptions(repairs=("sort",)))
    assert said.startswith(f"row {n_rows + 1}: comes more than 100 rows late")


def test_the_file_itself_may_be_the_fault(tmp_path: Path) -> None:
    assert fault_of(tmp_path / "none.csv") == "no such trace file"
    assert fault_of(tmp_path) == "is a directory; name one trace file in it"
    packed = gzip.compress(b"0\n1\n" * 10_000)
    assert fault_of(write(tmp_path, packed[:-20], "a.gz")).startswith(
        "the compressed file is cut short or damaged"
    )
    assert fault_of(write(tmp_path, packed[:40], "b.gz")).startswith(
        "the compressed file is cut short or damaged"
    )
    flipped = packed[:20] + bytes([packed[20] ^ 255]) + packed[21:]
    assert "; fetch it again" in fault_of(write(tmp_path, flipped, "c.gz"))
    zstd = pa.compress(os.urandom(300_000).hex().encode() + b"\n", "zstd", asbytes=True)
    assert "fetch it again" in fault_of(write(tmp_path, zstd[:-50], "d.zst"), TraceOptions(format="lines"))
    assert fault_of(write(tmp_path, "0\n", "e.gz")).startswith(
        "the name ends in .gz but the bytes are not gzip"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "0\n")
    path.chmod(0)
    assert fault_of(path) == "no permission to read it"


def test_a_permission_error_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, "0\n")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(ScenarioError, match="no permission to read it"):
            open_trace(path)


def test_an_arrow_file_whose_indices_lead_out_of_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.arrow"
    words = pa.DictionaryArray.from_arrays(pa.array([0, 77_777_777], pa.int32()), pa.array(["a"]), safe=False)
    batch = pa.record_batch({"timestamp_ns": pa.array([1, 2]), "session": words})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    assert fault_of(path).startswith("cannot be read as a trace: ")


def test_parquet_faults_are_named(tmp_path: Path) -> None:
    def parquet(columns: dict[str, object], cut_bytes: int = 0) -> Path:
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table(columns), path)
        path.write_bytes(path.read_bytes()[: -cut_bytes or None])
        return path

    stated = TraceOptions(unit="s")
    assert fault_of(parquet({"tim": [1]})).startswith("no column 'timestamp': the nearest are 'tim'")
    assert fault_of(parquet({"timestamp": [1]})) == (
        "the column 'timestamp' is int64 without a unit; state the unit: ns, us, ms or s"
    )
    assert fault_of(parquet({"timestamp": [[1]]})).startswith("the column 'timestamp' is list<")
    assert fault_of(parquet({"timestamp": [1, None]}), stated).startswith(
        "row 2: the timestamp is empty; mend it"
    )
    assert fault_of(parquet({"timestamp": [0.5, float("nan")]}), stated).startswith(
        "row 2: 'nan' is not a time"
    )
    assert fault_of(parquet({"timestamp": [2**40]}), stated).startswith(
        "row 1: '1099511627776' s is too large"
    )
    assert fault_of(parquet({"timestamp": [2, 1]}), stated).startswith("row 2: time goes back by 1 s")
    assert fault_of(parquet({"timestamp": [1]}, 20), stated).startswith("cannot be read as a trace: ")
    assert fault_of(write(tmp_path, b"ARROW1" + b"x" * 99)).startswith("cannot be read as a trace: ")
    huge = pa.array([1, 2**64 - 1], pa.uint64())
    assert fault_of(parquet({"timestamp": huge}), TraceOptions(unit="ns")).startswith(
        "row 2: '18446744073709551615' ns is"
    )
    assert fault_of(parquet({"ts_s": [1, 2], "n": huge})).startswith(
        "row 2: column 'n': '18446744073709551615' is not"
    )
    assert fault_of(parquet({f"x{n}": [1] for n in range(2_001)})).startswith("has 2001 columns")
    for names in (["timestamp_ns"] * 2, ["timestamp_ns", "a", "a"]):
        pq.write_table(
            pa.Table.from_arrays([pa.array([1])] * len(names), names=names), tmp_path / "b.parquet"
        )
        assert fault_of(tmp_path / "b.parquet") == f"the column {names[-1]!r} is there twice; rename one"
    skipping = TraceOptions(unit="s", repairs=("skip-bad",))
    assert read_trace(parquet({"timestamp": [1, None, 3]}), skipping).stamp_ns.tolist() == [S, 3 * S]


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_a_gigabyte_of_one_line_is_refused_in_bounded_memory(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "long.csv"
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as file:
        file.write(b"timestamp\n")
        for _ in range(1024):
            file.write(b"7" * 2**20)
    code = (
        "import sys; from pathlib import Path; from squall.scenarios.traces.reading import read_trace\n"
        "try: read_trace(Path(sys.argv[1]))\n"
        "except Exception as error: print(error)\n" + PEAK_KIB
    )
    run = [sys.executable, "-c", code, str(path)]
    said, peak_kib = subprocess.run(run, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    assert said.startswith(f"{path}: row 2: the line is longer than")
    assert int(peak_kib) < 300 * 1024  # Python with pyarrow is about 90 MiB


@pytest.mark.slow
def test_a_large_parquet_of_one_row_group_streams_in_bounded_memory(tmp_path: Path) -> None:
    n_rows = 20_000_000
    path = tmp_path / "large.parquet"
    numbers = np.arange(n_rows) * 1_000
    pq.write_table(pa.table({"timestamp_ns": numbers, "n": numbers % 1_000}), path, row_group_size=n_rows)
    code = (
        "import sys; from pathlib import Path; from squall.scenarios.traces.reading import open_trace\n"
        "print(sum(len(part) for part in open_trace(Path(sys.argv[1]))))\n" + PEAK_KIB
    )
    run = [sys.executable, "-c", code, str(path)]
    count, peak_kib = subprocess.run(run, cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert int(count) == n_rows
    # held whole, the two columns alone are 320 MB
    assert int(peak_kib) < 300 * 1024


def test_the_unit_of_a_trace_of_dates_is_none(tmp_path: Path) -> None:
    assert open_trace(write(tmp_path, "2024-01-01\n")).unit is None
