"""The figures of a run by phase: servers, instances, GPUs. What each means: docs/metrics.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from squall.analysis.metrics.assessment import Assessment, assess, opened, read_calls
from squall.analysis.metrics.figures.batch_figures import batch_details
from squall.analysis.metrics.figures.gap_figures import gap_figures
from squall.analysis.metrics.figures.issue_figures import issue_figures
from squall.analysis.metrics.figures.os_waits import os_wait_figures
from squall.analysis.metrics.figures.request_figures import server_figures
from squall.analysis.metrics.measures import INSTANCE, ratio
from squall.analysis.metrics.spans import PhaseSpan, measured_phases
from squall.analysis.metrics.sweeps.call_sweep import CallSums, call_figures
from squall.analysis.metrics.sweeps.tally import Distribution
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES
from squall.analysis.storage.store import RunStore

if TYPE_CHECKING:
    pass

BURST_GAP_NS = 10_000
"""A compute burst ends where no kernel runs for this long."""


def run_metrics(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> dict[str, Any]:
    """{"phases": {phase: {"servers": {…}, "instances": {instance_key: {…}}, "gpus": {gpu_uuid: {…}}}}}, of plain types.

    Of the measure phases. What the run has no data for is None. Reads events once, in slices within
    `memory_limit_bytes`; needs `batch_costs` (raises `MissingTable`), uses `joined` where it is.
    """
    with opened(store, None, memory_limit_bytes) as connection:
        phases = measured_phases(store, connection)
        found = assess(store, connection, phases, False, memory_limit_bytes)
        calls = read_calls(store, found)
        has_waits = "osrt" in found.tables and "nvtx" in found.tables
        waits = os_wait_figures(connection, phases) if has_waits else None
        servers = server_figures(connection, phases, store.tables())
        instances = _instances(found, calls, waits)
    return {
        "phases": {
            phase.name: {
                "start_ns": phase.start_ns,
                "end_ns": phase.end_ns,
                "covered_ns": None if phase.covered_ns is None else list(phase.covered_ns),
                "servers": servers[phase.name],
                "instances": instances[phase.name],
                "gpus": _gpus(found, place, phase),
            }
            for place, phase in enumerate(phases)
        }
    }


def _instances(
    found: Assessment, calls: CallSums | None, waits: dict[tuple[str, str], list[dict[str, Any]]] | None
) -> dict[str, dict[str, Any]]:
    figures: dict[str, dict[str, Any]] = {phase.name: {} for phase in found.phases}
    for key, sums in found.sums.items():
        phase, name = key
        group = found.group_of(key)
        if group is None:
            continue
        wall = found.walls.get(key)
        is_profiled = bool(sums["n_ranged"])  # what a window ties has no batch id on its row
        has_kernels = is_profiled and "kernels" in found.tables
        figures[phase][name] = {
            **{label: sums[label] for label in (*INSTANCE, "node", "gpu_uuid")},
            "measures": found.measures(key),
            **batch_details(sums, wall),
            "kernels": found.kernels[group] if has_kernels else None,
            "launches": issue_figures(found.issues[group]) if has_kernels else None,
            "calls": _calls(found, calls, key, group) if is_profiled else None,
            "copies": found.copies.get(key, []) if is_profiled and "memcpys" in found.tables else None,
            "os_waits": None if waits is None else waits.get(key, []),
        }
    return figures


def _calls(
    found: Assessment, calls: CallSums | None, key: tuple[str, str], group: int
) -> dict[str, Any] | None:
    """Calls of an instance by class, and its blocking split: waits by name against copies of pageable memory."""
    if calls is None:
        return None
    sums, wall = found.sums[key], found.walls.get(key)
    place = [phase.name for phase in found.phases].index(key[0])
    within = calls.within(group)
    outside = calls.outside(found.processes(group), place)
    wall_ns = wall["wall_ns"] if wall else None
    figures = call_figures(within, outside, sums["tied_exec_ns"], wall_ns, sums["n_tied"])
    explicit_ns = within.get("blocking sync", (0, 0))[1]
    blocked_ns = sums["blocked_ns"]
    hidden_ns = (
        None if blocked_ns is None else blocked_ns - explicit_ns - within.get("blocking copy", (0, 0))[1]
    )
    return {
        **figures,
        "explicit_wait_of_exec_ratio": ratio(explicit_ns, sums["tied_exec_ns"]),
        "pageable_copy_of_exec_ratio": ratio(hidden_ns, sums["tied_exec_ns"]),
    }


def _gpus(found: Assessment, place: int, phase: PhaseSpan) -> dict[str, dict[str, Any]]:
    samples = found.samples.get(phase.name, {})
    names = [*found.gpu_names, *(uuid for uuid in samples if uuid not in found.gpu_names)]
    return {name: {**_activity(found, place, phase, name), **_sampled(samples.get(name))} for name in names}


_SAMPLED = ("n_samples", "util", "memory_util", "sm_util", "sm_occupancy", "tensor_util", "dram_util", "fp16_util",
            "fp32_util", "sm_clock_hz", "power_instant_w", "throttled_ratio", "throttle_reasons")  # fmt: skip


def _sampled(samples: dict[str, Any] | None) -> dict[str, Any]:
    return dict.fromkeys(_SAMPLED) if samples is None else {name: samples[name] for name in _SAMPLED}


_ACTIVITY = ("profiled_ns", "kernel_ratio", "busy_ratio", "copy_ratio", "copy_ns", "copy_overlap_ratio",
             "streams_mean", "idle_gaps", "compute_gaps", "n_compute_bursts")  # fmt: skip


def _activity(found: Assessment, place: int, phase: PhaseSpan, name: str) -> dict[str, Any]:
    """What ran on the GPU; None each where no report covers the phase, or names no such GPU."""
    if phase.covered_ns is None or name not in found.gpu_names:
        return dict.fromkeys(_ACTIVITY)
    times = found.gpu_times[found.gpu_names.index(name)]
    wall_ns = phase.covered_ns[1] - phase.covered_ns[0]
    kernel_ns, copy_ns, any_ns = (int(ns[place]) for ns in (times.kernel_ns, times.copy_ns, times.any_ns))
    between = Distribution.of(times.between_kernels[place])
    n_pauses = between.n - between.n_below(BURST_GAP_NS)
    return {
        "profiled_ns": wall_ns,
        "kernel_ratio": ratio(kernel_ns, wall_ns),
        "busy_ratio": ratio(any_ns, wall_ns),
        "copy_ratio": ratio(copy_ns, wall_ns),
        "copy_ns": copy_ns,
        "copy_overlap_ratio": ratio(int(times.overlap_ns[place]), copy_ns),
        "streams_mean": ratio(int(times.stream_ns[place]), any_ns),
        "idle_gaps": gap_figures(Distribution.of(times.idle[place])),
        "compute_gaps": gap_figures(between),
        "n_compute_bursts": n_pauses + 1 if kernel_ns else 0,
    }
