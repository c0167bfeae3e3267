"""Two servers of one node, each with a GPU of its own that it knows as device 0; what an SM of a GPU holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.run import run_metrics
from squall.analysis.nsys.device_limits import read_device_limits
from squall.analysis.occupancy import DeviceLimits
from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.store import RunStore
from tests.plain_runs import START_NS, Row, plain_run

MS = 1_000_000
SERVERS = ("server-0", "server-1")
GPUS = {"server-0": ["GPU-a"], "server-1": ["GPU-b"]}
UTIL = {"GPU-a": 0.2, "GPU-b": 0.9}
N_BATCHES = 5
LONG_NS = 10 * MS
"""Of a batch: both servers execute theirs at the same instants, and the kernel takes its first half."""
WALL_NS = 100 * MS
PHASE: Row = {"name": "burst", "kind": "measure", "start_ns": START_NS, "end_ns": START_NS + WALL_NS}


def made(parent: Path, gpus: dict[str, list[str]], device: int = 0, has_kernels: bool = False) -> RunStore:
    """Five batches of one request each on either server, and a sample of each GPU that holds them all.

    A kernel of each batch is of device 0 of its server, whose process is another one.
    """
    rows: dict[str, list[Row]] = {"requests": [], "batches": [], "kernels": []}
    for place, server in enumerate(SERVERS):
        for number in range(N_BATCHES):
            start_ns, request_id = START_NS + (1 + 2 * number) * LONG_NS, 2 * number + place
            whose: Row = {"phase": "burst", "server": server, "instance": "m_0_0", "batch_id": number}
            rows["batches"].append({
                **whose, "model": "m", "version": "1", "instance_device": device, "start_ns": start_ns,
                "end_ns": start_ns + LONG_NS, "rows": 1, "n_requests": 1, "request_ids": [request_id],
                "recorded_by": "model",
            })  # fmt: skip
            rows["requests"].append({
                "phase": "burst", "request_id": request_id, "target": server, "request_kind": "m", "rows": 1,
                "scheduled_ns": start_ns - MS, "sent_ns": start_ns - MS, "done_ns": start_ns + LONG_NS + MS,
                "outcome": "ok",
            })  # fmt: skip
            rows["kernels"].append({
                **whose, "process": 7 + place, "device": 0, "context": 1, "stream": 7, "name": "k",
                "recorded_by": "nsys", "instance_device": 0, "start_ns": start_ns, "end_ns": start_ns + LONG_NS // 2,
            })  # fmt: skip
    rows["gpu_samples"] = [
        {"phase": "burst", "gpu_uuid": gpu, "t_ns": START_NS + WALL_NS, "interval_ns": WALL_NS, "util": util}
        for gpu, util in UTIL.items()
    ]
    manifest: dict[str, Any] = {"profiled_phases": {"burst": {"is_profiled": True}}}
    if not has_kernels:
        del rows["kernels"]
        manifest = {}
    servers = {name: {"node": "node-0", "gpus": gpus.get(name, [])} for name in SERVERS}
    store = plain_run(parent, rows, servers=servers, phases=[PHASE], start_ns=START_NS, **manifest)
    write_batch_costs(store)
    write_joined(store)
    return store


@pytest.mark.parametrize(
    ("gpus", "device", "util"),
    [
        (GPUS, 0, [("server-0", 0.2), ("server-1", 0.9)]),
        (GPUS, -1, [("server-0", 0.2), ("server-1", 0.9)]),
        (
            {"server-1": ["GPU-b"]},
            0,
            [("server-0", None), ("server-1", 0.9)],
        ),  # one of several, and not known which
    ],
)
def test_without_kernels_a_batch_has_the_gpu_that_its_server_sees(
    tmp_path: Path, gpus: dict[str, list[str]], device: int, util: list[tuple[str, float | None]]
) -> None:
    store = made(tmp_path, gpus, device)
    assert {(row["target"], row["gpu_util"]) for row in store.read("joined").to_pylist()} == set(util)
    instances = run_metrics(store).phases["burst"].instances.values()
    found = {one.server: (one.gpu_uuid, one.measures["gpu_util_ratio"]) for one in instances}
    expected: dict[str, tuple[str, float | None]] = dict.fromkeys(
        SERVERS, ("", None)
    )  # on no GPU, as far as is known
    if device == 0:
        expected |= {server: (gpu, UTIL[gpu]) for server, (gpu,) in gpus.items()}
    assert found == expected


def test_gpus_without_a_name_are_told_apart_by_their_server(tmp_path: Path) -> None:
    (phase,) = run_metrics(made(tmp_path, {}, has_kernels=True)).phases.values()
    used = {name: gpu for name, gpu in phase.gpus.items() if gpu.kernel_ratio is not None}
    quarter = pytest.approx(N_BATCHES * LONG_NS / 2 / WALL_NS)
    assert {name: gpu.kernel_ratio for name, gpu in used.items()} == {
        f"{server}/device-0": quarter for server in SERVERS
    }
    assert {gpu.streams_mean for gpu in used.values()} == {1}
    assert {one.measures["foreign_busy_ratio"] for one in phase.instances.values()} == {0.0}


def test_ordinals_are_of_the_server() -> None:
    servers = {"a": {"node": "n", "gpus": ["GPU-3", "GPU-1"]}, "b": {"node": "n"}}
    manifest = read_manifest({"servers": servers})
    expected = {
        ("a", 0): "GPU-3",
        ("a", 1): "GPU-1",
        ("a", 2): "",
        ("a", -1): "",
        ("b", 0): "",
        ("elsewhere", 0): "",
    }
    assert {place: manifest.gpu_of(*place) for place in expected} == expected


UUID = "7c1d2a52-0000-4000-8000-000000000001"
H200 = {
    "id": 0, "uuid": UUID, "smCount": 132, "maxWarpsPerSm": 64, "maxRegistersPerSm": 65_536,
    "maxShmemPerSm": 233_472, "maxBlocksPerSm": 32, "computeMajor": 9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("uuid", "n_rows", "gpus"),
    [
        (UUID, 1_024, {f"GPU-{UUID}"}),
        (UUID, 1_025, set()),
        ("some text", 1, set()),
        (None, 1, set()),
        (UUID, 0, set()),  # a file that is no report
    ],
)
def test_a_report_of_more_than_gpus_is_left_out(
    tmp_path: Path, uuid: str | None, n_rows: int, gpus: set[str]
) -> None:
    store = plain_run(tmp_path, {})
    report = store.run_dir / "nsys" / "server-0" / "burst" / "TARGET_INFO_GPU.parquet"
    report.parent.mkdir(parents=True)
    table = pa.Table.from_pylist([H200]).set_column(1, "uuid", pa.array([uuid], pa.string()))
    pq.write_table(table.take(pa.array([0] * n_rows, pa.int64())), report)
    if not n_rows:
        report.write_bytes(b"PAR1")
    limits = read_device_limits(store)
    assert set(limits) == gpus
    assert set(limits.values()) <= {DeviceLimits(132, 64, 65_536, 233_472, 32, 9)}
