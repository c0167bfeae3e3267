"""A report by the nsys of this machine, from the recording to the tables that are derived of a run.

The program recorded does what a model of ours does with a batch, and writes what it did: its NVTX ranges and OS-runtime
calls in the report are held against that record. Debian's nsys 2022.4 runs without a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.actors.nsys.session import _nvtx_library
from squall.actors.nsys.tools import NsysTools, find_nsys
from squall.analysis.nsys.clock import ReportClock, read_clock
from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.scrub import scrub
from squall.analysis.nsys.tables import EventLabels, event_tables
from squall.analysis.report.derive import derive
from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import assign_phase, phase_spans

pytestmark = pytest.mark.single

N_BATCHES = 60
MS = 1_000_000
SLEEP_NS, IDLE_NS = 3 * MS, 1 * MS
_SERVING = """
import ctypes, json, os, sys, threading, time
class Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
libc, nvtx = ctypes.CDLL(None), ctypes.CDLL(sys.argv[2])
nvtx.nvtxRangePushA.argtypes = (ctypes.c_char_p,)
work, idle = (ctypes.byref(Timespec(0, int(ns))) for ns in sys.argv[4:6])
record = []
for batch in range(int(sys.argv[3])):
    start = time.monotonic_ns()
    nvtx.nvtxRangePushA(b"squall|m_0|gpu1|%d|%d" % (batch, time.monotonic_ns()))
    a = time.monotonic_ns(); libc.nanosleep(work, None); b = time.monotonic_ns()
    nvtx.nvtxRangePop()
    record.append((start, time.monotonic_ns(), a, b))
    libc.nanosleep(idle, None)
with open(sys.argv[1], "w") as file:
    json.dump({"pid": os.getpid(), "tid": threading.get_native_id(), "batches": record}, file)
"""


@dataclass(frozen=True)
class Recording:
    """A scrubbed report, its clock, and what the program wrote of itself: (n, 4) start, end, sleep from and to, ns."""

    nsys: NsysTools
    report: NsysReport
    clock: ReportClock
    process: int
    thread: int
    batches: np.ndarray


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    nsys = find_nsys()
    if nsys is None:
        pytest.skip("nsys is not installed (Debian: nsight-systems)")
    library = _nvtx_library()
    if not library:
        pytest.skip("no NVTX library (pip install nvidia-nvtx)")
    folder = tmp_path_factory.mktemp("ingest")
    (folder / "app.py").write_text(_SERVING)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), **nsys.env}

    def call(*command: str) -> None:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    app = (sys.executable, "-I", "-S", "app.py", "record", library, *map(str, (N_BATCHES, SLEEP_NS, IDLE_NS)))
    call(
        str(nsys.nsys), "profile", "--trace=osrt,nvtx", "--osrt-threshold=1000", "--sample=none", "--cpuctxsw=none",
        "--backtrace=none", "-o", "rep", *app,
    )  # fmt: skip
    if not (folder / "rep.nsys-rep").exists():
        assert nsys.importer is not None
        call(str(nsys.importer), "-i", "rep.qdstrm", "-o", "rep.nsys-rep")
    call(str(nsys.nsys), "export", "--type=sqlite", "-o", "rep.sqlite", "rep.nsys-rep")
    scrub(folder / "rep.sqlite", folder / "scrubbed")
    report = NsysReport(folder / "scrubbed")
    said = json.loads((folder / "record").read_text())
    clock = read_clock(report, np.zeros((0, 4), np.int64), None)
    return Recording(nsys, report, clock, said["pid"], said["tid"], np.array(said["batches"], np.int64))


@pytest.fixture(scope="module")
def run(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A sealed run of the report, the program's record, and one request a batch; its clock is the machine's."""
    first, last = int(recording.batches[0, 0]), int(recording.batches[-1, 1])
    store = RunStore.create(tmp_path_factory.mktemp("runs"), "ingest", first, read_manifest({
        "scenario": {"name": "ingest", "seed": 1, "profile": {"nsys": "required"}}, "seed": 1,
        "scenario_digest": "0" * 64,
        "plan": {"load": "open", "n_arrivals": N_BATCHES, "sha256": "0" * 64, "n_by_phase": {"all": N_BATCHES}},
        "versions": {"squall": "0"}, "started_ns": first, "start_ns": first - MS,
        "phases": [{"name": "all", "kind": "measure", "start_ns": first - MS, "end_ns": last + MS}],
        "nodes": {"node-0": {"clock_error_ns": 0, "clock_offset_ns": 0, "n_cores": 2, "gpus": []}},
        "servers": {"server-0": {"node": "node-0", "model": "m", "version": "1", "batch_record": True}},
        "workers": [{"worker": 0, "node": "node-0", "n_planned": N_BATCHES}], "collectors": {},
    }))  # fmt: skip
    spans = phase_spans(store.manifest)
    labels = EventLabels(store.run, "node-0", "server-0")
    for name, rows in event_tables(recording.report, labels, recording.clock.track, recording.clock.marks):
        store.append(name, assign_phase(name, rows, spans))
    store.append("batches", _table("batches", store.run, _batches(recording.batches)))
    store.append("requests", _table("requests", store.run, _requests(recording.batches)))
    store.seal(Verdict(status="VALID"))
    return store


def _batches(record: np.ndarray) -> dict[str, Any]:
    ids = pa.array([[i] for i in range(len(record))], pa.list_(pa.int64()))
    return {
        "server": "server-0", "model": "m", "version": "1", "instance": "m_0", "instance_device": 1,
        "batch_id": np.arange(len(record)), "start_ns": record[:, 0], "end_ns": record[:, 1], "rows": 1,
        "n_requests": 1, "request_ids": ids, "n_foreign": 0, "recorded_by": "model",
        **dict.fromkeys(("exec_start_ns", "exec_end_ns", "n_failed"), pa.nulls(len(record), pa.int64())),
    }  # fmt: skip


def _requests(record: np.ndarray) -> dict[str, Any]:
    sent, done = record[:, 0] - MS // 4, record[:, 1] + MS // 4
    return {
        "request_id": np.arange(len(record)), "worker": 0, "target": "server-0", "request_kind": "m",
        "scheduled_ns": sent, "sent_ns": sent, "first_byte_ns": done, "done_ns": done, "rows": 1, "request_bytes": 9,
        "response_bytes": 9, "outcome": "ok", "detail": "",
        **dict.fromkeys(("method", "name"), pa.nulls(len(record), pa.string())),
    }  # fmt: skip


def _table(name: str, run: str, columns: dict[str, Any]) -> pa.Table:
    columns = {"run": run, "phase": "all", "node": "node-0", **columns}
    fields = arrow_schema(name)
    values = {
        key: [value] * N_BATCHES if isinstance(value, str | int) else value for key, value in columns.items()
    }
    return pa.table([values[field.name] for field in fields], names=fields.names)


def test_the_ranges_of_the_report_are_the_batches_of_the_programs_record(
    recording: Recording, run: RunStore
) -> None:
    version = ".".join(map(str, recording.nsys.version))
    print(f"nsys {version}, schema {recording.report.schema_version}: {recording.clock.facts}")
    if recording.nsys.version[:2] == (2022, 4):
        assert recording.report.schema_version == "3.0.0"
    assert not recording.clock.facts.is_assumed
    nvtx = run.read("nvtx")
    assert nvtx["batch_id"].to_pylist() == list(range(N_BATCHES))
    assert set(nvtx["instance"].to_pylist()) == {"m_0"}
    assert set(nvtx["instance_device"].to_pylist()) == {1}
    error_ns = recording.clock.track.largest_error_ns
    start, end = (nvtx[name].to_numpy() for name in ("start_ns", "end_ns"))
    assert (start + error_ns >= recording.batches[:, 0]).all()
    assert (end - error_ns <= recording.batches[:, 1]).all()
    assert (end - start >= SLEEP_NS).all()


def test_the_sleep_of_each_batch_is_an_os_call_of_its_thread(recording: Recording, run: RunStore) -> None:
    calls = run.read("osrt")
    own = pc.and_(pc.equal(calls["thread"], recording.thread), pc.equal(calls["process"], recording.process))
    is_sleep = pc.is_in(calls["name"].cast(pa.string()), pa.array(["nanosleep", "clock_nanosleep"]))
    sleeps = calls.filter(pc.and_(own, is_sleep))
    start, end = (sleeps[name].to_numpy() for name in ("start_ns", "end_ns"))
    assert len(start) == 2 * N_BATCHES
    error_ns = recording.clock.track.largest_error_ns
    assert (start[::2] + error_ns >= recording.batches[:, 2]).all()
    assert (end[::2] - error_ns <= recording.batches[:, 3]).all()


def test_a_run_without_a_gpu_joins_its_batches_to_their_ranges(recording: Recording, run: RunStore) -> None:
    summary = derive(run).to_json()
    length_ns = recording.batches[:, 1] - recording.batches[:, 0]
    costs = run.read("batch_costs").sort_by("batch_id")
    assert costs["tie"].to_pylist() == ["range"] * N_BATCHES
    assert set(costs["process"].to_pylist()) == {recording.process}
    assert set(costs["thread"].to_pylist()) == {recording.thread}
    waits = costs["os_wait_ns"].to_numpy()
    assert (waits >= SLEEP_NS).all()
    assert (waits <= length_ns).all()
    assert not [n for n in costs["n_kernels"].to_pylist() if n]
    assert summary["join"]["n_ok_exact"] == N_BATCHES
    joined = run.read("joined")
    assert joined["join_level"].to_pylist() == ["exact"] * N_BATCHES
    assert joined["batch_id"].to_pylist() == list(range(N_BATCHES))
    assert joined["compute_ns"].to_pylist() == length_ns.tolist()
    assert joined["os_wait_ns"].to_pylist() == waits.tolist()
