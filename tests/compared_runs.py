"""Sides of a comparison from servers on a simulated clock: runs whose truth is known, reduced as real ones are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from squall.analysis.arrays import Bools, Floats, Int64s
from squall.analysis.compare.run_account import (
    BATCH_PARTS,
    PARTS,
    PartMeans,
    RecordedSums,
    RunAccount,
    SizeSums,
)
from squall.analysis.compare.run_row import FAILURES, SHIFT_PERCENTS, RunRow
from squall.analysis.verdict.run_figures import Reading
from tests.simulated_servers import batched_response, fifo_response, gamma_arrivals

SERVICE_S, NETWORK_S = 0.010, 0.000_2
JITTER_RATIO, DRIFT_RATIO = 0.10, 0.01
N = 6_000


@dataclass(frozen=True)
class Shape:
    """What arrives: the share of time that a server of `SERVICE_S` works, and the gaps' coefficient of variation."""

    load_ratio: float
    cv: float = 1.0


SHAPES = (Shape(0.5), Shape(0.8), Shape(0.9), Shape(0.8, 3.0))
"""Those of the known figures."""


def arrivals_s(shape: Shape, seed: int, n: int = N) -> Floats:
    """(n,): of a seed the same for both sides."""
    return gamma_arrivals(np.random.default_rng(seed), n, shape.cv) * (SERVICE_S / shape.load_ratio)


def served(
    name: str, shape: Shape, seed: int, rng: np.random.Generator, slower: float = 1.0, n: int = N, at: int = 0
) -> RunRow:
    """A run behind one server, first come first served: each service 10 % off, the machine 1 % off in this run.

    `slower`: factor on all services. `at`: place in the order of runs.
    """
    arrival_s = arrivals_s(shape, seed, n)
    machine = 1.0 + DRIFT_RATIO * rng.standard_normal()
    service_s = SERVICE_S * slower * machine * np.maximum(0.1, 1.0 + JITTER_RATIO * rng.standard_normal(n))
    in_server_s = fifo_response(arrival_s, service_s)
    network_s = NETWORK_S * np.maximum(0.1, 1.0 + JITTER_RATIO * rng.standard_normal(n))
    parts = {"network": network_s, "queue": in_server_s - service_s, "compute": service_s}
    return side_run(name, arrival_s, parts, seed, np.ones(n, np.int64), at=at)


def batched(
    name: str, rate_hz: float, seed: int, rng: np.random.Generator, delay_s: float, n: int = N, at: int = 0
) -> RunRow:
    """A run behind a batcher whose batches take 2 + 0.25 b ms, at most 8 rows, whatever `delay_s` it waits for more."""
    arrival_s = gamma_arrivals(np.random.default_rng(seed), n) / rate_hz
    found = batched_response(arrival_s, 0.002, 0.000_25, 8, delay_s)
    network_s = NETWORK_S * np.maximum(0.1, 1.0 + JITTER_RATIO * rng.standard_normal(n))
    noise = 1.0 + 0.002 * rng.standard_normal()
    compute_s = (0.002 + 0.000_25 * found.batch_rows) * noise
    queue_s = found.response_s - (0.002 + 0.000_25 * found.batch_rows)
    parts = {"network": network_s, "queue": queue_s, "compute": np.asarray(compute_s)}
    return side_run(name, arrival_s, parts, seed, found.batch_rows, kernel_ratio=0.9, at=at)


def side_run(
    name: str,
    arrival_s: Floats,
    parts_s: Mapping[str, Floats],
    seed: int,
    batch_rows: Int64s,
    is_failed: Bools | None = None,
    kernel_ratio: float | None = None,
    at: int = 0,
    **values: Any,
) -> RunRow:
    """A run of requests whose latencies are the sums of `parts_s`, (n,) each. `kernel_ratio`: kernels were recorded,
    and take that of a batch; the rest of it is launch idle."""
    n = len(arrival_s)
    latency_ns = np.rint(1e9 * np.sum([*parts_s.values()], axis=0))
    failed = np.zeros(n, np.bool_) if is_failed is None else is_failed
    told = np.sort(np.where(failed, np.inf, latency_ns))
    end_s = float(arrival_s[-1])
    n_done = int((~failed & (arrival_s + latency_ns / 1e9 < end_s)).sum())
    edge_ns = np.sort(latency_ns[~failed])[-(-9 * int((~failed).sum()) // 10) - 1]
    return RunRow(
        name=name,
        status="VALID",
        seed=seed,
        schedule=f"schedule {seed}",
        started_ns=1 + at,
        scenario={"seed": seed},
        figures={
            **{f"p{percent}_ns": _reading(told, percent) for percent in (50, 95, 99)},
            FAILURES: Reading(float(failed.mean())),
            "throughput_hz": Reading(n_done / end_s),
        },
        quantiles_ns=tuple(_reading(told, percent).value for percent in SHIFT_PERCENTS),
        account=RunAccount(
            _means(parts_s, ~failed), _means(parts_s, ~failed & (latency_ns >= edge_ns)), {"trace": 1.0},
            _sizes(parts_s["compute"], batch_rows),
            () if kernel_ratio is None else _recorded(parts_s["compute"], batch_rows, kernel_ratio),
        ),
        **values,
    )  # fmt: skip


def _reading(told_ns: Floats, percent: int) -> Reading:
    value = float(told_ns[-(-percent * len(told_ns) // 100) - 1])
    return Reading(None, "it falls on failures", True) if np.isinf(value) else Reading(value)


def _means(parts_s: Mapping[str, Floats], rows: Bools) -> PartMeans:
    own = {part: float(1e9 * parts_s[part][rows].mean()) if part in parts_s else 0.0 for part in PARTS}
    return PartMeans(int(rows.sum()), own)


def _sizes(compute_s: Floats, batch_rows: Int64s) -> tuple[SizeSums, ...]:
    return tuple(
        SizeSums(int(size), int((batch_rows == size).sum()), float(1e9 * compute_s[batch_rows == size].sum()))
        for size in np.unique(batch_rows)
    )


def _recorded(compute_s: Floats, batch_rows: Int64s, kernel_ratio: float) -> tuple[RecordedSums, ...]:
    found = []
    for size in np.unique(batch_rows):
        own_ns = 1e9 * compute_s[batch_rows == size]
        n_batches, total_ns = max(1, len(own_ns) // int(size)), float(own_ns.sum()) / int(size)
        ns = dict.fromkeys(BATCH_PARTS, 0.0)
        ns |= {"kernel busy": kernel_ratio * total_ns, "launch idle": (1.0 - kernel_ratio) * total_ns}
        kernels = {"gemm": (20 * n_batches, kernel_ratio * total_ns)}
        found.append(RecordedSums("head", int(size), n_batches, ns, kernels))
    return tuple(found)


def pairs_of(
    shape: Shape, number: int, n_pairs: int = 8, slower: float = 1.0, n: int = N
) -> tuple[list[RunRow], list[RunRow]]:
    """Runs of both sides of comparison `number`, B slower by a factor; seeds are its own, blocks in random order."""
    rng = np.random.default_rng([number, 77])
    a, b = list[RunRow](), list[RunRow]()
    for block in range(n_pairs):
        seed, swap = 1_000 * number + block, int(rng.integers(2))
        a.append(served(f"a{block}", shape, seed, rng, n=n, at=2 * block + swap))
        b.append(served(f"b{block}", shape, seed, rng, slower, n, 2 * block + 1 - swap))
    return a, b
