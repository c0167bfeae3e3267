"""Exports in, our tables out: those of `exports.yaml`, and what holds of a report's clock, folder and files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from squall.analysis.nsys.allowed import GRAPHS, KERNELS, MEMSETS, NVTX, OSRT, RUNTIME, SYNCS
from squall.analysis.nsys.batches import attribution
from squall.analysis.nsys.report import NsysReport
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.collected import TiedEvents
from squall.analysis.storage.schema import arrow_schema
from squall.scenarios.errors import AnalysisError
from tests.nsys_exports import GLOBAL_TID, LABELS, MadeExport, Row, api_call, kernel, nvtx, on_gpu, tables_of

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("exports.yaml").read_text())
NAMES = {
    1: "cudaLaunchKernel_v7000", 2: "poll", 3: "tritonserver", 4: "cudaGraphLaunch_v10000", 5: "gemm", 6: "gemm<1>",
    7: "futex", 8: "python3", 9: "squall|seqlen_head_0_1|8|44",
}  # fmt: skip


def os_call(start: int, end: int, name: int) -> Row:
    return {"start": start, "end": end, "eventClass": 27, "globalTid": GLOBAL_TID, "nameId": name}


ROWS: dict[str, tuple[str, Callable[..., Row]]] = {
    "call": (RUNTIME, api_call), "kernel": (KERNELS, kernel), "graph": (GRAPHS, on_gpu), "memset": (MEMSETS, on_gpu),
    "sync": (SYNCS, on_gpu), "range": (NVTX, nvtx), "os": (OSRT, os_call),
}  # fmt: skip


def export_of(case: dict[str, Any]) -> MadeExport:
    export = MadeExport().add("StringIds", *({"id": id_, "value": text} for id_, text in NAMES.items()))
    for kind, rows in case.get("export", {}).items():
        if kind in ROWS:
            table, make = ROWS[kind]
            rows = [make(*row[:3]) | (row[3] if row[3:] else {}) for row in rows]
        else:
            table = kind
        export.add(table, *rows)
    return export


@pytest.mark.parametrize("form", ["sqlite", "parquet"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_an_export_gives_the_tables_of_its_case(case: dict[str, Any], form: str, tmp_path: Path) -> None:
    report = export_of(case).report(tmp_path, form)
    options = {"osrt_threshold_ns": case.get("osrt_threshold_ns", 0)}
    if "error" in case:
        with pytest.raises(AnalysisError, match=case["error"]):
            tables_of(report, **options)
        return
    found = tables_of(report, ClockTrack.constant(1_000_000), **options)
    assert found.keys() == case["tables"].keys()
    for name, rows in case["tables"].items():
        if isinstance(rows, int):
            assert found[name].num_rows == rows
        else:
            made = found[name].to_pylist()
            assert [{key: row[key] for key in wanted} for row, wanted in zip(made, rows, strict=True)] == rows
    ties = attribution(report)
    for name, (n, n_tied, n_without_call) in case.get("tied", {}).items():
        assert ties[name] == TiedEvents(n=n, n_tied=n_tied, n_without_call=n_without_call)
    if "strings" in case:
        assert report.strings() == case["strings"]


def test_a_real_report_gives_rows_of_our_tables_in_order_of_time(
    h200_report: Callable[[str], NsysReport],
) -> None:
    for name, rows in tables_of(h200_report("two_heads")).items():
        assert (np.diff(rows["start_ns"].to_numpy()) >= 0).all(), name
        assert rows.schema.equals(arrow_schema(name)), name
        assert rows.slice(0, 1).select([*LABELS._fields, "phase"]).to_pylist() == [
            {**LABELS._asdict(), "phase": ""}
        ]


def test_instants_are_on_the_clock_that_is_given(tmp_path: Path) -> None:
    export = export_of({"export": {"call": [[10, 20, 1]], "kernel": [[30, 40, 1]]}})
    clock = ClockTrack(
        np.array([0, 1_000]), np.array([100, 300]), np.array([1, 1])
    )  # 200 ns more every 1,000
    (row,) = tables_of(export.report(tmp_path), clock)["kernels"].to_pylist()
    names = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")
    assert [row[name] for name in names] == [136, 148, 112, 124]


def test_folders_above_a_report_that_are_named_as_columns_or_patterns_change_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "start=1" / "correlationId=x" / "[a]"
    folder.mkdir(parents=True)
    (row,) = tables_of(export_of({"export": {"call": [[10, 20, 1]]}}).report(folder))["cuda_api"].to_pylist()
    assert (row["start_ns"], row["correlation_id"]) == (10, 1)


def test_a_folder_that_is_no_scrubbed_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="holds no scrubbed nsys report"):
        NsysReport(tmp_path)
    (tmp_path / "OSRT_API.parquet").write_text("x")
    with pytest.raises(AnalysisError, match="cannot read the scrubbed report"):
        NsysReport(tmp_path)


def test_a_scrubbed_file_that_is_spoilt_later_is_one_line(
    h200_report: Callable[[str], NsysReport], tmp_path: Path
) -> None:
    folder = tmp_path / "spoilt"
    shutil.copytree(h200_report("two_heads")._folder, folder)
    report, path = NsysReport(folder), folder / "OSRT_API.parquet"
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    path.write_bytes(bytes(content))
    with pytest.raises(AnalysisError) as failed:
        tables_of(report)
    assert "\n" not in str(failed.value)
