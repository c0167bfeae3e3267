"""What a run's own collectors cost, as its manifest states it: no repeat is needed for these, nor do they say what
they did to the latency.

Steps of nsys in a phase are start, record (from start to stop), stop, import and export; `cpu_s` is that of nsys's own
processes meanwhile, not what its library does inside the server.
"""

from __future__ import annotations

from collections.abc import Mapping

from squall.analysis.storage.collected import NsysFacts, NsysStep, ReportFacts
from squall.analysis.storage.collected import ObserverCost as Observed
from squall.analysis.storage.manifest import Manifest
from squall.analysis.verdict.profiling import ProfilingCost
from squall.scenarios.records import Frozen

NOT_MEASURED = "latency cost not measured: run with --measure-overhead"


class ObserverCost(Frozen):
    """CPU of a node's observer as a share of one core, in all and by table; None where the manifest does not say."""

    core_ratio: float | None
    sources: Mapping[str, float | None]
    n_ticks: int
    n_late: int


class NsysCost(Frozen):
    """Of a phase: CPU of nsys's own processes while it recorded, as a share of one core, and seconds of its steps."""

    core_ratio: float | None
    start_s: float | None
    stop_s: float | None
    import_s: float | None
    export_s: float | None
    report_bytes: int | None


class CollectorCosts(Frozen):
    """By node and by phase; None where the manifest says nothing of any. `latency_cost`: one line."""

    observers: Mapping[str, ObserverCost] | None
    nsys: Mapping[str, NsysCost] | None
    latency_cost: str


def collector_costs(manifest: Manifest, profiling: ProfilingCost | None = None) -> CollectorCosts:
    """What the manifest states; `profiling`: what it changed, where runs with and without it were compared."""
    observers = {node: _observer(one) for node, one in manifest.observers.items()}
    return CollectorCosts(
        observers=observers or None,
        nsys=_recordings(manifest.nsys) or None,
        latency_cost=profiling.told if profiling is not None else NOT_MEASURED,
    )


def _observer(one: Observed) -> ObserverCost:
    return ObserverCost(
        core_ratio=_ratio(one.cpu_ns, one.wall_ns),
        sources={
            table: _ratio(each.cpu_ns, each.wall_ns or one.wall_ns) for table, each in one.samplers.items()
        },
        n_ticks=sum(each.n_ticks for each in one.samplers.values()),
        n_late=sum(each.n_late for each in one.samplers.values()),
    )


def _recordings(nsys: NsysFacts) -> dict[str, NsysCost]:
    """What each phase's recording took, from the steps of all of them."""
    steps: dict[str, dict[str, NsysStep]] = {}
    for one in nsys.steps:
        steps.setdefault(one.phase, {})[one.step] = one
    return {phase: _recording(own, nsys.reports.get(phase)) for phase, own in steps.items()}


def _recording(steps: Mapping[str, NsysStep], report: ReportFacts | None) -> NsysCost:
    record = steps.get("record")
    took_s = {name: one.seconds for name, one in steps.items()}
    return NsysCost(
        core_ratio=_ratio(record.cpu_s, record.seconds) if record is not None else None,
        start_s=took_s.get("start"),
        stop_s=took_s.get("stop"),
        import_s=took_s.get("import"),
        export_s=took_s.get("export"),
        report_bytes=report.report_bytes if report is not None else None,
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole is not None and whole > 0 else None
