"""A made-up run that is consistent in itself: a small queue with batches, seen by every collector.

Arrivals are dealt to two workers, one model instance takes up to 16 waiting requests at a time, some
requests are rejected or time out. Counts agree by construction, so every identity and check holds until a
test breaks one.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from squall.analysis.join.join import write_joined
from squall.analysis.metrics.windows import write_windows
from squall.analysis.requests.requests import Requests, is_open_load
from squall.analysis.storage.manifest import Manifest, read_manifest
from squall.analysis.storage.schema import NO_DEVICE, arrow_schema
from squall.analysis.storage.sealed import CheckResult, Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.verdict.run_view import RunView, Samples
from squall.analysis.verdict.validity import judge, judge_run

START_NS = 1_795_250_252_000_000_000
S = 1_000_000_000
MS = 1_000_000
PHASES = (("warmup", "warmup", 0, 2), ("burst", "measure", 2, 14), ("drain", "drain", 14, 15))
Columns = dict[str, list[Any]]


@dataclass
class SyntheticRun:
    """Columns of each table, to be broken by a test before `write`."""

    manifest: dict[str, Any]
    tables: dict[str, Columns]
    derived: bool = True
    seal: bool = True
    omit: set[str] = field(default_factory=set)

    @property
    def stated(self) -> Manifest:
        """`manifest`, which tests break as JSON, as it is read."""
        return read_manifest(self.manifest)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Of a table, without columns that the run has not."""
        columns = {name: values for name, values in self.tables[table].items() if values}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def keep(self, table: str, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        """Leaves those rows of a table alone."""
        rows = [row for row in self.rows(table) if is_kept(row)]
        self.tables[table] = {name: [row[name] for row in rows if name in row] for name in self.tables[table]}

    def set(self, table: str, column: str, value: Callable[[dict[str, Any]], Any]) -> None:
        """Makes a column of the rows as they are."""
        self.tables[table][column] = [value(row) for row in self.rows(table)]

    def write(self, parent: Path) -> RunStore:
        """The run as a run directory under `parent`."""
        store = RunStore.create(parent, "synthetic", START_NS, self.stated)
        for table, columns in self.tables.items():
            if table not in self.omit:
                store.append(table, as_table(table, {**columns, "run": [store.run] * len(columns["phase"])}))
        store.flush()
        if self.derived:
            write_joined(store)
            write_windows(store)
        if self.seal:
            store.seal(judge_run(store))
        return store


def as_table(table: str, columns: Columns) -> pa.Table:
    """`columns` as `table`, in the order of the schema, text plain."""
    wanted = arrow_schema(table)
    arrays = []
    for schema_field in wanted:
        is_text = pa.types.is_dictionary(schema_field.type)
        n_rows = len(columns["phase"])
        lacked = NO_DEVICE if schema_field.name == "instance_device" else None
        values = columns.get(schema_field.name) or [lacked] * n_rows  # of what the made-up run has not
        arrays.append(pa.array(values, pa.string() if is_text else schema_field.type))
    return pa.table(arrays, names=wanted.names)


def synthesise(
    seed: int = 1, rate_hz: float = 200.0, n_nodes: int = 1, slower: Sequence[float] = ()
) -> SyntheticRun:
    """A run of 15 s, the caller's own: 2 s warm-up, 12 s measured with a burst in the middle, 1 s drain.

    `slower`: by how much a batch takes longer that begins in each second of the run; 1 behind the last.
    """
    return _own(_open_run(seed, rate_hz, n_nodes, tuple(slower)))


SLOWER_NS = 3 * MS
"""By how much the second of two servers answers later than the first."""


def synthesise_two_servers(seed: int = 1, rate_hz: float = 200.0) -> SyntheticRun:
    """The open run twice at once: each request has a twin of the same instants for `server-1`, which has all that
    `server-0` has, and answers `SLOWER_NS` later."""
    run = synthesise(seed, rate_hz)
    _multiply(run, [("server-0", MODEL), ("server-1", MODEL)])
    servers = run.manifest["servers"]
    servers["server-1"] = dict(servers["server-0"])
    return run


MODEL, OTHER = "seqlen_head", "linear_head"
"""Models of the made-up runs; those of one have the first alone."""
MIXED = (("server-0", MODEL), ("server-0", OTHER), ("server-1", OTHER))
"""Server and model of each request of a triplet; the second answers `SLOWER_NS` later than the first, the third twice
that."""


def synthesise_two_models(
    seed: int = 1, places: Sequence[tuple[str, str]] = MIXED, rate_hz: float = 60.0
) -> SyntheticRun:
    """The open run once for each of `places` at once: each request has copies of the same instants that ask the other
    servers and models. The second model is on both servers, the first on one alone."""
    run = synthesise(seed, rate_hz)
    _multiply(run, places)
    manifest = run.manifest
    one = manifest["servers"].pop("server-0")
    scenario = manifest["scenario"]
    names = list(dict.fromkeys(model for _, model in places))
    scenario["models"] = [
        {**scenario["model"], "name": name, "share": sum(model == name for _, model in places)}
        for name in names
    ]
    del scenario["model"]
    for server in dict.fromkeys(server for server, _ in places):
        first, *others = [model for at, model in places if at == server]
        more = [{"model": model, "version": "1", "steps": [], "batch_record": True} for model in others]
        manifest["servers"][server] = {**one, "model": first, "others": more}
    return run


def _multiply(run: SyntheticRun, places: Sequence[tuple[str, str]]) -> None:
    for name in ("requests", "batches", "triton_samples"):
        run.tables[name] = _copies(name, run.tables[name], places)
    plan = run.manifest["plan"]
    plan["n_arrivals"] *= len(places)
    plan["n_by_phase"] = {phase: len(places) * n for phase, n in plan["n_by_phase"].items()}


def _copies(table: str, columns: Columns, places: Sequence[tuple[str, str]]) -> Columns:
    """Each row and, behind it, its copies, one for each of `places`: server and model."""
    n = len(places)
    changes: dict[str, Any] = {
        "server": lambda _, copy: places[copy][0],
        "model": lambda _, copy: places[copy][1],
        "instance": lambda _, copy: f"{places[copy][1]}_0_0",
    }
    if table == "requests":
        changes = {
            "request_id": lambda one, copy: n * one + copy,
            "target": lambda _, copy: places[copy][0],
            "request_kind": lambda _, copy: places[copy][1],
            "first_byte_ns": lambda one, copy: one + copy * SLOWER_NS,
            "done_ns": lambda one, copy: one + copy * SLOWER_NS,
        }
    if table == "batches":
        changes["request_ids"] = lambda ids, copy: [n * one + copy for one in ids]
    return {
        name: [changes[name](one, copy) if name in changes else one for one in values for copy in range(n)]
        for name, values in columns.items()
    }


def _own(made: bytes) -> SyntheticRun:
    """A copy, for a caller that may break it: a twentieth of what it takes to make the run up again."""
    run: SyntheticRun = pickle.loads(made)
    return run


@cache
def _open_run(seed: int, rate_hz: float, n_nodes: int, slower: tuple[float, ...]) -> bytes:
    rng = np.random.default_rng(seed)
    base = np.sort(rng.uniform(0, 14 * S, rng.poisson(14 * rate_hz)))
    extra = rng.uniform(7 * S, 8 * S, rng.poisson(3 * rate_hz))
    scheduled = START_NS + np.sort(np.concatenate([base, extra]).astype(np.int64))
    requests, batches = _serve(rng, scheduled, n_nodes, slower)
    tables = {
        "requests": requests,
        "batches": batches,
        "triton_samples": _triton(requests, batches, n_nodes),
        "host_samples": _host(rng, n_nodes),
        "worker_samples": _workers(rng, requests),
    }
    return pickle.dumps(SyntheticRun(_manifest(scheduled, n_nodes), tables))


N_USERS = 20
THINK_NS = 40 * MS


def synthesise_closed(seed: int = 1, overhead_ns: int = 50_000) -> SyntheticRun:
    """A closed-loop run of the same phases: 20 users who think 40 ms, exponentially, from the first instant on.

    Each request is a batch of its own; every user is late by `overhead_ns` after each think time.
    """
    return _own(_closed_run(seed, overhead_ns))


@cache
def _closed_run(seed: int, overhead_ns: int) -> bytes:
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for user in range(N_USERS):
        t, index = START_NS, 0
        while t < START_NS + 14 * S:
            done = t + 2 * MS + int(rng.exponential(8 * MS))
            rows.append(
                {"request_id": index * N_USERS + user, "worker": user % 2, "sent_ns": t, "done_ns": done}
            )
            t, index = done + int(rng.exponential(THINK_NS)) + overhead_ns, index + 1
            if (measured := START_NS + 2 * S) > rows[-1]["sent_ns"] and t >= measured:
                t = max(done, measured)  # the next phase begins: nobody thinks before its first request
    batches: Columns = {name: [] for name in arrow_schema("batches").names if name != "run"}
    for row in rows:
        _add_batch(batches, row["sent_ns"] + MS, row["done_ns"] - MS // 2, 1, [row["request_id"]], 1)
    requests: Columns = {name: [row[name] for row in rows] for name in rows[0]}
    n = len(rows)
    same = {
        "node": "node-0", "target": "server-0", "request_kind": "seqlen_head", "scheduled_ns": None, "rows": 1,
        "request_bytes": 4396, "response_bytes": 208, "outcome": "ok", "detail": "",
    }  # fmt: skip
    requests |= {name: [value] * n for name, value in same.items()}
    requests["phase"] = [phase_at(t) for t in requests["sent_ns"]]
    requests["first_byte_ns"] = [t - 10_000 for t in requests["done_ns"]]
    by_id = {
        name: dict(zip(requests["request_id"], requests[name], strict=True)) for name in ("rows", "sent_ns")
    }
    tables = {
        "requests": requests,
        "batches": batches,
        "triton_samples": _triton(by_id, batches, 1),  # type: ignore[arg-type]  # looked up by request id
        "host_samples": _host(rng, 1),
        "worker_samples": _workers(rng, requests),
    }
    manifest = _manifest(np.array(requests["sent_ns"]), 1)
    manifest["plan"] |= {"load": "closed", "n_users": N_USERS}
    arrivals = {"kind": "closed", "users": N_USERS, "think": {"kind": "exponential", "mean": "40ms"}}
    manifest["scenario"]["phases"] = [{"name": name, "arrivals": arrivals} for name in ("warmup", "burst")]
    return pickle.dumps(SyntheticRun(manifest, tables))


def phase_at(t_ns: int) -> str:
    """Name of the phase that holds the instant; empty outside."""
    names = [name for name, _, a, b in PHASES if START_NS + a * S <= t_ns < START_NS + b * S]
    return names[0] if names else ""


def _serve(
    rng: np.random.Generator, scheduled: np.ndarray, n_nodes: int, slower: tuple[float, ...]
) -> tuple[Columns, Columns]:
    n = len(scheduled)
    sent = scheduled + rng.integers(20_000, 300_000, n)
    rows = rng.integers(1, 5, n)
    outcome = np.where(rng.uniform(size=n) < 0.004, "rejected", "ok")
    done = sent + 900_000
    batches: Columns = {name: [] for name in arrow_schema("batches").names if name != "run"}
    free, at, waiting = 0, 0, [int(i) for i in np.argsort(sent) if outcome[i] == "ok"]
    while at < len(waiting):
        start = max(free, int(sent[waiting[at]]) + 400_000)
        taken = [i for i in waiting[at : at + 16] if sent[i] + 300_000 <= start] or [waiting[at]]
        at += len(taken)
        n_rows = int(rows[taken].sum())
        took = 1_500_000 + 150_000 * n_rows + int(rng.integers(0, 500_000))
        second = (start - START_NS) // S
        free = start + round(took * (slower[second] if second < len(slower) else 1.0))
        done[taken] = free + rng.integers(200_000, 600_000, len(taken))
        _add_batch(batches, start, free, n_rows, taken, n_nodes)
    late = rng.choice(waiting, 3, replace=False)  # served, but given up by the client before
    outcome[late], done[late] = "timeout", sent[late] + 500_000
    detail = {"ok": "", "rejected": "Exceeds maximum queue size", "timeout": "no reply within 5s"}
    requests: Columns = {
        "phase": [phase_at(int(t)) for t in scheduled],
        "node": [f"node-{i % 2 % n_nodes}" for i in range(n)],
        "request_id": list(range(n)),
        "worker": [i % 2 for i in range(n)],
        "target": ["server-0"] * n,
        "request_kind": ["seqlen_head"] * n,
        "scheduled_ns": scheduled.tolist(),
        "sent_ns": sent.tolist(),
        "first_byte_ns": (done - 10_000).tolist(),
        "done_ns": done.tolist(),
        "rows": rows.tolist(),
        "request_bytes": (rows * 4096 + 300).tolist(),
        "response_bytes": (rows * 8 + 200).tolist(),
        "outcome": outcome.tolist(),
        "detail": [detail[word] for word in outcome],
    }
    return requests, batches


def _add_batch(batches: Columns, start: int, end: int, rows: int, ids: list[int], n_nodes: int) -> None:
    row = {
        "phase": phase_at(start),
        "node": f"node-{n_nodes - 1}",
        "server": "server-0",
        "model": "seqlen_head",
        "version": "1",
        "instance": "seqlen_head_0_0",
        "instance_device": NO_DEVICE,
        "batch_id": len(batches["phase"]),
        "start_ns": start,
        "end_ns": end,
        "rows": rows,
        "n_requests": len(ids),
        "request_ids": ids,
        "n_foreign": 0,
        "recorded_by": "model",
        "exec_start_ns": None,
        "exec_end_ns": None,
        "n_failed": None,
    }
    for name, value in row.items():
        batches[name].append(value)


def _triton(requests: Columns, batches: Columns, n_nodes: int) -> Columns:
    columns: Columns = {name: [] for name in arrow_schema("triton_samples").names if name != "run"}
    starts = np.array(batches["start_ns"])
    for second in range(1, 17):
        t = START_NS + second * S
        own = np.flatnonzero((starts >= t - S) & (starts < t))
        ids = [i for batch in own for i in batches["request_ids"][batch]]
        sizes, counts = np.unique([batches["rows"][b] for b in own], return_counts=True)
        queue = sum(int(starts[b]) * len(batches["request_ids"][b]) for b in own)
        queue -= sum(requests["sent_ns"][i] + 250_000 for i in ids)
        infer = sum((batches["end_ns"][b] - int(starts[b])) * len(batches["request_ids"][b]) for b in own)
        row = {
            "phase": phase_at(t - S), "node": f"node-{n_nodes - 1}", "server": "server-0",
            "model": "seqlen_head", "version": "1", "t_ns": t, "interval_ns": S,
            "request_count": len(ids), "failure_count": 0,
            "inference_count": sum(requests["rows"][i] for i in ids), "execution_count": len(own),
            "queue_ns": queue, "compute_input_ns": 60_000 * len(ids), "compute_infer_ns": infer,
            "compute_output_ns": 40_000 * len(ids), "success_ns": queue + infer + 100_000 * len(ids),
            "batch_sizes": sizes.astype(int).tolist(), "batch_counts": counts.tolist(), "pending_count": 2,
            "is_reset": False, "cache_hit_count": 0,
        }  # fmt: skip
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _host(rng: np.random.Generator, n_nodes: int) -> Columns:
    columns: Columns = {name: [] for name in arrow_schema("host_samples").names if name != "run"}
    for second in range(1, 16):
        for node in range(n_nodes):
            t = START_NS + second * S
            user, steal = float(rng.uniform(0.2, 0.5)), float(rng.uniform(0, 0.03))
            row = {
                "phase": phase_at(t - S), "node": f"node-{node}", "t_ns": t, "interval_ns": S,
                "cpu_user": user, "cpu_system": 0.1, "cpu_iowait": 0.01, "cpu_steal": steal,
                "cpu_idle": 1 - user - 0.11 - steal, "n_cores": 8, "run_queue": int(rng.integers(0, 9)),
                "context_switches": 20_000, "network_drops": 0, "memory_available_bytes": 8 * 1024**3,
                "server_cpu_ns": int(2.1 * S),
            }  # fmt: skip
            for name, value in row.items():
                columns[name].append(value)
    return columns


def _workers(rng: np.random.Generator, requests: Columns) -> Columns:
    columns: Columns = {name: [] for name in arrow_schema("worker_samples").names if name != "run"}
    worker_of = np.array(requests["worker"])
    due = "sent_ns" if None in requests["scheduled_ns"] else "scheduled_ns"
    instants = {name: np.array(requests[name]) for name in (due, "sent_ns", "done_ns")}
    for second in range(1, 16):
        for worker in (0, 1):
            t = START_NS + second * S
            n = {
                name: int(((values >= t - S) & (values < t) & (worker_of == worker)).sum())
                for name, values in instants.items()
            }
            row = {
                "phase": phase_at(t - S), "node": "node-0", "worker": worker, "t_ns": t, "interval_ns": S,
                "n_due": n[due], "n_sent": n["sent_ns"], "n_done": n["done_ns"], "n_backlog": 0,
                "n_in_flight": 3, "n_connections": 16, "lag_max_ns": 300_000,
                "loop_lag_ns": int(rng.integers(30_000, 400_000)), "cpu_ns": int(rng.uniform(0.1, 0.3) * S),
                "gc_count": 0, "gc_pause_ns": 0, "n_socket_errors": 0, "n_write_pauses": 0,
                "n_held": 0, "spin_ns": 0,
            }  # fmt: skip
            for name, value in row.items():
                columns[name].append(value)
    return columns


def _manifest(scheduled: np.ndarray, n_nodes: int) -> dict[str, Any]:
    phases = [
        {"name": name, "kind": kind, "start_ns": START_NS + a * S, "end_ns": START_NS + b * S}
        for name, kind, a, b in PHASES
    ]
    by_phase = {
        p["name"]: int(((scheduled >= p["start_ns"]) & (scheduled < p["end_ns"])).sum()) for p in phases
    }
    node = {
        "clock_offset_ns": 0,
        "n_cores": 8,
        "cpu_model": "made-up CPU",
        "memory_bytes": 16 * 1024**3,
        "gpus": [],
    }
    nodes = {f"node-{i}": {**node, "clock_error_ns": 20_000 * i} for i in range(n_nodes)}
    return {
        "scenario": {"name": "synthetic", "seed": 1, "model": {"name": "seqlen_head", "instances": 1}},
        "scenario_digest": "0" * 64,
        "seed": 1,
        "plan": {"n_arrivals": len(scheduled), "sha256": "0" * 64, "n_by_phase": by_phase},
        "versions": {"squall": "0.1.0", "python": "3.11"},
        "started_ns": START_NS - 5 * S,
        "start_ns": START_NS,
        "phases": phases,
        "nodes": nodes,
        "servers": {
            "server-0": {
                "node": f"node-{n_nodes - 1}",
                "model": "seqlen_head",
                "version": "1",
                "source": "embedded",
                "server_version": "2.51.0",
                "batch_record": True,
            }
        },
        "workers": [{"worker": w, "node": f"node-{w % n_nodes}", "n_planned": 0} for w in (0, 1)],
        "collectors": {
            "batches": {"status": "on", "reason": "", "mend": ""},
            "triton": {"status": "on", "reason": "", "mend": ""},
            "host": {"status": "on", "reason": "", "mend": ""},
            "nsys": {"status": "missing", "reason": "no nsys on the PATH", "mend": "install Nsight Systems"},
            "nvml": {"status": "missing", "reason": "no NVIDIA driver", "mend": "run on a GPU node"},
        },
    }


def verdict_of(run: SyntheticRun) -> Verdict:
    """What is said of its tables, without a run directory."""
    tables = {
        name: as_table(name, {**columns, "run": ["r"] * len(columns["phase"])})
        for name, columns in run.tables.items()
        if name not in run.omit
    }
    workers, hosts, cpus = (tables.get(name) for name in ("worker_samples", "host_samples", "cpu_samples"))
    samples = Samples(workers, hosts, cpus)
    requests = Requests.from_table(tables["requests"], is_open_load(run.stated))
    return judge(RunView(requests, samples, run.stated))


def check_of(verdict: Verdict, name: str) -> CheckResult:
    """The result of a check that the run has."""
    return next(check for check in verdict.checks if check.name == name)
