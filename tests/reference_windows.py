"""What `windows` must hold, by loops over plain rows: every window asks every row."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

from squall.analysis.storage.store import RunStore
from tests.reference_join import Reference, Row, Tables, common, cut, length, span

WINDOW_NS = 100_000_000


def window_rows(store: RunStore, expected: Reference) -> list[Row]:
    """Rows of `windows` in order of time."""
    tables = expected.tables
    joined = list(expected.joined.values())
    is_open = store.manifest.plan.load == "open"
    begun = {row["request_id"]: row["scheduled_ns"] if is_open else row["sent_ns"] for row in joined}
    instants = [t for row in joined for t in (begun[row["request_id"]], row["sent_ns"], row["done_ns"])]
    known = [t for t in instants if t is not None]
    if not known:
        return []
    first = min(t for row in joined for t in (begun[row["request_id"]], row["sent_ns"]) if t is not None)
    origin = store.manifest.start_ns
    assert origin is not None
    while first < origin:
        origin -= WINDOW_NS
    rows = []
    while origin <= max(known):
        rows.append(window(origin, origin + WINDOW_NS, tables, expected, begun, is_open))
        origin += WINDOW_NS
    return rows


def window(
    first: int, last: int, tables: Tables, expected: Reference, begun: dict[int, int | None], is_open: bool
) -> Row:
    joined = list(expected.joined.values())

    def within(t: int | None) -> bool:
        return t is not None and first <= t < last

    own = [row for row in joined if within(begun[row["request_id"]])]
    sent = [row for row in joined if within(row["sent_ns"])]
    costs = list(expected.batch_costs.values())
    batches = [one for one in costs if within(one["start_ns"])]
    served = [row for row in joined if within(row["batch_start_ns"])]
    waiting = [
        row for row in joined
        if row["sent_ns"] is not None
        and row["sent_ns"] < last <= max(row["sent_ns"], row["batch_start_ns"] or row["done_ns"])
    ]  # fmt: skip
    responses = own if is_open else []
    return {
        "t_ns": first, "interval_ns": WINDOW_NS, "phase": phase_at(tables, first),
        "n_arrivals": len(own) if is_open else None,
        "n_sent": len(sent),
        "n_done": sum(within(row["done_ns"]) and row["outcome"] == "ok" for row in joined),
        "n_failed": sum(row["outcome"] != "ok" for row in own),
        "in_flight": sum(
            row["sent_ns"] is not None and row["sent_ns"] < last <= row["done_ns"] for row in joined
        ),
        "queue_depth": len(waiting) if costs else None,
        "n_batches": len(batches) if costs else None,
        "batch_rows_mean": mean(one["rows"] for one in batches),
        "response_p50_ns": rank(responses, "response_ns", 50), "response_p95_ns": rank(responses, "response_ns", 95),
        "service_p50_ns": rank(sent, "service_ns", 50), "service_p95_ns": rank(sent, "service_ns", 95),
        "queue_mean_ns": floor_mean(row["queue_ns"] for row in served if row["queue_ns"] is not None),
        "compute_mean_ns": floor_mean(row["compute_ns"] for row in served if row["queue_ns"] is not None),
        **gpu_activity(tables, first, last),
        **samples(tables, first, last),
    }  # fmt: skip


def phase_at(tables: Tables, t_ns: int) -> str:
    phases = tables.manifest["phases"]
    return next((one["name"] for one in phases if one["start_ns"] <= t_ns < one["end_ns"]), "")


def mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def floor_mean(values: Iterable[int]) -> int | None:
    found = list(values)
    return sum(found) // len(found) if found else None


def rank(rows: list[Row], column: str, percent: int) -> int | None:
    """Nearest rank; a failure counts as infinite, and an infinite quantile is null."""
    values = sorted(row[column] if row["outcome"] == "ok" else float("inf") for row in rows)
    if not values:
        return None
    value = values[-(-percent * len(values) // 100) - 1]
    return None if value == float("inf") else int(value)


def covered(tables: Tables) -> list[tuple[int, int]]:
    """What was recorded: profiled phases, each from where its recording began; windows that all servers share."""
    if any(tables.windows.values()):
        return reduce(common, (own for own in tables.windows.values() if own))
    profiled = tables.manifest.get("profiled_phases", {})
    states = [(one, profiled.get(one["name"], {})) for one in tables.manifest["phases"]]
    return [
        (one["start_ns"] + state["profiled_after_ns"], one["end_ns"])
        for one, state in states
        if state.get("is_profiled")
    ]


def gpu_activity(tables: Tables, first: int, last: int) -> Row:
    names = ("gpu_kernel_ratio", "gpu_busy_ratio", "gpu_copy_ratio", "copy_overlap_ratio", "gpu_streams_mean")
    if length(cut(covered(tables), first, last)) < last - first:
        return dict.fromkeys(names)
    gpus = sorted({op["gpu_uuid"] for op in tables.ops})
    found = [one_gpu([op for op in tables.ops if op["gpu_uuid"] == gpu], first, last) for gpu in gpus]
    kernel, busy, copy, both, streams = ([one[n] for one in found] for n in range(5))
    return {
        "gpu_kernel_ratio": mean(ns / (last - first) for ns in kernel),
        "gpu_busy_ratio": mean(ns / (last - first) for ns in busy),
        "gpu_copy_ratio": mean(ns / (last - first) for ns in copy),
        "copy_overlap_ratio": sum(both) / sum(copy) if sum(copy) else None,
        "gpu_streams_mean": sum(streams) / sum(busy) if sum(busy) else None,
    }


def one_gpu(ops: list[Row], first: int, last: int) -> tuple[int, int, int, int, int]:
    """Time with a kernel, with anything, with a copy, with a copy and a kernel; and that of each stream, summed."""
    kernels = cut([span(op) for op in ops if op["kind"] == "kernel"], first, last)
    copies = cut([span(op) for op in ops if op["kind"] == "copy"], first, last)
    streams = {(op["node"], op["process"], op["context"], op["stream"]) for op in ops}
    of_streams = sum(
        length(cut([span(o) for o in ops if (o["node"], o["process"], o["context"], o["stream"]) == one], first, last))
        for one in streams
    )  # fmt: skip
    everything = length(cut([span(op) for op in ops], first, last))
    return length(kernels), everything, length(copies), length(common(kernels, copies)), of_streams


def samples(tables: Tables, first: int, last: int) -> Row:
    """Means over the GPUs that anything ran on, as activity is of these; over all where that is not known."""
    uuids = {op["gpu_uuid"] for op in tables.ops if op["gpu_uuid"]}
    own = [
        one for one in tables.gpu_samples
        if first <= one["t_ns"] < last and not one["mig_instance"] and (not uuids or one["gpu_uuid"] in uuids)
    ]  # fmt: skip
    names = {
        "gpu_util": "util", "gpu_sm_util": "sm_util", "gpu_tensor_util": "tensor_util", "gpu_dram_util": "dram_util"
    }  # fmt: skip
    return {ours: mean(s[theirs] for s in own if s[theirs] is not None) for ours, theirs in names.items()}


def of_windows(found: list[dict[str, Any]], expected: list[Row]) -> list[Row]:
    """Differences, a mapping for each window that has any: column -> (found, expected)."""
    wrong = []
    for row, wanted in zip(found, expected, strict=True):
        one = {name: (row[name], value) for name, value in wanted.items() if not same(row[name], value)}
        wrong += [{"t_ns": row["t_ns"], **one}] if one else []
    return wrong


def same(found: float | str | None, expected: float | str | None) -> bool:
    if isinstance(found, float) and isinstance(expected, (int, float)):
        return abs(found - expected) <= 1e-9 * max(1.0, abs(expected))
    return found == expected
