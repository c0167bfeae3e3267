from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.analysis.clocks.track import ClockTrack
from squall.analysis.nsys.batches import attribution
from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.tables import EventLabels, event_tables
from squall.analysis.schema import arrow_schema
from squall.analysis.tables.collected import TiedEvents
from squall.scenarios.errors import AnalysisError
from tests.nsys_exports import GLOBAL_PID, GLOBAL_TID, PID, TID, MadeExport, api_call, kernel, nvtx, on_gpu

LABELS = EventLabels("run-1", "node-1", "server-0")
OFFSET_NS = 1_000_000
OTHER_PID = 3 << 24


def tied(n: int, n_tied: int, n_without_call: int) -> TiedEvents:
    return TiedEvents(n=n, n_tied=n_tied, n_without_call=n_without_call)


def tables_of(report: NsysReport, **options: Any) -> dict[str, pa.Table]:
    pieces: dict[str, list[pa.Table]] = {}
    for name, data in event_tables(report, LABELS, ClockTrack.constant(OFFSET_NS), **options):
        pieces.setdefault(name, []).append(data)
    return {name: pa.concat_tables(found).unify_dictionaries() for name, found in pieces.items()}


@pytest.fixture(scope="module")
def two_heads(h200_report: Callable[[str], NsysReport]) -> dict[str, pa.Table]:
    return tables_of(h200_report("two_heads"))


def rows_of(parent: Path, export: MadeExport, table: str, **options: Any) -> list[dict[str, Any]]:
    tables = tables_of(export.report(parent), **options)
    return tables[table].to_pylist() if table in tables else []


def test_a_real_report_gives_every_event_once_in_order_of_time(two_heads: dict[str, pa.Table]) -> None:
    counts = {name: data.num_rows for name, data in two_heads.items()}
    assert counts == {
        "osrt": 91_572, "nvtx": 1_057, "cuda_api": 145_823, "kernels": 54_742, "memcpys": 2_114, "memsets": 6_175,
        "syncs": 2_114,
    }  # fmt: skip
    for name, data in two_heads.items():
        starts = data["start_ns"].to_numpy()
        assert (np.diff(starts) >= 0).all(), name
        assert data.schema.equals(arrow_schema(name)), name
        assert data.slice(0, 1).select(["run", "node", "server", "phase"]).to_pylist() == [
            {"run": "run-1", "node": "node-1", "server": "server-0", "phase": ""}
        ]


def test_theoretical_occupancy_of_the_two_heads_is_the_reference(two_heads: dict[str, pa.Table]) -> None:
    kernels = two_heads["kernels"]
    busy_ns = pc.subtract(kernels["end_ns"], kernels["start_ns"]).to_numpy()
    occupancy, process = kernels["theoretical_occupancy"].to_numpy(), kernels["process"].to_numpy()
    of = {
        pid: 100 * np.average(occupancy[process == pid], weights=busy_ns[process == pid])
        for pid in (575, 576)
    }
    assert {pid: round(percent, 2) for pid, percent in of.items()} == {575: 31.84, 576: 59.78}


def test_every_event_of_the_two_heads_belongs_to_a_batch_of_its_own_process(
    two_heads: dict[str, pa.Table], h200_report: Callable[[str], NsysReport]
) -> None:
    found = attribution(h200_report("two_heads"))
    assert found == {
        "cuda_api": tied(145_823, 145_823, 0), "kernels": tied(54_742, 54_742, 0), "memcpys": tied(2_114, 2_114, 0),
        "memsets": tied(6_175, 6_175, 0), "syncs": tied(2_114, 2_114, 0),
    }  # fmt: skip
    for name in found:
        data = two_heads[name]
        whose = set(zip(data["process"].to_pylist(), data["instance"].to_pylist(), strict=True))
        only_one_sets_memory = {(576, "m_576")}
        assert whose == only_one_sets_memory | ({(575, "m_575")} if name != "memsets" else set()), name
    batches = Counter(two_heads["nvtx"]["instance"].to_pylist())
    assert batches == {"m_575": 568, "m_576": 489}
    assert set(two_heads["kernels"]["batch_id"].to_pylist()) == set(two_heads["nvtx"]["batch_id"].to_pylist())


def test_a_join_without_the_process_would_make_a_tenth_more_rows(h200: Callable[[str], Path]) -> None:
    query = (
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
        " ON r.correlationId = k.correlationId"
    )
    with closing(sqlite3.connect(h200("two_heads"))) as file:
        assert file.execute(query).fetchall() == [(60_424,)]


def test_device_events_carry_the_thread_and_times_of_their_own_launch(
    two_heads: dict[str, pa.Table],
) -> None:
    kernels = two_heads["kernels"]
    assert kernels["launch_start_ns"].null_count == 0
    lag_ns = pc.subtract(kernels["start_ns"], kernels["launch_start_ns"]).to_numpy()
    process = kernels["process"].to_numpy()
    lower_medians = {}
    for pid in (575, 576):
        ordered = np.sort(lag_ns[process == pid])
        lower_medians[pid] = round(int(ordered[(len(ordered) - 1) // 2]) / 1e3, 2)
    assert lower_medians == {575: 6.66, 576: 99.6}  # the reference, us
    assert set(kernels["gpu_uuid"].to_pylist()) == {"GPU-63ea5d6e-fa85-65d4-eeb7-3e723952ba5d"}


def test_copies_say_their_kinds_and_calls_their_api(two_heads: dict[str, pa.Table]) -> None:
    copies = two_heads["memcpys"].select(["copy_kind", "source_kind", "destination_kind"]).to_pylist()
    assert Counter(tuple(row.values()) for row in copies) == {
        ("HtoD", "pinned", "device"): 1_057,
        ("DtoH", "device", "pageable"): 1_057,
    }
    assert Counter(two_heads["memsets"]["memory_kind"].to_pylist()) == {"device": 6_175}
    calls = two_heads["cuda_api"]
    launches = calls.filter(pc.match_substring(calls["name"].cast(pa.string()), "Launch"))
    by_api = Counter(launches["api"].to_pylist())
    assert by_api == {"runtime": 33_034, "driver": 21_708}  # 39.7 % of launches come by the driver's API
    assert not [name for name in calls["name"].unique().to_pylist() if "_v" in name]
    waits = Counter(two_heads["syncs"]["name"].to_pylist())
    assert waits == {"cudaStreamSynchronize": 1_057, "cudaEventQuery": 1_057}


def test_instants_are_on_the_clock_that_is_given(tmp_path: Path) -> None:
    export = MadeExport().strings(s1="cudaLaunchKernel", s5="gemm", s6="gemm<1>")
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", api_call(10, 20, 1))
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", kernel(30, 40, 1))
    clock = ClockTrack(
        np.array([0, 1_000]), np.array([100, 300]), np.array([1, 1])
    )  # 200 ns more every 1,000
    ((_, calls), (_, kernels)) = event_tables(export.report(tmp_path), LABELS, clock)
    assert (calls["start_ns"][0].as_py(), calls["end_ns"][0].as_py()) == (112, 124)
    names = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")
    assert [kernels[name][0].as_py() for name in names] == [136, 148, 112, 124]


def test_processes_that_use_one_correlation_id_are_kept_apart(tmp_path: Path) -> None:
    other = OTHER_PID | 9
    export = MadeExport().strings(s1="cudaLaunchKernel_v7000", s5="gemm", s6="gemm<1>")
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", api_call(10, 20, 1), api_call(110, 120, 1, tid=other))
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", kernel(30, 40, 1), kernel(130, 140, 1, pid=OTHER_PID))
    export.add("NVTX_EVENTS", nvtx("squall|a_0|7|1", 5, 25), nvtx("squall|a_1|7|1", 105, 125, tid=other))
    rows = rows_of(tmp_path, export, "kernels")
    assert [
        (r["process"], r["thread"], r["instance"], r["batch_id"], r["launch_start_ns"]) for r in rows
    ] == [
        (PID, TID, "a_0", 7, OFFSET_NS + 10),
        (3, 9, "a_1", 7, OFFSET_NS + 110),
    ]


def test_an_event_whose_call_is_not_there_stays_without_thread_and_batch(tmp_path: Path) -> None:
    export = MadeExport().add("CUPTI_ACTIVITY_KIND_KERNEL", kernel(30, 40, 1))
    export.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", on_gpu(50, 60, 2, syncType=3, streamId=4_294_967_295))
    export.add("NVTX_EVENTS", nvtx("squall|a_0|7|1", 5, 100))
    report = export.report(tmp_path)
    tables = tables_of(report)
    (row,) = tables["kernels"].to_pylist()
    assert (row["thread"], row["launch_start_ns"], row["instance"], row["batch_id"]) == (None, None, "", None)
    (wait,) = tables["syncs"].to_pylist()
    assert (wait["name"], wait["kind"], wait["stream"]) == ("", "stream sync", None)
    found = attribution(report)
    assert (found["kernels"], found["syncs"]) == (tied(1, 0, 1), tied(1, 0, 1))


def test_nodes_of_a_graph_belong_to_the_batch_that_launched_it(tmp_path: Path) -> None:
    export = MadeExport().strings(s1="cudaGraphLaunch_v10000", s5="gemm", s6="gemm<1>")
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", api_call(10, 20, 4))
    export.add("NVTX_EVENTS", nvtx("squall|a_0|7|1", 5, 25))
    export.add(
        "CUPTI_ACTIVITY_KIND_KERNEL", *(kernel(30 + i, 31 + i, 4, graphNodeId=100 + i) for i in range(3))
    )
    export.add("CUPTI_ACTIVITY_KIND_MEMSET", on_gpu(40, 41, 4, bytes=8, memKind=2, graphNodeId=103))
    tables = tables_of(export.report(tmp_path))
    kernels = tables["kernels"].to_pylist()
    assert [(row["graph_node_id"], row["batch_id"], row["instance"]) for row in kernels] == [
        (100, 7, "a_0"), (101, 7, "a_0"), (102, 7, "a_0"),
    ]  # fmt: skip
    assert tables["memsets"]["batch_id"].to_pylist() == [7]


def test_a_graph_traced_as_a_whole_is_a_kernel_of_that_name(tmp_path: Path) -> None:
    export = MadeExport().strings(s1="cudaGraphLaunch_v10000", s5="gemm", s6="gemm<1>")
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", api_call(10, 20, 4))
    export.add("NVTX_EVENTS", nvtx("squall|a_0|7|1", 5, 25))
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", on_gpu(30, 90, 4, graphId=2, graphExecId=3))
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", kernel(95, 96, 5))
    report = export.report(tmp_path)
    whole, single = tables_of(report)["kernels"].to_pylist()
    assert (whole["name"], whole["graph_id"], whole["batch_id"], whole["grid_x"]) == ("CUDA graph", 2, 7, 0)
    assert (whole["registers_per_thread"], whole["theoretical_occupancy"]) == (None, None)
    assert (single["name"], single["full_name"], single["graph_id"]) == ("gemm", "gemm<1>", None)
    assert attribution(report)["kernels"] == tied(2, 1, 1)


LIMITS = {
    "id": 0, "uuid": "63ea5d6e-fa85-65d4-eeb7-3e723952ba5d", "maxWarpsPerSm": 64, "maxRegistersPerSm": 65_536,
    "maxShmemPerSm": 233_472, "maxBlocksPerSm": 32, "computeMajor": 9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("launch", "limits", "occupancy"),
    [
        # the reference launches: 168 registers x 384 threads with 213 KB; an elementwise kernel of 33 registers
        ({"registersPerThread": 168, "blockX": 384, "dynamicSharedMemory": 213_000}, {}, 0.1875),
        ({"registersPerThread": 33, "blockX": 128}, {}, 0.75),
        ({"registersPerThread": 16, "blockX": 32}, {}, 0.5),  # 32 blocks of one warp of 64
        ({"registersPerThread": 0, "blockX": 1024}, {}, 1.0),
        ({"blockX": 128, "dynamicSharedMemory": 49_152}, {"computeMajor": 7, "maxShmemPerSm": 98_304}, 0.125),
        (
            {"blockX": 128, "dynamicSharedMemory": 49_152},
            {"maxShmemPerSm": 98_304},
            0.0625,
        ),  # 1 KiB more each
        ({}, {"maxBlocksPerSm": None}, None),
        ({"dynamicSharedMemory": None}, {}, None),
    ],
)
def test_theoretical_occupancy_is_the_tightest_limit(
    tmp_path: Path, launch: dict[str, Any], limits: dict[str, Any], occupancy: float | None
) -> None:
    export = MadeExport().add("TARGET_INFO_GPU", LIMITS | limits)
    export.add("TARGET_INFO_CUDA_DEVICE", {"gpuId": 0, "cudaId": 0, "pid": PID})
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", kernel(1, 2, 1, **launch))
    (row,) = rows_of(tmp_path, export, "kernels")
    assert row["theoretical_occupancy"] == occupancy


def test_each_process_numbers_its_devices_itself(tmp_path: Path) -> None:
    uuid = "63ea5d6e-fa85-65d4-eeb7-3e723952ba5{}"
    export = MadeExport().add("TARGET_INFO_GPU", *({"id": i, "uuid": uuid.format(i)} for i in (0, 1)))
    export.add(
        "TARGET_INFO_CUDA_DEVICE", {"gpuId": 0, "cudaId": 0, "pid": PID}, {"gpuId": 1, "cudaId": 0, "pid": 3}
    )
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", kernel(1, 2, 1), kernel(3, 4, 1, pid=OTHER_PID))
    rows = rows_of(tmp_path, export, "kernels")
    assert [row["gpu_uuid"] for row in rows] == ["GPU-" + uuid.format(i) for i in (0, 1)]


def test_a_version_that_exports_less_gives_nulls(tmp_path: Path) -> None:
    bare = {"start": 1, "end": 2, "deviceId": 0, "contextId": 1, "streamId": 7, "bytes": 8, "copyKind": 1}
    export = MadeExport().add("CUPTI_ACTIVITY_KIND_MEMCPY", bare).add("CUPTI_ACTIVITY_KIND_MEMSET", bare)
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", {"start": 1, "end": 2, "globalTid": GLOBAL_TID, "nameId": 1})
    tables = tables_of(export.report(tmp_path))
    (copy,) = tables["memcpys"].to_pylist()
    assert (copy["copy_kind"], copy["source_kind"], copy["process"], copy["thread"]) == ("HtoD", "", 0, None)
    (call,) = tables["cuda_api"].to_pylist()
    assert (call["name"], call["api"], call["return_value"], call["batch_id"]) == ("", "", None, None)


def test_tables_that_nsys_did_not_write_are_no_events(tmp_path: Path) -> None:
    report = MadeExport().report(tmp_path)
    assert tables_of(report) == {}
    assert set(attribution(report).values()) == {tied(0, 0, 0)}
    assert not report.has("OSRT_API")


def osrt(start: int, end: int, name: int, **more: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "eventClass": 27, "globalTid": GLOBAL_TID, "nameId": name, **more}


def test_os_calls_come_out_by_start_with_process_thread_and_names(tmp_path: Path) -> None:
    export = MadeExport().strings(s1="poll", s2="futex", s3="tritonserver")
    export.add("OSRT_API", osrt(30, 40, 1), osrt(10, 90, 2), osrt(5, 5, 1, eventClass=31))
    export.add("ThreadNames", {"nameId": 3, "globalTid": GLOBAL_TID})
    rows = rows_of(tmp_path, export, "osrt")
    assert [(r["name"], r["start_ns"] - OFFSET_NS, r["end_ns"] - OFFSET_NS) for r in rows] == [
        ("futex", 10, 90),
        ("poll", 30, 40),
    ]
    assert {(r["process"], r["thread"], r["thread_name"]) for r in rows} == {(PID, TID, "tritonserver")}


def test_os_calls_below_the_threshold_are_left_out(tmp_path: Path) -> None:
    export = MadeExport().strings(s1="poll").add("OSRT_API", osrt(30, 40, 1), osrt(10, 90, 1), osrt(1, 51, 1))
    rows = rows_of(tmp_path, export, "osrt", osrt_threshold_ns=50)
    assert [r["start_ns"] - OFFSET_NS for r in rows] == [1, 10]


def test_our_ranges_name_instance_batch_and_clock_in_place_or_registered(tmp_path: Path) -> None:
    export = MadeExport().strings(s9="squall|seqlen_head_0_1|8|44")
    export.add(
        "NVTX_EVENTS",
        nvtx("squall|seqlen_head_0_1|7", 1, 2),
        nvtx(None, 3, 4, textId=9, eventType=60),
        nvtx("squall|a|8", 5, None),
        nvtx("a mark", 6, None, eventType=34),
        nvtx("execute", 7, 8),
        nvtx("squall-clock|45", 9, 10),
    )
    rows = rows_of(tmp_path, export, "nvtx")
    assert [(row["name"], row["instance"], row["batch_id"], row["clock_ns"]) for row in rows] == [
        ("squall|seqlen_head_0_1|7", "seqlen_head_0_1", 7, None),
        ("squall|seqlen_head_0_1|8|44", "seqlen_head_0_1", 8, 44),
        ("", "", None, None),
        ("squall-clock|45", "", None, 45),
    ]


def test_a_batch_cut_by_the_end_of_the_collection_keeps_what_it_launched(tmp_path: Path) -> None:
    export = MadeExport().strings(s1="cudaLaunchKernel_v7000")
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", *(api_call(10 * i, 10 * i + 5, i) for i in range(5)))
    export.add("NVTX_EVENTS", nvtx("squall|a|7|1", 15, 26), nvtx("squall|a|8|1", 29, None))
    rows = rows_of(tmp_path, export, "cuda_api")
    assert [row["batch_id"] for row in rows] == [None, None, 7, 8, 8]
    found = attribution(NsysReport(tmp_path / "scrubbed"))
    assert found["cuda_api"] == tied(5, 3, 0)


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
    report = NsysReport(folder)
    path = folder / "OSRT_API.parquet"
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    path.write_bytes(bytes(content))
    with pytest.raises(AnalysisError) as failed:
        tables_of(report)
    assert "\n" not in str(failed.value)


def test_one_call_recorded_twice_makes_no_row_twice(tmp_path: Path) -> None:
    export = MadeExport().strings(s1="cudaLaunchKernel_v7000")
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", api_call(10, 20, 1), api_call(12, 18, 1, kind=1))
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", kernel(30, 40, 1, pid=GLOBAL_PID))
    (row,) = rows_of(tmp_path, export, "kernels")
    assert row["launch_start_ns"] == OFFSET_NS + 10


def test_folders_above_a_report_that_are_named_as_columns_or_patterns_change_nothing(tmp_path: Path) -> None:
    export = MadeExport().strings(s1="cudaLaunchKernel_v7000")
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", api_call(10, 20, 1))
    folder = tmp_path / "start=1" / "correlationId=x" / "[a]"
    folder.mkdir(parents=True)
    (row,) = rows_of(folder, export, "cuda_api")
    assert (row["start_ns"], row["correlation_id"]) == (OFFSET_NS + 10, 1)


@pytest.mark.parametrize(
    "event", [kernel(2**63 - 10, 2**63 - 1, 1), kernel(-(2**63), 5, 1), kernel(2**62, 2**62, 1)]
)
def test_an_event_that_no_clock_can_hold_is_an_error(tmp_path: Path, event: dict[str, Any]) -> None:
    report = MadeExport().add("CUPTI_ACTIVITY_KIND_KERNEL", event).report(tmp_path)
    with pytest.raises(AnalysisError, match="an event decades away from its start"):
        tables_of(report)


@pytest.mark.parametrize("without", ["start", "end"])
def test_an_event_without_an_instant_is_an_error_of_the_report(tmp_path: Path, without: str) -> None:
    event = {**kernel(1, 2, 1), without: None}
    report = MadeExport().add("CUPTI_ACTIVITY_KIND_KERNEL", kernel(1, 2, 1), event).report(tmp_path)
    with pytest.raises(
        AnalysisError, match=rf"the nsys report is broken: kernels\.{without}_ns holds 1 nulls"
    ):
        tables_of(report)


def test_an_event_that_ends_before_it_starts_stays_for_the_analysis_to_count(tmp_path: Path) -> None:
    export = MadeExport().add("CUPTI_ACTIVITY_KIND_KERNEL", kernel(40, 30, 1))
    (row,) = rows_of(tmp_path, export, "kernels")
    assert (row["start_ns"], row["end_ns"]) == (OFFSET_NS + 40, OFFSET_NS + 30)
