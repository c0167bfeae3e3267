"""The figures of a run by phase: servers, instances, GPUs. What each means: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from squall.analysis.metrics.assessment import Assessment, assess, opened, read_calls
from squall.analysis.metrics.figures.batch_figures import GroupKey, batch_means
from squall.analysis.metrics.figures.gap_figures import gap_figures
from squall.analysis.metrics.figures.issue_figures import issue_figures
from squall.analysis.metrics.figures.os_waits import OsWait, os_wait_figures
from squall.analysis.metrics.figures.request_figures import server_figures
from squall.analysis.metrics.figures.sample_figures import SampleFigures
from squall.analysis.metrics.measures import ratio
from squall.analysis.metrics.records import GpuMetrics, InstanceMetrics, PhaseMetrics, RunMetrics
from squall.analysis.metrics.spans import PhaseSpan, measured_phases
from squall.analysis.metrics.sweeps.call_sweep import CallFigures, CallSums, call_figures
from squall.analysis.metrics.sweeps.tally import Distribution
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES
from squall.analysis.storage.store import RunStore

BURST_GAP_NS = 10_000
"""A compute burst ends where no kernel runs for this long."""


UNKNOWN_GPU = GpuMetrics(**dict.fromkeys((one.name for one in fields(GpuMetrics)), None))
"""A GPU without a report or a sample."""


def run_metrics(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> RunMetrics:
    """Figures of the measure phases. What the run has no data for is None.

    Reads events once, in slices within `memory_limit_bytes`; needs `batch_costs` (raises `MissingTable`), uses `joined`
    where it is.
    """
    with opened(store, memory_limit_bytes) as connection:
        phases = measured_phases(store, connection)
        found = assess(store, connection, phases, memory_limit_bytes)
        calls = read_calls(store, found)
        has_waits = "osrt" in found.tables and "nvtx" in found.tables
        waits = os_wait_figures(connection, phases) if has_waits else None
        servers = server_figures(connection, phases, store.tables())
        instances = _instances(found, calls, waits)
    return RunMetrics(
        {
            phase.name: PhaseMetrics(
                start_ns=phase.start_ns,
                end_ns=phase.end_ns,
                covered_ns=phase.covered_ns,
                servers=servers[phase.name],
                instances=instances[phase.name],
                gpus=_gpus(found, place, phase),
            )
            for place, phase in enumerate(phases)
        }
    )


_Waits = Mapping[GroupKey, list[OsWait]]


def _instances(
    found: Assessment, calls: CallSums | None, waits: _Waits | None
) -> dict[str, dict[str, InstanceMetrics]]:
    figures: dict[str, dict[str, InstanceMetrics]] = {phase.name: {} for phase in found.phases}
    for key in found.sums:
        phase, name = key
        group = found.group_of(key)
        if group is not None:
            figures[phase][name] = _instance(found, key, group, calls, waits)
    return figures


def _instance(
    found: Assessment, key: GroupKey, group: int, calls: CallSums | None, waits: _Waits | None
) -> InstanceMetrics:
    sums, wall = found.sums[key], found.walls.get(key)
    is_profiled = bool(sums["n_ranged"])  # what a window ties has no batch id on its row
    has_kernels = is_profiled and "kernels" in found.tables
    has_copies = is_profiled and "memcpys" in found.tables
    return InstanceMetrics(
        server=sums["server"],
        instance=sums["instance"],
        instance_device=sums["instance_device"],
        model=sums["model"],
        node=sums["node"],
        gpu_uuid=sums["gpu_uuid"],
        measures=found.measures(key),
        wall_ns=wall["wall_ns"] if wall else None,
        n_profiled=sums["n_tied"],
        mean_ns=batch_means(sums),
        blocked_ns=sums["blocked_ns"],
        n_blocks=sums["n_blocks"],
        n_mid_blocks=sums["n_mid_blocks"],
        overrun_ns=sums["overrun_ns"],
        os_wait_of_exec_ratio=ratio(sums["os_wait_ns"], sums["tied_exec_ns"]),
        kernels=found.kernels[group] if has_kernels else None,
        launches=issue_figures(found.issues[group]) if has_kernels else None,
        calls=_calls(found, calls, key, group) if is_profiled and calls is not None else None,
        copies=tuple(found.copies.get(key, ())) if has_copies else None,
        os_waits=None if waits is None else tuple(waits.get(key, ())),
    )


def _calls(found: Assessment, calls: CallSums, key: GroupKey, group: int) -> CallFigures:
    wall = found.walls.get(key)
    place = [phase.name for phase in found.phases].index(key[0])
    outside = calls.outside(found.processes(group), place)
    return call_figures(calls.within(group), outside, found.sums[key], wall["wall_ns"] if wall else None)


def _gpus(found: Assessment, place: int, phase: PhaseSpan) -> dict[str, GpuMetrics]:
    samples = found.samples.get(phase.name, {})
    names = [*found.gpu_names, *(uuid for uuid in samples if uuid not in found.gpu_names)]
    return {name: _sampled(_activity(found, place, phase, name), samples.get(name)) for name in names}


def _sampled(gpu: GpuMetrics, samples: SampleFigures | None) -> GpuMetrics:
    """`gpu` with what its samples say."""
    if samples is None:
        return gpu
    return replace(
        gpu,
        n_samples=samples.n_samples,
        util=samples.util,
        memory_util=samples.memory_util,
        sm_util=samples.sm_util,
        sm_occupancy=samples.sm_occupancy,
        tensor_util=samples.tensor_util,
        dram_util=samples.dram_util,
        fp16_util=samples.fp16_util,
        fp32_util=samples.fp32_util,
        sm_clock_hz=samples.sm_clock_hz,
        power_instant_w=samples.power_instant_w,
        throttled_ratio=samples.throttled_ratio,
        throttle_reasons=samples.throttle_reasons,
    )


def _activity(found: Assessment, place: int, phase: PhaseSpan, name: str) -> GpuMetrics:
    """What ran on the GPU in the recorded stretches of the phase; nothing where there are none, or none names it."""
    if not phase.covered_ns or name not in found.gpu_names:
        return UNKNOWN_GPU
    times = found.gpu_times[found.gpu_names.index(name)]
    wall_ns = phase.profiled_ns
    kernel_ns, copy_ns, any_ns = (int(ns[place]) for ns in (times.kernel_ns, times.copy_ns, times.any_ns))
    between = Distribution.of(times.between_kernels[place])
    n_pauses = between.n - between.n_below(BURST_GAP_NS)
    return replace(
        UNKNOWN_GPU,
        profiled_ns=wall_ns,
        kernel_ratio=ratio(kernel_ns, wall_ns),
        busy_ratio=ratio(any_ns, wall_ns),
        copy_ratio=ratio(copy_ns, wall_ns),
        copy_ns=copy_ns,
        copy_overlap_ratio=ratio(int(times.overlap_ns[place]), copy_ns),
        streams_mean=ratio(int(times.stream_ns[place]), any_ns),
        idle_gaps=gap_figures(Distribution.of(times.idle[place])),
        compute_gaps=gap_figures(between),
        n_compute_bursts=n_pauses + int(times.n_with_kernels[place]),
    )
