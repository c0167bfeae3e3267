"""Every format is recognised and read exactly: instants to the ns, sizes, sessions."""

from __future__ import annotations

import gzip
from decimal import ROUND_DOWN, Decimal, localcontext
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squall.scenarios.traces.formats import FORMATS, TraceFormat
from squall.scenarios.traces.parts.options import NS_PER_UNIT, TraceOptions, TraceUnit
from squall.scenarios.traces.parts.part import PART_ROWS, TracePart, session_number, session_text
from squall.scenarios.traces.reading import open_trace, read_trace
from squall.scenarios.traces.writing import write_trace

S = 1_000_000_000
LOG = (
    'h1 - - [10/Oct/2000:13:55:36 -0700] "GET /a b HTTP/1.0" 200 2326\n'
    'h2 - u [10/Oct/2000:13:55:37.25 -0700] "-" 304 -\n'
)
LOG_NS = 971_211_336 * S
AZURE, BURST = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "Request tokens,Response tokens,Total tokens,Log Type\n",
)
LENGTHS = ("input_length", "output_length")
CHAT = '{"chat_id": %d, "parent_chat_id": %d, "timestamp": %d.114, "input_length": 5, "output_length": 6, "turn": 1}\n'
Case = tuple[str | bytes, TraceFormat, list[int], dict[str, list[int]], list[str] | None]
"""A file, and its format, instants, sizes and sessions."""


def write(folder: Path, data: str | bytes, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


CASES: list[Case] = [
    ("0\n0.5\n\n1e0\n", "lines", [0, S // 2, S], {}, None),
    ("0\r\n1\r\n", "lines", [0, S], {}, None),
    ("1700000000.000000001\n1700000000.000000003\n", "lines", [1_700_000_000 * S + 1, 1_700_000_000 * S + 3], {}, None),
    ("0\n0.30000000000000004\n", "lines", [0, 300_000_000], {}, None),  # digits below 1 ns are cut
    ("2024-01-01\n2024-01-01 00:00\n2024-01-01T00:00:00.1234567899Z\n", "lines", [1_704_067_200 * S] * 2
     + [1_704_067_200 * S + 123_456_789], {}, None),
    ("1960-01-01\n", "lines", [-315_619_200 * S], {}, None),  # a date before 1970 is no fault
    ("timestamp,tokens\n3,8\n4.25,9\n", "csv", [3 * S, 4_250_000_000], {"tokens": [8, 9]}, None),
    (b"\xef\xbb\xbftimestamp,n\n1,2\n", "csv", [S], {"n": [2]}, None),
    ("tokens, Timestamp_ms \n8,3\n,4\n", "csv", [3_000_000, 4_000_000], {"tokens": [8, -1]}, None),
    ("time_ns;n;text\n9007199254740993;1;a\n9007199254740994;2;b\n", "csv", [2**53 + 1, 2**53 + 2],
     {"n": [1, 2]}, None),
    ('ts_us,"a,b",who\n1,"7","x,y"\n2,8,z\n', "csv", [1000, 2000], {"a,b": [7, 8]}, None),
    ("timestamp\n2023-12-31T23:59:59Z\n2024-01-01T01:00:00+01:00\n", "csv",
     [1_704_067_199 * S, 1_704_067_200 * S], {}, None),
    ("time_s,User\n1,a\n2,b\n3,\n", "csv", [S, 2 * S, 3 * S], {}, ["a", "b", ""]),
    ("time_s,client_id\n1,17\n2,-\n", "csv", [S, 2 * S], {}, ["17", ""]),
    (AZURE + "2023-11-16 18:15:46.6805900,374,44\n", "azure-llm", [1_700_158_546_680_590_000],
     {"ContextTokens": [374], "GeneratedTokens": [44]}, None),
    (AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\n", "azure-llm", [1_715_299_200_009_930_000],
     {"ContextTokens": [2162], "GeneratedTokens": [5]}, None),
    (AZURE.replace(",", ",NumImages,", 1) + "2024-10-15 00:00:00,3,2162,5\n", "azure-llm", [1_728_950_400 * S],
     {"ContextTokens": [2162], "GeneratedTokens": [5], "NumImages": [3]}, None),
    ("Timestamp,Model," + BURST + "5,ChatGPT,472,18,490,API log\n", "burstgpt", [5 * S],
     {"Request tokens": [472], "Response tokens": [18], "Total tokens": [490]}, None),
    ("Timestamp,Session ID,Elapsed time,Model," + BURST + "5,x,1.5,GPT-4,3,4,7,log\n6.5,y,0.1,GPT-4,1,0,1,log\n",
     "burstgpt", [5 * S, 6_500_000_000],
     {"Request tokens": [3, 1], "Response tokens": [4, 0], "Total tokens": [7, 1]}, ["x", "y"]),
    ('{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n', "mooncake",
     [27_482_000_000], {"input_length": [6955], "output_length": [52]}, None),
    # 4 answers 2, which answers 1; 99 was never seen: a session is the first request of its chain
    ("".join(CHAT % (own, parent, own) for own, parent in ((1, -1), (2, 1), (3, -1), (4, 2), (5, 3), (6, 99))),
     "bailian", [n * S + 114_000_000 for n in range(1, 7)], {"input_length": [5] * 6, "output_length": [6] * 6},
     [*"113136"]),
    ('{"timestamp": 1.000000001}\n{"timestamp": 1.0000039999}\n', "jsonl", [1_000_000, 1_000_003], {}, None),
    ('{"ts_s": 1.5, "bytes": 9}\n{"bytes": 3, "ts_s": 2}\n', "jsonl", [1_500_000_000, 2 * S],
     {"bytes": [9, 3]}, None),
    ('{"timestamp": "2024-01-01 00:00:00.5"}\n', "jsonl", [1_704_067_200 * S + S // 2], {}, None),
    ('{"timestamp": 0, "n": 512.0}\n{"timestamp": 1, "n": 5}\n', "jsonl", [0, 1_000_000], {}, None),
    ('{"ts_s": 1, "user": "a"}\n{"ts_s": 2, "user": "b"}\n{"ts_s": 3}\n', "jsonl", [S, 2 * S, 3 * S], {},
     ["a", "b", ""]),
    ('{"data": [{"payload": [{}], "timestamp": [1000]}, {"timestamp": [2000.5]}]}', "fixed-schedule",
     [S, 2_000_500_000], {}, None),
    ("second,count\n10,2\n20,0\n30,1\n", "counts", [10 * S, 10 * S, 30 * S], {}, None),
    (LOG, "common-log", [LOG_NS, LOG_NS + 1_250_000_000], {"bytes": [2326, -1]}, ["h1", "h2"]),
    (LOG.replace("2326", '2326 "http://r" "Mozilla/5.0 (X11)"'), "combined-log", [LOG_NS, LOG_NS + 1_250_000_000],
     {"bytes": [2326, -1]}, ["h1", "h2"]),
]  # fmt: skip
ELSEWHERE = {
    "servegen",
    "intervals",
    "parquet",
    "arrow",
    "alb-log",
    "elb-log",
    "envoy-log",
    "haproxy-log",
    "w3c-log",
}
"""Formats with tests of their own; the logs' are `tests/unit/cluster/commands/test_trace_logs.py`."""


def test_every_format_is_in_the_table_and_has_an_example() -> None:
    assert sorted(one.name for one in FORMATS) == sorted(get_args(TraceFormat))
    assert {format for _, format, *_ in CASES} | ELSEWHERE == set(get_args(TraceFormat))
    endings = [ending for one in FORMATS for ending in one.endings]
    assert len(endings) == len(set(endings))


@pytest.mark.parametrize("compressed", ["", ".gz", ".zst"])
@pytest.mark.parametrize(("text", "format", "stamp_ns", "sizes", "sessions"), CASES)
def test_a_format_is_recognised_and_read_exactly(
    tmp_path: Path,
    text: str | bytes,
    format: TraceFormat,
    stamp_ns: list[int],
    sizes: dict[str, list[int]],
    sessions: list[str] | None,
    compressed: str,
) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    if compressed == ".gz":
        data = gzip.compress(data[:5]) + gzip.compress(data[5:])  # as `cat a.gz b.gz` leaves it
    elif compressed:
        data = pa.compress(data, "zstd", asbytes=True)
    path = write(tmp_path, data, f"trace{compressed}")
    reader = open_trace(path)
    assert reader.format == format
    part = read_trace(path)
    assert part.stamp_ns.tolist() == stamp_ns
    assert part.stamp_ns.dtype == np.int64
    assert {name: values.tolist() for name, values in part.sizes.items()} == sizes
    assert reader.size_names == tuple(part.sizes)
    assert reader.has_sessions == (sessions is not None)
    assert (part.session is None) == (sessions is None)
    if part.session is not None:
        assert part.session.tolist() == [session_number(text) for text in sessions or ()]


def test_intervals_are_summed_and_have_to_be_named(tmp_path: Path) -> None:
    # The example of perf_analyzer's docs: requests at 0.1 s, 0.3 s and 0.8 s.
    path = write(tmp_path, "100000\n200000\n500000\n")
    stamps = read_trace(path, TraceOptions(format="intervals")).stamp_ns
    assert stamps.tolist() == [S // 10, 3 * S // 10, 8 * S // 10]
    assert open_trace(path).format == "lines"


@pytest.mark.parametrize("unit", get_args(TraceUnit))
def test_a_stated_unit_holds_for_every_plain_format(tmp_path: Path, unit: TraceUnit) -> None:
    pq.write_table(pa.table({"timestamp": [3, 7]}), tmp_path / "a.parquet")
    write(tmp_path, "3\n7\n")
    write(tmp_path, "timestamp,n\n3,1\n7,1\n", "a.csv")
    write(tmp_path, '{"timestamp": 3}\n{"timestamp": 7}\n', "a.jsonl")
    for path in tmp_path.iterdir():
        reader = open_trace(path, TraceOptions(unit=unit))
        assert reader.unit == unit
        assert next(iter(reader)).stamp_ns.tolist() == [3 * NS_PER_UNIT[unit], 7 * NS_PER_UNIT[unit]]


def test_a_session_number_is_63_bits_of_blake2b_and_survives_its_text() -> None:
    # blake2b with 8 bytes of "a", computed with coreutils: printf a | b2sum -l 64
    assert session_number("a") == 0x40F89E395B66422F & (2**63 - 1)
    assert session_number(session_text(12345)) == 12345
    assert session_text(session_number("")) == ""


def test_counts_state_the_width_of_their_bin(tmp_path: Path) -> None:
    assert open_trace(write(tmp_path, "second,count\n0,3\n60,2\n120,0\n")).tick_ns == 60 * S
    assert open_trace(write(tmp_path, "second,count\n0,3\n")).tick_ns == S
    bare = write(tmp_path, "0,1\n5,2\n")
    assert read_trace(bare, TraceOptions(format="counts")).stamp_ns.tolist() == [0, 5 * S, 5 * S]
    many = read_trace(write(tmp_path, f"second,count\n7,{PART_ROWS + 3}\n8,1\n"))
    assert len(many) == PART_ROWS + 4
    assert many.stamp_ns[-2:].tolist() == [7 * S, 8 * S]


STAMPS: list[tuple[Any, str | None, list[int]]] = [
    (pa.array([1, 2], pa.timestamp("ms")), None, [1_000_000, 2_000_000]),
    (pa.array([1, 2], pa.timestamp("us", "Europe/Berlin")), None, [1_000, 2_000]),
    (pa.array([1, 2], pa.date32()), None, [86_400 * S, 2 * 86_400 * S]),
    (pa.array([2**53 + 1, 2**53 + 2], pa.int64()), "ns", [2**53 + 1, 2**53 + 2]),
    (pa.array([2**53 + 1, 2**62], pa.uint64()), "ns", [2**53 + 1, 2**62]),
    (pa.array([1, 2], pa.int16()), "us", [1_000, 2_000]),
    (pa.array([Decimal("1.000000001"), Decimal("2")], pa.decimal128(20, 9)), "s", [S + 1, 2 * S]),
    (pa.array([0.3, 1_700_000_000.123]), "s", [300_000_000, 1_700_000_000_123_000_000]),
    (pa.array(["0.5", "1.25"]), "s", [S // 2, 1_250_000_000]),
    (pa.array(["2024-01-01", "2024-01-02"]), None, [1_704_067_200 * S, 1_704_153_600 * S]),
    (pa.array(["7", "7"]).dictionary_encode(), "s", [7 * S, 7 * S]),
]


@pytest.mark.parametrize("container", ["parquet", "file", "stream"])
@pytest.mark.parametrize(("column", "unit", "stamp_ns"), STAMPS)
def test_a_column_of_any_type_of_time_is_read(
    tmp_path: Path, column: Any, unit: TraceUnit | None, stamp_ns: list[int], container: str
) -> None:
    table = pa.table({
        "hash": [[1], [2, 3]], "timestamp": column, "n": pa.array([4, None], pa.int32()), "x": [0.5, 1],
        "session_id": ["a", None],
    })  # fmt: skip
    path = tmp_path / "trace"
    if container == "parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if container == "file" else pa.ipc.new_stream
        with path.open("wb") as file, new(file, table.schema) as writer:
            writer.write_table(table)
    options = TraceOptions(unit=unit)
    assert open_trace(path, options).format == ("parquet" if container == "parquet" else "arrow")
    part = read_trace(path, options)
    assert part.stamp_ns.tolist() == stamp_ns
    assert {name: values.tolist() for name, values in part.sizes.items()} == {"n": [4, -1]}
    assert part.session is not None
    assert part.session.tolist() == [session_number("a"), -1]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.decimals(0, 9_000_000_000, places=None, allow_nan=False), min_size=1, max_size=8).map(sorted),
    st.sampled_from(get_args(TraceUnit)),
    st.sampled_from([("lines", "{}\n"), ("jsonl", '{{"timestamp": {}}}\n'), ("csv", "{},x\n")]),
)
def test_a_number_is_cut_to_ns_and_never_rounded(
    tmp_path: Path, numbers: list[Decimal], unit: TraceUnit, form: tuple[TraceFormat, str]
) -> None:
    format, row = form
    head = "timestamp,who\n" if format == "csv" else ""
    path = write(tmp_path, head + "".join(row.format(number) for number in numbers))
    with localcontext() as context:
        context.prec = 400
        expected = [int((n * NS_PER_UNIT[unit]).to_integral_value(ROUND_DOWN)) for n in numbers]
    assert read_trace(path, TraceOptions(unit=unit, format=format)).stamp_ns.tolist() == expected


def test_a_reader_can_be_iterated_again_in_parts_of_bounded_size(tmp_path: Path) -> None:
    path = write(tmp_path, "\n".join(map(str, range(PART_ROWS + 10))))
    reader = open_trace(path)
    first = [len(part) for part in reader]
    assert first == [len(part) for part in reader]
    assert sum(first) == PART_ROWS + 10
    assert max(first) <= PART_ROWS


@pytest.mark.parametrize(
    "format", [one for one in FORMATS if one.write is not None], ids=lambda one: one.name
)
def test_a_file_is_recognised_as_the_format_it_is_written_in(tmp_path: Path, format: Any) -> None:
    sizes = {one: np.arange(5) for one in (*LENGTHS, "bytes")}
    part = TracePart(np.arange(5) * 1_000 * S, sizes, np.arange(5))
    write_trace(tmp_path / "trace", format.name, [part])
    assert open_trace(tmp_path / "trace").format == ("lines" if format.recognise is None else format.name)
    assert open_trace(tmp_path / "trace", TraceOptions(format=format.name)).format == format.name


def test_a_table_is_a_csv_by_the_column_that_is_named(tmp_path: Path) -> None:
    for text in ("What,When\n5,1\n6,2\n", "When\n1\n2\n"):
        path, options = write(tmp_path, text), TraceOptions(column="when")
        assert open_trace(path, options).format == "csv"
        assert read_trace(path, options).stamp_ns.tolist() == [S, 2 * S]
