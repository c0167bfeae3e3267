"""Figures of a run by phase as typed objects: what stands under `metrics` in summary.json. What each means:
docs/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from squall.analysis.metrics.figures.copy_figures import CopyFigures
from squall.analysis.metrics.figures.gap_figures import GapFigures
from squall.analysis.metrics.figures.issue_figures import LaunchFigures
from squall.analysis.metrics.figures.os_waits import OsWait
from squall.analysis.metrics.figures.request_figures import ServerMetrics
from squall.analysis.metrics.sweeps.call_sweep import CallFigures
from squall.analysis.metrics.sweeps.kernel_sweep import KernelFigures


@dataclass(frozen=True)
class InstanceMetrics:
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


@dataclass(frozen=True)
class GpuMetrics:
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


@dataclass(frozen=True)
class PhaseMetrics:
    """A measure phase. `covered_ns`: start and end of each stretch of it in which kernels were recorded, of all servers
    that have any; `servers` by name, `instances` by `squall.analysis.metrics.measures.instance_key`, `gpus` by UUID."""

    start_ns: int
    end_ns: int
    covered_ns: tuple[tuple[int, int], ...]
    servers: Mapping[str, ServerMetrics]
    instances: Mapping[str, InstanceMetrics]
    gpus: Mapping[str, GpuMetrics]


@dataclass(frozen=True)
class RunMetrics:
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
