"""From drained records of two processes and the batches of their server to rows of the run's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from squall.actors.inject.kernel_ring import CALL, KERNEL, MEMORY, RECORD_BYTES, SYNC, RecordKind
from squall.actors.spill import SpillFile, read_spill
from squall.analysis.nsys.tables import EventLabels
from squall.analysis.recorded import Windows
from squall.analysis.storage.collected import KernelTies, RecordedGpu
from squall.analysis.storage.schema import arrow_schema
from squall.cluster.node.injected.kernel_columns import short_name
from squall.cluster.node.injected.kernel_process import TakenProcess
from squall.cluster.node.injected.kernel_tables import (
    KernelTables,
    read_instances,
    spill_kernels,
)
from squall.cluster.node.spills import Spills
from tests.overlapping_batches import PROCESS, Rules, Schedule, schedule

LABELS = EventLabels("r", "node-0", "server-0")
N = 40
WINDOW = np.array([[0, 1_000 * N]], np.int64)
FULL_NAME = "void space::scale<4, float>(float*, int)"


def windows_of(spans: Any) -> Windows:
    """Of (n, 2) instants from which and until which they hold."""
    return Windows.of((start, start, end, end) for start, end in spans.tolist())


def record(layout: np.dtype[Any], kind: RecordKind, **fields: Any) -> bytes:
    row = np.zeros(1, layout)
    for name, value in {"kind": kind, **fields}.items():
        row[name] = value
    return row.tobytes()


def name_record(number: int, text: str) -> bytes:
    data = bytearray(RECORD_BYTES)
    data[0:2] = int(RecordKind.NAME).to_bytes(2, "little")
    encoded = text.encode()
    for at, value in ((4, number), (8, 0), (12, len(encoded))):
        data[at : at + 4] = value.to_bytes(4, "little")
    data[16 : 16 + len(encoded)] = encoded
    return bytes(data)


def operations(first_ns: int, stream: int = 7, with_calls: bool = False) -> bytes:
    """In each of N periods of 1,000 ns a copy in, a kernel and a wait for it, from `first_ns` of the period on."""
    pieces = [name_record(1, FULL_NAME), name_record(2, "cudaLaunchKernel_v7000")]
    pieces.append(name_record(3, "cudaStreamSynchronize"))
    for number in range(N):
        at, at_sync = number * 1_000 + first_ns, 10_000 + number
        place = {"context": 1, "stream": stream, "correlation_id": number}
        pieces.append(
            record(
                MEMORY, RecordKind.MEMCPY, **{**place, "correlation_id": 5_000 + number}, start_ns=at, end_ns=at + 5,
                bytes=64, copy_kind=1, source=1, destination=3,
            )
        )  # fmt: skip
        pieces.append(
            record(
                KERNEL, RecordKind.KERNEL, **place, start_ns=at + 10, end_ns=at + 30, name=1, grid=(4, 2, 1),
                block=(128, 1, 1), registers=40, dynamic_shared_bytes=512, graph=3 if number == 0 else 0,
            )
        )  # fmt: skip
        wait = {"start_ns": at + 20, "end_ns": at + 35}
        pieces.append(record(SYNC, RecordKind.SYNC, **{**place, "correlation_id": at_sync}, **wait, type=3))
        if with_calls:
            launch = {"start_ns": at + 2, "end_ns": at + 4, "name": 2, "thread": 99}
            pieces.append(record(CALL, RecordKind.RUNTIME_CALL, correlation_id=number, **launch))
            pieces.append(
                record(CALL, RecordKind.RUNTIME_CALL, correlation_id=at_sync, name=3, thread=99, **wait)
            )
    return b"".join(pieces)


def batches(folder: Path, *instances: tuple[str, int], exec_ns: int | None = None) -> Path:
    """A spill file: of each (name, first_ns) N batches of 100 ns, one a period; `exec_ns`: earlier begun."""
    lead = 0 if exec_ns is None else exec_ns
    rows = [
        (name, number * 1_000 + first_ns - lead, number * 1_000 + first_ns + 100, number)
        for name, first_ns in instances
        for number in range(N)
    ]
    return spilled(folder, rows, exec_ns is not None)


def spilled(folder: Path, batches: list[tuple[str, int, int, int]], is_reported: bool = True) -> Path:
    """Instance, start, end and number of each; `is_reported`: its backend says so, the model another thing."""
    path = folder / "batches-library.arrows"
    rows: list[dict[str, Any]] = [
        {
            **{field.name: ("" if "dictionary" in str(field.type) else 0) for field in arrow_schema("batches")},
            "model": "m", "instance": name, "instance_device": 0, "batch_id": number, "request_ids": [],
            "start_ns": end_ns - 100 if is_reported else start_ns, "end_ns": end_ns,
            "exec_start_ns": start_ns if is_reported else None, "exec_end_ns": end_ns if is_reported else None,
        }
        for name, start_ns, end_ns, number in batches
    ]  # fmt: skip
    file = SpillFile(path, "batches")
    assert file.write(pa.Table.from_pylist(rows, schema=arrow_schema("batches")))
    file.close()
    return path


def tables(
    folder: Path, own: dict[int, bytes], file: Path, windows: Any = WINDOW, gpus: tuple[str, ...] = ("GPU-a",)
) -> tuple[dict[str, list[dict[str, Any]]], KernelTables]:
    processes = []
    for pid, data in own.items():
        path = folder / f"{pid}.records"
        path.write_bytes(data)
        processes.append(TakenProcess(path, pid, gpus, ""))
    made = KernelTables(processes, windows_of(windows), read_instances([file]), LABELS)
    found: dict[str, list[dict[str, Any]]] = {}
    for table, rows in made.rows():
        assert rows.schema == arrow_schema(table)
        found.setdefault(table, []).extend(rows.to_pylist())
    return found, made


def test_each_operation_is_in_the_batch_of_its_process(tmp_path: Path) -> None:
    file = batches(tmp_path, ("a", 0), ("b", 500))
    found, made = tables(tmp_path, {11: operations(510), 12: operations(10)}, file)
    for table in ("kernels", "memcpys", "syncs"):
        rows = found[table]
        assert {(row["process"], row["instance"]) for row in rows} == {(11, "b"), (12, "a")}
        assert [row["batch_id"] for row in rows] == [*range(N), *range(N)]
        assert made.ties()[table] == KernelTies(n=2 * N, n_tied=2 * N, n_ambiguous=0)
    assert made.n_outside == 0


def test_a_row_says_what_the_record_does(tmp_path: Path) -> None:
    found, _ = tables(tmp_path, {11: operations(10)}, batches(tmp_path, ("a", 0)))
    kernel = found["kernels"][0]
    assert {name: kernel[name] for name in ("run", "node", "server", "phase", "recorded_by")} == {
        **LABELS._asdict(), "phase": "", "recorded_by": "library"
    }  # fmt: skip
    assert (kernel["name"], kernel["full_name"]) == ("scale", FULL_NAME)
    assert [kernel[f"{what}_{axis}"] for what in ("grid", "block") for axis in "xyz"] == [4, 2, 1, 128, 1, 1]
    assert (kernel["start_ns"], kernel["end_ns"], kernel["gpu_uuid"]) == (20, 40, "GPU-a")
    assert (kernel["registers_per_thread"], kernel["dynamic_shared_bytes"]) == (40, 512)
    assert (kernel["graph_id"], found["kernels"][1]["graph_id"]) == (3, None)
    assert (kernel["thread"], kernel["launch_start_ns"], kernel["theoretical_occupancy"]) == (
        None,
        None,
        None,
    )
    copy, sync = found["memcpys"][0], found["syncs"][0]
    assert (copy["copy_kind"], copy["source_kind"], copy["destination_kind"]) == (
        "HtoD",
        "pageable",
        "device",
    )
    assert (sync["kind"], sync["name"], sync["thread"]) == ("stream sync", "", None)


def test_a_kernel_has_its_occupancy_where_its_gpu_is_known(tmp_path: Path) -> None:
    known = RecordedGpu(uuid="GPU-a", compute_capability=(9, 0), sm_count=132)
    (tmp_path / "11.records").write_bytes(operations(10))
    file = batches(tmp_path, ("a", 0))
    cases = [
        (("GPU-a",), [known], 0.75),
        (("GPU-b",), [known], None),
        ((), [known], None),
        (("GPU-a",), [], None),
    ]
    for number, (own, gpus, occupancy) in enumerate(cases):
        spills = Spills(tmp_path, f"node-{number}")
        process = TakenProcess(tmp_path / "11.records", 11, own, "")
        spill_kernels([process], windows_of(WINDOW), [file], LABELS, spills, gpus)
        with pa.OSFile(str(tmp_path / "spill" / "kernels-library.arrows")) as data:
            rows = pa.concat_tables(read_spill(data))
        assert set(rows["theoretical_occupancy"].to_pylist()) == {occupancy}
        (tmp_path / "spill" / "kernels-library.arrows").unlink()


def test_calls_give_operations_their_launch_and_waits_their_name(tmp_path: Path) -> None:
    found, made = tables(tmp_path, {11: operations(10, with_calls=True)}, batches(tmp_path, ("a", 0)))
    kernel, sync, call = found["kernels"][2], found["syncs"][2], found["cuda_api"][0]
    assert (kernel["thread"], kernel["launch_start_ns"], kernel["launch_end_ns"]) == (99, 2_012, 2_014)
    assert (sync["thread"], sync["name"]) == (99, "cudaStreamSynchronize")
    assert (call["name"], call["call_class"], call["api"]) == ("cudaLaunchKernel", "launch", "runtime")
    assert (call["instance"], call["batch_id"], call["thread"]) == ("a", 0, 99)
    assert [row["start_ns"] for row in found["cuda_api"]] == sorted(
        row["start_ns"] for row in found["cuda_api"]
    )
    assert found["memcpys"][0]["thread"] is None
    assert made.ties()["cuda_api"] == KernelTies(n=2 * N, n_tied=2 * N, n_ambiguous=0)


def test_streams_of_one_process_belong_to_its_instances(tmp_path: Path) -> None:
    file = batches(tmp_path, ("a", 0), ("b", 500))
    found, _ = tables(tmp_path, {11: operations(10) + operations(510, stream=13)}, file)
    assert {(row["stream"], row["instance"]) for row in found["kernels"]} == {(7, "a"), (13, "b")}


def test_copies_before_the_computation_are_in_the_interval_that_the_backend_reports(tmp_path: Path) -> None:
    file = batches(tmp_path, ("a", 40), exec_ns=40)
    found, _ = tables(tmp_path, {11: operations(10)}, file)
    assert {row["instance"] for row in found["memcpys"]} == {"a"}


def test_what_batches_of_an_instance_share_is_ambiguous(tmp_path: Path) -> None:
    file = batches(tmp_path, ("a", 100), ("a", 1_060), exec_ns=100)
    found, made = tables(tmp_path, {11: operations(30)}, file)
    assert made.ties()["kernels"] == KernelTies(n=N, n_tied=1, n_ambiguous=N - 1)
    assert {row["instance"] for row in found["kernels"][1:]} == {""}
    assert {row["batch_id"] for row in found["kernels"][1:]} == {None}


def overlapping(folder: Path) -> tuple[bytes, bytes, Schedule, Path]:
    """Operations, event records and what is true of them, and a spill file of batches that overlap."""
    made = schedule(Rules(gap_us=800))
    made.operations["kind"], made.events["kind"] = RecordKind.KERNEL, RecordKind.EVENT
    (own,) = made.instances
    rows = [
        ("a", *span)
        for span in zip(own._start.tolist(), own._end.tolist(), own._batch_id.tolist(), strict=True)
    ]
    return made.operations.tobytes(), made.events.tobytes(), made, spilled(folder, rows)


def test_events_tell_whose_the_operations_of_overlapping_batches_are(tmp_path: Path) -> None:
    operations, events, truth, file = overlapping(tmp_path)
    windows = np.array([[0, truth.end_ns]])
    _, before = tables(tmp_path, {PROCESS: operations}, file, windows)
    found, after = tables(tmp_path, {PROCESS: operations + events}, file, windows)
    assert before.ties()["kernels"].n_ambiguous > 500
    assert (after.ties()["kernels"].n_ambiguous, after.n_events) == (0, len(truth.events))
    rows = sorted(found["kernels"], key=lambda row: row["correlation_id"])
    assert [row["batch_id"] for row in rows] == truth.true_batch.tolist()
    assert {row["instance"] for row in rows} == {"a"}
    assert after.n_outside == 0


def test_a_run_that_recorded_no_events_says_that_they_would_tell(tmp_path: Path) -> None:
    operations, events, truth, file = overlapping(tmp_path)
    on = windows_of(np.array([[0, truth.end_ns]]))
    notes, spills = [], Spills(tmp_path, "node-0")
    for data in (operations, operations + events, operations + events[:RECORD_BYTES]):
        (tmp_path / "11.records").write_bytes(data)
        process = TakenProcess(tmp_path / "11.records", PROCESS, (), "")
        notes.append(spill_kernels([process], on, [file], LABELS, spills).notes)
    without, (), (one,) = notes
    assert "add events to profile.kernel_kinds" in without[0]
    assert "which overlap, and are tied to none" in one
    assert "kernel_kinds" not in one


def test_what_no_window_holds_whole_is_left_out_and_counted(tmp_path: Path) -> None:
    windows = np.array([[20_000, 30_020], [1_000, 10_000]])
    found, made = tables(tmp_path, {11: operations(10)}, batches(tmp_path, ("a", 0)), windows)
    assert [row["batch_id"] for row in found["memcpys"]] == [*range(1, 10), *range(20, 31)]
    assert [row["batch_id"] for row in found["kernels"]] == [*range(1, 10), *range(20, 30)]
    assert made.n_outside == 3 * N - len(found["memcpys"]) - len(found["kernels"]) - len(found["syncs"])


def test_they_are_spilled_a_file_a_table_and_what_is_left_out_is_told(tmp_path: Path) -> None:
    spills = Spills(tmp_path, "node-0")
    file = batches(tmp_path, ("a", 100), ("a", 1_060), exec_ns=100)
    (tmp_path / "11.records").write_bytes(operations(30))
    processes = [TakenProcess(tmp_path / "11.records", 11, (), "")]
    found = spill_kernels(processes, windows_of(np.array([[0, 30_055]])), [file], LABELS, spills)
    assert sorted(path.name for path in spills.spill_dir.iterdir()) == [
        "kernels-library.arrows", "memcpys-library.arrows", "syncs-library.arrows"
    ]  # fmt: skip
    assert {table: one.n for table, one in found.ties.items()} == {"kernels": 30, "memcpys": 31, "syncs": 30}
    assert (found.losses, found.n_outside) == ([], 29)
    assert found.notes == [
        "kernels: 88 of 91 records lie in several batches of their instance, which overlap, and are tied to none;"
        " no CUDA event was recorded: add events to profile.kernel_kinds to tell them apart",
    ]


def test_without_batches_rows_have_none(tmp_path: Path) -> None:
    found, made = tables(tmp_path, {11: operations(10)}, batches(tmp_path), gpus=())
    assert {(row["instance"], row["batch_id"], row["gpu_uuid"]) for row in found["kernels"]} == {
        ("", None, "")
    }
    assert made.ties()["kernels"] == KernelTies(n=N, n_tied=0, n_ambiguous=0)


@pytest.mark.parametrize(
    ("full", "short"),
    [
        (FULL_NAME, "scale"),
        ("ampere_sgemm_32x128_tn", "ampere_sgemm_32x128_tn"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 8, false>(float*, int)", "softmax_warp_forward"),
        ("void at::native::(anonymous namespace)::norm<c10::Half, float>(int)", "norm"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, true>(Params<int, B<float> >)", "kernel"),
        ("void foo<(bool)1, (int)3>(float*)", "foo"),
        ("n::{lambda(int)#1}::operator()(int) const", "operator"),
        ("a::operator<< <int>(int)", "operator"),
        ("_Z3foo", "_Z3foo"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_short_name_has_no_result_space_parameters_and_arguments(full: str, short: str) -> None:
    assert short_name(full) == short
