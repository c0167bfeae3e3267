"""Synthetic runs whose truth is known: what was sent, what served it, what the GPU did, and what was lost on the way.

`plant(Shape(...))` draws the truth from a seed and writes it down as tables, as the collectors would have seen it:
each node's instants carry the error of its clock, and what `features` lose is not there. `Planted.write` makes the run
directory. `shapes()` is the Hypothesis strategy: it draws sizes, servers, features and the seed of everything else.

Styles of a server: `record` (batch record, ranges), `traced` (that and Triton's trace), `bare` (only the trace, no
ranges), `unranged` (batch record, no ranges), `blind` (neither: only its GPU is seen).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.schema import NO_DEVICE, TABLES, arrow_schema
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from tests.planted_batch import KERNELS, Call, Op, Work, draw_work

START_NS = 1_795_250_252_000_000_000
S, MS, US = 1_000_000_000, 1_000_000, 1_000

STYLES = ("record", "traced", "bare", "unranged", "blind")
FEATURES = (
    "blocks", "streams", "graphs", "overrun", "os_waits",  # what a batch does
    "foreign", "duplicates", "other_process", "two_gpus", "alike_names",  # who else is there
    "clock", "closed_loop", "partial_profile", "partial_traces",
    "failures", "lost_batches", "lost_ranges", "open_ranges", "lost_launches", "lost_samples", "broken_events",
)  # fmt: skip
Row = dict[str, Any]
UNTIED: Row = {"instance": "", "instance_device": NO_DEVICE, "batch_id": None}
"""What an event says of the batch that it belongs to, where it belongs to none."""


@dataclass(frozen=True)
class Shape:
    """Sizes and kinds of a run. `span_ns` is the time in which requests are scheduled."""

    seed: int = 1
    n_requests: int = 30
    servers: tuple[str, ...] = ("record",)
    n_instances: int = 1
    n_nodes: int = 1
    most_runs: int = 4
    most_batch: int = 4
    span_ns: int = 600 * MS
    features: frozenset[str] = frozenset(FEATURES)


def shapes(most_requests: int = 24) -> st.SearchStrategy[Shape]:
    """Small shapes; a failing one shrinks to few requests, few features and the styles that matter."""
    return st.builds(
        Shape,
        seed=st.integers(0, 2**32 - 1),
        n_requests=st.integers(1, most_requests),
        servers=st.lists(st.sampled_from(STYLES), min_size=1, max_size=3).map(tuple),
        n_instances=st.integers(1, 3),
        n_nodes=st.integers(1, 3),
        most_runs=st.integers(0, 4),
        most_batch=st.integers(1, 5),
        span_ns=st.sampled_from((20 * MS, 150 * MS, 600 * MS)),
        features=st.sets(st.sampled_from(FEATURES)).map(frozenset),
    )


@dataclass(frozen=True)
class Instance:
    """A model instance and where it runs. `device`: of its kernels; `instance_device`: what it says of itself."""

    name: str
    process: int
    thread: int
    gpu_uuid: str
    device: int
    instance_device: int


@dataclass(frozen=True)
class Server:
    """A server under test, with one model."""

    name: str
    style: str
    node: str
    model: str
    instances: tuple[Instance, ...]

    @property
    def has_record(self) -> bool:
        return self.style in ("record", "traced", "unranged")

    @property
    def has_traces(self) -> bool:
        return self.style in ("traced", "bare")

    @property
    def has_ranges(self) -> bool:
        return self.style in ("record", "traced")


@dataclass(eq=False)
class PlantedRequest:
    """One arrival, in true time; `batch` is None where none served it."""

    request_id: int
    phase: str
    node: str
    worker: int
    server: Server
    scheduled_ns: int
    sent_ns: int | None
    done_ns: int | None
    rows: int
    outcome: str = "ok"
    queue_start_ns: int = 0
    batch: PlantedBatch | None = None


@dataclass(eq=False)
class PlantedBatch:
    """One execution, in true time: left the queue, inputs gathered, work, answered, outputs scattered."""

    server: Server
    instance: Instance
    batch_id: int
    compute_start_ns: int
    input_end_ns: int
    work: Work
    output_start_ns: int
    compute_end_ns: int
    requests: list[PlantedRequest]
    n_foreign: int = 0
    foreign_rows: int = 0
    also_named: list[int] = field(default_factory=list)
    is_recorded: bool = True
    is_profiled: bool = False
    has_range: bool = True
    is_open: bool = False
    """Its range had not ended when the recording did: its calls and operations are there, the range is not."""
    is_partial: bool = False
    """Triton's trace lacks the instants about the model's own time."""

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.requests) + self.foreign_rows

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.server.name, self.instance.name, self.instance.instance_device, self.batch_id


@dataclass
class Planted:
    """A run and its truth."""

    shape: Shape
    manifest: dict[str, Any]
    servers: list[Server]
    requests: list[PlantedRequest]
    batches: list[PlantedBatch]
    clock_ns: dict[str, int]
    """Error of each node's instants in the tables."""
    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def write(self, parent: Path) -> RunStore:
        """A sealed run directory of the tables that have rows, and of `requests`."""
        store = RunStore.create(parent, "planted", START_NS, read_manifest(self.manifest))
        for name, rows in {"requests": [], **self.rows}.items():
            if rows or name == "requests":
                store.append(name, as_table(name, [{**row, "run": store.run} for row in rows]))
        store.seal(Verdict(status="VALID"))
        return store

    def phase_at(self, t_ns: int) -> str:
        """Name of the phase that holds the instant; empty outside."""
        return next((p["name"] for p in self.manifest["phases"] if p["start_ns"] <= t_ns < p["end_ns"]), "")

    def add(self, table: str, node: str, row: Row) -> None:
        """Adds a row: its instants with the error of the node's clock, and what it leaves out empty."""
        for name in TABLES[table].instants:
            if row.get(name) is not None:
                row[name] += self.clock_ns[node]
        first = "scheduled_ns" if table == "requests" else "start_ns"
        instant = row.get(first) or row.get("compute_start_ns") or row.get("sent_ns")
        if instant is None and "t_ns" in row:
            instant = row["t_ns"] - row["interval_ns"]
        row = {"phase": self.phase_at(instant or 0), "node": node, **row}
        self.rows[table].append(row)


_EMPTY = {"text": "", "ratio": 0.0, "claim": False, "Hz": 0.0}


def as_table(table: str, rows: list[Row]) -> pa.Table:
    """`rows` as `table`; what a row lacks is null, or empty, 0 or no device where the schema allows no null."""
    arrays = []
    for column, wanted in zip(TABLES[table].columns, arrow_schema(table), strict=True):
        default = (
            None if column.nullable else [] if pa.types.is_list(column.type) else _EMPTY.get(column.unit, 0)
        )
        default = NO_DEVICE if column.name == "instance_device" and not column.nullable else default
        type_ = pa.string() if pa.types.is_dictionary(wanted.type) else wanted.type
        arrays.append(pa.array([row.get(column.name, default) for row in rows], type_))
    return pa.table(arrays, names=arrow_schema(table).names)


def plant(shape: Shape) -> Planted:
    """The run of `shape`; the same shape gives the same run."""
    rng = Random(shape.seed)
    nodes = [f"node-{i}" for i in range(shape.n_nodes)]
    servers = _servers(shape, nodes)
    errors = {node: rng.randrange(0, 40 * US) if "clock" in shape.features else 0 for node in nodes}
    clock = {node: rng.randint(-errors[node], errors[node]) for node in nodes}
    run = Planted(shape, _manifest(shape, servers, errors), servers, [], [], clock)
    _draw_requests(rng, run)
    for server in servers:
        _serve(rng, run, server)
    _fail(rng, run)
    _lose(rng, run)
    _write_load(run)
    for server in servers:
        _write_server(rng, run, server)
        _write_report(rng, run, server)
    _write_gpus(rng, run)
    return run


def _servers(shape: Shape, nodes: list[str]) -> list[Server]:
    """On the nodes behind the first, in turn. Nodes number processes alike, so that ids repeat between them.

    With `alike_names` every server names its instances alike, and those of its two GPUs too, as Triton 2.51 does.
    """
    is_alike = "alike_names" in shape.features
    servers = []
    n_on: dict[str, int] = defaultdict(int)
    for number, style in enumerate(shape.servers):
        node = nodes[-1 - number % max(1, len(nodes) - 1)]
        instances = []
        for place in range(shape.n_instances):
            gpu = place % 2 if is_alike or "two_gpus" in shape.features else 0
            name = f"m_0_{place // 2}" if is_alike else f"m{number}_0_{place}"
            instance_device = gpu if is_alike or style != "unranged" else NO_DEVICE
            # a server without ranges is one process; Python models have a process for each instance
            process = 500 + 10 * n_on[node] + (place if style in ("record", "traced") else 0)
            thread = 900 + 10 * n_on[node] + place
            instances.append(Instance(name, process, thread, f"GPU-{node}-{gpu}", gpu, instance_device))
        n_on[node] += 1
        servers.append(Server(f"server-{number}", style, node, f"model{number % 2}", tuple(instances)))
    return servers


def _manifest(shape: Shape, servers: list[Server], errors: dict[str, int]) -> dict[str, Any]:
    cuts = [
        (0, "warmup", "warmup"),
        (15, "steady", "measure"),
        (55, "burst", "measure"),
        (90, "drain", "drain"),
    ]
    ends = [cut[0] for cut in cuts[1:]] + [200]
    at = [START_NS + shape.span_ns * percent // 100 for percent in (*(cut[0] for cut in cuts), ends[-1])]
    phases = [
        {"name": name, "kind": kind, "start_ns": a, "end_ns": b}
        for (_, name, kind), a, b in zip(cuts, at, at[1:], strict=False)
    ]
    profiled = ["steady"] if "partial_profile" in shape.features else ["steady", "burst"]
    no_reason = {"profiled_after_ns": -MS, "reason": "", "start_s": 0.1, "stop_s": 1.0, "record_cpu_s": 0.0}
    gpus = {
        node: sorted({i.gpu_uuid for s in servers if s.node == node for i in s.instances}) for node in errors
    }
    return {
        "scenario": {"name": "planted", "seed": shape.seed},
        "scenario_digest": "0" * 64,
        "seed": shape.seed,
        "plan": {"n_arrivals": shape.n_requests, "load": "closed" if "closed_loop" in shape.features else "open"},
        "start_ns": START_NS,
        "phases": phases,
        "profiled_phases": {
            one: {"is_profiled": one in profiled, **no_reason} for one in ("steady", "burst")
        },
        "nodes": {
            node: {"clock_offset_ns": 0, "clock_error_ns": error, "n_cores": 8,
                   "gpus": ["made-up GPU" for _ in gpus[node]]}
            for node, error in errors.items()
        },
        "servers": {
            one.name: {"node": one.node, "model": one.model, "version": "1", "batch_record": one.has_record}
            for one in servers
        },
        "workers": [{"worker": number, "node": node} for number, node in enumerate(errors)],
        "collectors": {},
    }  # fmt: skip


def _draw_requests(rng: Random, run: Planted) -> None:
    """The schedule, with bursts; each request's send lag, way to the server and size."""
    shape = run.shape
    nodes = list(run.clock_ns)
    instants = sorted(
        rng.choice((0, rng.randrange(shape.span_ns), rng.randrange(shape.span_ns))) if i % 3 else
        shape.span_ns // 3 + rng.randrange(2 * MS)
        for i in range(shape.n_requests)
    )  # fmt: skip
    for number, instant in enumerate(instants):
        worker = rng.randrange(len(nodes))
        scheduled = START_NS + instant
        sent = scheduled + rng.choice((0, rng.randrange(200 * US)))
        one = PlantedRequest(
            number, run.phase_at(scheduled), nodes[worker], worker, rng.choice(run.servers), scheduled, sent, sent,
            rng.randint(1, 4),
        )  # fmt: skip
        one.queue_start_ns = sent + rng.randrange(300 * US)
        run.requests.append(one)


def _serve(rng: Random, run: Planted, server: Server) -> None:
    """Requests wait in one queue; an instance that is free takes what waits, up to most_batch, after a delay."""
    waiting = sorted(
        (one for one in run.requests if one.server is server), key=lambda one: one.queue_start_ns
    )
    free_ns = dict.fromkeys(server.instances, 0)
    n_done = dict.fromkeys(server.instances, 0)
    while waiting:
        instance = min(free_ns, key=lambda one: free_ns[one])
        start_ns = max(free_ns[instance], waiting[0].queue_start_ns) + rng.choice((0, rng.randrange(50 * US)))
        taken = [one for one in waiting if one.queue_start_ns <= start_ns][: run.shape.most_batch]
        waiting = [one for one in waiting if one not in taken]
        batch = _execute(rng, run.shape, server, instance, n_done[instance], start_ns, taken)
        run.batches.append(batch)
        n_done[instance] += 1
        free_ns[instance] = batch.compute_end_ns + 1 + rng.choice((0, rng.randrange(100 * US)))
        for one in taken:
            one.batch = batch
            one.done_ns = batch.compute_end_ns + rng.randrange(300 * US)


def _execute(
    rng: Random, shape: Shape, server: Server, instance: Instance, batch_id: int, start_ns: int,
    requests: list[PlantedRequest],
) -> PlantedBatch:  # fmt: skip
    """The core gathers inputs, hands over to the model, which works, hands back; the core scatters outputs."""
    input_end = start_ns + rng.randrange(40 * US)
    work = draw_work(rng, shape.features, input_end + rng.randrange(60 * US), shape.most_runs)
    output_start = work.end_ns + rng.randrange(60 * US)
    end = output_start + rng.randrange(40 * US)
    batch = PlantedBatch(server, instance, batch_id, start_ns, input_end, work, output_start, end, requests)
    if "foreign" in shape.features and rng.random() < 0.3:
        batch.n_foreign = rng.randint(1, 2)
        batch.foreign_rows = batch.n_foreign * rng.randint(1, 3)
    return batch


def _fail(rng: Random, run: Planted) -> None:
    """Some requests are never sent, refused, or given up while they are served."""
    for one in run.requests if "failures" in run.shape.features else ():
        if rng.random() < 0.15 and one.batch is not None and len(one.batch.requests) > 1:
            one.batch.requests.remove(one)
            one.batch = None
            one.outcome = rng.choice(("unsent", "rejected", "transport_error"))
            one.done_ns = None if one.outcome == "unsent" else (one.sent_ns or 0) + rng.randrange(MS)
            one.sent_ns = None if one.outcome == "unsent" else one.sent_ns
        elif rng.random() < 0.1:
            one.outcome = rng.choice(("timeout", "server_error", "bad_reply"))
            if one.outcome == "timeout":
                one.done_ns = (one.sent_ns or 0) + rng.randrange(MS)


def _lose(rng: Random, run: Planted) -> None:
    """Which batches the record lacks, which the report lacks, and which ids are named twice."""
    profiled = {name for name, one in run.manifest["profiled_phases"].items() if one["is_profiled"]}
    features = run.shape.features
    for batch in run.batches:
        error_ns = run.clock_ns[batch.server.node]
        batch.is_profiled = run.phase_at(batch.work.start_ns + error_ns) in profiled
        batch.is_recorded = not ("lost_batches" in features and rng.random() < 0.15)
        batch.has_range = not ("lost_ranges" in features and rng.random() < 0.15)
        batch.is_open = "open_ranges" in features and rng.random() < 0.15
    for server in run.servers if "duplicates" in features else ():
        own = [one for one in run.batches if one.server is server]
        if len(own) > 1 and rng.random() < 0.6:
            first, later = own[0], rng.choice(own[1:])
            if first.is_recorded and first.work.start_ns < later.work.start_ns and server.has_record:
                later.also_named.append(first.requests[0].request_id)


def _write_load(run: Planted) -> None:
    is_open = "closed_loop" not in run.shape.features
    for one in run.requests:
        if not is_open and one.sent_ns is None:  # a user's request exists only once it is sent
            one.sent_ns, one.done_ns, one.outcome = one.scheduled_ns, one.scheduled_ns + MS, "transport_error"
        run.add("requests", one.node, {
            "request_id": one.request_id, "worker": one.worker, "target": one.server.name,
            "request_kind": one.server.model, "scheduled_ns": one.scheduled_ns if is_open else None,
            "sent_ns": one.sent_ns, "done_ns": one.done_ns, "rows": one.rows, "outcome": one.outcome,
            "first_byte_ns": one.done_ns,
        })  # fmt: skip


def _write_server(rng: Random, run: Planted, server: Server) -> None:
    own = [one for one in run.batches if one.server is server]
    for batch in own:
        if server.has_record and batch.is_recorded:
            ids = [one.request_id for one in batch.requests] + batch.also_named
            if batch.n_foreign and rng.random() < 0.5:
                ids.append(10_000 + batch.batch_id)  # an id that we did not plan
            run.add("batches", server.node, {
                "server": server.name, "model": server.model, "version": "1", "instance": batch.instance.name,
                "instance_device": batch.instance.instance_device, "batch_id": batch.batch_id,
                "start_ns": batch.work.start_ns, "end_ns": batch.work.end_ns, "rows": batch.rows,
                "n_requests": len(batch.requests) + batch.n_foreign, "request_ids": ids, "n_foreign": batch.n_foreign,
                "recorded_by": "model",
            })  # fmt: skip
        if server.has_traces:
            _write_traces(rng, run, batch)
    _write_statistics(run, server, own)


def _write_traces(rng: Random, run: Planted, batch: PlantedBatch) -> None:
    is_partial = batch.is_partial = "partial_traces" in run.shape.features and rng.random() < 0.2
    ids = [(one.request_id, one) for one in batch.requests] + [(None, None)] * batch.n_foreign
    for request_id, one in ids:
        run.add("triton_traces", batch.server.node, {
            "server": batch.server.name, "model": batch.server.model, "version": "1",
            "trace_id": len(run.rows["triton_traces"]), "request_id": request_id, "protocol": "http",
            "queue_start_ns": one.queue_start_ns if one else batch.compute_start_ns,
            "compute_start_ns": batch.compute_start_ns,
            "compute_input_end_ns": None if is_partial else batch.input_end_ns,
            "compute_output_start_ns": None if is_partial else batch.output_start_ns,
            "compute_end_ns": batch.compute_end_ns,
            "send_end_ns": batch.compute_end_ns + rng.randrange(20 * US) if rng.random() < 0.7 else None,
        })  # fmt: skip


def _write_statistics(run: Planted, server: Server, batches: list[PlantedBatch]) -> None:
    """Samples, of the requests whose batch ended in their interval; foreign ones did not wait."""
    step_ns = min(S, max(7 * MS, run.shape.span_ns // 20))
    last_ns = max([START_NS, *(one.compute_end_ns for one in batches)])
    for t_ns in range(START_NS + step_ns, last_ns + 2 * step_ns, step_ns):
        own = [one for one in batches if t_ns - step_ns <= one.compute_end_ns < t_ns]
        n = {id(one): len(one.requests) + one.n_foreign for one in own}
        spans = {
            "queue_ns": sum(b.compute_start_ns - r.queue_start_ns for b in own for r in b.requests),
            "compute_input_ns": sum(n[id(b)] * (b.input_end_ns - b.compute_start_ns) for b in own),
            "compute_infer_ns": sum(n[id(b)] * (b.output_start_ns - b.input_end_ns) for b in own),
            "compute_output_ns": sum(n[id(b)] * (b.compute_end_ns - b.output_start_ns) for b in own),
        }
        run.add("triton_samples", server.node, {
            "server": server.name, "model": server.model, "version": "1", "t_ns": t_ns, "interval_ns": step_ns,
            "request_count": sum(n.values()), "inference_count": sum(one.rows for one in own),
            "execution_count": len(own), **spans, "success_ns": sum(spans.values()),
        })  # fmt: skip


def _write_report(rng: Random, run: Planted, server: Server) -> None:
    """What nsys saw of the server's processes in the phases that it recorded."""
    next_id: dict[int, int] = defaultdict(lambda: 1)
    own = sorted((one for one in run.batches if one.server is server), key=lambda one: one.work.start_ns)
    for batch in own:
        process = batch.instance.process
        for call in batch.work.calls:
            call.correlation_id = next_id[process]
            next_id[process] += 1
        if batch.is_profiled:
            _write_batch(run, batch)
    if "other_process" in run.shape.features and any(one.is_profiled for one in own):
        _write_other_process(rng, run, server, [one for one in own if one.is_profiled])


def _write_batch(run: Planted, batch: PlantedBatch) -> None:
    server, instance, work = batch.server, batch.instance, batch.work
    is_tied = server.has_ranges and batch.has_range
    device = instance.instance_device
    own = {"instance": instance.name, "instance_device": device, "batch_id": batch.batch_id}
    tie: Row = own if is_tied else UNTIED
    place = {"server": server.name, "process": instance.process}
    on_thread = {**place, "thread": instance.thread, "thread_name": "stub"}
    if is_tied and not batch.is_open:
        first, last = work.range_ns
        name = (
            f"squall|{instance.name}|{'cpu' if device < 0 else f'gpu{device}'}|{batch.batch_id}|{first - 10}"
        )
        run.add("nvtx", server.node, {**on_thread, "start_ns": first, "end_ns": last, "name": name, **tie})
    for call in work.known_calls():
        row = {
            **on_thread, "start_ns": call.start_ns, "end_ns": call.end_ns, "name": call.name,
            "call_class": call.call_class, "api": "driver" if call.name.startswith("cuL") else "runtime",
            "correlation_id": call.correlation_id, "return_value": 0, **tie,
        }  # fmt: skip
        run.add("cuda_api", server.node, row)
        if call.call_class == "blocking sync":
            run.add("syncs", server.node, {k: row[k] for k in ("server", "process", "thread", "name", *tie)} | {
                "start_ns": call.start_ns, "end_ns": call.end_ns, "correlation_id": call.correlation_id})  # fmt: skip
    for op in work.ops:
        _write_op(run, server, instance, op, tie if not op.is_orphan else UNTIED)
    for name, start, end in work.os_waits:
        end = min(end, batch.output_start_ns)  # the thread is free for the next batch from then on
        run.add("osrt", server.node, {**on_thread, "start_ns": start, "end_ns": end, "name": name})
    if "os_waits" in run.shape.features:  # the thread waits for work, and another thread waits all the time
        gap = {"start_ns": batch.output_start_ns, "end_ns": batch.compute_end_ns}
        run.add("osrt", server.node, {**on_thread, **gap, "name": "sem_wait"})
        run.add("osrt", server.node, {**on_thread, "thread": instance.thread + 7, "start_ns": work.start_ns,
                                      "end_ns": work.end_ns, "name": "futex"})  # fmt: skip
    if "broken_events" in run.shape.features and is_tied:
        ops = [one for one in work.ops if one.kind == "kernel" and not one.is_orphan]
        for one in ops[:1]:
            back = Op("kernel", one.end_ns, one.start_ns, one.stream, one.call, one.kernel)
            _write_op(run, server, instance, back, tie)


def _write_op(run: Planted, server: Server, instance: Instance, op: Op, tie: Row) -> None:
    call: Call | None = None if op.is_orphan else op.call
    row: Row = {
        "server": server.name, "process": instance.process, "thread": instance.thread if call else None,
        "device": instance.device, "gpu_uuid": instance.gpu_uuid, "context": 1, "stream": op.stream,
        "start_ns": op.start_ns, "end_ns": op.end_ns, "correlation_id": op.call.correlation_id,
        "launch_start_ns": call.start_ns if call else None, "launch_end_ns": call.end_ns if call else None,
        "graph_id": op.graph[0], "graph_node_id": op.graph[1], **tie,
    }  # fmt: skip
    if op.kind == "kernel":
        name, full_name, grid, block, occupancy = KERNELS[op.kernel]
        sizes = {f"grid_{a}": n for a, n in zip("xyz", grid, strict=True)}
        sizes |= {f"block_{a}": n for a, n in zip("xyz", block, strict=True)}
        if op.graph[0] is not None:
            name, full_name, sizes, occupancy = "CUDA graph", "CUDA graph", {}, None
        row |= {"name": name, "full_name": full_name, **sizes, "theoretical_occupancy": occupancy,
                "registers_per_thread": 32 if occupancy else None}  # fmt: skip
        run.add("kernels", server.node, row)
    elif op.kind == "copy":
        source, destination = op.memory
        kinds = {"copy_kind": op.copy_kind, "source_kind": source, "destination_kind": destination}
        run.add("memcpys", server.node, {**row, **kinds, "bytes": op.n_bytes})
    else:
        run.add("memsets", server.node, {**row, "memory_kind": "device", "bytes": op.n_bytes})


def _write_other_process(rng: Random, run: Planted, server: Server, batches: list[PlantedBatch]) -> None:
    """A process of the same server that is no instance of ours, with the same correlation ids, on the same GPU."""
    instance = server.instances[0]
    place = (instance.gpu_uuid, instance.device, NO_DEVICE)
    other = Instance("", instance.process + 5, instance.thread + 5, *place)
    for batch in batches[:4]:
        start_ns = rng.randint(batch.compute_start_ns, batch.compute_end_ns)
        call = Call("cudaLaunchKernel", "launch", start_ns, start_ns + 700, correlation_id=batch.batch_id + 1)
        begin_ns = call.end_ns + rng.randrange(5000)
        op = Op("kernel", begin_ns, begin_ns + rng.randrange(1, 50_000), 7, call, 1)
        run.add("cuda_api", server.node, {
            "server": server.name, "process": other.process, "thread": other.thread, "start_ns": call.start_ns,
            "end_ns": call.end_ns, "name": call.name, "call_class": call.call_class, "api": "runtime",
            "correlation_id": call.correlation_id, **UNTIED,
        })  # fmt: skip
        _write_op(run, server, other, op, UNTIED)


def _write_gpus(rng: Random, run: Planted) -> None:
    """NVML samples of every GPU; some are lost, so that one covers more time than the others or none does."""
    gpus = sorted({(s.node, i.gpu_uuid) for s in run.servers for i in s.instances})
    for node, uuid in gpus:
        before = START_NS
        for number in range(1, run.shape.span_ns * 13 // 10 // (100 * MS) + 2):
            t_ns = START_NS + number * 100 * MS + rng.randint(-5 * MS, 5 * MS)
            if "lost_samples" in run.shape.features and rng.random() < 0.3:
                before = t_ns if rng.random() < 0.5 else before
                continue
            has_gpm = rng.random() < 0.8
            run.add("gpu_samples", node, {
                "gpu_uuid": uuid, "t_ns": t_ns, "interval_ns": t_ns - before, "util": rng.random(),
                "sm_util": rng.random() if has_gpm else None, "gpm_interval_ns": 100 * MS if has_gpm else None,
                "tensor_util": rng.random() if has_gpm else None, "dram_util": rng.random() if has_gpm else None,
                "sm_occupancy": rng.random() if has_gpm else None,
                "sm_clock_hz": 1.5e9 + rng.randrange(4) * 1e8, "throttle_reasons": rng.choice((0, 0, 4, 64)),
            })  # fmt: skip
            before = t_ns
