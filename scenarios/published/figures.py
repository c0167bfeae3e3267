"""The figures that published experiments state and that our runs give again: names, units, what is better."""

from __future__ import annotations

from typing import Literal

from squall.scenarios.records import Frozen

Unit = Literal["ns", "hz", "ratio", "bytes", "count", "text"]


class FigureKind(Frozen):
    """`title`: over a column of a table. `is_better_low`: None where neither is better."""

    title: str
    unit: Unit
    is_better_low: bool | None = None


_UNITS: dict[str, Unit] = {
    "ns": "ns",
    "hz": "hz",
    "ratio": "ratio",
    "bytes": "bytes",
    **dict.fromkeys(("count", "mean", "tflops"), "count"),
}
"""By the ending of the name; without one of these it is a text."""
_IS_BETTER_LOW = {
    **dict.fromkeys(
        (
            "mean_ns",
            "p50_ns",
            "p95_ns",
            "p99_ns",
            "outside_ratio",
            "stage_prep_ns",
            "stage_h2d_ns",
            "stage_preprocess_ns",
            "stage_inference_ns",
            "stage_fused_ns",
            "stage_d2h_ns",
            "stage_postprocess_ns",
            "device_ns",
            "pipeline_ns",
        ),
        True,
    ),
    **dict.fromkeys(("throughput_hz", "compute_tflops", "gain_ratio"), False),
}
_TITLES = {
    "throughput_hz": "requests/s",
    "mean_ns": "mean",
    "p50_ns": "p50",
    "p95_ns": "p95",
    "p99_ns": "p99",
    "users_count": "users",
    "outside_ratio": "of a user's cycle outside any request",
    "bound_by": "bound by",
    "sm_util_ratio": "SM utilisation",
    "gpu_util_ratio": "nvidia-smi's utilisation",
    "gpu_active_ratio": "temporal GPU activity",
    "gpu_compute_p50_ns": "GPU compute of a batch, median",
    "execution_count": "executions",
    "batch_rows_mean": "rows a batch",
    "sync_share_ratio": "synchronisation, of CUDA API time",
    "launch_share_ratio": "launches, of CUDA API time",
    "copy_share_ratio": "copies, of CUDA API time",
    "sem_wait_ns": "sem_wait, in all",
    "h2d_mean_bytes": "a copy to the device, mean",
    "idle_gap_p50_ns": "idle between bursts of kernels, median",
    "kernel_mean_ns": "a kernel, mean",
    "kernel_p50_ns": "a kernel, median",
    "kernels_per_batch_count": "kernels a batch, median",
    "gemms_per_batch_count": "matrix products a batch, median",
    "layer_norm_share_ratio": "LayerNorm, of kernel time",
    "layer_norm_mean_ns": "a LayerNorm, mean",
    "regime": "classified as",
    "kernel_of_cpu_ratio": "kernel time, of CPU time",
    "kernel_of_first_ratio": "kernel time, of the first call's CPU time",
    "first_call_ns": "first call",
    "first_of_warm_ratio": "first call, of a warmed-up one",
    "first_synced_ns": "first call to its results",
    "warm_call_ns": "warmed-up call, median",
    "warm_synced_ns": "warmed-up call to its results, median",
    "profiled_call_ns": "call under the profiler, median",
    "op_cpu_ns": "aten operators on the host under the profiler, median",
    "call_kernel_ns": "kernels of a call, median",
    "call_event_ns": "a call between CUDA events, median",
    "call_kernels_count": "kernels a call, median",
    "compute_tflops": "TFLOP/s",
    "crossover_size_count": "size from which kernels take longer than the host's call",
    "bound": "bound by",
    "not_measured": "not measured",
    "stage_prep_ns": "CPU preparation, median",
    "stage_h2d_ns": "copy to the device, median",
    "stage_preprocess_ns": "preprocessing, median",
    "stage_inference_ns": "inference, median",
    "stage_fused_ns": "one stage for all on the device, median",
    "stage_d2h_ns": "copy to the host, median",
    "stage_postprocess_ns": "postprocessing, median",
    "device_ns": "device stages together, median",
    "pipeline_ns": "pipeline, median",
    "gain_ratio": "gain",
}
FIGURES = {
    name: FigureKind(title, _UNITS.get(name.rpartition("_")[2], "text"), _IS_BETTER_LOW.get(name))
    for name, title in _TITLES.items()
}
"""By name, the unit in it. `outside_ratio`: 1 - mean response x throughput / users (Little's law), think time counted
as outside. `gain_ratio`: throughput over that of the row that it is compared with, less 1; of a pipeline's variants
that is the one with pageable memory and separate kernels. `compute_tflops`: 2 n^3 + n^2 operations of a matmul_add by
the time of its kernels, 10^12 a second. `bound`: `overhead` where a warmed-up call takes the host longer than its
kernels take the device, else `compute`. `not_measured`: why a row has no figures."""
