"""The figures that published experiments state and that our runs give again: names, units, what is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["ns", "hz", "ratio", "bytes", "count", "text"]


@dataclass(frozen=True)
class FigureKind:
    """`title`: over a column of a table. `is_better_low`: None where neither is better."""

    title: str
    unit: Unit
    is_better_low: bool | None = None


FIGURES = {
    "throughput_hz": FigureKind("requests/s", "hz", False),
    "mean_ns": FigureKind("mean", "ns", True),
    "p50_ns": FigureKind("p50", "ns", True),
    "p95_ns": FigureKind("p95", "ns", True),
    "p99_ns": FigureKind("p99", "ns", True),
    "users_count": FigureKind("users", "count"),
    "outside_ratio": FigureKind("of a user's cycle outside any request", "ratio", True),
    "bound_by": FigureKind("bound by", "text"),
    "sm_util_ratio": FigureKind("SM utilisation", "ratio"),
    "gpu_util_ratio": FigureKind("nvidia-smi's utilisation", "ratio"),
    "gpu_active_ratio": FigureKind("temporal GPU activity", "ratio"),
    "gpu_compute_p50_ns": FigureKind("GPU compute of a batch, median", "ns"),
    "execution_count": FigureKind("executions", "count"),
    "batch_rows_mean": FigureKind("rows a batch", "count"),
    "sync_share_ratio": FigureKind("synchronisation, of CUDA API time", "ratio"),
    "launch_share_ratio": FigureKind("launches, of CUDA API time", "ratio"),
    "copy_share_ratio": FigureKind("copies, of CUDA API time", "ratio"),
    "sem_wait_ns": FigureKind("sem_wait, in all", "ns"),
    "h2d_mean_bytes": FigureKind("a copy to the device, mean", "bytes"),
    "idle_gap_p50_ns": FigureKind("idle between bursts of kernels, median", "ns"),
    "kernel_mean_ns": FigureKind("a kernel, mean", "ns"),
    "kernel_p50_ns": FigureKind("a kernel, median", "ns"),
    "kernels_per_batch_count": FigureKind("kernels a batch, median", "count"),
    "gemms_per_batch_count": FigureKind("matrix products a batch, median", "count"),
    "layer_norm_share_ratio": FigureKind("LayerNorm, of kernel time", "ratio"),
    "layer_norm_mean_ns": FigureKind("a LayerNorm, mean", "ns"),
    "regime": FigureKind("classified as", "text"),
    "kernel_of_cpu_ratio": FigureKind("kernel time, of CPU time", "ratio"),
    "first_call_ns": FigureKind("first call", "ns"),
    "warm_call_ns": FigureKind("warmed-up call, median", "ns"),
    "stage_ns": FigureKind("stage, median", "ns"),
    "pipeline_ns": FigureKind("pipeline, median", "ns"),
    "gain_ratio": FigureKind("gain", "ratio", False),
}
"""By name, the unit in it. `outside_ratio`: 1 - mean response x throughput / users (Little's law), think time counted
as outside. `gain_ratio`: throughput over that of the row that it is compared with, less 1."""
