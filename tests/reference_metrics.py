"""What the figures of a run must be, by loops over plain rows: the measures of each instance, the activity of each GPU.

Symbols as in docs/metrics.md. `None` where what a figure needs is not there; `...` where it is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from statistics import median
from typing import Any

from tests.reference_join import Reference, Row, Spans, common, cut, gaps, key, length, span, sum_spans
from tests.reference_windows import one_gpu

NO_CLOCK_LIMIT = 0x1 | 0x2 | 0x10 | 0x100
BY_OPERATION = (
    "issue_interval_ns", "op_median_ns", "issue_to_op_ratio", "host_wait_of_idle_ratio",
    "launch_depth_nonempty_mean", "copy_to_kernel_ratio", "copy_mean_bytes", "pageable_bytes_ratio",
    "attribution_ratio", "occupancy_ratio", "tensor_time_ratio",
)  # fmt: skip
"""Measures that need to know each operation's batch."""


def over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def phase_walls(expected: Reference) -> dict[str, tuple[int, int, bool]]:
    """By measured phase: first and last instant of what figures are of, and whether it was recorded."""
    manifest = expected.tables.manifest
    walls = {}
    for one in manifest["phases"]:
        state = manifest.get("profiled_phases", {}).get(one["name"], {})
        late_ns = max(0, state["profiled_after_ns"]) if state.get("is_profiled") else 0
        if one["kind"] == "measure":
            walls[one["name"]] = one["start_ns"] + late_ns, one["end_ns"], bool(state.get("is_profiled"))
    return walls


def stretches(expected: Reference, phase: str) -> Spans:
    """What was recorded of a phase; in windows what all servers share that have any of them."""
    first, last, is_recorded = phase_walls(expected)[phase]
    windows = [cut(own, first, last) for own in expected.tables.windows.values()]
    if any(windows):
        shared, *others = (one for one in windows if one)
        for one in others:
            shared = common(shared, one)
        return sorted(shared)
    return [(first, last)] if is_recorded else []


def instance_metrics(expected: Reference) -> dict[tuple[str, str], Row]:
    """Measures by phase and instance key."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for one in expected.batch_costs.values():
        groups.setdefault((one["phase"], instance_name(one)), []).append(one)
    walls = phase_walls(expected)
    return {
        (phase, name): measures(expected, phase, own)
        for (phase, name), own in groups.items()
        if phase in walls
    }


def instance_name(row: Row) -> str:
    """The instance of a batch: its server and name, and the GPU that it is on; without a name its model."""
    where = f"@gpu{row['instance_device']}" if row["instance_device"] >= 0 else ""
    return f"{row['server']}/{row['instance'] or row['model']}{where}"


def measures(expected: Reference, phase: str, own: list[Row]) -> Row:
    """Of the batches `own`, all those of one instance that began in the phase."""
    tied = [one for one in own if one["tie"] != "none"]
    ops = {key(one): expected.events[key(one)].ops for one in tied}
    sums = {
        name: total(tied, name) for name, value in own[0].items() if name.endswith("_ns") or name[:2] == "n_"
    }
    busy = add(sums["kernel_busy_ns"], sums["copy_exposed_ns"])
    idle = add(sums["sync_wait_ns"], sums["launch_idle_ns"])
    body = add(busy, idle)
    exec_ns = sum_spans(tied)
    if body is None and sums["head_ns"] is not None:  # idle inside is known without the calls that say why
        idle = exec_ns - sum(sums[name] or 0 for name in ("head_ns", "tail_ns")) - (busy or 0)
        body = add(busy, idle)
    found = {
        "n_batches": len(own),
        "profiled_ratio": len(tied) / len(own),
        "exec_mean_ns": sum_spans(own) / len(own),
        "batch_rows_mean": sum(one["rows"] for one in own) / len(own),
        "head_tail_of_exec_ratio": over(add(sums["head_ns"], sums["tail_ns"]), exec_ns),
        "body_busy_ratio": over(busy, body),
        "body_idle_of_exec_ratio": over(idle, exec_ns),
        "gpu_busy_of_exec_ratio": over(busy, exec_ns),
        "blocked_of_exec_ratio": over(sums["blocked_ns"], exec_ns),
        "blocked_gpu_busy_ratio": over(sums["blocked_busy_ns"], sums["blocked_ns"]),
        "mid_blocks_per_batch": over(sums["n_mid_blocks"], len(tied)),
        "launches_per_batch": over(sums["n_launches"], len(tied)),
        "launch_of_exec_ratio": over(sums["launch_ns"], exec_ns),
        "copy_exposed_of_body_ratio": over(sums["copy_exposed_ns"], body),
        **wall(expected, phase, own),
        **of_requests(expected, own),
        **of_samples(expected, phase, own),
    }
    if tied:
        found |= of_operations(list(ops.values()))
        found |= {"attribution_ratio": attribution(expected, phase, tied)}
        foreign = None if sums["kernel_busy_ns"] is None else foreign_ns(expected, tied)
        found |= {"foreign_busy_ratio": over(foreign, exec_ns)}
    return found


def total(rows: list[Row], name: str) -> int | None:
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) if values else None


def add(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def wall(expected: Reference, phase: str, own: list[Row]) -> Row:
    """Where the wall of the instance goes; all None where its executions overlap by more than 0.1 % of it."""
    first, last, _ = phase_walls(expected)[phase]
    if held := cut(expected.tables.windows[own[0]["server"]], first, last):
        return window_wall(expected, own, held)
    of_instance = [one for one in expected.batch_costs.values() if key(one)[:4] == key(own[0])[:4]]
    own = sorted((one for one in own if one["start_ns"] >= first), key=span)
    if not own:
        return {}
    first = max([first, *(one["end_ns"] for one in of_instance if one["start_ns"] < first)])
    last = max([last, *(one["end_ns"] for one in own)])
    names = ("gpu_busy", "head", "body_idle", "tail", "unprofiled", "between_waiting", "between_empty",
             "edges", "between")  # fmt: skip
    none: Row = {f"wall_{name}_ratio": None for name in names}
    if abs(sum_spans(own) - length(map(span, own))) > 0.001 * (last - first):
        return none | dict.fromkeys(none, ...)
    own.sort(key=lambda one: (one["start_ns"], one["batch_id"]))
    waits = {key(one): waiting_ns(expected, one) for one in own}
    never: Spans = unserved(expected, own[0])
    between, waiting, unknown, edges_waiting, ended = 0, 0, 0, 0, first
    for place, one in enumerate(own):
        idle = max(0, one["start_ns"] - ended)
        wait = min(idle, waits[key(one)] or 0)
        waited = wait + length(cut(never, one["start_ns"] - idle, one["start_ns"] - wait))
        if place:
            between, waiting = between + idle, waiting + waited
            unknown += idle if waits[key(one)] is None else 0
        else:
            edges, edges_waiting = idle, waited
        ended = max(ended, one["end_ns"])
    edges += last - ended
    edges_waiting += length(cut(never, ended, last))
    tied = [one for one in own if one["tie"] != "none"]
    is_known = any(one is not None for one in waits.values()) and unknown <= 0.01 * between
    edges_waiting = edges_waiting if is_known else 0
    parts: Row = {
        "unprofiled": sum_spans(one for one in own if one["tie"] == "none" or one["head_ns"] is None),
        "edges": edges - edges_waiting, "between": between + edges_waiting,
    }  # fmt: skip
    if is_known:
        parts |= {"between_waiting": waiting + edges_waiting, "between_empty": between - waiting}
    if tied:
        parts["gpu_busy"] = add(total(tied, "kernel_busy_ns"), total(tied, "copy_exposed_ns"))
        parts["body_idle"] = total([{"idle_ns": body_idle_ns(one)} for one in tied], "idle_ns")
        parts |= {"head": total(tied, "head_ns"), "tail": total(tied, "tail_ns")}
    return none | {f"wall_{name}_ratio": over(value, last - first) for name, value in parts.items()}


def body_idle_ns(one: Row) -> int | None:
    """Idle within the body of a batch: by its calls, else what the other parts leave."""
    idle = add(one["sync_wait_ns"], one["launch_idle_ns"])
    others = [one[name] for name in ("head_ns", "kernel_busy_ns", "copy_exposed_ns", "tail_ns")]
    if idle is not None or None in others:
        return idle
    return int(one["end_ns"] - one["start_ns"] - sum(others))


def window_wall(expected: Reference, own: list[Row], held: Spans) -> Row:
    """The same where the library recorded: idle time as far as windows hold it, executions that one holds."""
    of_instance = [one for one in expected.batch_costs.values() if key(one)[:4] == key(own[0])[:4]]
    names = ("gpu_busy", "head", "body_idle", "tail", "unprofiled", "between_waiting", "between_empty",
             "edges", "between")  # fmt: skip
    never = unserved(expected, own[0])
    tied = [one for one in own if one["tie"] != "none"]
    between, waiting, unknown, edges, edges_waiting, ended, n_known = 0, 0, 0, 0, 0, None, 0
    exec_ns = 0
    for one in sorted(of_instance, key=lambda one: (one["start_ns"], one["batch_id"])):
        begin = min(held[0][0], one["start_ns"]) if ended is None else min(ended, one["start_ns"])
        idle = cut(held, begin, one["start_ns"])
        wait = waiting_ns(expected, one)
        waits_from = max(begin, one["start_ns"] - (wait or 0))
        waited = length(cut(idle, waits_from, one["start_ns"]))
        waited += length(common(cut(idle, begin, waits_from), never))
        is_near = one["end_ns"] >= held[0][0] and begin < held[-1][1]
        if ended is None:
            edges, edges_waiting = length(idle), waited
        else:
            between, waiting = between + length(idle), waiting + waited
            unknown += length(idle) if wait is None else 0
        n_known += wait is not None and (is_near or one in own)
        exec_ns += length(cut(held, *span(one)))
        ended = max(one["end_ns"], ended if ended is not None else one["end_ns"])
    assert ended is not None
    after = cut(held, ended, max(ended, held[-1][1]))
    edges, edges_waiting = edges + length(after), edges_waiting + length(common(after, never))
    whole = length(held)
    if abs(exec_ns + between + edges - whole) > 0.001 * whole:
        return {f"wall_{name}_ratio": ... for name in names}
    is_known = bool(n_known) and unknown <= 0.01 * between
    edges_waiting = edges_waiting if is_known else 0
    parts: Row = {"unprofiled": exec_ns, "edges": edges - edges_waiting, "between": between + edges_waiting}
    if is_known:
        parts |= {"between_waiting": waiting + edges_waiting, "between_empty": between - waiting}
    if sum_spans(tied):  # the executions that an edge cuts are taken to have been like those
        inside: Row = {"gpu_busy": add(total(tied, "kernel_busy_ns"), total(tied, "copy_exposed_ns"))}
        inside |= {"head": total(tied, "head_ns"), "tail": total(tied, "tail_ns")}
        inside["body_idle"] = sum_spans(tied) - sum(inside.values())
        parts |= {"unprofiled": 0, **{name: ns * exec_ns / sum_spans(tied) for name, ns in inside.items()}}
    none: Row = {f"wall_{name}_ratio": None for name in names}
    return none | {f"wall_{name}_ratio": over(value, whole) for name, value in parts.items()}


def waiting_ns(expected: Reference, one: Row) -> int | None:
    """How long a request of the batch waited at the server while the instance was idle; the longest."""
    waits = [row["idle_wait_ns"] for row in served_by(expected, one) if row["idle_wait_ns"] is not None]
    return max(waits) if waits else None


def unserved(expected: Reference, one: Row) -> Spans:
    """When requests to the server and model of the batch were out that no batch took and that did not end ok."""
    return [
        (row["sent_ns"], row["done_ns"])
        for row in expected.joined.values()
        if (row["target"], row["request_kind"]) == (one["server"], one["model"])
        and row["batch_id"] is None and row["outcome"] != "ok" and row["sent_ns"] is not None
    ]  # fmt: skip


def served_by(expected: Reference, one: Row) -> list[Row]:
    names = ("server", "instance", "instance_device", "batch_id")
    return [
        row
        for row in expected.joined.values()
        if all(row[name] == one[name] for name in names)
        and (row["instance"] or row["request_kind"] == one["model"])
    ]


def of_requests(expected: Reference, own: list[Row]) -> Row:
    rows = [row for one in own for row in served_by(expected, one) if row["outcome"] == "ok"]
    known = [row for row in rows if row["queue_ns"] is not None]
    if not rows:
        return {}
    spans = ("queue_ns", "input_ns", "handover_ns", "compute_ns", "output_ns")
    queue = nearest([row["queue_ns"] for row in known])
    in_server = nearest([sum(row[name] for name in spans) for row in known])
    lag = sum(row["lag_ns"] or 0 for row in rows)
    response = sum(row["response_ns"] or 0 for row in rows)
    return {
        "queue_p50_ns": queue,
        "queue_share_ratio": over(queue, in_server),
        "queue_mean_ns": over(sum(row["queue_ns"] for row in known), len(known)),
        "compute_mean_ns": over(sum(row["compute_ns"] for row in rows), len(rows)),
        "client_lag_share_ratio": None if rows[0]["response_ns"] is None else over(lag, response),
    }


def nearest(values: list[int]) -> int | None:
    """Median by nearest rank: the value of rank ceil(n / 2)."""
    return sorted(values)[-(-len(values) // 2) - 1] if values else None


def of_samples(expected: Reference, phase: str, own: list[Row]) -> Row:
    """Means over time of the samples of its GPU that lie in the phase; the share of samples with limited clocks."""
    names = [one["gpu_uuids"] for one in own if one["gpu_uuids"] != {""}]
    named = {tuple(one) for one in names}
    if len(named) != 1 or len(names[0]) != 1:
        return dict.fromkeys(
            ("gpu_sm_util_ratio", "gpu_tensor_util_ratio", "gpu_dram_util_ratio", "gpu_util_ratio", "throttled_ratio",
             "n_throttle_samples", "gpu_activity_ratio"), ... if named else None)  # fmt: skip
    (gpu,) = names[0]
    first, last, _ = phase_walls(expected)[phase]
    recorded = stretches(expected, phase)
    samples = [
        one
        for one in expected.tables.gpu_samples
        if one["gpu_uuid"] == gpu and one["t_ns"] - one["interval_ns"] >= first and one["t_ns"] <= last
    ]

    def mean(column: str, interval: str) -> float | None:
        known = [one for one in samples if one[column] is not None]
        return over(sum(one[column] * one[interval] for one in known), sum(one[interval] for one in known))

    kernels = [span(op) for op in expected.tables.ops if op["gpu_uuid"] == gpu and op["kind"] == "kernel"]
    limited = [one for one in samples if one["throttle_reasons"] & ~NO_CLOCK_LIMIT]
    return {
        "gpu_sm_util_ratio": mean("sm_util", "gpm_interval_ns"),
        "gpu_tensor_util_ratio": mean("tensor_util", "gpm_interval_ns"),
        "gpu_dram_util_ratio": mean("dram_util", "gpm_interval_ns"),
        "gpu_util_ratio": mean("util", "interval_ns"),
        "throttled_ratio": over(len(limited), len(samples)),
        "n_throttle_samples": len(samples) or None,
        "gpu_activity_ratio": over(length(common(kernels, recorded)), length(recorded)) if recorded else None,
    }


def of_operations(batches: list[list[Row]]) -> Row:
    """Launch to launch, causes of idle, depth of the launch queue, copies, occupancy: over operations of batches."""
    intervals, lengths, waits, idle, host_wait = [], [], [], 0, 0
    for ops in batches:
        launches = by_launch(ops)
        intervals += [b - a for a, b in pairwise(launches)]
        lengths += [length(map(span, own)) for own in list(launches.values())[1:]]
        waits += [
            (at, min(op["start_ns"] for op in own))
            for at, own in by_launch(op for op in ops if op["kind"] == "kernel").items()
        ]
        for end, start, after in idle_gaps(ops):
            idle += start - end
            host_wait += (
                start - end if after["launch_start_ns"] is not None and after["launch_start_ns"] > end else 0
            )
    every = [op for ops in batches for op in ops]
    kernels = [op for op in every if op["kind"] == "kernel"]
    copies = [op for op in every if op["kind"] == "copy"]
    interval = median(intervals) if intervals else None
    op_median = median(lengths) if lengths else None
    pageable = [op for op in copies if "pageable" in (op["source_kind"], op["destination_kind"])]
    known = [op for op in kernels if op["theoretical_occupancy"] is not None]
    return {
        "issue_interval_ns": interval,
        "op_median_ns": op_median,
        "issue_to_op_ratio": over(interval, op_median),
        "host_wait_of_idle_ratio": over(host_wait, idle),
        "launch_depth_nonempty_mean": over(sum(b - a for a, b in waits), length(waits)),
        "copy_to_kernel_ratio": over(sum_spans(copies), sum_spans(kernels)),
        "copy_mean_bytes": over(sum(op["bytes"] for op in copies), len(copies)),
        "pageable_bytes_ratio": over(sum(op["bytes"] for op in pageable), sum(op["bytes"] for op in copies)),
        "occupancy_ratio": over(
            sum(op["theoretical_occupancy"] * (op["end_ns"] - op["start_ns"]) for op in known), sum_spans(known)
        ),
        "tensor_time_ratio": over(sum_spans(op for op in kernels if "xmma" in op["name"]), sum_spans(kernels)),
    }  # fmt: skip


def by_launch(ops: Iterable[Row]) -> dict[int, list[Row]]:
    """Operations by the start of the call that launched them, a graph's nodes together; in order of launch."""
    found: dict[int, list[Row]] = {}
    for op in sorted(
        (op for op in ops if op["launch_start_ns"] is not None), key=lambda op: op["launch_start_ns"]
    ):
        found.setdefault(op["launch_start_ns"], []).append(op)
    return found


def launch_of(op: Row) -> float:
    """The instant of its launch; of what is alike otherwise, the one launched first ends a gap, and one of which no
    launch was recorded last."""
    return math.inf if op["launch_start_ns"] is None else op["launch_start_ns"]


def idle_gaps(ops: list[Row]) -> list[tuple[int, int, Row]]:
    """Idle between operations of a batch: from when, until when, and the operation that ended it."""
    found = []
    ordered = sorted(ops, key=lambda op: (*span(op), launch_of(op)))
    for place, op in enumerate(ordered[1:], 1):
        reached = max(one["end_ns"] for one in ordered[:place])
        if op["start_ns"] > reached:
            found.append((reached, op["start_ns"], op))
    return found


def processes_of(tied: list[Row]) -> set[tuple[str, int]]:
    return {(one["node"], one["process"]) for one in tied if one["process"] is not None}


def attribution(expected: Reference, phase: str, tied: list[Row]) -> float | None:
    """Operations in the phase of the processes of `tied` that belong to any batch."""
    recorded = stretches(expected, phase)
    processes = processes_of(tied)
    own = [
        op
        for op in expected.tables.ops
        if (op["node"], op["process"]) in processes
        and any(first <= op["start_ns"] < last for first, last in recorded)
    ]
    owned = {id(op) for events in expected.events.values() for op in events.ops}
    if any(expected.tables.windows.values()):  # of a batch that an edge cuts it is known whose they are
        names = ("server", "instance", "instance_device", "batch_id")
        batches = {tuple(one[name] for name in names) for one in expected.batch_costs.values()}
        owned |= {id(op) for op in expected.tables.ops if tuple(op[name] for name in names) in batches}
    return over(sum(id(op) in owned for op in own), len(own))


def foreign_ns(expected: Reference, tied: list[Row]) -> int:
    """Time in batches in which another process ran something on a GPU that the batch's process uses."""
    found = 0
    for one in tied:
        process = one["node"], one["process"]
        uses = {gpu_of(op) for op in expected.tables.ops if (op["node"], op["process"]) == process}
        others: Spans = [
            span(op)
            for op in expected.tables.ops
            if (op["node"], op["process"]) != process and gpu_of(op) in uses
        ]
        found += length(cut(others, *span(one))) if one["process"] is not None else 0
    return found


def gpu_of(op: Row) -> tuple[str, str]:
    return op["node"], op["gpu_uuid"]


def gpu_metrics(expected: Reference) -> dict[tuple[str, str], Row]:
    """Activity by phase and GPU, of phases that were recorded; GPUs that any operation ran on."""
    found = {}
    for phase in phase_walls(expected):
        recorded = stretches(expected, phase)
        for gpu in sorted({op["gpu_uuid"] for op in expected.tables.ops}) if recorded else ():
            ops = [op for op in expected.tables.ops if op["gpu_uuid"] == gpu]
            kernel, busy, copy, both, streams = map(
                sum, zip(*(one_gpu(ops, *one) for one in recorded), strict=True)
            )
            idle = [b - a for one in recorded for a, b in gaps([span(op) for op in ops], *one)]
            wall_ns = length(recorded)
            found[phase, gpu] = {
                "profiled_ns": wall_ns, "kernel_ratio": over(kernel, wall_ns),
                "busy_ratio": over(busy, wall_ns), "copy_ratio": over(copy, wall_ns), "copy_ns": copy,
                "copy_overlap_ratio": over(both, copy), "streams_mean": over(streams, busy),
                "idle_gaps": {"n": len(idle), "total_ns": sum(idle), "p50_ns": nearest(idle),
                              "max_ns": max(idle, default=None)},
            }  # fmt: skip
    return found


def call_classes(expected: Reference, phase: str, instance_key: str) -> dict[str, tuple[int, int]]:
    """(n, ns) by class of the calls within the profiled batches of the instance that began in the phase."""
    found: dict[str, tuple[int, int]] = {}
    for one in expected.batch_costs.values():
        if (one["phase"], instance_name(one)) == (phase, instance_key):
            for call in expected.events[key(one)].calls:
                n, ns = found.get(call["call_class"], (0, 0))
                found[call["call_class"]] = n + 1, ns + call["end_ns"] - call["start_ns"]
    return found


def disagreements(found: dict[str, Any], expected: Row, may_be_none: Iterable[str] = ()) -> Row:
    """name -> (found, expected) where they differ by more than 1e-9 of the value."""
    allowed = set(may_be_none)
    wrong: Row = {}
    for name, value in expected.items():
        one = found[name]
        if isinstance(value, dict):
            wrong |= {f"{name}.{k}": v for k, v in disagreements(one, value).items()}
        elif value is ... or (one is None and name in allowed):
            continue
        elif one is None or value is None or isinstance(value, str):
            wrong |= {} if one == value else {name: (one, value)}
        elif abs(one - value) > 1e-9 * max(1.0, abs(value)):
            wrong[name] = (one, value)
    return wrong
