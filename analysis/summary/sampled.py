"""What was sampled beside the requests in the measure phases: nodes, GPUs, and the load generators themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Floats
from squall.analysis.requests import workers as workers_of
from squall.analysis.statistics.order_statistics import rank_value
from squall.analysis.verdict.measured import mean


@dataclass(frozen=True)
class HostFigures:
    """CPU of a node, as ratios of all its cores; busy is not idle, nor iowait. None without samples."""

    n_samples: int
    n_cores: int
    cpu_busy_mean: float | None
    cpu_busy_max: float | None
    cpu_steal_mean: float | None
    cpu_steal_max: float | None
    run_queue_mean: float | None
    run_queue_max: float | None
    network_drops_count: int


@dataclass(frozen=True)
class GpuFigures:
    """A GPU; `util` is time with any kernel, not how full the GPU was. None without samples."""

    n_samples: int
    util_mean: float | None
    util_max: float | None
    sm_util_mean: float | None
    sm_util_max: float | None
    sm_occupancy_mean: float | None
    sm_occupancy_max: float | None
    tensor_util_mean: float | None
    tensor_util_max: float | None
    dram_util_mean: float | None
    dram_util_max: float | None
    power_w_mean: float | None
    power_w_max: float | None
    memory_used_bytes_mean: float | None
    memory_used_bytes_max: float | None


@dataclass(frozen=True)
class WorkerFigures:
    """The load generators: is there room left? CPU is without `spin_ns`, which has its own ratio; backlog and held are
    the largest sums over the workers."""

    n_workers: int
    cpu_mean_ratio: float | None
    cpu_max_ratio: float | None
    spin_mean_ratio: float | None
    loop_lag_p95_ns: int | None
    backlog_max_count: int
    held_max_count: int
    in_flight_max_count: int | None
    socket_errors_count: int
    write_pauses_count: int
    gc_count: int
    gc_pause_ns: int


def host_figures(samples: pa.Table | None) -> dict[str, HostFigures] | None:
    """By node; None without the table."""
    return None if samples is None else {node: _host(own) for node, own in _by(samples, "node")}


def gpu_figures(samples: pa.Table | None) -> dict[str, GpuFigures] | None:
    """By GPU; None without the table."""
    return None if samples is None else {gpu: _gpu(own) for gpu, own in _by(samples, "gpu_uuid")}


def worker_figures(samples: pa.Table | None) -> WorkerFigures | None:
    """Of all workers together; None without the table."""
    if samples is None:
        return None
    busy = workers_of.busy_ratios(samples)
    return WorkerFigures(
        n_workers=len(set(samples.column("worker").to_pylist())),
        cpu_mean_ratio=mean(busy),
        cpu_max_ratio=_most(busy),
        spin_mean_ratio=mean(_numbers(samples, "spin_ns") / _numbers(samples, "interval_ns")),
        loop_lag_p95_ns=rank_value(samples.column("loop_lag_ns").to_numpy(), 0.95),
        backlog_max_count=workers_of.peak_total(samples, "n_backlog"),
        held_max_count=workers_of.peak_total(samples, "n_held"),
        in_flight_max_count=rank_value(samples.column("n_in_flight").to_numpy(), 1.0),
        socket_errors_count=int(_numbers(samples, "n_socket_errors").sum()),
        write_pauses_count=int(_numbers(samples, "n_write_pauses").sum()),
        gc_count=int(_numbers(samples, "gc_count").sum()),
        gc_pause_ns=int(_numbers(samples, "gc_pause_ns").sum()),
    )


def _host(own: pa.Table) -> HostFigures:
    busy = 1.0 - _numbers(own, "cpu_idle") - _numbers(own, "cpu_iowait")
    steal, queue = _numbers(own, "cpu_steal"), _numbers(own, "run_queue")
    return HostFigures(
        n_samples=own.num_rows,
        n_cores=int(_numbers(own, "n_cores").max(initial=0)),
        cpu_busy_mean=mean(busy),
        cpu_busy_max=_most(busy),
        cpu_steal_mean=mean(steal),
        cpu_steal_max=_most(steal),
        run_queue_mean=mean(queue),
        run_queue_max=_most(queue),
        network_drops_count=int(_numbers(own, "network_drops").sum()),
    )


def _gpu(own: pa.Table) -> GpuFigures:
    util, sm_util, occupancy, tensor, dram, power, memory = (
        _numbers(own, name)
        for name in ("util", "sm_util", "sm_occupancy", "tensor_util", "dram_util", "power_w", "memory_used_bytes")
    )  # fmt: skip
    return GpuFigures(
        n_samples=own.num_rows,
        util_mean=mean(util),
        util_max=_most(util),
        sm_util_mean=mean(sm_util),
        sm_util_max=_most(sm_util),
        sm_occupancy_mean=mean(occupancy),
        sm_occupancy_max=_most(occupancy),
        tensor_util_mean=mean(tensor),
        tensor_util_max=_most(tensor),
        dram_util_mean=mean(dram),
        dram_util_max=_most(dram),
        power_w_mean=mean(power),
        power_w_max=_most(power),
        memory_used_bytes_mean=mean(memory),
        memory_used_bytes_max=_most(memory),
    )


def _by(table: pa.Table, key: str) -> Sequence[tuple[str, pa.Table]]:
    """The rows of each value of text column `key`."""
    texts = table.column(key).cast(pa.string())
    values = texts.to_numpy()
    return [(name, table.filter(pa.array(values == name))) for name in sorted(set(texts.to_pylist()))]


def _numbers(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).drop_null().to_numpy(), dtype=np.float64)


def _most(values: Floats) -> float | None:
    return float(values.max()) if len(values) else None
