"""`summary.json`: a run's figures as typed objects, and as the file in the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any, ClassVar

from squall.analysis.compare.figures import PromiseFigures
from squall.analysis.compare.repeats import RepeatFigures
from squall.analysis.findings.finding import Finding
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.join.join import JoinReport
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.record import from_json, to_json
from squall.analysis.report.collector_costs import CollectorCosts
from squall.analysis.report.identities import Identity
from squall.analysis.report.profile_figures import LatencyUnder, ProfileFigures
from squall.analysis.report.sampled import GpuFigures, HostFigures, WorkerFigures
from squall.analysis.report.step_figures import StepsFigures
from squall.analysis.report.stragglers import Straggler
from squall.analysis.requests.burst_latency import BurstLatency
from squall.analysis.requests.cold import ColdFigures
from squall.analysis.requests.locust_figures import LocustFigures
from squall.analysis.requests.recording_cost import RecordingCosts
from squall.analysis.requests.rejections import Rejections
from squall.analysis.requests.stimulus import Stimulus
from squall.analysis.storage.collected import CollectorState, ValueChecks
from squall.analysis.storage.manifest import DecidedFacts
from squall.analysis.storage.sealed import Bottleneck, Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase
from squall.analysis.verdict.cpu_shares import CpuShares
from squall.analysis.verdict.gpu_shares import GpuShares
from squall.analysis.verdict.phase_figures import MeasureFigures, PhaseFigures
from squall.scenarios.errors import AnalysisError, StoreError
from squall.scenarios.foreign_text import json_of
from squall.scenarios.records import Frozen

FILE = "summary.json"


class Summary(Frozen):
    """All figures of a run; None where their table or report is absent. Its fields are the keys of `summary.json`.

    `load`: open or closed, as that of Locust's users is, of whom `locust` tells; `latency_name`: response or service,
    the latency that leads. `latency_under`: the profiler that the server ran under in all of the time; `recording`:
    what windows of the kernel library cost, and whether latencies are of the requests outside them. `cold`: by measured
    phase what it inherited, and whether its beginning is unlike the rest. `not_finite`: where figures were no finite
    numbers, and are None. The sentences in it (`failures_rule`, `cpu_text`, `gpu_text`, `lane`, those of verdict,
    findings and costs) are part of what it states; all other wording is made of it where it is shown.
    """

    WHOLE: ClassVar = ("verdict",)
    run: str
    scenario: str | None
    scenario_digest: str | None
    seed: int | None
    state: str
    load: str
    latency_name: str
    latency_under: LatencyUnder | None
    recording: RecordingCosts | None
    verdict: Verdict
    promises: tuple[PromiseFigures, ...] | None
    decided: DecidedFacts | None
    client_bottleneck: Bottleneck | None
    failures_rule: str
    phases: tuple[RunPhase, ...]
    stimulus: Mapping[str, Stimulus] | None
    measure: MeasureFigures
    locust: LocustFigures | None
    by_phase: Mapping[str, MeasureFigures | PhaseFigures]
    identities: tuple[Identity, ...]
    by_burst: Mapping[str, BurstLatency | None] | None
    cold: Mapping[str, ColdFigures]
    repeats: RepeatFigures | None
    metrics: RunMetrics | None
    findings: tuple[Finding, ...]
    self_checks: tuple[SelfCheck, ...]
    self_checks_unassessed: Mapping[str, tuple[str, ...]]
    rejections: Rejections | None
    join: JoinReport | None
    steps: StepsFigures | None
    host: Mapping[str, HostFigures] | None
    cpu: tuple[CpuShares, ...]
    cpu_text: tuple[str, ...]
    gpu: Mapping[str, GpuFigures] | None
    gpu_use: tuple[GpuShares, ...]
    gpu_text: tuple[str, ...]
    stragglers: tuple[Straggler, ...]
    workers: WorkerFigures | None
    lane: str
    value_checks: ValueChecks | None
    collectors: Mapping[str, CollectorState]
    profile: Mapping[str, ProfileFigures] | None
    collector_costs: CollectorCosts
    losses: tuple[str, ...]
    notes: tuple[str, ...]
    tables: Mapping[str, int]
    not_finite: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        found: dict[str, Any] = to_json(self)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Summary:
        """The summary that the file holds. Raises AnalysisError where it is none, or of a version that lacks a key."""
        return from_json(cls, found)

    @classmethod
    def read(cls, store: RunStore) -> Summary:
        """The summary in a run directory. Raises StoreError, which says what makes it anew: also of one that lacks keys
        of this version."""
        path, again = f"{store.where}/{FILE}", f"squall analyze {quote(store.where)}"
        try:
            found = json_of(store.read_text(FILE))
        except ValueError as error:
            raise StoreError(f"{path} cannot be read: {again}") from error
        try:
            return cls.from_json(found)
        except AnalysisError as error:
            raise StoreError(
                f"{path} is not of this version of squall ({error}): {again} makes it anew"
            ) from error
