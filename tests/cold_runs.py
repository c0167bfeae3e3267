"""Simulated runs of a server with a dynamic batcher whose model is cold, or slow, in a planted way.

    requests ──► queue ──► a free instance takes up to `most_rows` of those waiting ──► took(start, size, n before)

Requests, batches and statistics are written as the collectors write them; all is exact and drawn from a seed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.store import RunStore
from tests.plain_runs import START_NS, Row, plain_run

MS, S = 1_000_000, 1_000_000_000
WIRE_NS = 200_000
"""Each way."""


@dataclass(frozen=True)
class Execution:
    """What the time of a batch may depend on: when it begins, from the start of the run, its rows, and how many of them
    its instance has executed before."""

    at_ns: int
    rows: int
    n_before: int


Took = Callable[[Execution], float]


def warm(one: Execution) -> float:
    """1 ms and 0.1 ms a row."""
    return MS + 0.1 * MS * one.rows


def new_sizes(sleep_ns: float = 60 * MS) -> Took:
    """Sleeps at each size that the instance has not seen."""
    return lambda one: warm(one) + (sleep_ns if not one.n_before else 0.0)


def slow_until(until_s: float, factor: float = 6.0) -> Took:
    """Slow for the first seconds of the run."""
    return lambda one: warm(one) * (factor if one.at_ns < until_s * S else 1.0)


def slow_bursts(period_s: float, length_s: float, factor: float = 6.0, offset_s: float = 0.0) -> Took:
    """Slow for `length_s` of each `period_s`."""

    def took(one: Execution) -> float:
        is_slow = (one.at_ns - offset_s * S) % (period_s * S) < length_s * S and one.at_ns >= offset_s * S
        return warm(one) * (factor if is_slow else 1.0)

    return took


def drifting(per_s: float) -> Took:
    """Slower by the share `per_s` each second."""
    return lambda one: warm(one) * (1.0 + per_s * one.at_ns / S)


@dataclass(frozen=True)
class Load:
    """Poisson arrivals at `rate_hz` for `seconds`; `busy` multiplies it over part of the phase, (from, to, factor)."""

    name: str
    kind: str
    seconds: float
    rate_hz: float
    busy: tuple[float, float, float] | None = None

    def times_ns(self, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
        stretches = [(0.0, self.seconds, 1.0)]
        if self.busy is not None:
            begin, end, factor = self.busy
            stretches = [(0.0, begin, 1.0), (begin, end, factor), (end, self.seconds, 1.0)]
        drawn = []
        for begin, end, factor in stretches:
            n = rng.poisson(self.rate_hz * factor * (end - begin))
            drawn.append(np.sort(rng.uniform(begin, end, n)))
        return np.asarray(np.concatenate(drawn) * S, np.int64)


WARM_UP, MEASURE = Load("warmup", "warmup", 2.0, 50.0), Load("load", "measure", 20.0, 600.0)


def cold_run(
    parent: Path,
    took: Took,
    loads: Sequence[Load] = (WARM_UP, MEASURE),
    seed: int = 1,
    most_rows: int = 16,
    n_instances: int = 1,
    tables: Sequence[str] = ("batches", "triton_samples"),
    promises: dict[str, Any] | None = None,
    is_open: bool = True,
) -> RunStore:
    """A sealed run with its `batch_costs`. `tables`: what tells of executions; without any only its requests do."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[Row]] = defaultdict(list)
    phases, at_ns = [], 0
    arrivals: list[tuple[int, str]] = []
    for load in loads:
        arrivals += [(at_ns + int(one), load.name) for one in load.times_ns(rng)]
        end_ns = at_ns + round(load.seconds * S)
        phases.append((load.name, load.kind, at_ns, end_ns))
        at_ns = end_ns
    phases.append(("drain", "drain", at_ns, at_ns + 60 * S))
    seen: Counter[tuple[int, int]] = Counter()
    free_ns, place = [0] * n_instances, 0
    while place < len(arrivals):
        instance = min(range(n_instances), key=lambda one: free_ns[one])
        start_ns = max(free_ns[instance], arrivals[place][0] + WIRE_NS)
        waiting = [one for one in arrivals[place : place + most_rows] if one[0] + WIRE_NS <= start_ns]
        size = len(waiting)
        end_ns = start_ns + round(took(Execution(start_ns, size, seen[instance, size])))
        seen[instance, size] += 1
        free_ns[instance] = end_ns
        ids = list(range(place, place + size))
        rows["batches"].append({
            "phase": _phase(phases, start_ns), "model": "m", "version": "1", "instance": f"m_{instance}",
            "batch_id": len(rows["batches"]), "start_ns": START_NS + start_ns, "end_ns": START_NS + end_ns,
            "rows": size, "n_requests": size, "request_ids": ids, "recorded_by": "model",
        })  # fmt: skip
        for request_id, (due_ns, phase) in zip(ids, waiting, strict=True):
            sent_ns, done_ns = START_NS + due_ns, START_NS + end_ns + WIRE_NS
            rows["requests"].append({
                "phase": phase, "request_id": request_id, "target": "server-0", "request_kind": "m", "outcome": "ok",
                "scheduled_ns": sent_ns if is_open else None, "sent_ns": sent_ns, "first_byte_ns": done_ns,
                "done_ns": done_ns, "rows": 1,
            })  # fmt: skip
        place += size
    rows["triton_samples"] = _samples(rows["batches"], phases)
    kept = {name: own for name, own in rows.items() if name == "requests" or name in tables}
    n_by_phase = Counter(phase for _, phase in arrivals)
    scenario = {"name": "planted", "seed": seed, **({"promises": promises} if promises else {})}
    store = plain_run(
        parent, kept, scenario=scenario, seed=seed, start_ns=START_NS,
        plan={"load": "open" if is_open else "closed", "n_arrivals": len(arrivals), "n_by_phase": dict(n_by_phase)},
        phases=[
            {"name": name, "kind": kind, "start_ns": START_NS + begin, "end_ns": START_NS + end}
            for name, kind, begin, end in phases
        ],
        nodes={"node-0": {"clock_error_ns": 0, "n_cores": 2, "gpus": []}},
        servers={"server-0": {"node": "node-0", "model": "m", "version": "1", "batch_record": "batches" in tables}},
    )  # fmt: skip
    if "batches" in tables:
        write_batch_costs(store)
    return store


def summary_of(parent: Path, took: Took, **run: Any) -> Summary:
    """The summary of such a run, joined."""
    store = cold_run(parent, took, **run)
    write_joined(store)
    return summarise(store)


def _phase(phases: Sequence[tuple[str, str, int, int]], at_ns: int) -> str:
    return next((name for name, _, begin, end in phases if begin <= at_ns < end), "")


def _samples(batches: Sequence[Row], phases: Sequence[tuple[str, str, int, int]]) -> list[Row]:
    """Triton's statistics every 100 ms: of the batches that ended in each."""
    step_ns = S // 10
    by_sample: dict[int, list[Row]] = defaultdict(list)
    for one in batches:
        by_sample[(one["end_ns"] - START_NS) // step_ns].append(one)
    found = []
    for number, own in sorted(by_sample.items()):
        n = sum(one["rows"] for one in own)
        t_ns = (number + 1) * step_ns
        infer_ns = sum(one["rows"] * (one["end_ns"] - one["start_ns"]) for one in own)
        found.append({
            "phase": _phase(phases, t_ns), "model": "m", "version": "1", "t_ns": START_NS + t_ns,
            "interval_ns": step_ns, "request_count": n, "inference_count": n, "execution_count": len(own),
            "compute_infer_ns": infer_ns, "success_ns": infer_ns,
        })  # fmt: skip
    return found
