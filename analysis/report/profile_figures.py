"""What the profiler of a run recorded, phase by phase, as its manifest states it."""

from __future__ import annotations

from collections.abc import Mapping

from squall.analysis.storage.collected import ProfiledPhase, ReportClockFacts, TiedEvents
from squall.analysis.storage.manifest import Manifest
from squall.scenarios.records import Frozen


class ProfileFigures(Frozen):
    """Of a phase's report: events, the share of them that is tied to a batch (None without any), and its clock.

    `missed_ns`: of the phase's beginning. `n_ranges` and `n_sleeps`: marks of the clock. `clock_error_ns`: bound of the
    report's clock on the node's.
    """

    missed_ns: int
    n_kernels: int
    kernels_tied_ratio: float | None
    n_api_calls: int
    n_ranges: int
    n_sleeps: int
    clock_error_ns: int | None
    is_clock_assumed: bool


class LatencyUnder(Frozen):
    """The profiler that the server ran under while its latencies were measured.

    `unrecorded`: measured phases that it did not record, with the reason: the server was still launched under it, or
    attached to.
    """

    profiler: str
    unrecorded: Mapping[str, str]


def profile_figures(manifest: Manifest) -> dict[str, ProfileFigures] | None:
    """By measured phase that has a report; None without any."""
    figures = {}
    for phase, report in manifest.nsys.reports.items():
        clock, tied = report.clock or ReportClockFacts(), report.attribution
        kernels = tied.get("kernels", TiedEvents())
        late_ns = manifest.profiled_phases.get(phase, ProfiledPhase()).profiled_after_ns
        figures[phase] = ProfileFigures(
            missed_ns=max(0, late_ns or 0),
            n_kernels=kernels.n,
            kernels_tied_ratio=kernels.n_tied / kernels.n if kernels.n else None,
            n_api_calls=tied.get("cuda_api", TiedEvents()).n,
            n_ranges=clock.n_ranges,
            n_sleeps=clock.n_sleeps,
            clock_error_ns=clock.error_ns,
            is_clock_assumed=clock.is_assumed,
        )
    return figures or None


def latency_under(manifest: Manifest) -> LatencyUnder | None:
    """None where no profiler was on."""
    nsys = manifest.collectors.get("nsys")
    if nsys is None or nsys.status != "on":
        return None
    unrecorded = {name: one.reason for name, one in manifest.profiled_phases.items() if not one.is_profiled}
    return LatencyUnder("nsys", unrecorded)
