"""Two servers of one node, each with a GPU of its own that it knows as device 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.run import run_metrics
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import read_manifest
from tests.plain_runs import START_NS, Row, plain_run

MS = 1_000_000
SERVERS = ("server-0", "server-1")
GPUS = {"server-0": ["GPU-a"], "server-1": ["GPU-b"]}
UTIL = {"GPU-a": 0.2, "GPU-b": 0.9}
N_BATCHES = 5
LONG_NS = 10 * MS
"""Of a batch: both servers execute theirs at the same instants, and the kernel takes its first half."""
PHASE: Row = {"name": "burst", "kind": "measure", "start_ns": START_NS, "end_ns": START_NS + 100 * MS}


def made(parent: Path, gpus: dict[str, list[str]], device: int = 0, **tables: list[Row]) -> RunStore:
    """Five batches of one request each on either server, and a sample of each GPU that holds them all."""
    rows: dict[str, list[Row]] = {"requests": [], "batches": [], "gpu_samples": []}
    for place, server in enumerate(SERVERS):
        for number in range(N_BATCHES):
            start_ns = START_NS + (1 + 2 * number) * LONG_NS
            request_id = 2 * number + place
            rows["batches"].append({
                "phase": "burst", "server": server, "model": "m", "version": "1", "instance": "m_0_0",
                "instance_device": device, "batch_id": number, "start_ns": start_ns, "end_ns": start_ns + LONG_NS,
                "rows": 1, "n_requests": 1, "request_ids": [request_id], "recorded_by": "model",
            })  # fmt: skip
            rows["requests"].append({
                "phase": "burst", "request_id": request_id, "target": server, "request_kind": "m", "rows": 1,
                "scheduled_ns": start_ns - MS, "sent_ns": start_ns - MS, "done_ns": start_ns + LONG_NS + MS,
                "outcome": "ok",
            })  # fmt: skip
    rows["gpu_samples"] = [
        {
            "phase": "burst",
            "gpu_uuid": gpu,
            "t_ns": START_NS + 100 * MS,
            "interval_ns": 100 * MS,
            "util": util,
        }
        for gpu, util in UTIL.items()
    ]
    servers = {name: {"node": "node-0", "gpus": gpus.get(name, [])} for name in SERVERS}
    recorded = {"profiled_phases": {"burst": {"is_profiled": True}}} if tables else {}
    store = plain_run(
        parent, {**rows, **tables}, servers=servers, phases=[PHASE], start_ns=START_NS, **recorded
    )
    write_batch_costs(store)
    write_joined(store)
    return store


def kernels(**more: Any) -> list[Row]:
    """One of each batch, of device 0 of its server, whose process is another one."""
    return [
        {
            "phase": "burst", "server": server, "process": 7 + place, "device": 0, "context": 1, "stream": 7,
            "start_ns": START_NS + (1 + 2 * number) * LONG_NS, "name": "k", "recorded_by": "nsys",
            "end_ns": START_NS + (1 + 2 * number) * LONG_NS + LONG_NS // 2, "instance": "m_0_0",
            "instance_device": 0, "batch_id": number, **more,
        }
        for place, server in enumerate(SERVERS)
        for number in range(N_BATCHES)
    ]  # fmt: skip


@pytest.mark.parametrize("device", [0, -1])
def test_without_kernels_a_batch_has_the_gpu_that_its_server_sees(tmp_path: Path, device: int) -> None:
    store = made(tmp_path, GPUS, device)
    found = {(row["target"], row["gpu_util"]) for row in store.read("joined").to_pylist()}
    assert found == {("server-0", 0.2), ("server-1", 0.9)}
    instances = run_metrics(store).phases["burst"].instances.values()
    known = {one.server: (one.gpu_uuid, one.measures["gpu_util_ratio"]) for one in instances}
    nothing = ("", None)  # on no GPU, as far as anybody knows
    expected = {"server-0": ("GPU-a", 0.2), "server-1": ("GPU-b", 0.9)}
    assert known == (expected if device == 0 else dict.fromkeys(SERVERS, nothing))


def test_a_server_whose_gpus_are_not_known_has_none_of_several(tmp_path: Path) -> None:
    store = made(tmp_path, {"server-1": ["GPU-b"]})
    found = {(row["target"], row["gpu_util"]) for row in store.read("joined").to_pylist()}
    assert found == {("server-0", None), ("server-1", 0.9)}


def test_gpus_without_a_name_are_told_apart_by_their_server(tmp_path: Path) -> None:
    (phase,) = run_metrics(made(tmp_path, {}, kernels=kernels())).phases.values()
    active = {name: gpu.kernel_ratio for name, gpu in phase.gpus.items() if gpu.kernel_ratio is not None}
    quarter = pytest.approx(N_BATCHES * LONG_NS / 2 / (100 * MS))
    assert active == {"server-0/device-0": quarter, "server-1/device-0": quarter}
    assert [gpu.streams_mean for gpu in phase.gpus.values() if gpu.streams_mean] == [1, 1]
    assert {one.measures["foreign_busy_ratio"] for one in phase.instances.values()} == {0.0}


def test_ordinals_are_of_the_server() -> None:
    manifest = read_manifest(
        {"servers": {"a": {"node": "n", "gpus": ["GPU-3", "GPU-1"]}, "b": {"node": "n"}}}
    )
    found = [
        manifest.gpu_of("a", 0),
        manifest.gpu_of("a", 1),
        manifest.gpu_of("a", 2),
        manifest.gpu_of("a", -1),
    ]
    assert found == ["GPU-3", "GPU-1", "", ""]
    assert manifest.gpu_of("b", 0) == manifest.gpu_of("elsewhere", 0) == ""
