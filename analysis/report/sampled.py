"""What was sampled beside the requests in the measure phases: nodes, GPUs, and the load generators themselves."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from squall.analysis.storage.query import over, rows
from squall.scenarios.records import Frozen


class HostFigures(Frozen):
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


class GpuFigures(Frozen):
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


class WorkerFigures(Frozen):
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


_HOSTS = """
SELECT node, count(*) AS n_samples, coalesce(max(n_cores), 0) AS n_cores,
    -- busy is not idle, nor waiting for a disk
    avg(1.0::DOUBLE - cpu_idle - cpu_iowait) AS cpu_busy_mean, max(1.0::DOUBLE - cpu_idle - cpu_iowait) AS cpu_busy_max,
    -- what the hypervisor gave to other machines
    avg(cpu_steal) AS cpu_steal_mean, max(cpu_steal)::DOUBLE AS cpu_steal_max,
    avg(run_queue) AS run_queue_mean, max(run_queue)::DOUBLE AS run_queue_max,
    coalesce(sum(network_drops), 0) AS network_drops_count
FROM samples GROUP BY node ORDER BY node
"""
_OF_GPU = ("util", "sm_util", "sm_occupancy", "tensor_util", "dram_util", "power_w", "memory_used_bytes")
_GPUS = f"""
SELECT gpu_uuid, count(*) AS n_samples,
    {", ".join(f"avg({one}) AS {one}_mean, max({one})::DOUBLE AS {one}_max" for one in _OF_GPU)}
FROM samples GROUP BY gpu_uuid ORDER BY gpu_uuid
"""
_WORKERS = """
WITH own AS (
    SELECT *,
        -- all workers sample at one instant of the run, late by their event loops: hence the half second
        (t_ns - min(t_ns) OVER () + 500_000_000) // 1_000_000_000 AS second,
        -- without what was spent waiting busily for the next instant
        greatest(cpu_ns - spin_ns, 0) / interval_ns AS cpu_ratio
    FROM samples),
seconds AS (SELECT sum(n_backlog) AS n_backlog, sum(n_held) AS n_held FROM own GROUP BY second)
SELECT count(DISTINCT worker) AS n_workers, avg(cpu_ratio) AS cpu_mean_ratio, max(cpu_ratio) AS cpu_max_ratio,
    avg(spin_ns / interval_ns) AS spin_mean_ratio, quantile_disc(loop_lag_ns, 0.95) AS loop_lag_p95_ns,
    (SELECT coalesce(max(n_backlog), 0) FROM seconds) AS backlog_max_count,
    (SELECT coalesce(max(n_held), 0) FROM seconds) AS held_max_count,
    max(n_in_flight) AS in_flight_max_count, coalesce(sum(n_socket_errors), 0) AS socket_errors_count,
    coalesce(sum(n_write_pauses), 0) AS write_pauses_count, coalesce(sum(gc_count), 0) AS gc_count,
    coalesce(sum(gc_pause_ns), 0) AS gc_pause_ns
FROM own
"""


def host_figures(samples: pa.Table | None) -> dict[str, HostFigures] | None:
    """By node; None without the table."""
    return None if samples is None else {row.pop("node"): HostFigures(**row) for row in _of(samples, _HOSTS)}


def gpu_figures(samples: pa.Table | None) -> dict[str, GpuFigures] | None:
    """By GPU; None without the table."""
    return (
        None if samples is None else {row.pop("gpu_uuid"): GpuFigures(**row) for row in _of(samples, _GPUS)}
    )


def worker_figures(samples: pa.Table | None) -> WorkerFigures | None:
    """Of all workers together; None without the table."""
    return None if samples is None else WorkerFigures(**_of(samples, _WORKERS)[0])


def _of(samples: pa.Table, sql: str) -> list[dict[str, Any]]:
    with over({"samples": samples}) as connection:
        return rows(connection, sql)
