"""From drained records of processes to rows of the run's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.actors.inject.kernel_ring import CALL, KERNEL, MEMORY, RECORD_BYTES, SYNC, RecordKind
from squall.analysis.nsys.tables import EventLabels
from squall.analysis.recorded import Windows
from squall.analysis.storage.collected import RecordedGpu
from squall.analysis.storage.schema import arrow_schema
from squall.cluster.node.injected.kernel_process import TakenProcess
from squall.cluster.node.injected.kernel_tables import KernelTables, short_name

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


def tables(
    folder: Path,
    own: dict[int, bytes],
    windows: Any = WINDOW,
    gpus: tuple[str, ...] = ("GPU-a",),
    of_node: tuple[RecordedGpu, ...] = (),
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Their rows, and how many records are left out."""
    processes = []
    for pid, data in own.items():
        path = folder / f"{pid}.records"
        path.write_bytes(data)
        processes.append(TakenProcess(path=path, pid=pid, gpus=gpus, status=""))
    made = KernelTables(processes, windows_of(windows), LABELS, of_node)
    found: dict[str, list[dict[str, Any]]] = {}
    for table, rows in made.rows():
        assert rows.schema == arrow_schema(table)
        found.setdefault(table, []).extend(rows.to_pylist())
    return found, made.n_outside


def test_a_row_says_what_the_record_does(tmp_path: Path) -> None:
    event = record(SYNC, RecordKind.EVENT, context=1, stream=7, correlation_id=9, event=5)
    found, n_outside = tables(tmp_path, {11: operations(10) + event, 12: operations(510)})
    assert {table: len(rows) for table, rows in found.items()} == {
        "kernels": 2 * N, "memcpys": 2 * N, "syncs": 2 * N, "cuda_events": 1
    }  # fmt: skip
    assert n_outside == 0
    kernel, copy, sync, (event_row,) = (
        found["kernels"][0], found["memcpys"][0], found["syncs"][0], found["cuda_events"]
    )  # fmt: skip
    own = {**LABELS._asdict(), "phase": "", "process": 11}
    tie = {"recorded_by": "library", "instance": "", "instance_device": -1, "batch_id": None}
    for row, fields in (
        (kernel, {
            **tie, "name": "scale", "full_name": FULL_NAME, "grid_x": 4, "grid_y": 2, "grid_z": 1, "block_x": 128,
            "block_y": 1, "block_z": 1, "start_ns": 20, "end_ns": 40, "gpu_uuid": "GPU-a", "graph_id": 3,
            "registers_per_thread": 40, "dynamic_shared_bytes": 512, "thread": None, "launch_start_ns": None,
            "theoretical_occupancy": None,
        }),
        (copy, {**tie, "copy_kind": "HtoD", "source_kind": "pageable", "destination_kind": "device"}),
        (sync, {**tie, "kind": "stream sync", "name": "", "thread": None}),
        (event_row, {"context": 1, "stream": 7, "correlation_id": 9, "event": 5}),
    ):  # fmt: skip
        assert row | own | fields == row
    assert found["kernels"][1]["graph_id"] is None
    assert {row["process"] for row in found["kernels"][N:]} == {12}


@pytest.mark.parametrize(
    ("gpus", "n_known", "occupancy"),
    [(("GPU-a",), 1, 0.75), (("GPU-b",), 1, None), ((), 1, None), (("GPU-a",), 0, None)],
)
def test_a_kernel_has_its_occupancy_where_its_gpu_is_known(
    tmp_path: Path, gpus: tuple[str, ...], n_known: int, occupancy: float | None
) -> None:
    known = RecordedGpu(uuid="GPU-a", compute_capability=(9, 0), sm_count=132)
    found, _ = tables(tmp_path, {11: operations(10)}, gpus=gpus, of_node=(known,) * n_known)
    assert {row["theoretical_occupancy"] for row in found["kernels"]} == {occupancy}
    assert {row["gpu_uuid"] for row in found["kernels"]} == {gpus[0] if gpus else ""}


def test_calls_give_operations_their_launch_and_waits_their_name(tmp_path: Path) -> None:
    found, _ = tables(tmp_path, {11: operations(10, with_calls=True)})
    kernel, sync, call = found["kernels"][2], found["syncs"][2], found["cuda_api"][0]
    assert (kernel["thread"], kernel["launch_start_ns"], kernel["launch_end_ns"]) == (99, 2_012, 2_014)
    assert (sync["thread"], sync["name"]) == (99, "cudaStreamSynchronize")
    assert (call["name"], call["call_class"], call["api"]) == ("cudaLaunchKernel", "launch", "runtime")
    assert call["thread"] == 99
    starts = [row["start_ns"] for row in found["cuda_api"]]
    assert starts == sorted(starts)
    assert found["memcpys"][0]["thread"] is None


def test_what_no_window_holds_whole_is_left_out_and_counted(tmp_path: Path) -> None:
    windows = np.array([[20_000, 30_020], [1_000, 10_000]])
    found, n_outside = tables(tmp_path, {11: operations(10)}, windows)
    assert [row["start_ns"] // 1_000 for row in found["memcpys"]] == [*range(1, 10), *range(20, 31)]
    assert [row["start_ns"] // 1_000 for row in found["kernels"]] == [*range(1, 10), *range(20, 30)]
    assert n_outside == 3 * N - sum(map(len, found.values()))


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
