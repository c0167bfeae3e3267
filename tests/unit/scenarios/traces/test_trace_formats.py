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
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.options import NS_PER_UNIT, TraceOptions, TraceUnit
from squall.scenarios.traces.part import PART_ROWS, join_parts, session_number, session_text
from squall.scenarios.traces.reading import open_trace, read_trace
from tests.many_examples import examples

S = 1_000_000_000
Case = dict[str, Any]
CASES: dict[str, list[Case]] = yaml.safe_load((Path(__file__).parent / "traces.yaml").read_text())


def write(folder: Path, data: str | bytes, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def write_case(folder: Path, case: Case, suffix: str) -> tuple[Path, TraceOptions]:
    data = case["text"].encode() if "text" in case else case["bytes"].encode("latin-1")
    if suffix == ".gz":
        data = gzip.compress(data[:5]) + gzip.compress(data[5:])  # as `cat a.gz b.gz` leaves it
    elif suffix:
        data = pa.compress(data, "zstd", asbytes=True)
    return write(folder, data, f"trace{suffix}"), TraceOptions(**case.get("options", {}))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("case", CASES["read"])
def test_a_file_is_recognised_and_read_exactly(tmp_path: Path, case: Case, suffix: str) -> None:
    path, options = write_case(tmp_path, case, suffix)
    reader = open_trace(path, options)
    assert reader.format == case.get("format", reader.format)
    assert reader.unit == case.get("unit", reader.unit)
    for _ in range(2):
        part = join_parts(list(reader))
        assert part.stamp_ns.tolist() == case["stamp_ns"]
        assert part.stamp_ns.dtype == np.int64
    assert {name: values.tolist() for name, values in part.sizes.items()} == case.get("sizes", {})
    assert reader.size_names == tuple(part.sizes)
    sessions = None if part.session is None else part.session.tolist()
    assert sessions == ([session_number(text) for text in case["sessions"]] if "sessions" in case else None)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("case", CASES["refused"])
def test_a_fault_is_one_line_with_file_row_and_mend(tmp_path: Path, case: Case, suffix: str) -> None:
    path, options = write_case(tmp_path, case, suffix)
    with pytest.raises(ScenarioError) as caught:
        list(open_trace(path, options, case.get("session")))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: {case['error']}")


def test_a_session_number_is_63_bits_of_blake2b_and_survives_its_text() -> None:
    # blake2b with 8 bytes of "a", computed with coreutils: printf a | b2sum -l 64
    assert session_number("a") == 0x40F89E395B66422F & (2**63 - 1)
    assert session_number(session_text(12345)) == 12345
    assert session_text(session_number("")) == ""


def test_counts_of_more_than_a_part_are_all_there(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("container", "is_encoded"), [("parquet", False), ("parquet", True), ("file", True), ("stream", False)]
)
@pytest.mark.parametrize(("column", "unit", "stamp_ns"), STAMPS)
def test_a_column_of_any_type_of_time_is_read(
    tmp_path: Path,
    column: Any,
    unit: TraceUnit | None,
    stamp_ns: list[int],
    container: str,
    is_encoded: bool,
) -> None:
    table = pa.table({
        "hash": [[1], [2, 3]], "timestamp": column, "n": pa.array([4, None], pa.int32()), "x": [0.5, 1],
        "session_id": pa.array(["a", None]).dictionary_encode() if is_encoded else ["a", None],
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


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.decimals(0, 9_000_000_000, places=None, allow_nan=False), min_size=1, max_size=8).map(sorted),
    st.sampled_from(get_args(TraceUnit)),
    st.sampled_from([("lines", "{}\n"), ("jsonl", '{{"timestamp": {}}}\n'), ("csv", "{},x\n")]),
)
def test_a_number_is_cut_to_ns_and_never_rounded(
    tmp_path: Path, numbers: list[Decimal], unit: TraceUnit, form: tuple[str, str]
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
