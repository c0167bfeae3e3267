"""Figures of a run by phase as typed records: what stands under `metrics` in summary.json. What each means:
docs/metrics.md. The queries of this room make rows of their fields."""

from __future__ import annotations

from collections.abc import Mapping

from squall.scenarios.records import Frozen


class BatchRows(Frozen):
    """Batches of `rows` rows: how many, and their mean length."""

    rows: int
    n: int
    exec_mean_ns: float


class PartFigures(Frozen):
    """One part of the latency, over the ok requests that have it."""

    n: int
    mean_ns: float
    p50_ns: int
    p95_ns: int
    p99_ns: int


class QueueFigures(Frozen):
    """`depth_mean`: requests in the queue, by Little's law; `queue_to_compute_ratio`: their time in it over their time
    in batches."""

    depth_mean: float | None
    queue_to_compute_ratio: float | None


class PendingFigures(Frozen):
    """Triton's own count of waiting requests, over `n` samples."""

    mean: float
    max: int
    n: int


class ServerMetrics(Frozen):
    """A server in a phase: batch sizes, the parts of its requests by name, queue depth. `queue`: None where no request
    tells of it; `pending`: where no sample of Triton does."""

    batch_rows: tuple[BatchRows, ...]
    parts: Mapping[str, PartFigures]
    queue: QueueFigures | None
    pending: PendingFigures | None


class TopKernel(Frozen):
    """Kernels of one full name and grid. `block` and all from `occupancy_ratio` on: of their largest configuration."""

    name: str
    full_name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    n: int
    total_ns: int
    share_ratio: float | None
    median_ns: float | None
    min_ns: int | None
    max_ns: int | None
    is_tensor: bool
    occupancy_ratio: float | None
    limiter: str | None
    waves_count: float | None
    sm_cover_ratio: float | None


class KernelFigures(Frozen):
    """Durations and sizes of the kernels of an instance. `top`: those of most time."""

    n: int
    total_ns: int
    mean_ns: float | None
    median_ns: float | None
    p95_ns: int | None
    max_ns: int | None
    below_10us_ratio: float | None
    tensor_time_ratio: float | None
    occupancy_ratio: float | None
    grid_occupancy_ratio: float | None
    sub_wave_time_ratio: float | None
    sm_cover_ratio: float | None
    sizes_known_time_ratio: float | None
    n_configurations: int
    top: tuple[TopKernel, ...]


class GapShare(Frozen):
    """Gaps of one class of length, or of one cause: how many, how long together, and their share of all gaps' time."""

    n: int
    ns: int
    time_ratio: float | None


class GapFigures(Frozen):
    """Gaps and how their time falls on classes of length."""

    n: int
    total_ns: int
    p50_ns: int | None
    max_ns: int | None
    classes: Mapping[str, GapShare]


class LaunchToStart(Frozen):
    """From launch to start of kernels. `queued_ratio`: those that start after their call ended."""

    n: int
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    queued_ratio: float | None
    n_before_launch: int


class LaunchDepth(Frozen):
    """Launches of kernels not begun, over the time from the first launch to the last start."""

    max: int
    mean: float | None
    nonempty_ratio: float | None
    nonempty_mean: float | None


class LaunchFigures(Frozen):
    """How the operations of an instance's batches follow one another. `body_idle_by_cause`: a key for each of
    `squall.analysis.metrics.launches.CAUSES`."""

    issue_interval_p50_ns: float | None
    host_gap_p50_ns: float | None
    call_p50_ns: float | None
    op_p50_ns: float | None
    launch_to_start: LaunchToStart
    launch_depth: LaunchDepth
    body_idle_by_cause: Mapping[str, GapShare]


class CallClass(Frozen):
    """Calls of one class within the batches of an instance; `…outside…`: of its processes, outside any batch."""

    call_class: str
    n: int
    ns: int
    n_outside: int
    outside_ns: int
    per_batch_count: float | None
    of_api_ratio: float | None
    of_exec_ratio: float | None
    of_wall_ratio: float | None


class CallFigures(Frozen):
    """Calls of an instance by class, most time first, and its blocking split: waits by name against copies of pageable
    memory. `api_ns`: time of all calls."""

    api_ns: int
    classes: tuple[CallClass, ...]
    explicit_wait_of_exec_ratio: float | None
    pageable_copy_of_exec_ratio: float | None


class CopyFigures(Frozen):
    """Copies of one kind between two kinds of memory. `bytes_per_s`: over device time; `call_ns`: the calls' own."""

    copy_kind: str
    source_kind: str
    destination_kind: str
    n: int
    bytes: int
    mean_bytes: float
    device_ns: int
    device_mean_ns: float
    bytes_per_s: float | None
    call_ns: int | None
    call_mean_ns: float | None
    is_pageable: bool


class OsWait(Frozen):
    """Calls of one name by one thread, cut to the measured part; `…inside…`: what lies within its ranges of batches."""

    process: int
    thread: int
    name: str
    n: int
    n_inside: int
    ns: int
    inside_ns: int
    of_wall_ratio: float | None
    inside_of_wall_ratio: float | None


class InstanceMetrics(Frozen):
    """A model instance in a phase.

    `measures`: by name, each of `squall.analysis.metrics.measures.MEASURES`. `mean_ns`: parts of a batch by name, means
    over the tied batches, in ns. `wall_ns`: what the wall_… measures are shares of. `kernels` and what follows: None
    where the profile does not tell.
    """

    server: str
    instance: str
    instance_device: int
    model: str
    node: str
    gpu_uuid: str
    measures: Mapping[str, float | None]
    wall_ns: int | None
    n_profiled: int
    mean_ns: Mapping[str, float | None]
    blocked_ns: int | None
    n_blocks: int | None
    n_mid_blocks: int | None
    overrun_ns: int | None
    os_wait_of_exec_ratio: float | None
    kernels: KernelFigures | None
    launches: LaunchFigures | None
    calls: CallFigures | None
    copies: tuple[CopyFigures, ...] | None
    os_waits: tuple[OsWait, ...] | None


class GpuMetrics(Frozen):
    """A GPU in a phase: what ran on it in the `profiled_ns` that were recorded, None each where nothing was; and what
    its samples say, None each where it has none."""

    profiled_ns: int | None
    kernel_ratio: float | None
    busy_ratio: float | None
    copy_ratio: float | None
    copy_ns: int | None
    copy_overlap_ratio: float | None
    streams_mean: float | None
    idle_gaps: GapFigures | None
    compute_gaps: GapFigures | None
    n_compute_bursts: int | None
    n_samples: int | None
    util: float | None
    memory_util: float | None
    sm_util: float | None
    sm_occupancy: float | None
    tensor_util: float | None
    dram_util: float | None
    fp16_util: float | None
    fp32_util: float | None
    sm_clock_hz: float | None
    power_instant_w: float | None
    throttled_ratio: float | None
    throttle_reasons: int | None


class PhaseMetrics(Frozen):
    """A measure phase. `covered_ns`: start and end of each stretch of it in which kernels were recorded, of all servers
    that have any; `servers` by name, `instances` by `squall.analysis.metrics.measures.instance_key`, `gpus` by UUID."""

    start_ns: int
    end_ns: int
    covered_ns: tuple[tuple[int, int], ...]
    servers: Mapping[str, ServerMetrics]
    instances: Mapping[str, InstanceMetrics]
    gpus: Mapping[str, GpuMetrics]


class RunMetrics(Frozen):
    """The measure phases of a run by name, in order of time."""

    phases: Mapping[str, PhaseMetrics]

    @property
    def measures(self) -> dict[tuple[str, str], Mapping[str, float | None]]:
        """The measures of every instance, by phase and key of the instance."""
        return {
            (phase, key): instance.measures
            for phase, own in self.phases.items()
            for key, instance in own.instances.items()
        }
