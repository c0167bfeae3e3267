"""What observing cost and what a profiler recorded, as lines for the screen and the report."""

from __future__ import annotations

from collections.abc import Mapping

from squall.analysis.requests.recording_cost import RecordedQuantile, RecordingCosts
from squall.analysis.summary.collector_costs import CollectorCosts, NsysCost, ObserverCost
from squall.analysis.summary.profile_figures import LatencyUnder, ProfileFigures
from squall.analysis.tables.collected import CollectorState
from squall.analysis.wording import count_text, duration_text, share_text
from squall.scenarios.units import NS_PER_S, digits_text


def cost_lines(costs: CollectorCosts) -> list[str]:
    """A line a node and a phase, and one on the latency."""
    observers = [_observer_line(node, one) for node, one in (costs.observers or {}).items()]
    recordings = [_nsys_line(phase, one) for phase, one in (costs.nsys or {}).items()]
    return [*observers, *recordings, costs.latency_cost]


def _observer_line(node: str, one: ObserverCost) -> str:
    parts = ", ".join(
        f"{table} {share_text(ratio)}" for table, ratio in one.sources.items() if ratio is not None
    )
    late = f"; {one.n_late} of {one.n_ticks} samples late" if one.n_late else ""
    core = f"{share_text(one.core_ratio)} of a core"
    return f"observer of {node}: {core}{f' ({parts})' if parts else ''}{late}"


def _nsys_line(phase: str, one: NsysCost) -> str:
    seconds = {"start": one.start_s, "stop": one.stop_s, "import": one.import_s, "export": one.export_s}
    steps = [f"{step} {duration_text(s * NS_PER_S)}" for step, s in seconds.items() if s is not None]
    cpu = f"{share_text(one.core_ratio)} of a core" if one.core_ratio is not None else ""
    size = f"report {one.report_bytes / 1e6:.1f} MB" if one.report_bytes is not None else ""
    return f"nsys in {phase}: {', '.join(filter(None, [cpu, *steps, size])) or 'not stated'}"


def cost_text(costs: CollectorCosts) -> str:
    """In one line: the dearest observer, nsys in the dearest phase, and the latency."""
    observers = [one.core_ratio for one in (costs.observers or {}).values() if one.core_ratio is not None]
    recordings = [one.core_ratio for one in (costs.nsys or {}).values() if one.core_ratio is not None]
    parts = [f"observer {share_text(max(observers))} of a core"] if observers else []
    parts += [f"nsys {share_text(max(recordings))} of a core"] if recordings else []
    return "; ".join([*parts, costs.latency_cost])


def under_text(under: LatencyUnder | None) -> str:
    """` under nsys`, to stand behind the word latency or a latency's name; empty without a profiler."""
    return f" under {under.profiler}" if under else ""


def kernel_lines(collectors: Mapping[str, CollectorState]) -> list[str]:
    """By whom kernels were recorded, where that was not nsys."""
    kernels = collectors.get("kernels")
    return [f"kernels recorded {kernels.how}"] if kernels is not None and kernels.status == "on" else []


def recording_lines(costs: RecordingCosts | None) -> list[str]:
    """In one line: how much of the time kernels were recorded, what that cost, and whose latencies lead; else none."""
    if costs is None:
        return []
    one = costs.measure
    parts = ", ".join(_cost_text(quantile) for quantile in one.response or one.service)
    of_which = {
        "outside": "headline latencies are those outside",
        "all": "headline latencies are of all requests",
    }
    return [
        f"kernels recorded in {share_text(one.recorded_ratio)} of the time: {parts} inside; {of_which[costs.headline]}"
    ]


def _cost_text(one: RecordedQuantile) -> str:
    name = f"p{100 * one.q:g}"
    if one.ratio is None:
        return f"{name} not compared ({one.reason})"
    if one.low is None or one.high is None:
        return f"{name} {_change(one.ratio)} % ({one.reason})"
    return f"{name} {_change(one.ratio)} % ({_change(one.low)} to {_change(one.high)})"


def _change(ratio: float) -> str:
    """In percent."""
    change = 100 * (ratio - 1)
    return f"{'+' if change >= 0 else ''}{digits_text(change, 2)}"


def profile_lines(figures: Mapping[str, ProfileFigures], under: LatencyUnder | None = None) -> list[str]:
    """A line a phase; first those that the profiler of `under` did not record."""
    unrecorded = under.unrecorded if under else {}
    lines = [
        f"{phase}: NOT RECORDED: {reason or 'no reason is known'}" for phase, reason in unrecorded.items()
    ]
    return [*lines, *(f"{phase}: {', '.join(_parts(one))}" for phase, one in figures.items())]


def _parts(one: ProfileFigures) -> list[str]:
    parts = []
    if one.missed_ns:
        parts.append(f"without its first {duration_text(one.missed_ns)}")
    if one.n_kernels:
        parts.append(
            f"{count_text(one.n_kernels)} kernels, {share_text(one.kernels_tied_ratio)} of them in batches"
        )
        parts.append(f"{count_text(one.n_api_calls)} CUDA calls")
    if one.is_clock_assumed:
        parts.append("its clock is taken on trust: no marks")
    else:
        n_marks = one.n_ranges + one.n_sleeps
        parts.append(f"its clock within {duration_text(one.clock_error_ns)} ({count_text(n_marks)} marks)")
    return parts
