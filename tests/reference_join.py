"""What `batch_costs` and `joined` must hold, by loops over plain rows: slow, and close to the words of the schema.

Nothing here is shared with the code under test: rows come from `RunStore.read(...).to_pylist()`. `reference(store)`
gives rows keyed by batch and by request id, to be compared with the tables that `analysis` writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from squall.analysis.record import to_json
from squall.analysis.storage.store import RunStore

Row = dict[str, Any]
Key = tuple[str, str, str, int, int]
"""server, model, instance, instance_device, batch_id"""
Spans = list[tuple[int, int]]

S = 1_000_000_000
BLOCKING = ("blocking sync", "blocking copy")
LAUNCHES = ("launch", "graph launch")
FEWEST_IN_CELL = 30
DEVICE_COLUMNS = (
    "n_kernels", "n_copies", "n_launches", "kernel_ns", "kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns",
    "launch_idle_ns", "head_ns", "tail_ns", "launch_ns", "blocked_ns", "blocked_busy_ns", "n_mid_blocks", "h2d_ns",
    "d2h_ns", "h2d_bytes", "d2h_bytes", "os_wait_ns",
)  # fmt: skip
MORE_COLUMNS = (
    "copy_ns", "pageable_bytes", "sync_ns", "alloc_ns", "api_ns", "n_blocks", "overrun_ns", "process", "thread"
)  # fmt: skip
OF_CALLS = ("n_launches", "launch_ns", "blocked_ns", "n_blocks", "sync_ns", "alloc_ns", "api_ns")
OF_BOTH = ("blocked_busy_ns", "n_mid_blocks", "sync_wait_ns", "launch_idle_ns")
"""What calls tell, and what calls and operations tell together."""
PARTS = ("network_ns", "queue_ns", "input_ns", "handover_ns", "output_ns", "residual_ns", "idle_wait_ns")


def length(spans: Iterable[tuple[int, int]]) -> int:
    """Time that any of the spans covers."""
    total, reached = 0, None
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        start = start if reached is None else max(start, reached)
        total += max(0, end - start)
        reached = end if reached is None else max(reached, end)
    return total


def cut(spans: Iterable[tuple[int, int]], first: int, last: int) -> Spans:
    """The parts of the spans within [first, last]."""
    return [(max(a, first), min(b, last)) for a, b in spans if min(b, last) > max(a, first)]


def common(some: Spans, others: Spans) -> Spans:
    """The time that both cover, in pieces that may overlap."""
    return [(max(a, c), min(b, d)) for a, b in some for c, d in others if min(b, d) > max(a, c)]


def gaps(spans: Spans, first: int, last: int) -> Spans:
    """The time in [first, last] that no span covers."""
    found, reached = [], first
    for start, end in sorted(cut(spans, first, last)):
        if start > reached:
            found.append((reached, start))
        reached = max(reached, end)
    return [*found, (reached, last)] if last > reached else found


def span(row: Row) -> tuple[int, int]:
    return row["start_ns"], row["end_ns"]


def sum_spans(rows: Iterable[Row]) -> int:
    return sum(row["end_ns"] - row["start_ns"] for row in rows)


@dataclass
class Reference:
    """The rows that must come out."""

    batch_costs: dict[Key, Row]
    joined: dict[int, Row]
    n_batches: Counter[int]
    events: dict[Key, Events]
    tables: Tables


class Events(NamedTuple):
    """What is tied to a batch, and how."""

    tie: str
    ranges: list[Row]
    ops: list[Row]
    calls: list[Row]


class Tables:
    """The raw rows of a run, absent tables empty, broken events left out."""

    def __init__(self, store: RunStore) -> None:
        def rows(name: str) -> list[Row]:
            found = store.read(name).to_pylist() if store.has(name) else []
            return [row for row in found if row.get("end_ns", 1) >= row.get("start_ns", 0)]

        self.manifest = to_json(store.manifest)
        self.requests = sorted(rows("requests"), key=lambda row: row["request_id"])
        self.batches, self.traces, self.samples = (
            rows(n) for n in ("batches", "triton_traces", "triton_samples")
        )
        self.gpu_samples, self.nvtx, self.osrt = (rows(n) for n in ("gpu_samples", "nvtx", "osrt"))
        self.windows: dict[str, Spans] = defaultdict(list)
        """By server what the library recorded."""
        for row in rows("recordings"):
            self.windows[row["server"]].append(span(row))
        kinds = {"kernels": "kernel", "memcpys": "copy", "memsets": "set"}
        self.ops = [{"kind": kind, **row} for name, kind in kinds.items() for row in rows(name)]
        pageable = {
            (op["node"], op["process"], op["correlation_id"])
            for op in self.ops
            if op["kind"] == "copy" and "pageable" in (op["source_kind"], op["destination_kind"])
        }
        self.calls = [
            {
                **row,
                "blocks": row["call_class"] in BLOCKING
                or (
                    row["call_class"] == "async copy"
                    and (row["node"], row["process"], row["correlation_id"]) in pageable
                ),
            }
            for row in rows("cuda_api")
        ]

    def hold(self, server: str, first: int, last: int) -> bool:
        """Whether one window of the server holds both instants."""
        return any(start <= first and last <= end for start, end in self.windows[server])


def reference(store: RunStore) -> Reference:
    """Both derived tables of a run and how many batches name each request."""
    tables = Tables(store)
    executions = list_executions(tables)
    members, n_batches = first_batches(executions)
    events = {key(one): what_it_did(one, tables, executions) for one in executions}
    costs = {key(one): batch_cost(one, tables, executions, events[key(one)]) for one in executions}
    return Reference(costs, join(tables, costs, members), n_batches, events, tables)


def key(row: Row) -> Key:
    return row["server"], row["model"], row["instance"], row["instance_device"], row["batch_id"]


def list_executions(tables: Tables) -> list[Row]:
    """Rows of the record; for servers without one, the starts that traced requests share."""
    found = [
        {**row, "source": "record", "ids": [i for i in row["request_ids"] if i is not None]}
        for row in tables.batches
    ]
    recorded = {row["server"] for row in tables.batches}
    rows_of = {row["request_id"]: row["rows"] for row in tables.requests}
    starts = defaultdict(list)
    for trace in tables.traces:
        if trace["server"] not in recorded and trace["compute_start_ns"] is not None:
            starts[trace["server"], trace["compute_start_ns"], trace["model"]].append(trace)
    count: Counter[str] = Counter()
    for (server, compute_start, model), own in sorted(starts.items()):
        begun = [one["compute_input_end_ns"] for one in own if one["compute_input_end_ns"] is not None]
        ended = [one["compute_output_start_ns"] for one in own if one["compute_output_start_ns"] is not None]
        found.append({
            "phase": own[0]["phase"], "node": own[0]["node"], "server": server, "model": model,
            "version": own[0]["version"], "instance": "", "instance_device": -1, "batch_id": count[server],
            "source": "trace",
            "start_ns": min(begun) if begun else compute_start,
            "end_ns": max(ended) if ended else max(one["compute_end_ns"] for one in own),
            "rows": sum(rows_of.get(one["request_id"], 1) for one in own), "n_requests": len(own),
            "ids": [one["request_id"] for one in own if one["request_id"] is not None],
        })  # fmt: skip
        count[server] += 1
    return found


def first_batches(executions: list[Row]) -> tuple[dict[int, Row], Counter[int]]:
    """Of the batches that name a request the one that starts first, and how many name it."""
    named: dict[int, list[Row]] = defaultdict(list)
    for one in executions:
        for request_id in one["ids"]:
            named[request_id].append(one)
    first = {
        request_id: min(own, key=lambda one: (
            one["start_ns"], one["server"], one["instance"], one["instance_device"], one["batch_id"]))
        for request_id, own in named.items()
    }  # fmt: skip
    return first, Counter({request_id: len(own) for request_id, own in named.items()})


def batch_cost(one: Row, tables: Tables, executions: list[Row], events: Events) -> Row:
    """A row of batch_costs."""
    own = [e for e in executions if key(e)[:4] == key(one)[:4]]
    before = [e["end_ns"] for e in own if (e["start_ns"], e["batch_id"]) < (one["start_ns"], one["batch_id"])]
    gap = max(0, one["start_ns"] - max(before)) if before else None
    tie, ranges, ops, calls = events
    row = {
        name: one[name]
        for name in ("phase", "node", "server", "model", "version", "instance", "instance_device")
    }
    row |= {name: one[name] for name in ("batch_id", "source", "start_ns", "end_ns", "rows", "n_requests")}
    row |= {"gap_before_ns": gap, "tie": tie, "gpu_uuids": main_gpus(ops)}
    if tie == "none":
        return row | dict.fromkeys((*DEVICE_COLUMNS, *MORE_COLUMNS))
    row |= device_costs(one, ranges, ops, calls, tables)
    row |= {} if tables.osrt and row["process"] is not None else {"os_wait_ns": None}
    return row | dict.fromkeys(unknown(one, tables, events))


def unknown(one: Row, tables: Tables, events: Events) -> set[str]:
    """Columns that need operations or calls where it has none and none of the server was recorded in the phase; none
    without a GPU. Of what the library recorded those that need calls, and the thread."""
    if tables.windows[one["server"]]:
        return {*OF_CALLS, *OF_BOTH, "thread"}
    server = tables.manifest.get("servers", {}).get(one["server"], {})
    if tables.manifest.get("nodes", {}).get(server.get("node"), {}).get("gpus") == []:
        return set()

    def is_recorded(rows: list[Row]) -> bool:
        return any((row["server"], row["phase"]) == (one["server"], one["phase"]) for row in rows)

    of_ops = {*DEVICE_COLUMNS, *MORE_COLUMNS} - {*OF_CALLS, "os_wait_ns", "process", "thread"}
    found = set() if events.ops or is_recorded(tables.ops) else of_ops
    return found if events.calls or is_recorded(tables.calls) else found | {*OF_CALLS, *OF_BOTH}


def what_it_did(one: Row, tables: Tables, executions: list[Row]) -> Events:
    """How its events are tied to it, its NVTX ranges, its operations and the calls of its thread."""

    def is_tied(row: Row) -> bool:
        names = ("server", "instance", "instance_device", "batch_id")
        return row["batch_id"] is not None and all(row[name] == one[name] for name in names)

    ranges, ops, calls = (list(filter(is_tied, rows)) for rows in (tables.nvtx, tables.ops, tables.calls))
    in_windows = bool(tables.windows[one["server"]])
    if in_windows and not tables.hold(one["server"], *span(one)):
        return Events("none", [], [], [])
    if ranges or ops or calls:
        return Events("range", ranges, ops, calls)
    of_server = [row for row in (*tables.nvtx, *tables.ops, *tables.calls) if row["server"] == one["server"]]
    if in_windows and (not of_server or any(row["batch_id"] is not None for row in of_server)):
        return Events("range", [], [], [])  # it launched nothing
    if any(row["batch_id"] is not None for row in of_server):
        return Events("none", [], [], [])  # the server writes ranges, and this one is not in the report
    if not in_windows and not any(row["phase"] == one["phase"] and "kind" in row for row in of_server):
        return Events("none", [], [], [])  # the report does not hold what the server did then
    others = [e for e in executions if e["server"] == one["server"] and e is not one]
    if any(e["start_ns"] < one["end_ns"] and e["end_ns"] > one["start_ns"] for e in others):
        return Events("none", [], [], [])  # what ran meanwhile is of both

    def is_own(row: Row, instant: int | None) -> bool:
        """Whether the instant lies in this execution, ends included, and in no other."""
        return (
            row["server"] == one["server"]
            and instant is not None
            and one["start_ns"] <= instant <= one["end_ns"]
            and not any(e["start_ns"] <= instant <= e["end_ns"] for e in others)
        )

    at = "start_ns" if in_windows else "launch_start_ns"
    ops = [row for row in tables.ops if is_own(row, row[at])]
    calls = [row for row in tables.calls if is_own(row, row["start_ns"])]
    return Events("window", [], ops, calls)


def main_gpus(ops: list[Row]) -> set[str]:
    """The GPUs with most kernel time, all of those with as much; an empty name if there is none."""
    time: Counter[str] = Counter()
    for op in ops:
        time[op["gpu_uuid"]] += (op["end_ns"] - op["start_ns"]) if op["kind"] == "kernel" else 0
    return {gpu for gpu, ns in time.items() if ns == max(time.values())} or {""}


def device_costs(one: Row, ranges: list[Row], ops: list[Row], calls: list[Row], tables: Tables) -> Row:
    first, last = span(one)
    kernels = [op for op in ops if op["kind"] == "kernel"]
    copies = [op for op in ops if op["kind"] == "copy"]
    moved = [op for op in ops if op["kind"] != "kernel"]
    begin = min([last, *(max(first, op["start_ns"]) for op in ops)])
    end = max([begin, *(min(last, op["end_ns"]) for op in ops)]) if ops else begin
    all_spans, kernel_spans = [span(op) for op in ops], [span(op) for op in kernels]
    blocking = [call for call in calls if call["blocks"]]
    blocked = [span(call) for call in blocking]
    idle = gaps(all_spans, begin, end)
    waited = length(common(idle, blocked))
    busy = length(cut(kernel_spans, first, last))
    to_device, to_host = ([op for op in copies if op["copy_kind"] == kind] for kind in ("HtoD", "DtoH"))
    in_order = sorted(calls, key=lambda row: (row["start_ns"], row["end_ns"], row["correlation_id"]))
    at = [(row["process"], row["thread"]) for row in (*ranges, *in_order)]
    process, thread = at[0] if at else (None, None)
    if tables.windows[one["server"]] and ops:  # no calls: the process that ran the first operation
        process = min(ops, key=lambda op: (op["start_ns"], op["process"]))["process"]
    scope = span(ranges[0]) if ranges else (first, last)
    waits = [
        span(row)
        for row in tables.osrt
        if row["server"] == one["server"] and (row["process"], row["thread"]) == (process, thread)
        if row["node"] == one["node"] and scope[0] <= row["start_ns"] < scope[1]
    ]

    def in_class(*classes: str) -> list[Row]:
        return [call for call in calls if call["call_class"] in classes]

    return {
        "process": process, "thread": thread,
        "n_kernels": len(kernels), "n_copies": len(moved), "n_launches": len(in_class(*LAUNCHES)),
        "kernel_ns": sum_spans(kernels), "kernel_busy_ns": busy,
        "copy_exposed_ns": length(cut(all_spans, first, last)) - busy,
        "sync_wait_ns": waited, "launch_idle_ns": length(idle) - waited,
        "head_ns": begin - first, "tail_ns": last - end,
        "launch_ns": length(span(call) for call in in_class(*LAUNCHES)),
        "blocked_ns": length(blocked), "blocked_busy_ns": length(common(blocked, all_spans)),
        "n_mid_blocks": sum(
            any((op["launch_start_ns"] or 0) > call["end_ns"] for op in ops) for call in blocking
        ),
        "h2d_ns": sum_spans(to_device), "d2h_ns": sum_spans(to_host),
        "h2d_bytes": sum(op["bytes"] for op in to_device), "d2h_bytes": sum(op["bytes"] for op in to_host),
        "os_wait_ns": length(cut(waits, *scope)),
        "copy_ns": sum_spans(moved),
        "pageable_bytes": sum(
            op["bytes"] for op in copies if "pageable" in (op["source_kind"], op["destination_kind"])
        ),
        "sync_ns": length(span(call) for call in in_class("blocking sync")),
        "alloc_ns": length(span(call) for call in in_class("allocation")),
        "api_ns": length(span(call) for call in calls),
        "n_blocks": len(blocking),
        "overrun_ns": length((max(a, last), b) for a, b in all_spans if b > last),
    }  # fmt: skip


def join(tables: Tables, costs: dict[Key, Row], members: dict[int, Row]) -> dict[int, Row]:
    """Rows of `joined` by request id."""
    parts = ServerParts(tables, costs, members)
    shares = request_shares(tables, costs, members)
    has_members = {one["server"] for one in members.values()}
    return {
        request["request_id"]: join_row(request, tables, costs, members, parts, shares, has_members)
        for request in tables.requests
    }


def join_row(
    request: Row, tables: Tables, costs: dict[Key, Row], members: dict[int, Row], parts: ServerParts,
    shares: dict[str, dict[int, int | None]], has_members: set[str],
) -> Row:  # fmt: skip
    sent, done, scheduled = request["sent_ns"], request["done_ns"], request["scheduled_ns"]
    row = {name: value for name, value in request.items() if name != "run"} | {
        "response_ns": minus(done, scheduled), "service_ns": minus(done, sent), "lag_ns": minus(sent, scheduled),
        "parts_level": "none", "tie": "none", "gpu_uuids": {""}, "clock_error_ns": None,
    }  # fmt: skip
    empty = (
        "server", "instance", "instance_device", "batch_id", "batch_start_ns", "batch_end_ns", "batch_rows",
        "batch_n_requests",
        "wait_ns", "compute_ns", "reply_ns", "gap_before_ns", "kernel_share_ns", "gpu_share_ns", "gpu_util",
        "gpu_sm_util", "gpu_sm_clock_hz", "gpu_throttle_reasons", *PARTS, *DEVICE_COLUMNS,
    )  # fmt: skip
    row |= dict.fromkeys(empty)
    batch = members.get(request["request_id"])
    if batch is None:
        return row | while_it_was_there(request, tables, has_members)
    cost = costs[key(batch)]
    start, end = span(batch)
    nodes = tables.manifest["nodes"]
    row |= {
        "join_level": "exact" if batch["source"] == "record" else "batch",
        **{name: batch[name] for name in ("server", "instance", "instance_device", "batch_id")},
        "batch_start_ns": start, "batch_end_ns": end, "batch_rows": batch["rows"],
        "batch_n_requests": batch["n_requests"], "wait_ns": minus(start, sent), "compute_ns": end - start,
        "reply_ns": minus(done, end),
        "clock_error_ns": 0 if batch["node"] == request["node"]
        else nodes[batch["node"]]["clock_error_ns"] + nodes[request["node"]]["clock_error_ns"],
        **{name: cost[name] for name in ("gap_before_ns", "tie", "gpu_uuids", *DEVICE_COLUMNS)},
        **{name: values[request["request_id"]] for name, values in shares.items()},
        **parts.of(request, batch),
    }  # fmt: skip
    return row | gpu_state(tables, batch["node"], row["gpu_uuids"], start)


def minus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a - b


def while_it_was_there(request: Row, tables: Tables, has_members: set[str]) -> Row:
    """Level window: the server names no request at all, and its GPU was recorded in the request's phase."""
    there = [op for op in tables.ops if op["server"] == request["target"]]
    kernels = [op for op in there if op["kind"] == "kernel" and op["phase"] == request["phase"]]
    sent, done = request["sent_ns"], request["done_ns"]
    if request["target"] in has_members or not kernels or sent is None or done is None:
        return {"join_level": "none"}
    if tables.windows[request["target"]] and not tables.hold(request["target"], sent, done):
        return {"join_level": "none"}
    own = [op for op in there if op["kind"] == "kernel" and sent <= op["start_ns"] < done]
    busy = length(cut([span(op) for op in there if op["kind"] == "kernel"], sent, done))
    gpus = main_gpus(kernels)
    found = {
        "join_level": "window", "tie": "window", "n_kernels": len(own), "kernel_ns": sum_spans(own),
        "kernel_busy_ns": busy, "gpu_uuids": gpus,
    }  # fmt: skip
    return found | gpu_state(tables, kernels[0]["node"], gpus, sent)


def gpu_state(tables: Tables, node: str, gpus: set[str], instant: int) -> Row:
    """What NVML said in the sample whose interval holds the instant; of several GPUs of a tie, none is compared.

    Where no GPU is known, it is the only one that was sampled on the node.
    """
    names = {"gpu_util": "util", "gpu_sm_util": "sm_util", "gpu_sm_clock_hz": "sm_clock_hz",
             "gpu_throttle_reasons": "throttle_reasons"}  # fmt: skip
    if len(gpus) > 1:
        return dict.fromkeys(names, ...)
    own = [s for s in tables.gpu_samples if s["node"] == node]
    gpus = {s["gpu_uuid"] for s in own} if gpus == {""} else gpus
    own = [s for s in own if {s["gpu_uuid"]} == gpus]
    holding = [s for s in own if s["t_ns"] - s["interval_ns"] < instant <= s["t_ns"]]
    return {ours: holding[0][theirs] if holding else None for ours, theirs in names.items()}


def request_shares(
    tables: Tables, costs: dict[Key, Row], members: dict[int, Row]
) -> dict[str, dict[int, int | None]]:
    """By rows: floor(K c_i / R) - floor(K c_(i-1) / R), c the rows up to and with the request, in order of its id."""
    shares: dict[str, dict[int, int | None]] = {"kernel_share_ns": {}, "gpu_share_ns": {}}
    reached: Counter[Key] = Counter()
    for request in tables.requests:
        batch = members.get(request["request_id"])
        if batch is None:
            continue
        cost, all_rows = costs[key(batch)], batch["rows"]
        before = reached[key(batch)]
        after = reached[key(batch)] = min(before + request["rows"], all_rows)
        gpu = None if cost["kernel_busy_ns"] is None else cost["kernel_busy_ns"] + cost["copy_exposed_ns"]
        for name, whole in (("kernel_share_ns", cost["kernel_ns"]), ("gpu_share_ns", gpu)):
            part = None if whole is None else whole * after // all_rows - whole * before // all_rows
            shares[name][request["request_id"]] = part
    return shares


class ServerParts:
    """Where a request's time in front of and behind its batch went."""

    def __init__(self, tables: Tables, costs: dict[Key, Row], members: dict[int, Row]) -> None:
        self._tables, self._costs, self._members = tables, costs, members

    def of(self, request: Row, batch: Row) -> Row:
        sent, done = request["sent_ns"], request["done_ns"]
        if sent is None or done is None:
            return {}
        parts = self._by_trace(request, batch) or self._by_statistics(request, batch)
        if not parts:
            return {}
        arrival = parts.pop("arrival")
        since = sent if request["scheduled_ns"] is None else request["scheduled_ns"]
        lag = sent - since
        explained = sum(parts[f"{name}_ns"] for name in ("network", "queue", "input", "handover", "output"))
        compute = batch["end_ns"] - batch["start_ns"]
        ends = [
            one["end_ns"] for one in self._costs.values()
            if key(one)[:4] == key(batch)[:4] and one["start_ns"] < batch["start_ns"]
        ]  # fmt: skip
        return parts | {
            "residual_ns": done - since - lag - explained - compute,
            "idle_wait_ns": max(0, batch["start_ns"] - max([arrival, *ends])),
        }

    def _by_trace(self, request: Row, batch: Row) -> Row:
        def is_whole(row: Row) -> bool:
            names = (
                "queue_start",
                "compute_start",
                "compute_input_end",
                "compute_output_start",
                "compute_end",
            )
            return all(row[f"{name}_ns"] is not None for name in names)

        own = [
            row for row in self._tables.traces
            if (row["request_id"], row["server"], row["model"])
            == (request["request_id"], batch["server"], batch["model"])
        ]  # fmt: skip
        whole = [row for row in own if is_whole(row)]
        if not whole:
            return {}
        row = min(whole, key=lambda one: one["compute_start_ns"])
        left = max(
            [row["compute_end_ns"], *(one["send_end_ns"] for one in own if one["send_end_ns"] is not None)]
        )
        infer = row["compute_output_start_ns"] - row["compute_input_end_ns"]
        return {
            "parts_level": "trace",
            "network_ns": max(0, row["queue_start_ns"] - request["sent_ns"] + request["done_ns"] - left),
            "queue_ns": row["compute_start_ns"] - row["queue_start_ns"],
            "input_ns": row["compute_input_end_ns"] - row["compute_start_ns"],
            "handover_ns": max(0, infer - (batch["end_ns"] - batch["start_ns"])),
            "output_ns": row["compute_end_ns"] - row["compute_output_start_ns"],
            "arrival": row["queue_start_ns"],
        }

    def _by_statistics(self, request: Row, batch: Row) -> Row:
        second = request["done_ns"] // S
        cell = self._means(batch, lambda r: r["done_ns"] // S == second,
                           lambda s: (s["t_ns"] - s["interval_ns"] // 2) // S == second, FEWEST_IN_CELL)  # fmt: skip
        phase = request["phase"]
        means = cell or self._means(batch, lambda r: r["phase"] == phase, lambda s: s["phase"] == phase, 1)
        if means is None:
            return {}
        service, compute, in_server, input_ns, infer, output = means
        handover = max(0, infer - compute)
        network = max(0, service - in_server)
        wait = batch["start_ns"] - request["sent_ns"]
        left = wait - network // 2 - input_ns - handover // 2
        return {
            "parts_level": "statistics", "network_ns": network, "input_ns": input_ns, "handover_ns": handover,
            "output_ns": output, "queue_ns": min(max(0, left), max(0, wait)),
            "arrival": request["sent_ns"] + network // 2,
        }  # fmt: skip

    def _means(
        self, batch: Row, is_own: Callable[[Row], bool], is_sample: Callable[[Row], bool], fewest: int
    ) -> tuple[int, ...] | None:
        """service, compute, all in the server, input, infer, output: floored means."""
        place = batch["server"], batch["model"]
        requests = [
            (row, self._members[row["request_id"]]) for row in self._tables.requests
            if row["outcome"] == "ok" and row["request_id"] in self._members
        ]  # fmt: skip
        requests = [(r, b) for r, b in requests if (b["server"], b["model"]) == place and is_own(r)]
        samples = [s for s in self._tables.samples if (s["server"], s["model"]) == place and is_sample(s)]
        n_requests, n_counted = len(requests), sum(s["request_count"] for s in samples)
        if n_requests < fewest or n_counted < fewest:
            return None
        spans = ("queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns")
        sums = {name: sum(s[name] for s in samples) for name in spans}
        return (
            sum(r["done_ns"] - r["sent_ns"] for r, _ in requests) // n_requests,
            sum(b["end_ns"] - b["start_ns"] for _, b in requests) // n_requests,
            sum(sums.values()) // n_counted,
            *(sums[name] // n_counted for name in spans[1:]),
        )
