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

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.parts.options import NS_PER_UNIT
from squall.scenarios.traces.parts.part import PART_ROWS, session_number, session_text
from squall.scenarios.traces.readers.blocks import text_blocks
from squall.scenarios.traces.readers.chunk import session_numbers
from squall.scenarios.traces.reading import (
    FORMATS,
    TraceFormat,
    TraceOptions,
    TraceUnit,
    open_trace,
    read_trace,
)

S = 1_000_000_000
LOG = (
    'h1 - - [10/Oct/2000:13:55:36 -0700] "GET /a b HTTP/1.0" 200 2326\n'
    'h2 - u [10/Oct/2000:13:55:37.25 -0700] "-" 304 -\n'
)
LOG_NS = 971_211_336 * S


def write(folder: Path, data: str | bytes, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


CASES: list[tuple[str, TraceFormat, list[int], dict[str, list[int]]]] = [
    ("0\n0.5\n\n1e0\n", "lines", [0, S // 2, S], {}),
    ("0\r\n1\r\n", "lines", [0, S], {}),
    ("1700000000.000000001\n1700000000.000000003\n", "lines", [1_700_000_000 * S + 1, 1_700_000_000 * S + 3], {}),
    ("0\n0.30000000000000004\n", "lines", [0, 300_000_000], {}),  # digits below 1 ns are cut
    ("2024-01-01\n2024-01-01 00:00\n2024-01-01T00:00:00.1234567899Z\n", "lines", [1_704_067_200 * S] * 2
     + [1_704_067_200 * S + 123_456_789], {}),
    ("timestamp,tokens\n3,8\n4.25,9\n", "csv", [3 * S, 4_250_000_000], {"tokens": [8, 9]}),
    ("tokens, Timestamp_ms \n8,3\n,4\n", "csv", [3_000_000, 4_000_000], {"tokens": [8, -1]}),
    ("time_ns;n;text\n9007199254740993;1;a\n9007199254740994;2;b\n", "csv", [2**53 + 1, 2**53 + 2], {"n": [1, 2]}),
    ('ts_us,"a,b",who\n1,"7","x,y"\n2,8,z\n', "csv", [1000, 2000], {"a,b": [7, 8]}),
    ("timestamp\n2023-12-31T23:59:59Z\n2024-01-01T01:00:00+01:00\n", "csv", [1_704_067_199 * S, 1_704_067_200 * S], {}),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n", "azure-llm",
     [1_700_158_546_680_590_000], {"ContextTokens": [374], "GeneratedTokens": [44]}),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n", "azure-llm",
     [1_715_299_200_009_930_000], {"ContextTokens": [2162], "GeneratedTokens": [5]}),
    ("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:00,3,2162,5\n", "azure-llm",
     [1_728_950_400 * S], {"ContextTokens": [2162], "GeneratedTokens": [5], "NumImages": [3]}),
    ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n", "burstgpt",
     [5 * S], {"Request tokens": [472], "Response tokens": [18], "Total tokens": [490]}),
    ('{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n', "mooncake",
     [27_482_000_000], {"input_length": [6955], "output_length": [52]}),
    ('{"timestamp": 1.000000001}\n{"timestamp": 1.0000039999}\n', "jsonl", [1_000_000, 1_000_003], {}),
    ('{"ts_s": 1.5, "bytes": 9}\n{"bytes": 3, "ts_s": 2}\n', "jsonl", [1_500_000_000, 2 * S], {"bytes": [9, 3]}),
    ('{"timestamp": "2024-01-01 00:00:00.5"}\n', "jsonl", [1_704_067_200 * S + S // 2], {}),
    ('{"timestamp": 0, "n": 512.0}\n{"timestamp": 1, "n": 5}\n', "jsonl", [0, 1_000_000], {}),
    ('{"data": [{"payload": [{}], "timestamp": [1000]}, {"timestamp": [2000.5]}]}', "fixed-schedule",
     [S, 2_000_500_000], {}),
    ("second,count\n10,2\n20,0\n30,1\n", "counts", [10 * S, 10 * S, 30 * S], {}),
    (LOG, "common-log", [LOG_NS, LOG_NS + 1_250_000_000], {"bytes": [2326, -1]}),
    (LOG.replace("2326", '2326 "http://r" "Mozilla/5.0 (X11)"'), "combined-log", [LOG_NS, LOG_NS + 1_250_000_000],
     {"bytes": [2326, -1]}),
]  # fmt: skip


@pytest.mark.parametrize("compressed", ["", ".gz", ".zst"])
@pytest.mark.parametrize(("text", "format", "stamp_ns", "sizes"), CASES)
def test_a_format_is_recognised_and_read_exactly(
    tmp_path: Path,
    text: str,
    format: TraceFormat,
    stamp_ns: list[int],
    sizes: dict[str, list[int]],
    compressed: str,
) -> None:
    data = text.encode()
    if compressed == ".gz":
        data = gzip.compress(data[:5]) + gzip.compress(data[5:])  # as `cat a.gz b.gz` leaves it
    elif compressed:
        data = pa.compress(data, "zstd", asbytes=True)
    path = write(tmp_path, data, f"trace{compressed}")
    assert open_trace(path).format == format
    part = read_trace(path)
    assert part.stamp_ns.tolist() == stamp_ns
    assert part.stamp_ns.dtype == np.int64
    assert {name: values.tolist() for name, values in part.sizes.items()} == sizes
    assert open_trace(path).size_names == tuple(part.sizes)


def test_intervals_are_summed_and_have_to_be_named(tmp_path: Path) -> None:
    # The example of perf_analyzer's docs: requests at 0.1 s, 0.3 s and 0.8 s.
    path = write(tmp_path, "100000\n200000\n500000\n")
    assert read_trace(path, TraceOptions(format="intervals")).stamp_ns.tolist() == [
        S // 10,
        3 * S // 10,
        8 * S // 10,
    ]
    assert open_trace(path).format == "lines"


@pytest.mark.parametrize("unit", get_args(TraceUnit))
def test_a_stated_unit_holds_for_every_plain_format(tmp_path: Path, unit: TraceUnit) -> None:
    pq.write_table(pa.table({"timestamp": [3, 7]}), tmp_path / "a.parquet")
    paths = [
        tmp_path / "a.parquet",
        write(tmp_path, "3\n7\n"),
        write(tmp_path, "timestamp,n\n3,1\n7,1\n", "a.csv"),
        write(tmp_path, '{"timestamp": 3}\n{"timestamp": 7}\n', "a.jsonl"),
    ]
    for path in paths:
        reader = open_trace(path, TraceOptions(unit=unit))
        assert reader.unit == unit
        assert next(iter(reader)).stamp_ns.tolist() == [3 * NS_PER_UNIT[unit], 7 * NS_PER_UNIT[unit]]


def test_sessions_are_equal_across_formats_and_columns(tmp_path: Path) -> None:
    table = pa.table({"session_id": ["a", "b", None], "time_s": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    csv = write(tmp_path, "time_s,User\n1,a\n2,b\n3,\n", "a.csv")
    lines = write(tmp_path, '{"ts_s": 1, "user": "a"}\n{"ts_s": 2, "user": "b"}\n{"ts_s": 3}\n', "a.jsonl")
    expected = [session_number("a"), session_number("b"), -1]
    for path in (tmp_path / "a.parquet", csv, lines):
        session = read_trace(path).session
        assert session is not None
        assert session.tolist() == expected
    numbers = write(tmp_path, "time_s,client_id\n1,17\n2,-\n", "b.csv")
    session = read_trace(numbers).session
    assert session is not None
    assert session.tolist() == [session_number("17"), -1]


def test_a_session_number_is_63_bits_of_blake2b_and_survives_its_text() -> None:
    # blake2b with 8 bytes of "a", computed with coreutils: printf a | b2sum -l 64
    assert session_number("a") == 0x40F89E395B66422F & (2**63 - 1)
    assert session_number(session_text(12345)) == 12345
    assert session_text(session_number("")) == ""
    assert session_numbers(pa.array([b"a", None, b"\xff"], pa.binary())).tolist()[:2] == [
        session_number("a"),
        -1,
    ]


def test_burstgpt_is_read_by_name_where_columns_were_inserted(tmp_path: Path) -> None:
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,x,1.5,GPT-4,3,4,7,Conversation log\n6.5,y,0.1,GPT-4,1,0,1,Conversation log\n"
    )
    part = read_trace(write(tmp_path, text))
    assert part.stamp_ns.tolist() == [5 * S, 6_500_000_000]
    assert [values.tolist() for values in part.sizes.values()] == [[3, 1], [4, 0], [7, 1]]
    assert part.session is not None
    assert part.session.tolist() == [session_number("x"), session_number("y")]


def test_a_bailian_session_is_the_first_request_of_its_chain(tmp_path: Path) -> None:
    rows = [
        (1, -1),
        (2, 1),
        (3, -1),
        (4, 2),
        (5, 3),
        (6, 99),
    ]  # 4 answers 2, which answers 1; 99 was never seen
    text = "".join(
        f'{{"chat_id": {own}, "parent_chat_id": {parent}, "timestamp": {own}.114, "input_length": 5, '
        f'"output_length": 6, "type": "text", "turn": 1, "hash_ids": [1]}}\n'
        for own, parent in rows
    )
    part = read_trace(write(tmp_path, text))
    assert part.session is not None
    assert part.session.tolist() == [session_number(root) for root in "113136"]
    assert part.stamp_ns[0] == 1_114_000_000
    assert set(part.sizes) == {"input_length", "output_length"}


def test_counts_state_the_width_of_their_bin(tmp_path: Path) -> None:
    minutes = write(tmp_path, "second,count\n0,3\n60,2\n120,0\n")
    assert open_trace(minutes).tick_ns == 60 * S
    assert open_trace(write(tmp_path, "second,count\n0,3\n", "b")).tick_ns == S
    bare = write(tmp_path, "0,1\n5,2\n", "c")
    assert read_trace(bare, TraceOptions(format="counts")).stamp_ns.tolist() == [0, 5 * S, 5 * S]
    many = read_trace(write(tmp_path, f"second,count\n7,{PART_ROWS + 3}\n8,1\n", "d"))
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
    table = pa.table(
        {"hash": [[1], [2, 3]], "timestamp": column, "n": pa.array([4, None], pa.int32()), "x": [0.5, 1]}
    )
    path = tmp_path / "trace"
    if container == "parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if container == "file" else pa.ipc.new_stream
        with path.open("wb") as file, new(file, table.schema) as writer:
            writer.write_table(table)
    reader = open_trace(path, TraceOptions(unit=unit))
    assert reader.format == ("parquet" if container == "parquet" else "arrow")
    part = read_trace(path, TraceOptions(unit=unit))
    assert part.stamp_ns.tolist() == stamp_ns
    assert {name: values.tolist() for name, values in part.sizes.items()} == {"n": [4, -1]}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.decimals(0, 9_000_000_000, places=None, allow_nan=False), min_size=1, max_size=8).map(sorted),
    st.sampled_from(get_args(TraceUnit)),
)
def test_a_number_is_cut_to_ns_and_never_rounded(
    tmp_path: Path, numbers: list[Decimal], unit: TraceUnit
) -> None:
    path = write(tmp_path, "".join(f"{number}\n" for number in numbers))
    with localcontext() as context:
        context.prec = 400
        expected = [int((n * NS_PER_UNIT[unit]).to_integral_value(ROUND_DOWN)) for n in numbers]
    assert read_trace(path, TraceOptions(unit=unit, format="lines")).stamp_ns.tolist() == expected


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["", "1", "22.5", "333"]), min_size=1, max_size=30),
    st.integers(1, 12),
    st.booleans(),
)
def test_blocks_hold_every_line_once_wherever_they_are_cut(
    tmp_path: Path, lines: list[str], block_bytes: int, ends: bool
) -> None:
    path = write(tmp_path, "\n".join(lines) + ("\n" if ends else ""))
    found = [entry for block in text_blocks(path, block_bytes=block_bytes) for entry in block.lines()]
    assert found == [(row, line.encode()) for row, line in enumerate(lines, 1) if line]


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path, b"\xef\xbb\xbftimestamp,n\n1,2\n")).stamp_ns.tolist() == [S]


def test_a_reader_can_be_iterated_again_in_parts_of_bounded_size(tmp_path: Path) -> None:
    path = write(tmp_path, "\n".join(map(str, range(PART_ROWS + 10))))
    reader = open_trace(path)
    first = [len(part) for part in reader]
    assert first == [len(part) for part in reader]
    assert sum(first) == PART_ROWS + 10
    assert max(first) <= PART_ROWS


UNKNOWN = [
    ("when,what\n1,2\n", "row 1: no column 'timestamp': there are 'when', 'what'; name the column"),
    ("\n1,2\n", "row 2: '1,2' is a row of values, a table needs a header first; add one, or name the format"),
    (
        "PK\3\4 archive",
        "row 1: 'PK\\x03\\x04 archive' is neither a time nor a header with a timestamp column",
    ),
]


@pytest.mark.parametrize(("text", "what"), UNKNOWN)
def test_a_file_of_no_format_is_refused_with_all_that_was_tried(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        open_trace(tmp_path / "trace.csv")
    said = str(caught.value).removeprefix(f"{tmp_path / 'trace.csv'}: ")
    assert said.startswith(what)
    tried = said.partition("(it is none of ")[2].removesuffix(")").split(", ")
    assert tried == [one.name for one in FORMATS if one.name != "intervals"]


def test_a_table_is_a_csv_by_the_column_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "two").write_text("What,When\n5,1\n6,2\n")
    (tmp_path / "one").write_text("When\n1\n2\n")
    for name in ("two", "one"):
        options = TraceOptions(column="when")
        assert open_trace(tmp_path / name, options).format == "csv"
        assert read_trace(tmp_path / name, options).stamp_ns.tolist() == [S, 2 * S]
