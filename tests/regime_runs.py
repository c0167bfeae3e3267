"""Small runs whose regime is planted: a phase is 40 equal batches, laid out from how the host issues and the GPU works.

    host   |── head ──|launch|launch|·wait·|launch| … |──final wait──|── tail ──|
    GPU               └►op───  └►op──       └►op──
    request          sent ───── wait_us ─────► batch ──► done

All phases of a run lie end to end; each is served by one instance, and each batch serves one request. Every table is
as the collectors write it. What a phase states is in µs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.findings.find import find
from squall.analysis.findings.finding import Finding, Rows
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.findings.self_checks import self_checks, unmet
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.metrics.run import run_metrics
from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.schema import NO_DEVICE, TABLES, arrow_schema
from squall.analysis.storage.sealed import CheckResult, Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.verdict.run_view import RunView

START_NS = 1_795_250_252_000_000_000
US, MS, S = 1_000, 1_000_000, 1_000_000_000
GPU_UUID = "GPU-7c1d2a52-0000-4000-8000-000000000001"
H200 = {
    "id": 0, "uuid": GPU_UUID, "smCount": 132, "maxWarpsPerSm": 64, "maxRegistersPerSm": 65_536,
    "maxShmemPerSm": 233_472, "maxBlocksPerSm": 32, "computeMajor": 9,
}  # fmt: skip
"""The GPU's limits as an nsys report states them."""
THERMAL = 0x20
"""NVML's bit for clocks held down by software because of heat."""

CALL_US, LATENCY_US, RESUME_US = 3.0, 4.0, 6.0
"""Length of a CUDA call, from its start to that of its operation on an idle GPU, and from the end of a wait to the next
call."""
INPUT_US, OUTPUT_US, WIRE_US = 10.0, 10.0, 40.0
"""Server's time to gather and scatter, and each way's time on the wire."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Op:
    """A kernel, or a copy to the device if it has bytes; `wait` says that the host waits for the GPU after it."""

    us: float
    n_bytes: int = 0
    is_pageable: bool = False
    wait: bool = False
    grid: int = 1_000
    """Blocks of 1,024 threads, of which this GPU holds 264 at once."""

    @property
    def is_copy(self) -> bool:
        return self.n_bytes > 0


@dataclass(frozen=True)
class Phase:
    """`issue_us`: from the start of a launch to that of the next. `period_us`: from batch to batch; 0 for back to back.

    `wait_us`: from the request's send to its batch. `ops` empty: the model computes on the CPU for `head_us`.
    `other_us`: how long, in the middle of each batch, another process has the GPU busy.
    """

    name: str
    ops: tuple[Op, ...] = ()
    head_us: float = 20.0
    tail_us: float = 20.0
    issue_us: float = 6.0
    period_us: float = 0.0
    wait_us: float = 100.0
    lag_us: float = 0.0
    other_us: float = 0.0
    throttled_ratio: float = 0.0
    foreign_ratio: float | None = None
    """Share of the GPU's time that a foreign process had, by NVML; None: NVML was not asked about processes."""
    gpm: dict[str, float] = field(default_factory=dict)
    server: str = "server-0"
    n_batches: int = 40
    slow_every: int = 0
    """Every so manyth batch has its first operation ten times as long; 0: none."""
    silent_us: float = 0.0
    """For so long the server takes no batch, before the batch `silent_before`; evenly over it `n_unserved` requests are
    sent, which time out when it is over."""
    silent_before: int = 40
    n_unserved: int = 0
    unserved_end: tuple[str, str] = ("timeout", "no reply")
    """Outcome and detail of these."""
    n_samples: int = 20
    cpu: dict[str, float] = field(default_factory=dict)
    """Cores that each group of its node's 16 had (and `wait`, of the server's threads), by the columns of cpu_samples
    without their ending; empty: not sampled."""
    lost: tuple[str, ...] = ()
    """Tables of which the rows of this phase are lost."""
    is_launched: bool = True
    """Whether the calls that launched its operations were recorded."""


@dataclass(frozen=True)
class Batcher:
    """A dynamic batcher before `n_instances`: a batch of up to `largest` rows takes `base_us` and `row_us` for each,
    and `gap_us` pass until an instance takes the next. `cores`: CPU that the server has meanwhile, of its node's 16."""

    n_instances: int = 1
    largest: int = 16
    base_us: float = 8_000.0
    row_us: float = 100.0
    gap_us: float = 1_200.0
    cores: float = 0.2
    waits: float = 0.0
    """Of the server's threads for a CPU, in cores."""

    @property
    def ceiling_hz(self) -> float:
        """Requests/s of full batches, one after another."""
        cycle_us = self.base_us + self.largest * self.row_us + self.gap_us
        return self.n_instances * self.largest / cycle_us * 1e6


def write_batched_run(
    parent: Path, batcher: Batcher, loads: Sequence[float], seconds: float = 3.0
) -> RunStore:
    """A sealed run with a phase `load X` for each of `loads`, in parts of the ceiling: Poisson requests of one row."""
    tables: dict[str, list[Row]] = defaultdict(list)
    rng, spans, n_by_phase, at_ns = np.random.default_rng(7), [], {}, START_NS
    for load in loads:
        phase = Phase(
            f"load {load}",
            server="server-cpu",
            n_samples=0,
            cpu={"server": batcher.cores, "wait": batcher.waits},
        )
        n = round(load * batcher.ceiling_hz * seconds)
        sent = at_ns + np.sort(rng.uniform(0.0, seconds * 1e9, n)).astype(np.int64)
        end_ns = at_ns + round(seconds * 1e9)
        spans.append({"name": phase.name, "kind": "measure", "start_ns": at_ns, "end_ns": end_ns})
        n_by_phase[phase.name] = n
        for t_ns in range(at_ns + 10**8, end_ns + 1, 10**8):
            tables["cpu_samples"].append(_cpu_sample(phase, 10**8, t_ns))
        at_ns = max(end_ns, _serve_batched(tables, batcher, phase, sent.tolist(), end_ns)) + 10**9
    facts = {"clock_error_ns": 0, "n_cores": 16, "clock_track": _track(), "gpus": []}
    serving = {"m": {"max_batch_size": batcher.largest, "n_instances": batcher.n_instances}}
    store = RunStore.create(parent, "batched", START_NS, read_manifest({
        "scenario": {"name": "batched", "seed": 1}, "seed": 1,
        "plan": {"load": "open", "n_arrivals": len(tables["requests"]), "n_by_phase": n_by_phase},
        "start_ns": START_NS, "phases": spans, "nodes": {"node-1": facts},
        "servers": {"server-cpu": {
            "node": "node-1", "model": "m", "version": "1", "batch_record": True, "serving": serving
        }},
    }))  # fmt: skip
    for table, rows in tables.items():
        store.append(table, _as_table(table, ({"run": store.run, **row} for row in rows)))
    store.seal(Verdict(status="VALID", checks=(CheckResult(name="made", is_met=True),)))
    return store


def _serve_batched(
    tables: dict[str, list[Row]], batcher: Batcher, phase: Phase, sent: list[int], phase_end_ns: int
) -> int:
    """Requests in the order in which they came, each batch by the instance that is free first; when the last ends."""
    free = [0] * batcher.n_instances
    at = 0
    while at < len(sent):
        instance = free.index(min(free))
        start_ns = max(free[instance], sent[at] + _ns(WIRE_US + INPUT_US))
        taken = [one for one in sent[at : at + batcher.largest] if one + _ns(WIRE_US + INPUT_US) <= start_ns]
        end_ns = start_ns + _ns(batcher.base_us + len(taken) * batcher.row_us)
        batch = {
            "phase": phase.name if start_ns < phase_end_ns else "", "node": "node-1", "server": phase.server,
            "instance": f"m_{instance}", "instance_device": NO_DEVICE, "batch_id": len(tables["batches"]),
        }  # fmt: skip
        ids = []
        for sent_ns in taken:
            request = _request(tables, phase, sent_ns)
            ids.append(request["request_id"])
            done_ns = end_ns + _ns(OUTPUT_US + WIRE_US)
            tables["requests"].append({**request, "first_byte_ns": done_ns, "done_ns": done_ns})
            tables["triton_traces"].append(
                _trace(batch | {"phase": phase.name}, ids[-1], sent_ns, start_ns, end_ns)
            )
        tables["batches"].append({
            **batch, "start_ns": start_ns, "end_ns": end_ns, "model": "m", "version": "1", "rows": len(ids),
            "n_requests": len(ids), "request_ids": ids, "n_foreign": 0, "recorded_by": "model",
        })  # fmt: skip
        free[instance], at = end_ns + _ns(batcher.gap_us), at + len(taken)
    return max(free)


def write_regime_run(parent: Path, phases: Sequence[Phase], **manifest: Any) -> RunStore:
    """A sealed run of `phases`; `manifest` adds to or replaces its fields."""
    tables: dict[str, list[Row]] = defaultdict(list)
    spans, n_by_phase, at_ns = [], {}, START_NS
    for phase in phases:
        end_ns = _lay_out(tables, phase, at_ns)
        spans.append({"name": phase.name, "kind": "measure", "start_ns": at_ns, "end_ns": end_ns})
        n_by_phase[phase.name] = phase.n_batches + phase.n_unserved
        _sample(tables, phase, at_ns, end_ns)
        if not phase.is_launched:
            _forget_launches(tables, phase.name)
        for table in phase.lost:
            tables[table] = [row for row in tables[table] if row["phase"] != phase.name]
        at_ns = end_ns
    if manifest.get("plan", {}).get("load") == "closed":
        tables["requests"] = [{**row, "scheduled_ns": None} for row in tables["requests"]]
    facts = {"clock_error_ns": 0, "n_cores": 16, "clock_track": _track()}
    store = RunStore.create(parent, "regimes", START_NS, read_manifest({
        "scenario": {"name": "regimes", "seed": 1}, "seed": 1,
        "plan": {"load": "open", "n_arrivals": len(tables["requests"]), "n_by_phase": n_by_phase},
        "start_ns": START_NS, "phases": spans,
        "nodes": {"node-0": {**facts, "gpus": ["NVIDIA H200"]}, "node-1": {**facts, "gpus": []}},
        "servers": {
            "server-0": {"node": "node-0", "model": "m", "version": "1", "batch_record": True},
            "server-cpu": {"node": "node-1", "model": "m", "version": "1", "batch_record": True},
        },
        "profiled_phases": {phase.name: {"is_profiled": True, "profiled_after_ns": -MS} for phase in phases},
        **manifest,
    }))  # fmt: skip
    limits = store.run_dir / "nsys" / "server-0" / phases[0].name / "TARGET_INFO_GPU.parquet"
    limits.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([H200]), limits)
    for table, rows in tables.items():
        store.append(table, _as_table(table, ({"run": store.run, **row} for row in rows)))
    held = CheckResult(name="made", is_met=True)  # all was looked at, and the client was not the limit
    store.seal(Verdict(status="VALID", checks=(held,)))
    return store


def diagnose(store: RunStore, verdict: Verdict | None = None) -> tuple[list[Finding], dict[str, SelfCheck]]:
    """Findings, and self-checks by name, of a run: made from its raw tables as `squall.analysis.report.derive` does."""
    write_batch_costs(store)
    if store.has("requests"):
        write_joined(store)
    metrics = run_metrics(store)
    checks = self_checks(store, metrics)
    return found_in(store, metrics, verdict, checks), {one.name: one for one in checks}


def found_in(
    store: RunStore, metrics: RunMetrics | None, verdict: Verdict | None, checks: Sequence[SelfCheck]
) -> list[Finding]:
    """Findings of a run without a verdict, or with that of its seal, as a summary makes them."""
    view = RunView.read(store) if store.has("requests") else None
    shares = (view.cpus, view.gpus) if view is not None else ((), ())
    return find(store, metrics, verdict or store.manifest.verdict, unmet(checks), *shares, {})


@dataclass
class _Host:
    """The serving thread and the GPU's stream, as they go through a batch. Instants in ns."""

    batch: Row
    tables: dict[str, list[Row]]
    now_ns: int
    gpu_ns: int = 0
    next_ns: int = 0

    def call(self, name: str, call_class: str, end_ns: int) -> int:
        """A CUDA call from now to `end_ns`; returns its correlation id."""
        correlation_id = len(self.tables["cuda_api"]) + 1
        self.tables["cuda_api"].append({
            **self.batch, "recorded_by": "nsys",
            "thread_name": "", "start_ns": self.now_ns, "end_ns": end_ns, "name": name, "api": "runtime",
            "call_class": call_class, "correlation_id": correlation_id, "return_value": 0,
        })  # fmt: skip
        return correlation_id

    def issue(self, op: Op, issue_us: float) -> None:
        """Launches `op` and goes on when the call is over and the interval has passed."""
        launched_ns, call_end_ns = self.now_ns, self.now_ns + _ns(CALL_US)
        start_ns = max(launched_ns + _ns(LATENCY_US), self.gpu_ns)
        self.gpu_ns = start_ns + _ns(op.us)
        if op.is_copy and op.is_pageable:
            call_end_ns = self.gpu_ns  # the call returns when the copy is done
        name, kind = ("cudaMemcpyAsync", "async copy") if op.is_copy else ("cudaLaunchKernel", "launch")
        self.tables["memcpys" if op.is_copy else "kernels"].append({
            **self.batch, **_operation(op), "recorded_by": "nsys",
            "device": 0, "gpu_uuid": GPU_UUID, "context": 1, "stream": 7,
            "start_ns": start_ns, "end_ns": self.gpu_ns, "launch_start_ns": launched_ns, "launch_end_ns": call_end_ns,
            "correlation_id": self.call(name, kind, call_end_ns),
        })  # fmt: skip
        self.now_ns = max(call_end_ns, launched_ns + _ns(issue_us))
        if op.wait:
            self.wait()
            self.now_ns += _ns(RESUME_US)

    def wait(self) -> None:
        """Waits for the GPU in a call that blocks."""
        end_ns = max(self.gpu_ns, self.now_ns) + _ns(1.0)
        self.call("cudaStreamSynchronize", "blocking sync", end_ns)
        self.now_ns = end_ns


def keys_of(store: RunStore, rows: Rows, key: str) -> list[int]:
    """Column `key` of all rows that a finding is about, the worst first, as its user would ask for them."""
    files = str(store.run_dir / "tables" / rows.table / "*.parquet")
    found = duckdb.sql(f"SELECT {key} FROM '{files}' WHERE {rows.where} ORDER BY {rows.order_by}").fetchall()
    return [value for (value,) in found]


def _forget_launches(tables: dict[str, list[Row]], phase: str) -> None:
    tables["cuda_api"] = [row for row in tables["cuda_api"] if row["phase"] != phase]
    for table in ("kernels", "memcpys"):
        for row in tables[table]:
            if row["phase"] == phase:
                row |= {"launch_start_ns": None, "launch_end_ns": None}


def _lay_out(tables: dict[str, list[Row]], phase: Phase, at_ns: int) -> int:
    """The batches of a phase, the first one's request scheduled at `at_ns`; returns when the last one's period ends."""
    at_ns += _ns(phase.wait_us + phase.lag_us)
    is_cpu, process = phase.server == "server-cpu", 100 + (phase.server != "server-0")
    node = "node-1" if is_cpu else "node-0"
    place = {"phase": phase.name, "node": node, "server": phase.server, "process": process, "thread": process}
    for index in range(phase.n_batches):
        if index == phase.silent_before:
            at_ns = _keep_silent(tables, phase, at_ns)
        batch = {**place, "instance": "m_0", "instance_device": NO_DEVICE, "batch_id": len(tables["batches"])}
        host = _Host(batch, tables, at_ns + _ns(phase.head_us))
        is_slow = phase.slow_every and index % phase.slow_every == 0
        for number, op in enumerate(phase.ops):
            slow = (
                Op(op.us * 10, op.n_bytes, op.is_pageable, op.wait, op.grid) if is_slow and not number else op
            )
            host.issue(slow, phase.issue_us)
        if phase.ops:
            host.wait()
        end_ns = host.now_ns + _ns(phase.tail_us)
        _serve(tables, batch, phase, at_ns, end_ns)
        if phase.other_us:
            _occupy(tables, phase, at_ns, end_ns)
        at_ns = max(end_ns, at_ns + _ns(phase.period_us))
    return _keep_silent(tables, phase, at_ns) if phase.silent_before >= phase.n_batches else at_ns


def _keep_silent(tables: dict[str, list[Row]], phase: Phase, at_ns: int) -> int:
    """The requests that are sent from `at_ns` on and never served; returns when the silence is over."""
    end_ns = at_ns + _ns(phase.silent_us)
    for number in range(phase.n_unserved):
        sent_ns = at_ns + number * (end_ns - at_ns) // phase.n_unserved
        tables["requests"].append({
            **_request(tables, phase, sent_ns), "first_byte_ns": None, "done_ns": end_ns, "response_bytes": 0,
            "outcome": phase.unserved_end[0], "detail": phase.unserved_end[1],
        })  # fmt: skip
    return end_ns


def _serve(tables: dict[str, list[Row]], batch: Row, phase: Phase, start_ns: int, end_ns: int) -> None:
    """The batch's record and range, and its request by the client and by Triton's trace."""
    key = {name: value for name, value in batch.items() if name not in ("process", "thread")}
    span = {"start_ns": start_ns, "end_ns": end_ns}
    sent_ns, done_ns = start_ns - _ns(phase.wait_us), end_ns + _ns(OUTPUT_US + WIRE_US)
    request = _request(tables, phase, sent_ns)
    request_id = request["request_id"]
    tables["batches"].append({
        **key, **span, "model": "m", "version": "1", "rows": 1, "n_requests": 1, "request_ids": [request_id],
        "n_foreign": 0, "recorded_by": "model",
    })  # fmt: skip
    tables["nvtx"].append({**batch, **span, "thread_name": "", "name": f"squall|m_0|{batch['batch_id']}"})
    tables["requests"].append({**request, "first_byte_ns": done_ns, "done_ns": done_ns})
    tables["triton_traces"].append(_trace(batch, request_id, sent_ns, start_ns, end_ns))


def _trace(batch: Row, request_id: int, sent_ns: int, start_ns: int, end_ns: int) -> Row:
    """A request of a batch as Triton traces it."""
    queued_ns, compute_ns = sent_ns + _ns(WIRE_US), start_ns - _ns(INPUT_US)
    return {
        "phase": batch["phase"], "node": batch["node"], "server": batch["server"], "model": "m", "version": "1",
        "trace_id": request_id, "request_id": request_id, "protocol": "http", "recv_start_ns": queued_ns,
        "recv_end_ns": queued_ns, "request_start_ns": queued_ns, "queue_start_ns": queued_ns,
        "compute_start_ns": compute_ns, "compute_input_end_ns": start_ns, "compute_output_start_ns": end_ns,
        "compute_end_ns": end_ns + _ns(OUTPUT_US), "request_end_ns": end_ns + _ns(OUTPUT_US),
        "send_start_ns": end_ns + _ns(OUTPUT_US), "send_end_ns": end_ns + _ns(OUTPUT_US),
    }  # fmt: skip


def _request(tables: dict[str, list[Row]], phase: Phase, sent_ns: int) -> Row:
    """The next request by the client, without its end."""
    return {
        "phase": phase.name, "node": "node-0" if phase.server == "server-0" else "node-1",
        "request_id": len(tables["requests"]), "worker": 0, "target": phase.server, "request_kind": "m",
        "scheduled_ns": sent_ns - _ns(phase.lag_us), "sent_ns": sent_ns, "rows": 1, "request_bytes": 100,
        "response_bytes": 100, "outcome": "ok", "detail": "",
    }  # fmt: skip


def _occupy(tables: dict[str, list[Row]], phase: Phase, start_ns: int, end_ns: int) -> None:
    """A kernel of another process on the same GPU, in the middle of the batch."""
    first_ns = (start_ns + end_ns - _ns(phase.other_us)) // 2
    tables["kernels"].append({
        **_operation(Op(phase.other_us)), "recorded_by": "nsys",
        "phase": phase.name, "node": "node-0", "server": "server-0", "process": 300,
        "thread": None, "device": 0, "gpu_uuid": GPU_UUID, "context": 1, "stream": 7, "start_ns": first_ns,
        "end_ns": first_ns + _ns(phase.other_us), "correlation_id": len(tables["kernels"]) + 1, "instance": "",
    })  # fmt: skip


def _operation(op: Op) -> Row:
    if op.is_copy:
        kind = "pageable" if op.is_pageable else "pinned"
        return {"bytes": op.n_bytes, "copy_kind": "HtoD", "source_kind": kind, "destination_kind": "device"}
    sizes = {f"{what}_{axis}": 1 for what in ("grid", "block") for axis in "xyz"}
    return {
        **sizes, "grid_x": op.grid, "block_x": 1024, "name": "gemm", "full_name": "gemm", "registers_per_thread": 32,
        "static_shared_bytes": 0, "dynamic_shared_bytes": 0, "theoretical_occupancy": 1.0,
    }  # fmt: skip


def _sample(tables: dict[str, list[Row]], phase: Phase, start_ns: int, end_ns: int) -> None:
    """Samples of the GPU and one of the client's worker; the phase's last request may end after it."""
    interval_ns = (end_ns - start_ns) // phase.n_samples
    for number in range(phase.n_samples):
        is_throttled = number < round(phase.n_samples * phase.throttled_ratio)
        tables["gpu_samples"].append({
            "phase": phase.name, "node": "node-0", "gpu_uuid": GPU_UUID, "interval_ns": interval_ns,
            "t_ns": start_ns + (number + 1) * interval_ns - 1, "mig_instance": "", "read_ns": 1_000,
            "gpm_interval_ns": interval_ns, "throttle_reasons": THERMAL if is_throttled else 0, **phase.gpm,
        })  # fmt: skip
    if phase.foreign_ratio is not None:
        for process, use in ((100, 0.3), (300, phase.foreign_ratio)):
            tables["gpu_processes"].append({
                "phase": phase.name, "node": "node-0", "gpu_uuid": GPU_UUID, "t_ns": end_ns - 1,
                "interval_ns": end_ns - start_ns, "process": process, "is_server": process == 100, "uses_driver": True,
                "memory_used_bytes": 1 << 30, "sm_util": use, "memory_util": 0.0,
            })  # fmt: skip
    if phase.cpu:
        tables["cpu_samples"].append(_cpu_sample(phase, end_ns - start_ns, end_ns - 1))
    own = [row for row in tables["requests"] if row["phase"] == phase.name]
    t_ns = (start_ns + end_ns) // 2
    everyone = tables["requests"]
    tables["worker_samples"].append({
        "phase": phase.name, "node": "node-0", "worker": 0, "t_ns": t_ns, "interval_ns": S, "n_due": len(own),
        "n_sent": len(own), "n_done": len(own), "n_backlog": 0, "n_held": 0,
        "n_in_flight": sum(row["sent_ns"] <= t_ns < row["done_ns"] for row in everyone), "n_connections": 1,
        "n_socket_errors": 0, "n_write_pauses": 0, "lag_max_ns": 0, "loop_lag_ns": 0, "cpu_ns": 0, "spin_ns": 0,
        "gc_count": 0, "gc_pause_ns": 0,
    })  # fmt: skip


def _cpu_sample(phase: Phase, interval_ns: int, t_ns: int) -> Row:
    groups = ("server", "clients", "squall", "others", "steal")
    had = {name: round(phase.cpu.get(name, 0.0) * interval_ns) for name in groups}
    held = ("server_quota_cores", "server_periods", "server_throttled_periods")
    return {
        "phase": phase.name, "node": "node-1" if phase.server == "server-cpu" else "node-0", "t_ns": t_ns,
        "interval_ns": interval_ns, "n_cores": 16, "idle_ns": 16 * interval_ns - sum(had.values()), "server_cores": 16,
        **{f"{name}_ns": value for name, value in had.items()},
        "server_wait_ns": round(phase.cpu.get("wait", 0.0) * interval_ns), "clients_wait_ns": 0, "server_runs": 0,
        **{name: phase.cpu[name] for name in held if name in phase.cpu},
    }  # fmt: skip


_LACKED = {"instance_device": NO_DEVICE}


def _as_table(table: str, rows: Iterable[Row]) -> pa.Table:
    """`rows` as `table`, text plain; a column that a row lacks is null, or no device."""
    wanted, known = arrow_schema(table), list(rows)
    stated = set().union(*known)
    assert stated - {"process", "thread"} <= {column.name for column in TABLES[table].columns}
    arrays = []
    for one in wanted:
        lacked = None if one.nullable else _LACKED.get(one.name)
        is_stated = one.name in stated
        values = [row.get(one.name, lacked) for row in known] if is_stated else [lacked] * len(known)
        arrays.append(pa.array(values, pa.string() if pa.types.is_dictionary(one.type) else one.type))
    return pa.table(arrays, names=wanted.names)


def _track() -> Row:
    return {"at_ns": [0], "offset_ns": [0], "error_ns": [0], "probed_ns": None, "steps": []}


def _ns(us: float) -> int:
    return round(us * US)
