"""Run directories of any size, as a profiled run of two servers with two instances each leaves them.

    python -m tests.bench.big_runs PARENT [--scale RATIO]

writes one to PARENT and prints its path. At scale 1: 10 million requests in 1.25 million batches, and for each batch 40
kernels, 2 copies, 43 CUDA calls, an NVTX range and 2 OS-runtime calls; statistics and GPU samples at 10 Hz.

    instance  ──[ head │ copy in, kernel … kernel, copy out │ tail ]── gap ──[ …
    GPU                  █ █ ████ █   ████ █

Rows come in the order of a real run: requests by worker and end, events by phase, server and start, in pieces of the
same sizes. Every number follows from the row that it belongs to, so that it does not depend on the pieces; memory is
that of the requests' ids and instants (about 40 bytes a request) and of a piece of events.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, phase_of, phase_spans
from tests.bench.big_events import (
    KERNELS,
    LONGEST_NS,
    MS,
    N_INSTANCES,
    N_SERVERS,
    PER_SERVER,
    START_NS,
    US,
    Batches,
    Int64s,
    S,
    described,
    events,
    noise,
    texts,
)

N_WORKERS = 8
EVENT_ROWS = 50_000
REQUEST_ROWS = 2_000
"""Rows of a piece: of a report's events (`squall.analysis.nsys.report`), of a worker's requests (a second's)."""
TICK_NS = 100 * MS
_NETWORK_NS, _INPUT_NS, _HANDOVER_NS, _OUTPUT_NS = 200 * US, 60 * US, 80 * US, 40 * US


@dataclass(frozen=True)
class Requests:
    """Requests by batch, and after them those that were rejected: 0.2 % more. `id_of` ranks them by their schedule."""

    batch: Int64s
    """Row of its batch; -1 for a rejected one."""
    sent_ns: Int64s
    lag_ns: Int64s
    id_of: Int64s

    @classmethod
    def make(cls, batches: Batches) -> Requests:
        batch = np.repeat(np.arange(len(batches.start_ns)), batches.n_requests)
        n_rejected = len(batch) // 500
        first_ns, last_ns = batches.start_ns.min(), batches.end_ns.max()
        at_ns = first_ns + (noise(np.arange(n_rejected), 4) * (last_ns - first_ns)).astype(np.int64)
        rows = np.arange(len(batch) + n_rejected)
        wait = 300 * US + (noise(rows[: len(batch)], 5) * 3 * MS).astype(np.int64)
        sent = np.r_[batches.start_ns[batch] - wait, at_ns]
        lag = 5 * US + (noise(rows, 6) * 80 * US).astype(np.int64)
        id_of = np.empty(len(rows), np.int64)
        id_of[np.argsort(sent - lag)] = rows
        return cls(np.r_[batch, np.full(n_rejected, -1)], sent, lag, id_of)


def write_big_run(parent: Path, scale: float) -> RunStore:
    """A sealed run directory under `parent`."""
    batches = Batches.make(scale)
    requests = Requests.make(batches)
    phases = _phases(batches)
    writer = _Writer(
        RunStore.create(parent, "big", START_NS, read_manifest(_manifest(requests, phases))), batches, phases
    )
    writer.requests(requests)
    writer.batches(requests)
    writer.samples(requests)
    for phase in phase_spans(writer.store.manifest)[1:3]:  # a warm-up is not recorded
        for server in range(N_SERVERS):
            writer.report(phase, server)
    writer.store.seal(Verdict(status="VALID"))
    return writer.store


def _phases(batches: Batches) -> list[dict[str, Any]]:
    last = int(batches.end_ns.max()) + 10 * MS
    bounds = [START_NS, *(START_NS + round((last - START_NS) * part) for part in (0.01, 0.5)), last, last + S]
    kinds = ("warmup", "measure", "measure", "drain")
    return [
        {"name": name, "kind": kind, "start_ns": a, "end_ns": b}
        for name, kind, a, b in zip(
            ("warmup", "steady", "burst", "drain"), kinds, bounds, bounds[1:], strict=False
        )
    ]


def _manifest(requests: Requests, phases: list[dict[str, Any]]) -> dict[str, Any]:
    edges = np.array([p["start_ns"] for p in phases])
    scheduled = requests.sent_ns - requests.lag_ns
    n_by_phase = np.bincount(
        np.maximum(np.searchsorted(edges, scheduled, side="right") - 1, 0), minlength=len(phases)
    )
    node = {"clock_offset_ns": 0, "n_cores": 16, "cpu_model": "made-up CPU", "memory_bytes": 64 << 30}
    on = {"status": "on", "reason": "", "mend": ""}
    return {
        "scenario": {"name": "big", "seed": 1, "model": {"name": "seqlen_head", "instances": PER_SERVER},
                     "profile": {"nsys": "required"}},
        "scenario_digest": "0" * 64, "seed": 1,
        "plan": {"load": "open", "n_arrivals": len(requests.batch), "sha256": "0" * 64,
                 "n_by_phase": {p["name"]: int(n) for p, n in zip(phases, n_by_phase, strict=True)}},
        "versions": {"squall": "0.1.0", "python": "3.11"}, "started_ns": START_NS - 5 * S, "start_ns": START_NS,
        "phases": phases,
        "nodes": {
            "node-0": {**node, "clock_error_ns": 0, "gpus": []},
            **{f"node-{i + 1}": {**node, "clock_error_ns": 20 * US, "gpus": ["NVIDIA H200"]}
               for i in range(N_SERVERS)},
        },
        "servers": {
            f"server-{i}": {"node": f"node-{i + 1}", "model": "seqlen_head", "version": "1", "source": "made up",
                            "server_version": "2.51.0", "batch_record": True}
            for i in range(N_SERVERS)
        },
        "workers": [{"worker": w, "node": "node-0", "n_planned": len(requests.batch[w::N_WORKERS])}
                    for w in range(N_WORKERS)],
        "collectors": dict.fromkeys(("batches", "triton", "host", "nsys", "nvml"), on),
    }  # fmt: skip


@dataclass(frozen=True)
class _Writer:
    store: RunStore
    made: Batches
    phases: list[dict[str, Any]]

    def requests(self, requests: Requests) -> None:
        """By worker, in order of their ends."""
        order = np.argsort(requests.id_of)
        for worker in range(N_WORKERS):
            rows = order[worker::N_WORKERS]
            done = self._done(requests, rows)
            rows = rows[np.argsort(done)]
            for at in range(0, len(rows), REQUEST_ROWS):
                self._requests(requests, rows[at : at + REQUEST_ROWS], worker)

    def _done(self, requests: Requests, rows: Int64s) -> Int64s:
        batch = requests.batch[rows]
        reply = 100 * US + (noise(rows, 7) * 100 * US).astype(np.int64)
        return np.where(batch >= 0, self.made.end_ns[batch], requests.sent_ns[rows]) + reply

    def _requests(self, requests: Requests, rows: Int64s, worker: int) -> None:
        sent, done, batch = requests.sent_ns[rows], self._done(requests, rows), requests.batch[rows]
        scheduled = sent - requests.lag_ns[rows]
        is_ok = batch >= 0
        target = np.where(is_ok, batch // (self.made.n * PER_SERVER), rows % N_SERVERS)
        n_rows = _rows_of(rows)
        self._append("requests", scheduled, {
            "node": "node-0", "request_id": requests.id_of[rows], "worker": np.full(len(rows), worker),
            "target": texts(target, [f"server-{i}" for i in range(N_SERVERS)]), "request_kind": "seqlen_head",
            "scheduled_ns": scheduled, "sent_ns": sent, "first_byte_ns": done - 5 * US, "done_ns": done,
            "rows": n_rows, "request_bytes": 300 + 4096 * n_rows,
            "response_bytes": np.where(is_ok, 170 + 8 * n_rows, 90),
            "outcome": texts(is_ok, ["rejected", "ok"]), "detail": texts(is_ok, ["Exceeds maximum queue size", ""]),
        })  # fmt: skip

    def batches(self, requests: Requests) -> None:
        """By instance, in order of their starts."""
        for at in range(0, len(self.made.start_ns), EVENT_ROWS):
            rows = np.arange(at, min(at + EVENT_ROWS, len(self.made.start_ns)))
            ids = np.arange(self.made.offset[rows[0]], self.made.offset[rows[-1] + 1])
            offsets = self.made.offset[rows[0] : rows[-1] + 2] - self.made.offset[rows[0]]
            n_rows = np.add.reduceat(_rows_of(ids), offsets[:-1])
            lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(requests.id_of[ids]))
            self._append("batches", self.made.start_ns[rows], {
                **self._of_instances(rows // self.made.n), "model": "seqlen_head", "version": "1",
                "batch_id": rows % self.made.n, "start_ns": self.made.start_ns[rows], "end_ns": self.made.end_ns[rows],
                "rows": n_rows, "n_requests": self.made.n_requests[rows], "request_ids": lists,
                "n_foreign": np.zeros(len(rows), np.int64),
                "recorded_by": "model",
                **dict.fromkeys(("exec_start_ns", "exec_end_ns", "n_failed"), pa.nulls(len(rows), pa.int64())),
            })  # fmt: skip

    def samples(self, requests: Requests) -> None:
        """`triton_samples` and `gpu_samples` of every server, a row a tick."""
        ticks = np.arange(START_NS + TICK_NS, int(self.made.end_ns.max()) + 2 * TICK_NS, TICK_NS)
        for server in range(N_SERVERS):
            self._triton(requests, server, ticks)
            self._gpu(server, ticks)

    def _triton(self, requests: Requests, server: int, ticks: Int64s) -> None:
        own = slice(server * PER_SERVER * self.made.n, (server + 1) * PER_SERVER * self.made.n)
        first, end = self.made.offset[own.start], self.made.offset[own.stop]
        n, start_ns, end_ns = self.made.n_requests[own], self.made.start_ns[own], self.made.end_ns[own]
        wait = start_ns[requests.batch[first:end] - own.start] - requests.sent_ns[first:end]
        queue = np.add.reduceat(wait, self.made.offset[own] - first)
        queue -= n * (_NETWORK_NS // 2 + _INPUT_NS + _HANDOVER_NS // 2)
        tick = (end_ns - START_NS) // TICK_NS

        def sums(values: Int64s) -> Int64s:
            return np.bincount(tick, weights=values, minlength=len(ticks)).astype(np.int64)

        count = sums(n)
        columns = {
            "request_count": count, "inference_count": sums(np.add.reduceat(_rows_of(np.arange(first, end)),
                                                                           self.made.offset[own] - first)),
            "execution_count": np.bincount(tick, minlength=len(ticks)), "queue_ns": sums(queue),
            "compute_input_ns": count * _INPUT_NS, "compute_infer_ns": sums(n * (end_ns - start_ns + _HANDOVER_NS)),
            "compute_output_ns": count * _OUTPUT_NS,
        }  # fmt: skip
        zero = np.zeros(len(ticks), np.int64)
        success = columns["queue_ns"] + columns["compute_infer_ns"] + count * (_INPUT_NS + _OUTPUT_NS)
        empty = pa.array([[]] * len(ticks), pa.list_(pa.int64()))
        self._append("triton_samples", ticks - 1, {
            **columns, "node": f"node-{server + 1}", "server": f"server-{server}", "model": "seqlen_head",
            "version": "1", "t_ns": ticks, "interval_ns": zero + TICK_NS, "success_ns": success, "failure_count": zero,
            "batch_sizes": empty, "batch_counts": empty, "pending_count": zero, "is_reset": zero.astype(bool),
        })  # fmt: skip

    def _gpu(self, server: int, ticks: Int64s) -> None:
        u = noise(ticks, 8)
        self._append("gpu_samples", ticks - 1, {
            "node": f"node-{server + 1}", "gpu_uuid": f"GPU-{server}", "t_ns": ticks, "mig_instance": "",
            "interval_ns": np.full(len(ticks), TICK_NS), "read_ns": np.full(len(ticks), 400 * US),
            "util": 0.8 + 0.2 * u,
            "gpm_interval_ns": np.full(len(ticks), TICK_NS), "sm_util": 0.3 + 0.2 * u, "sm_occupancy": 0.2 + 0.1 * u,
            "tensor_util": 0.1 * u, "dram_util": 0.2 * u, "sm_clock_hz": np.full(len(ticks), 1.98e9),
            "throttle_reasons": np.zeros(len(ticks), np.int64),
        })  # fmt: skip

    def report(self, phase: RunPhase, server: int) -> None:
        """What nsys recorded of a server in a phase: events that start in it, in order of start."""
        made, n = self.made, self.made.n
        mean_ns = (int(made.end_ns[n - 1]) - START_NS) // n
        span_ns = mean_ns * EVENT_ROWS // KERNELS // PER_SERVER
        instances = range(server * PER_SERVER, (server + 1) * PER_SERVER)
        for t0 in range(phase.start_ns, phase.end_ns, span_ns):
            t1 = min(t0 + span_ns, phase.end_ns)
            edges = [
                i * n + np.searchsorted(made.start_ns[i * n : (i + 1) * n], (t0 - LONGEST_NS, t1 + MS))
                for i in instances
            ]
            rows = np.concatenate([np.arange(first, end) for first, end in edges])
            for table, columns in events(made, rows).items() if len(rows) else ():
                start = columns["start_ns"]
                kept = np.flatnonzero((start >= t0) & (start < t1))
                kept = kept[np.argsort(start[kept], kind="stable")]
                self._events(table, {name: values[kept] for name, values in columns.items()})

    def _events(self, table: str, columns: dict[str, Any]) -> None:
        own = self._of_instances(columns["row"] // self.made.n)
        self._append(table, columns["start_ns"], own | described(table, self.made, columns))

    def _of_instances(self, instance: Int64s) -> dict[str, Any]:
        places = range(N_INSTANCES)
        return {
            "node": texts(instance, [f"node-{i // PER_SERVER + 1}" for i in places]),
            "server": texts(instance, [f"server-{i // PER_SERVER}" for i in places]),
            "instance": texts(instance, [f"seqlen_head_{i % PER_SERVER}" for i in places]),
            "instance_device": np.zeros(len(instance), np.int64),
        }

    def _append(self, table: str, phased_by: Int64s, columns: Mapping[str, Any]) -> None:
        n = len(phased_by)
        schema = arrow_schema(table)
        phase = phase_of(pa.array(phased_by), phase_spans(read_manifest({"phases": self.phases})))
        given = {**columns, "run": self.store.run, "phase": phase}
        arrays = [_array(given.get(field.name), field.type, n) for field in schema]
        if n:
            self.store.append(table, pa.table(arrays, names=schema.names))


def _rows_of(requests: Int64s) -> Int64s:
    return 1 + (noise(requests, 12) * 4).astype(np.int64)


def _array(values: Any, type_: pa.DataType, n_rows: int) -> pa.Array:
    """`values` as a column: one text for all rows, none for null."""
    if values is None:
        return pa.nulls(n_rows, type_)
    if isinstance(values, str):
        return texts(np.zeros(n_rows), (values,))
    return values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)


def main(arguments: list[str]) -> None:
    """Writes a run and prints where."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.big_runs")
    parser.add_argument("parent", type=Path)
    parser.add_argument(
        "--scale", type=float, default=0.01, help="1 is 10 million requests, 50 million kernels"
    )
    options = parser.parse_args(arguments)
    sys.stdout.write(f"{write_big_run(options.parent, options.scale).run_dir}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
