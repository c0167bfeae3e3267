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
    "kernel_of_first_ratio": FigureKind("kernel time, of the first call's CPU time", "ratio"),
    "first_call_ns": FigureKind("first call", "ns"),
    "first_of_warm_ratio": FigureKind("first call, of a warmed-up one", "ratio"),
    "first_synced_ns": FigureKind("first call to its results", "ns"),
    "warm_call_ns": FigureKind("warmed-up call, median", "ns"),
    "warm_synced_ns": FigureKind("warmed-up call to its results, median", "ns"),
    "profiled_call_ns": FigureKind("call under the profiler, median", "ns"),
    "op_cpu_ns": FigureKind("aten operators on the host under the profiler, median", "ns"),
    "call_kernel_ns": FigureKind("kernels of a call, median", "ns"),
    "call_event_ns": FigureKind("a call between CUDA events, median", "ns"),
    "call_kernels_count": FigureKind("kernels a call, median", "count"),
    "compute_tflops": FigureKind("TFLOP/s", "count", False),
    "crossover_size_count": FigureKind("size from which kernels take longer than the host's call", "count"),
    "bound": FigureKind("bound by", "text"),
    "not_measured": FigureKind("not measured", "text"),
    "stage_prep_ns": FigureKind("CPU preparation, median", "ns", True),
    "stage_h2d_ns": FigureKind("copy to the device, median", "ns", True),
    "stage_preprocess_ns": FigureKind("preprocessing, median", "ns", True),
    "stage_inference_ns": FigureKind("inference, median", "ns", True),
    "stage_fused_ns": FigureKind("one stage for all on the device, median", "ns", True),
    "stage_d2h_ns": FigureKind("copy to the host, median", "ns", True),
    "stage_postprocess_ns": FigureKind("postprocessing, median", "ns", True),
    "device_ns": FigureKind("device stages together, median", "ns", True),
    "pipeline_ns": FigureKind("pipeline, median", "ns", True),
    "gain_ratio": FigureKind("gain", "ratio", False),
}
"""By name, the unit in it. `outside_ratio`: 1 - mean response x throughput / users (Little's law), think time counted
as outside. `gain_ratio`: throughput over that of the row that it is compared with, less 1; of a pipeline's variants
that is the one with pageable memory and separate kernels. `compute_tflops`: 2 n^3 + n^2 operations of a matmul_add by
the time of its kernels, 10^12 a second. `bound`: `overhead` where a warmed-up call takes the host longer than its
kernels take the device, else `compute`. `not_measured`: why a row has no figures."""
