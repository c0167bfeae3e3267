"""Small sealed runs with figures that are known: 1,000 requests a phase, one every 2 ms, two workers, one node."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from squall.analysis.compare.compared import evaluate
from squall.analysis.compare.pairing import pair_runs
from squall.analysis.compare.run_row import read_row
from squall.analysis.record import to_json
from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore

START_NS = 1_795_250_252_000_000_000
MS, S = 1_000_000, 1_000_000_000
N = 1_000
LENGTH_NS = 2 * S
ON = {"status": "on", "reason": "", "mend": ""}
RATIOS = ((1.03, 1.0), (1.06, 1.02), (1.0, 0.99))
"""Latency with profilers and without, by pair."""


def profiled_pairs(
    folder: Path,
    ratios: Sequence[tuple[float, float]] = RATIOS,
    runs: Mapping[int, Mapping[str, Any]] | None = None,
) -> tuple[list[str], list[str]]:
    """What `squall run --measure-overhead` leaves in `folder`: names of the runs without profilers and with them, whose
    latencies are those of `write_run` times the ratios (with, without) of a pair. `runs`: options of `write_run` by
    position, without first in a pair."""
    found: dict[str, list[str]] = {"a": [], "b": []}
    for pair, (with_, without) in enumerate(ratios):
        for place, (side, ratio, nsys) in enumerate((("a", without, "off"), ("b", with_, "auto"))):
            at = 2 * pair + place
            manifest = {
                "scenario": {"name": "made", "seed": 1, "profile": {"nsys": nsys}}, "seed": 1, "started_ns": 1 + at,
                "scenario_digest": side, "plan": {"load": "open", "sha256": "plan 1"},
                "collectors": {"triton": ON, "host": ON, **({"nsys": ON} if side == "b" else {})},
            }  # fmt: skip
            options = {
                "latency_ratio": ratio,
                "cpu_ratio": ratio,
                "manifest": manifest,
                **(runs or {}).get(at, {}),
            }
            found[side].append(write_run(folder / side, **options).run)
    rows = {side: [read_row(folder / side / name) for name in names] for side, names in found.items()}
    compared = evaluate("without profilers", "with profilers", pair_runs(rows["a"], rows["b"]))
    (folder / "compare.json").write_text(json.dumps(to_json(compared)))
    return found["a"], found["b"]


def table(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """`rows` as table `name`; columns that they lack are null."""
    wanted = arrow_schema(name)
    plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in wanted]
    return pa.table(
        [
            pa.array([row.get(column) for row in rows], kind)
            for column, kind in zip(wanted.names, plain, strict=True)
        ],
        names=wanted.names,
    )


def write_run(
    parent: Path,
    latency_ratio: float = 1.0,
    n_failed: int = 0,
    status: str | None = "VALID",
    phases: Sequence[str] = ("burst",),
    cpu_ratio: float = 1.0,
    manifest: Mapping[str, Any] | None = None,
    is_open: bool = True,
    omit: Sequence[str] = (),
) -> RunStore:
    """Request i of a phase takes (10 + i / 100) ms * latency_ratio: p50 15 ms, p95 19.5, p99 19.9. Each worker uses 100
    ms * cpu_ratio of CPU a second, the server 400 ms. The last `n_failed` of each phase time out. `status` None leaves
    the run open."""
    spans = _spans(phases)
    store = RunStore.create(parent, "made", START_NS, read_manifest({
        "scenario": {"name": "made", "seed": 1, "profile": {"nsys": "auto"}},
        "plan": {"load": "open" if is_open else "closed"}, "phases": spans,
        "collectors": {"triton": ON, "host": ON}, **(manifest or {}),
    }))  # fmt: skip
    for name, rows in _tables(latency_ratio, n_failed, tuple(phases), cpu_ratio, is_open).items():
        if name not in omit:
            own = pa.array([store.run] * len(rows), pa.string())
            store.append(name, rows.set_column(rows.column_names.index("run"), "run", own))
    store.flush()
    if status is not None:
        reasons = () if status == "VALID" else ("it was made so",)
        store.seal(Verdict(status=status, reasons=reasons))
    return store


def _spans(phases: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "kind": "measure", "start_ns": START_NS + k * LENGTH_NS,
         "end_ns": START_NS + (k + 1) * LENGTH_NS}
        for k, name in enumerate(phases)
    ]  # fmt: skip


@cache
def _tables(
    latency_ratio: float, n_failed: int, phases: tuple[str, ...], cpu_ratio: float, is_open: bool
) -> dict[str, pa.Table]:
    """The tables of a run without its name, made once: most tests ask for the same pairs of runs."""
    spans = _spans(phases)
    rows = {
        "requests": [row for span in spans for row in _requests(span, latency_ratio, n_failed, is_open)],
        "worker_samples": _workers(spans, cpu_ratio),
        "host_samples": _hosts(spans, cpu_ratio),
    }
    return {name: table(name, own) for name, own in rows.items()}


def _requests(
    span: Mapping[str, Any], latency_ratio: float, n_failed: int, is_open: bool
) -> list[dict[str, Any]]:
    first = (span["start_ns"] - START_NS) // LENGTH_NS * N
    rows = []
    for i in range(N):
        at_ns = span["start_ns"] + i * (LENGTH_NS - 50 * MS) // N  # the slowest ends within the phase
        is_ok = i < N - n_failed
        rows.append({
            "run": "", "phase": span["name"], "node": "node-0", "request_id": first + i, "worker": i % 2,
            "target": "server-0", "request_kind": "made", "scheduled_ns": at_ns if is_open else None, "sent_ns": at_ns,
            "done_ns": at_ns + round((10 + (i + 1) / 100) * MS * latency_ratio), "rows": 1,
            "request_bytes": 1, "response_bytes": 1, "outcome": "ok" if is_ok else "timeout", "detail": "",
        })  # fmt: skip
    return rows


def _seconds(spans: Sequence[Mapping[str, Any]]) -> range:
    """Samples end half a second after the whole ones, from before the first phase to after the last."""
    return range(len(spans) * 2 + 1)


def _workers(spans: Sequence[Mapping[str, Any]], cpu_ratio: float) -> list[dict[str, Any]]:
    counts = (
        "n_due", "n_sent", "n_done", "n_backlog", "n_held", "n_in_flight", "n_connections", "n_socket_errors",
        "n_write_pauses", "lag_max_ns", "loop_lag_ns", "gc_count", "gc_pause_ns",
    )  # fmt: skip
    return [
        {
            **dict.fromkeys(counts, 0),
            "run": "", "phase": "burst", "node": "node-0", "worker": worker,
            "t_ns": START_NS + second * S + S // 2,
            "interval_ns": S, "cpu_ns": round(110 * MS * cpu_ratio), "spin_ns": round(10 * MS * cpu_ratio),
        }
        for second in _seconds(spans)
        for worker in (0, 1)
    ]  # fmt: skip


def _hosts(spans: Sequence[Mapping[str, Any]], cpu_ratio: float) -> list[dict[str, Any]]:
    shares = ("cpu_user", "cpu_system", "cpu_iowait", "cpu_steal", "cpu_idle")
    counts = ("n_cores", "run_queue", "context_switches", "network_drops", "memory_available_bytes")
    return [
        {
            **dict.fromkeys(shares, 0.0), **dict.fromkeys(counts, 0),
            "run": "", "phase": "burst", "node": "node-0", "t_ns": START_NS + second * S + S // 2,
            "interval_ns": S, "server_cpu_ns": round(400 * MS * cpu_ratio),
        }
        for second in _seconds(spans)
    ]  # fmt: skip
