from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from squall.analysis.clocks.track import ClockTrack
from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.scrub import scrub
from squall.analysis.nsys.tables import EventLabels, event_tables
from squall.scenarios.errors import AnalysisError
from tests.nsys_exports import (
    GLOBAL_PID,
    GLOBAL_TID,
    UTC_START_NS,
    MadeExport,
    all_bytes,
    api_call,
    kernel,
    nvtx,
    on_gpu,
)

SECRETS = {
    "environment": "hunter2-env", "argument": "hunter2-arg", "stdout": "hunter2-out", "path": "/home/hunter2/x.py",
    "user": "hunter2user", "host": "hunter2host", "range": "hunter2-range", "registered": "hunter2-registered",
    "payload": "hunter2-payload", "thread": "hunter2-thr", "symbol": "hunter2_symbol", "process": "hunter2-proc",
    "diagnostic": "hunter2-diag", "kernel": "{lambda at /home/hunter2/k.cu:7}", "unknown": "hunter2-unknown",
    "prefix": "squall|a/hunter2-prefix|7", "suffix": "squall|a_0|7|hunter2", "serial": "0000:hunter2:06.0",
    "gpu": "hunter2 ✗ GPU",
}  # fmt: skip
NEEDLES = (b"hunter2", "hunter2".encode("utf-16-le"))


def with_secrets() -> MadeExport:
    """An export with a secret in every place that nsys, or a user through it, writes text to."""
    secret = SECRETS
    export = MadeExport().strings(
        s1="cudaLaunchKernel_v7000", s2="poll", s3="tritonserver", s5="gemm", s6="void gemm<float>(int)",
        s10=f"PATH=/bin\0TOKEN={secret['environment']}", s11=secret["stdout"], s12=secret["registered"],
        s13=secret["thread"], s14=secret["symbol"], s15=secret["path"], s16=secret["kernel"], s17=secret["argument"],
        s18="squall|m_0|8|5", s19=secret["suffix"],
    )  # fmt: skip
    export.add("ProcessStreams", {"globalPid": GLOBAL_PID, "filenameId": 15, "contentId": 11})
    export.add("TARGET_INFO_SYSTEM_ENV", {"name": "Hostname", "value": secret["host"]})
    export.add("PROCESSES", {"globalPid": GLOBAL_PID, "pid": 1, "name": secret["process"]})
    export.add("OSRT_CALLCHAINS", {"id": 0, "symbol": 14, "module": 15})
    export.add("HUNTER_EVENTS", {"start": 1, "text": secret["unknown"]})
    export.add(
        "META_DATA_EXPORT",
        {"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.3"},
        {"name": "EXPORT_USER", "value": secret["user"]},
        {"name": "EXPORT_HOST", "value": secret["host"]},
        {"name": "EXPORT_SCHEMA_VERSION_MICRO", "value": secret["path"]},
        {"name": secret["path"], "value": "3.20.3"},
    )
    export.add(
        "TARGET_INFO_GPU",
        {
            "id": 0,
            "name": secret["gpu"],
            "busLocation": secret["serial"],
            "uuid": secret["serial"],
            "smCount": 132,
        },
    )
    export.add(
        "DIAGNOSTIC_EVENT",
        {"timestamp": 1, "source": 1, "severity": 2, "text": secret["diagnostic"]},
        {"timestamp": 2, "source": 1, "severity": 2, "text": "x"},
    )
    export.add("ENUM_CUDA_MEM_KIND", {"id": 0, "name": secret["path"], "label": "Pageable"})
    export.add(
        "ThreadNames", {"nameId": 13, "globalTid": GLOBAL_TID + 1}, {"nameId": 3, "globalTid": GLOBAL_TID}
    )
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", {**api_call(10, 20, 1), "callchainId": 14})
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", api_call(30, 40, 2, name=17, tid=GLOBAL_TID + 1))
    export.add(
        "CUPTI_ACTIVITY_KIND_KERNEL", kernel(21, 22, 1), kernel(41, 42, 2, demangledName=16, shortName=16)
    )
    export.add("CUPTI_ACTIVITY_KIND_MEMSET", on_gpu(50, 51, 3, bytes=4, comment=secret["payload"]))
    export.add(
        "OSRT_API",
        {"start": 1, "end": 9, "eventClass": 27, "globalTid": GLOBAL_TID, "nameId": 2, "callchainId": 0},
    )
    more: dict[str, Any] = {
        "jsonText": secret["payload"],
        "binaryData": secret["payload"],
        "uint64Value": 7,
        "textId": None,
    }
    return export.add(
        "NVTX_EVENTS",
        nvtx("squall|m_0|7|5", 8, 45, **more),
        nvtx(secret["range"], 9, 44, **more),
        nvtx(secret["prefix"], 9, 43, **more),
        nvtx(secret["suffix"], 9, 42, **more),
        nvtx(None, 46, 47, textId=12),
        nvtx(None, 46, 48, textId=19),
        nvtx(None, 48, 49, textId=18),
        nvtx(secret["range"], 60, None, eventType=34),
    )


def leaked(folder: Path) -> list[str]:
    """Files of `folder` in which a secret stands, raw or decompressed."""
    found = []
    for path in folder.rglob("*"):
        content = path.name.encode() + path.read_bytes() + all_bytes(pq.read_table(path))
        found += [path.name for needle in NEEDLES if needle in content]
    return found


@pytest.fixture(params=["sqlite", "parquet"])
def secretive(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = with_secrets()
    return (
        made.to_sqlite(tmp_path / "made.sqlite")
        if request.param == "sqlite"
        else made.to_parquet(tmp_path / "made")
    )


def test_no_secret_stands_in_the_scrubbed_folder_or_in_our_tables(secretive: Path, tmp_path: Path) -> None:
    scrub(secretive, tmp_path / "scrubbed")
    assert leaked(tmp_path / "scrubbed") == []
    labels = EventLabels("run", "node-0", "server-0")
    tables = list(event_tables(NsysReport(tmp_path / "scrubbed"), labels, ClockTrack.constant(0)))
    assert {name for name, _ in tables} == {"osrt", "nvtx", "cuda_api", "kernels", "memsets"}
    assert [name for name, data in tables if any(needle in all_bytes(data) for needle in NEEDLES)] == []


def test_the_search_finds_what_was_planted(tmp_path: Path) -> None:
    folder = with_secrets().to_parquet(tmp_path / "made")
    assert {name.removesuffix(".parquet") for name in leaked(folder)} == {
        "StringIds", "TARGET_INFO_SYSTEM_ENV", "PROCESSES", "HUNTER_EVENTS", "META_DATA_EXPORT", "TARGET_INFO_GPU",
        "DIAGNOSTIC_EVENT", "ENUM_CUDA_MEM_KIND", "CUPTI_ACTIVITY_KIND_MEMSET", "NVTX_EVENTS",
    }  # fmt: skip


def test_events_stay_and_names_that_are_safe_stay(secretive: Path, tmp_path: Path) -> None:
    report = scrub(secretive, tmp_path / "scrubbed")
    strings = pq.read_table(tmp_path / "scrubbed" / "StringIds.parquet").to_pylist()
    assert {row["id"]: row["value"] for row in strings} == {
        1: "cudaLaunchKernel_v7000", 2: "poll", 3: "tritonserver", 5: "gemm", 6: "void gemm<float>(int)",
        18: "squall|m_0|8|5",
    }  # fmt: skip
    ranges = pq.read_table(tmp_path / "scrubbed" / "NVTX_EVENTS.parquet")
    assert sorted(text or "" for text in ranges["text"].to_pylist()) == [""] * 6 + ["squall|m_0|7|5"]
    assert report.rows == {
        "CUPTI_ACTIVITY_KIND_RUNTIME": 2, "CUPTI_ACTIVITY_KIND_KERNEL": 2, "CUPTI_ACTIVITY_KIND_MEMSET": 1,
        "OSRT_API": 1, "NVTX_EVENTS": 7, "TARGET_INFO_GPU": 1, "TARGET_INFO_SESSION_START_TIME": 1,
        "META_DATA_EXPORT": 2, "ENUM_CUDA_MEM_KIND": 1, "ThreadNames": 2, "DIAGNOSTIC_EVENT": 1, "StringIds": 6,
    }  # fmt: skip
    assert report.dropped_tables == (
        "HUNTER_EVENTS", "OSRT_CALLCHAINS", "PROCESSES", "ProcessStreams", "TARGET_INFO_SYSTEM_ENV",
    )  # fmt: skip
    diagnostics = pq.read_table(tmp_path / "scrubbed" / "DIAGNOSTIC_EVENT.parquet").to_pylist()
    assert diagnostics == [{"severity": 2, "source": 1, "count": 2}]


def test_threads_without_an_event_leave_no_name(tmp_path: Path) -> None:
    export = MadeExport().strings(s1="poll", s2="python3", s3="tritonserver")
    export.add("OSRT_API", {"start": 1, "end": 2, "globalTid": GLOBAL_TID, "nameId": 1})
    export.add(
        "ThreadNames", {"nameId": 2, "globalTid": GLOBAL_TID}, {"nameId": 3, "globalTid": GLOBAL_TID + 5}
    )
    report = export.report(tmp_path)
    assert report.strings() == {1: "poll", 2: "python3"}


def test_both_forms_of_an_export_scrub_to_the_same(h200: Callable[[str], Path], tmp_path: Path) -> None:
    export = MadeExport({})
    with closing(sqlite3.connect(h200("seqlen_head"))) as file:
        file.row_factory = sqlite3.Row
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            rows = [dict(row) for row in file.execute(f"SELECT * FROM {name} LIMIT 500")]
            export.tables[name] = rows or [{"start": None}]
    of_sqlite = scrub(export.to_sqlite(tmp_path / "a.sqlite"), tmp_path / "a")
    of_parquet = scrub(export.to_parquet(tmp_path / "b.parquet"), tmp_path / "b")
    assert of_sqlite == of_parquet
    for path in (tmp_path / "a").iterdir():
        a, b = (pq.read_table(tmp_path / form / path.name) for form in ("a", "b"))
        order = [(name, "ascending") for name in a.column_names]
        assert a.sort_by(order).equals(b.sort_by(order)), path.name


def test_a_real_export_keeps_every_event_and_the_name_of_every_kernel(
    h200_report: Callable[[str], NsysReport],
) -> None:
    report = h200_report("two_heads")
    assert (report.schema_version, report.start_utc_ns) == ("3.20.3", 1_795_249_185_416_039_146)
    with report.connect() as connection:
        counts = {
            table: connection.sql(f"SELECT count(*) FROM {table}").fetchall()[0][0]
            for table in (
                "CUPTI_ACTIVITY_KIND_KERNEL",
                "CUPTI_ACTIVITY_KIND_RUNTIME",
                "OSRT_API",
                "NVTX_EVENTS",
            )
        }
        nameless = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL LEFT JOIN StringIds ON id = {} WHERE value IS NULL"
        for column in ("shortName", "demangledName", "mangledName"):
            expected = connection.sql(f"SELECT count(*) - count({column}) FROM CUPTI_ACTIVITY_KIND_KERNEL")
            assert connection.sql(nameless.format(column)).fetchall() == expected.fetchall()
    assert list(counts.values()) == [54_742, 145_823, 91_572, 1_057]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_broken_export_is_one_line_and_leaves_nothing(h200: Callable[[str], Path], tmp_path: Path) -> None:
    torn = tmp_path / "torn.sqlite"
    torn.write_bytes(h200("seqlen_head").read_bytes())
    cut(torn)
    text = tmp_path / "text.sqlite"
    text.write_text("not a database, though it is long enough to be read as one" * 20)
    empty = MadeExport({"OTHER": [{"a": 1}]})
    del empty.tables["TARGET_INFO_SESSION_START_TIME"]
    parquet = with_secrets().to_parquet(tmp_path / "parquet")
    cut(parquet / "NVTX_EVENTS.parquet")
    worded = MadeExport().add("CUPTI_ACTIVITY_KIND_MEMSET", on_gpu("hunter2", 1, 2))  # type: ignore[arg-type]
    cases = {
        tmp_path / "none.sqlite": "there is no nsys export none.sqlite",
        torn: "cannot read the nsys export torn.sqlite",
        text: "cannot read the nsys export text.sqlite: file is not a database",
        empty.to_sqlite(tmp_path / "empty.sqlite"): "has none of the tables of nsys",
        parquet: "cannot read the nsys export parquet",
        worded.to_sqlite(tmp_path / "worded.sqlite"): "MEMSET.start holds something that is no whole number",
        worded.to_parquet(tmp_path / "worded"): "MEMSET.start holds something that is no whole number",
    }
    for export, words in cases.items():
        with pytest.raises(AnalysisError, match=words) as failed:
            scrub(export, tmp_path / "scrubbed")
        message = str(failed.value)
        assert "\n" not in message
        assert "hunter2" not in message
        assert str(tmp_path) not in message
        assert not list(tmp_path.glob("scrubbed*"))


def test_a_folder_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    export = with_secrets().to_sqlite(tmp_path / "made.sqlite")
    scrub(export, tmp_path / "scrubbed")
    with pytest.raises(AnalysisError, match="scrubbed is there already"):
        scrub(export, tmp_path / "scrubbed")


def test_ids_of_64_bits_are_the_same_in_both_forms(tmp_path: Path) -> None:
    high = (0xFF << 56) | GLOBAL_TID  # above int64: SQLite has it negative, Parquet unsigned
    export = MadeExport().strings(s1="poll")
    export.add("OSRT_API", {"start": 1, "end": 2, "globalTid": high - 2**64, "nameId": 1})
    scrub(export.to_sqlite(tmp_path / "a.sqlite"), tmp_path / "a")
    scrub(export.to_parquet(tmp_path / "b.parquet"), tmp_path / "b")
    for form in ("a", "b"):
        labels = EventLabels("run", "node-0", "server-0")
        ((_, rows),) = event_tables(NsysReport(tmp_path / form), labels, ClockTrack.constant(0))
        assert (rows["process"][0].as_py(), rows["thread"][0].as_py()) == (0xABCDEF, 0xFEDCBA)
    assert NsysReport(tmp_path / "b").start_utc_ns == UTC_START_NS


def test_a_sqlite_file_cut_anywhere_is_refused_or_whole(tmp_path: Path) -> None:
    """SQLite reads pages on demand: what lies behind the cut must not be taken for absent."""
    export = MadeExport().strings(s1="cudaLaunchKernel_v7000", s5="gemm", s6="gemm<1>")
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", *(api_call(i, i + 1, i) for i in range(200)))
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", *(kernel(i, i + 1, i) for i in range(200)))
    path = export.to_sqlite(tmp_path / "made.sqlite")
    content, whole = path.read_bytes(), scrub(path, tmp_path / "whole").rows
    n_refused = 0
    for n_bytes in (0, 15, 99, *range(512, len(content), 1024), len(content) - 1):
        path.write_bytes(content[:n_bytes])
        try:
            assert scrub(path, tmp_path / f"cut-{n_bytes}").rows == whole
        except AnalysisError:
            n_refused += 1
    assert n_refused >= len(content) // 1024 - 2  # the last page may end in bytes that hold nothing
