"""manifest.json: what ran, where, when, and the verdict. Its one definition, for who writes it and who reads it.

`RunStore.manifest` is a `Manifest`; `RunStore.amend` puts a changed one on disk.
`python -m squall.analysis.storage.schema` prints all fields. A key stands in the file as the field is named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from squall.analysis.columns import SCHEMA_VERSION
from squall.analysis.record import Name, from_json
from squall.analysis.storage.collected import (
    ClockCost,
    CollectorState,
    FetchFacts,
    KernelRecordingFacts,
    NsysFacts,
    ObserverCost,
    ProfiledPhase,
    ValueChecks,
)
from squall.analysis.storage.deployed import NodeFacts, ServerFacts, WorkerFacts
from squall.analysis.storage.locust import LocustFacts
from squall.analysis.storage.sealed import SealedTable, Unfinished, Verdict
from squall.scenarios.errors import StoreError
from squall.scenarios.foreign_text import escaped
from squall.scenarios.records import Float, Int, LeftOut, Listed, Record

OPEN, SEALED = "open", "sealed"
_SHOWN = 100
"""Characters of a wrong name that are told."""


class PlanFacts(Record):
    """What was to be sent."""

    load: str = "open"
    """`open`: by a schedule; `closed`: by users who wait for their replies; `locust`: such users of Locust's"""
    n_users: LeftOut[Int | None] = None
    """closed loop: users; of a Locust shape not known"""
    n_arrivals: Int = 0
    """requests of the schedule; closed loop: those issued, known at the end"""
    sha256: LeftOut[str | None] = None
    """of the plan: two runs with one digest had one plan"""
    n_by_phase: LeftOut[Mapping[str, Int]] = field(default_factory=dict)
    """open loop: arrivals by phase, drains left out"""
    stimulus: LeftOut[Mapping[str, Mapping[str, Float | None]]] = field(default_factory=dict)
    """burstiness of each measured phase (docs/run.md)"""


class DataFacts(Record):
    """The data of a scenario that has inputs of the user's."""

    path: str
    """of the file or folder on the driver's machine"""
    format: str
    """as which it was read"""
    sha256: str
    """of the file; of a folder, of the digests and names of its files"""
    n_entries: Int
    """entries to draw from"""
    n_encoded: Int = 0
    """different requests that the plan can send, each encoded once"""
    encoded_bytes: Int = 0
    """of the file with these, one for all workers of a node"""


class PhaseFacts(Record):
    """A stretch of the run's timeline, [start, end) on the run clock."""

    name: str
    """its name in the scenario"""
    kind: str
    """warmup, measure or drain"""
    start_ns: Int
    """its first instant"""
    end_ns: Int
    """the first one behind it"""


class TriedFacts(Record):
    """A request that was sent before the load, to see that it is taken; it is in no table."""

    server: str
    """which server"""
    model: str
    """the model"""
    rows: Int
    """of the request"""
    outcome: str
    """`ok`, or `rejected` by the queue policy"""
    took_ns: Int
    """from its send to its last byte; of a model that is cold the time until it was ready"""


class DecidedFacts(Record):
    """Why the load ended before its time: the outcome of the promises was certain (docs/promises.md)."""

    verdict: str
    """`broken`: the promise below is; `kept`: all are, and it was the last to be certain"""
    promise: str
    """as the scenario states it"""
    n: Int
    """its requests in the plan"""
    n_late: Int
    """of these known to be late when that was seen"""
    n_in_time: Int
    """of these known to be in time then"""
    at_ns: Int
    """what was due after that instant of the run clock was not sent"""
    phases: Listed[PhaseFacts]
    """of the schedule; `phases` of the run end at that instant"""
    n_unsent: Int = 0
    """arrivals that were not sent for it, `unsent` with the detail `decided`"""
    request_id: LeftOut[Int | None] = None
    """the request that made it certain"""
    certain_ns: LeftOut[Int | None] = None
    """the instant at which it did, on the run clock"""


class Manifest(Record):
    """What ran, where, when, and the verdict."""

    run: Name = ""
    """name of the run: of its directory when it was made"""
    state: str = OPEN
    """`open` while it is written, then `sealed`"""
    schema_version: Int = SCHEMA_VERSION
    """of the tables and of this file"""
    losses: Listed[str] = ()
    """requests, batch records or nodes that are missing: any makes the run INVALID"""
    scenario: LeftOut[Mapping[str, Any] | None] = None
    """the scenario, resolved: docs/scenario.md; `Scenario.to_mapping`"""
    scenario_digest: LeftOut[str | None] = None
    """of the scenario: runs of one digest are comparable"""
    seed: LeftOut[int | None] = None
    """of the scenario"""
    plan: LeftOut[PlanFacts] = field(default_factory=PlanFacts)
    """what was to be sent"""
    data: LeftOut[DataFacts | None] = None
    """inputs of the user's; absent: squall made them"""
    data_by_model: LeftOut[Mapping[str, DataFacts]] = field(default_factory=dict)
    """the same of several models, of those that have data"""
    versions: LeftOut[Mapping[str, str]] = field(default_factory=dict)
    """of squall, Python and libraries"""
    started_ns: LeftOut[Int | None] = None
    """UTC at which the run was begun"""
    phases: Listed[PhaseFacts] = ()
    """empty before the load began"""
    decided: LeftOut[DecidedFacts | None] = None
    """of a run that ended when its promises were decided"""
    driver_ended_ns: LeftOut[Int | None] = None
    """of a run whose driver was killed under load: its last send; resumed"""
    nodes: Mapping[Name, NodeFacts] = field(default_factory=dict)
    """by label: `node-0` and so on"""
    servers: Mapping[Name, ServerFacts] = field(default_factory=dict)
    """by name: `server-0`"""
    workers: Listed[WorkerFacts] = ()
    """by number"""
    tried: LeftOut[Listed[TriedFacts]] = ()
    """requests tried before the load"""
    collectors: Mapping[str, CollectorState] = field(default_factory=dict)
    """what was to be collected, by name"""
    locust: LeftOut[LocustFacts | None] = None
    """of a run whose load was Locust's, what it ran and said"""
    value_checks: LeftOut[ValueChecks | None] = None
    """how replies were compared; absent: they were not"""
    start_ns: LeftOut[Int | None] = None
    """agreed start instant on the run clock"""
    node_starts_ns: LeftOut[Mapping[str, Int]] = field(default_factory=dict)
    """the same on the clock of each node"""
    clock_probing: LeftOut[ClockCost | None] = None
    """what reading the nodes' clocks took"""
    observers: LeftOut[Mapping[str, ObserverCost]] = field(default_factory=dict)
    """what observing took, by node"""
    fetched: LeftOut[Mapping[str, FetchFacts]] = field(default_factory=dict)
    """what fetching took, by node whose disk the driver cannot read; `node-1/server-3`: of a further server's agent"""
    profiled_phases: LeftOut[Mapping[str, ProfiledPhase]] = field(default_factory=dict)
    """of a run with nsys, by measured phase"""
    nsys: LeftOut[NsysFacts] = field(default_factory=NsysFacts)
    """of a run with nsys, the profiler"""
    kernels: LeftOut[KernelRecordingFacts | None] = None
    """of a run with the kernel library, what it recorded"""
    copied_to: LeftOut[str] = ""
    """where a run of `--out s3://…` goes: its address"""
    notes: Listed[str] = ()
    """all else that did not go as it should"""
    tables: LeftOut[Mapping[Name, SealedTable] | None] = None
    """of a sealed run, the tables"""
    verdict: LeftOut[Verdict | None] = None
    """of a sealed run"""
    disk_losses: LeftOut[Listed[str]] = ()
    """of `losses` those that the disk did not take"""
    unfinished: LeftOut[Unfinished | None] = None
    """of a sealed run that lacks rows"""

    @property
    def is_whole(self) -> bool:
        """Whether the run is sealed with all that was recorded."""
        return self.state == SEALED and self.unfinished is None

    @property
    def status(self) -> str:
        """Of the verdict; empty without one."""
        return self.verdict.status if self.verdict is not None else ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Of the verdict; empty without one."""
        return self.verdict.reasons if self.verdict is not None else ()

    @property
    def stated_models(self) -> dict[str, Mapping[str, Any]]:
        """The models under load as the scenario states them, by name and in its order: `models`, or its one `model`."""
        scenario = self.scenario or {}
        stated = scenario.get("models") or [scenario.get("model")]
        return {str(one["name"]): one for one in stated if isinstance(one, Mapping) and one.get("name")}

    @property
    def probe(self) -> Mapping[str, Any] | None:
        """What a probe of the GPU alone was to measure (docs/probes.md); None of a run with requests."""
        found = (self.scenario or {}).get("probe")
        return found if isinstance(found, Mapping) else None

    def is_without_gpu(self, server: str) -> bool:
        """Whether the node of a server is known to have no GPU."""
        node = self.nodes.get(self.servers[server].node) if server in self.servers else None
        return node is not None and node.gpus == ()

    def gpu_of(self, server: str, device: int) -> str:
        """UUID of the GPU that a server knows by this ordinal, which may be another's for another server of its node;
        empty where that is not known."""
        gpus = self.servers[server].gpus if server in self.servers else ()
        return gpus[device] if 0 <= device < len(gpus) else ""


OWN_FIELDS = ("run", "state", "schema_version", "tables", "verdict", "disk_losses", "unfinished")
"""Fields that only the store writes."""


def read_manifest(document: Mapping[str, Any]) -> Manifest:
    """The manifest that `document`, from JSON, is. Raises StoreError where it is not what squall writes."""
    manifest = from_json(Manifest, document, error=StoreError)
    for table, entry in (manifest.tables or {}).items():
        for file in entry.files:
            if file.path.rpartition("/")[0] != f"tables/{table}":
                raise StoreError(f"{escaped(file.path[:_SHOWN])!r} is no part of {escaped(table[:_SHOWN])}")
    return manifest


def is_sealed_whole(document: Mapping[str, Any]) -> bool:
    """Whether a manifest, from JSON, of whatever version, is of a run that lacks nothing more."""
    return document.get("state") == SEALED and "unfinished" not in document
