from __future__ import annotations

import csv
import lzma
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.compute as pc
import pytest

from analysis.nsys_export import parse_range, read_nvtx, read_osrt
from analysis.schema import arrow_schema
from scenarios.errors import AnalysisError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "h200"
WHO = ("run-1", "node-1", "server-0")
UTC_START_NS = 1_795_250_252_713_561_538
PID, TID = 0xABCDEF, 0xFEDCBA  # all 24 bits in use
GLOBAL_TID = (1 << 56) | (PID << 24) | TID


@pytest.fixture(scope="module")
def linear_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real export of nsys 2025.3.2 on an H200 (tests/fixtures/h200)."""
    path = tmp_path_factory.mktemp("nsys") / "linear_head.sqlite"
    path.write_bytes(lzma.decompress((FIXTURES / "linear_head.nsys.sqlite.xz").read_bytes()))
    return path


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """Writes an export from SQL statements; the session start is there unless told."""

    def write(*statements: str, has_start: bool = True) -> Path:
        path = tmp_path / "made.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
            if has_start:
                connection.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
                connection.execute(f"INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({UTC_START_NS})")
            for statement in statements:
                connection.execute(statement)
            connection.commit()
        return path

    return write


def test_counts_and_times_of_every_os_call_are_those_of_nvidias_own_summary(linear_head: Path) -> None:
    table = read_osrt(linear_head, *WHO)
    spans = table.append_column("ns", pc.subtract(table["end_ns"], table["start_ns"]))
    totals = spans.group_by("name").aggregate([("ns", "count"), ("ns", "sum")]).to_pylist()
    found = {row["name"]: (row["ns_count"], row["ns_sum"]) for row in totals}
    with open(FIXTURES / "linear_head.osrtsum.csv") as file:
        nvidias = {
            row["Name"]: (int(row["Num Calls"]), int(row["Total Time (ns)"])) for row in csv.DictReader(file)
        }
    assert len(nvidias) == 19
    assert found == nvidias


def test_events_are_on_utc_and_ordered_by_start_and_carry_who_they_are_of(linear_head: Path) -> None:
    table = read_osrt(linear_head, *WHO)
    starts = table["start_ns"].to_pylist()
    assert starts == sorted(starts)
    with closing(sqlite3.connect(linear_head)) as export:
        ((first_ns,),) = export.execute("SELECT min(start) FROM OSRT_API WHERE eventClass = 27").fetchall()
    assert starts[0] == UTC_START_NS + first_ns
    assert table.schema.equals(arrow_schema("osrt"))
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["run"], first["node"], first["server"], first["phase"]) == (*WHO, "")
    assert "triton_python_b" in table["thread_name"].to_pylist()


def test_ranges_of_a_real_export_are_all_read_and_none_is_taken_for_ours(linear_head: Path) -> None:
    table = read_nvtx(linear_head, *WHO)
    spans = pc.sum(pc.subtract(table["end_ns"], table["start_ns"])).as_py()
    assert (table.num_rows, spans) == (390, 566_399_023)  # nvidia's nvtxsum of the same file
    assert set(table["name"].to_pylist()) == {"execute"}
    assert set(table["process"].to_pylist()) == {614}
    assert table["batch_id"].null_count == 390


def test_a_table_that_nsys_did_not_write_is_no_event(export: Callable[..., Path]) -> None:
    path = export()
    assert (read_osrt(path, *WHO).num_rows, read_nvtx(path, *WHO).num_rows) == (0, 0)
    assert read_nvtx(path, *WHO).schema.equals(arrow_schema("nvtx"))


def test_an_empty_export_without_a_session_start_is_no_event_either(export: Callable[..., Path]) -> None:
    assert read_osrt(export(has_start=False), *WHO).num_rows == 0


OSRT = (
    "CREATE TABLE OSRT_API (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,"
    " nameId INTEGER)"
)
NVTX = (
    "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER"
    ", textId INTEGER)"
)


def test_rows_in_any_order_come_out_by_start_with_process_thread_and_names(
    export: Callable[..., Path],
) -> None:
    path = export(
        OSRT,
        f"INSERT INTO OSRT_API VALUES (30, 40, 27, {GLOBAL_TID}, 1), (10, 90, 27, {GLOBAL_TID}, 2),"
        f" (5, 5, 31, {GLOBAL_TID}, 1)",
        "INSERT INTO StringIds VALUES (1, 'poll'), (2, 'futex'), (3, 'sender')",
        "CREATE TABLE ThreadNames (nameId INTEGER, globalTid INTEGER)",
        f"INSERT INTO ThreadNames VALUES (3, {GLOBAL_TID})",
    )
    rows = read_osrt(path, *WHO).to_pylist()
    assert [(row["name"], row["start_ns"] - UTC_START_NS, row["end_ns"] - UTC_START_NS) for row in rows] == [
        ("futex", 10, 90),
        ("poll", 30, 40),
    ]
    assert {(row["process"], row["thread"], row["thread_name"]) for row in rows} == {(PID, TID, "sender")}


def test_our_ranges_name_instance_and_batch_in_place_or_registered(export: Callable[..., Path]) -> None:
    path = export(
        NVTX,
        f"INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, 'squall|seqlen_head_0_1|7', {GLOBAL_TID}, NULL),"
        f" (3, 4, 60, NULL, {GLOBAL_TID}, 9), (5, NULL, 59, 'squall|a|8', {GLOBAL_TID}, NULL),"
        f" (6, NULL, 34, 'a mark', {GLOBAL_TID}, NULL)",
        "INSERT INTO StringIds VALUES (9, 'squall|seqlen_head_0_1|8')",
    )
    rows = read_nvtx(path, *WHO).to_pylist()
    assert [(row["instance"], row["batch_id"]) for row in rows] == [
        ("seqlen_head_0_1", 7),
        ("seqlen_head_0_1", 8),
    ]


def test_an_export_of_before_registered_strings_is_read(export: Callable[..., Path]) -> None:
    path = export(
        NVTX.replace(", textId INTEGER", ""),
        f"INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, 'execute', {GLOBAL_TID})",
    )
    assert read_nvtx(path, *WHO)["name"].to_pylist() == ["execute"]


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("squall|a_0_0|12", ("a_0_0", 12)),
        ("squall|a|b|12", ("a|b", 12)),
        ("squall|a_0_0|", ("", None)),
        ("squall||3", ("", None)),
        ("squall|a_0_0|-1", ("", None)),
        ("execute", ("", None)),
        ("", ("", None)),
    ],
)
def test_only_a_whole_name_of_ours_is_taken_for_ours(text: str, ours: tuple[str, int | None]) -> None:
    assert parse_range(text) == ours


def test_events_without_a_utc_start_are_an_error(export: Callable[..., Path]) -> None:
    path = export(OSRT, f"INSERT INTO OSRT_API VALUES (1, 2, 27, {GLOBAL_TID}, 1)", has_start=False)
    with pytest.raises(AnalysisError, match="when its collection started"):
        read_osrt(path, *WHO)


def test_a_file_that_is_no_export_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with pytest.raises(AnalysisError, match="there is no nsys export"):
        read_osrt(path, *WHO)
    path.write_text("not a database, though it is long enough to be read as one" * 20)
    with pytest.raises(AnalysisError, match="not an nsys SQLite export"):
        read_osrt(path, *WHO)
