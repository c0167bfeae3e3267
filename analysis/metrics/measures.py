"""The measures of a model instance in a phase: one flat mapping, name -> value, that rules can be written over.

`measures` of `squall.analysis.metrics.records.InstanceMetrics` is that mapping, with every name of `MEASURES`. A
value is a float or None: None means not assessed, because what it needs is not in the run. Formulas and sources:
docs/metrics.md.
"""

from __future__ import annotations

import re

from squall.analysis.columns import NO_DEVICE

Measures = dict[str, float | None]


MEASURES = {
    "n_batches": "batches begun in the phase; over some batches: their number",
    "profiled_ratio": "batches with a tie to the profile over n_batches",
    "attribution_ratio": "operations tied to a batch over all of its processes in the recording",
    "exec_mean_ns": "mean length of a batch",
    "batch_rows_mean": "mean rows of a batch",
    # Where the wall goes: these eight, as far as they are not None, add up to 1. None over some batches of a phase.
    "wall_gpu_busy_ratio": "within batches, an operation of the batch on the GPU",
    "wall_head_ratio": "within batches, before their first operation",
    "wall_body_idle_ratio": "within batches, idle between their first and last operation",
    "wall_tail_ratio": "within batches, after their last operation",
    "wall_unprofiled_ratio": "within batches that have no tie to the profile",
    "wall_between_waiting_ratio": "idle, a request waiting: of the next batch, or one that was never served",
    "wall_between_empty_ratio": "between batches, no request there yet",
    "wall_edges_ratio": "before the first batch and after the last, no request waiting",
    "wall_between_ratio": "the two kinds of between above together; known without requests too",
    # Inside batches.
    "head_tail_of_exec_ratio": "head and tail over the length of the batches",
    "body_busy_ratio": "GPU busy with the batch over its body, first to last operation",
    "body_idle_of_exec_ratio": "idle inside the body over the length of the batches",
    "gpu_busy_of_exec_ratio": "GPU busy with the batch over the length of the batches",
    "blocked_of_exec_ratio": "its thread in calls that block, over the length of the batches",
    "blocked_gpu_busy_ratio": "part of that in which an operation of the batch ran; None if none",
    "mid_blocks_per_batch": "blocking calls followed by more work, per batch",
    "launches_per_batch": "calls that launch a kernel or graph, per batch",
    "launch_of_exec_ratio": "its thread in calls that launch, over the length of the batches",
    "issue_interval_ns": "median from launch to launch within a batch, start to start",
    "op_median_ns": "median duration of those operations, of a graph the union of its nodes",
    "issue_to_op_ratio": "issue_interval_ns over op_median_ns; may exceed 1",
    "host_wait_of_idle_ratio": "idle inside bodies that ends with work launched after it began",
    "launch_depth_nonempty_mean": "mean launches of kernels not begun, while there are any",
    "copy_exposed_of_body_ratio": "copies and sets without a kernel of the batch, over the bodies",
    "copy_to_kernel_ratio": "time of copies over time of kernels; may exceed 1",
    "copy_mean_bytes": "mean size of a copy",
    "pageable_bytes_ratio": "bytes of copies from or to pageable memory over bytes of copies",
    "sub_wave_time_ratio": "kernel time in kernels of less than one wave",
    "sm_cover_ratio": "SMs that get a block over SMs, weighted by kernel time",
    "occupancy_ratio": "theoretical occupancy, weighted by kernel time",
    "tensor_time_ratio": "kernel time in kernels whose names say tensor cores",
    "foreign_busy_ratio": "part of its batches in which another process's work ran on its GPU",
    # Its GPU over the phase, and its requests.
    "gpu_activity_ratio": "temporal activity of its GPU: any kernel of any process",
    "gpu_sm_util_ratio": "GPM: SMs busy, mean over time and SMs",
    "gpu_tensor_util_ratio": "GPM: tensor pipes busy",
    "gpu_dram_util_ratio": "GPM: share of peak DRAM bandwidth",
    "gpu_util_ratio": "nvidia-smi's utilisation",
    "throttled_ratio": "samples in which power or heat held the clocks down",
    "n_throttle_samples": "samples that tell of it",
    "queue_p50_ns": "median queue_ns of its ok requests",
    "queue_share_ratio": "queue_p50_ns over the median time in the server",
    "queue_mean_ns": "mean queue_ns of its ok requests",
    "compute_mean_ns": "mean compute_ns of the same",
    "client_lag_share_ratio": "sum of send lags over sum of responses of the same; None in a closed loop",
}
"""What each measure means, in the order of docs/metrics.md. Its unit is the suffix of its name: `_ns`, `_bytes`,
`_ratio` (0-1 unless said), else a count."""

NAMES = tuple(MEASURES)

NO_CLOCK_LIMIT = 0x1 | 0x2 | 0x10 | 0x100
"""NVML's reasons that are no throttling: idle, clocks set by the user, sync boost, display clocks (nvml.h)."""


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part` over `whole`; None where either is unknown or the whole is 0."""
    return None if part is None or not whole else float(part) / float(whole)


INSTANCE = ("server", "instance", "instance_device", "model")
"""Columns that say which instance a row is of, in the order that `instance_key` takes them."""


def instance_key(server: str, instance: str, device: int, model: str) -> str:
    """Key of an instance: server/instance, server/instance@gpu1 of one on a GPU; server/model where only Triton's trace
    tells of its batches."""
    where = "" if device == NO_DEVICE else f"@gpu{device}"
    return f"{server}/{instance or model}{where}"


def server_of(key: str) -> str:
    """The server of an instance key."""
    return key.partition("/")[0]


def instance_of(key: str) -> tuple[str, int]:
    """Name, or model, and device of an instance key."""
    found = re.fullmatch(r"[^/]*/(.*?)(?:@gpu([0-9]+))?", key, re.DOTALL)
    assert found is not None, "keys are made here"
    return found[1], NO_DEVICE if found[2] is None else int(found[2])
