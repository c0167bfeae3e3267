"""manifest.json: what ran, where, when, and the verdict. Its one definition, for who writes it and who reads it.

`RunStore.manifest` is a `Manifest`; `RunStore.amend` puts a changed one on disk. `python -m squall.analysis.schema`
prints all fields. A key stands in the file as the field is named here; `document` says which are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from squall.analysis.tables.collected import (
    ClockCost,
    CollectorState,
    FetchFacts,
    KernelRecordingFacts,
    NsysFacts,
    ObserverCost,
    ProfiledPhase,
    ValueChecks,
)
from squall.analysis.tables.columns import SCHEMA_VERSION
from squall.analysis.tables.deployed import NodeFacts, ServerFacts, WorkerFacts
from squall.analysis.tables.document import LEFT_OUT, read_section
from squall.analysis.tables.locust import LocustFacts
from squall.analysis.tables.sealed import SealedTable, Unfinished, Verdict
from squall.scenarios.errors import StoreError
from squall.scenarios.foreign_text import escaped, is_beneath, is_component

OPEN, SEALED = "open", "sealed"
_SHOWN = 100
"""Characters of a wrong name that are told."""


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """What was to be sent."""

    load: Annotated[
        str,
        "`open`: by a schedule; `closed`: by users who wait for their replies; `locust`: such users of Locust's",
    ] = "open"
    n_users: Annotated[int | None, LEFT_OUT, "closed loop: users; of a Locust shape not known"] = None
    n_arrivals: Annotated[int, "requests of the schedule; closed loop: those issued, known at the end"] = 0
    sha256: Annotated[str | None, LEFT_OUT, "of the plan: two runs with one digest had one plan"] = None
    n_by_phase: Annotated[Mapping[str, int], LEFT_OUT, "open loop: arrivals by phase, drains left out"] = (
        field(default_factory=dict)
    )
    stimulus: Annotated[
        Mapping[str, Mapping[str, float | None]], LEFT_OUT, "burstiness of each measured phase (docs/run.md)"
    ] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """The data of a scenario that has inputs of the user's."""

    path: Annotated[str, "of the file or folder on the driver's machine"]
    format: Annotated[str, "as which it was read"]
    sha256: Annotated[str, "of the file; of a folder, of the digests and names of its files"]
    n_entries: Annotated[int, "entries to draw from"]
    n_encoded: Annotated[int, "different requests that the plan can send, each encoded once"] = 0
    encoded_bytes: Annotated[int, "of the file with these, one for all workers of a node"] = 0


@dataclass(frozen=True, kw_only=True)
class PhaseFacts:
    """A stretch of the run's timeline, [start, end) on the run clock."""

    name: Annotated[str, "its name in the scenario"]
    kind: Annotated[str, "warmup, measure or drain"]
    start_ns: Annotated[int, "its first instant"]
    end_ns: Annotated[int, "the first one behind it"]


@dataclass(frozen=True, kw_only=True)
class TriedFacts:
    """A request that was sent before the load, to see that it is taken; it is in no table."""

    server: Annotated[str, "which server"]
    model: Annotated[str, "the model"]
    rows: Annotated[int, "of the request"]
    outcome: Annotated[str, "`ok`, or `rejected` by the queue policy"]
    took_ns: Annotated[
        int, "from its send to its last byte; of a model that is cold the time until it was ready"
    ]


@dataclass(frozen=True, kw_only=True)
class DecidedFacts:
    """Why the load ended before its time: the outcome of the promises was certain (docs/promises.md)."""

    verdict: Annotated[
        str, "`broken`: the promise below is; `kept`: all are, and it was the last to be certain"
    ]
    promise: Annotated[str, "as the scenario states it"]
    n: Annotated[int, "its requests in the plan"]
    n_late: Annotated[int, "of these known to be late when that was seen"]
    n_in_time: Annotated[int, "of these known to be in time then"]
    at_ns: Annotated[int, "what was due after that instant of the run clock was not sent"]
    phases: Annotated[tuple[PhaseFacts, ...], "of the schedule; `phases` of the run end at that instant"]
    n_unsent: Annotated[int, "arrivals that were not sent for it, `unsent` with the detail `decided`"] = 0
    request_id: Annotated[int | None, LEFT_OUT, "the request that made it certain"] = None
    certain_ns: Annotated[int | None, LEFT_OUT, "the instant at which it did, on the run clock"] = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What ran, where, when, and the verdict."""

    run: Annotated[str, "name of the run: of its directory when it was made"] = ""
    state: Annotated[str, "`open` while it is written, then `sealed`"] = OPEN
    schema_version: Annotated[int, "of the tables and of this file"] = SCHEMA_VERSION
    losses: Annotated[
        tuple[str, ...], "requests, batch records or nodes that are missing: any makes the run INVALID"
    ] = ()
    scenario: Annotated[
        Mapping[str, Any] | None, LEFT_OUT, "the scenario, resolved: docs/scenario.md; `Scenario.to_mapping`"
    ] = None
    scenario_digest: Annotated[str | None, LEFT_OUT, "of the scenario: runs of one digest are comparable"] = (
        None
    )
    seed: Annotated[int | None, LEFT_OUT, "of the scenario"] = None
    plan: Annotated[PlanFacts, LEFT_OUT, "what was to be sent"] = field(default_factory=PlanFacts)
    data: Annotated[DataFacts | None, LEFT_OUT, "inputs of the user's; absent: squall made them"] = None
    data_by_model: Annotated[
        Mapping[str, DataFacts], LEFT_OUT, "the same of several models, of those that have data"
    ] = field(default_factory=dict)
    versions: Annotated[Mapping[str, str], LEFT_OUT, "of squall, Python and libraries"] = field(
        default_factory=dict
    )
    started_ns: Annotated[int | None, LEFT_OUT, "UTC at which the run was begun"] = None
    phases: Annotated[tuple[PhaseFacts, ...], "empty before the load began"] = ()
    decided: Annotated[
        DecidedFacts | None, LEFT_OUT, "of a run that ended when its promises were decided"
    ] = None
    driver_ended_ns: Annotated[
        int | None, LEFT_OUT, "of a run whose driver was killed under load: its last send; resumed"
    ] = None
    nodes: Annotated[Mapping[str, NodeFacts], "by label: `node-0` and so on"] = field(default_factory=dict)
    servers: Annotated[Mapping[str, ServerFacts], "by name: `server-0`"] = field(default_factory=dict)
    workers: Annotated[tuple[WorkerFacts, ...], "by number"] = ()
    tried: Annotated[tuple[TriedFacts, ...], LEFT_OUT, "requests tried before the load"] = ()
    collectors: Annotated[Mapping[str, CollectorState], "what was to be collected, by name"] = field(
        default_factory=dict
    )
    locust: Annotated[
        LocustFacts | None, LEFT_OUT, "of a run whose load was Locust's, what it ran and said"
    ] = None
    value_checks: Annotated[
        ValueChecks | None, LEFT_OUT, "how replies were compared; absent: they were not"
    ] = None
    start_ns: Annotated[int | None, LEFT_OUT, "agreed start instant on the run clock"] = None
    node_starts_ns: Annotated[Mapping[str, int], LEFT_OUT, "the same on the clock of each node"] = field(
        default_factory=dict
    )
    clock_probing: Annotated[ClockCost | None, LEFT_OUT, "what reading the nodes' clocks took"] = None
    observers: Annotated[Mapping[str, ObserverCost], LEFT_OUT, "what observing took, by node"] = field(
        default_factory=dict
    )
    fetched: Annotated[
        Mapping[str, FetchFacts],
        LEFT_OUT,
        "what fetching took, by node whose disk the driver cannot read; `node-1/server-3`: of a further server's agent",
    ] = field(default_factory=dict)
    profiled_phases: Annotated[
        Mapping[str, ProfiledPhase], LEFT_OUT, "of a run with nsys, by measured phase"
    ] = field(default_factory=dict)
    nsys: Annotated[NsysFacts, LEFT_OUT, "of a run with nsys, the profiler"] = field(
        default_factory=NsysFacts
    )
    kernels: Annotated[
        KernelRecordingFacts | None, LEFT_OUT, "of a run with the kernel library, what it recorded"
    ] = None
    copied_to: Annotated[str, LEFT_OUT, "where a run of `--out s3://…` goes: its address"] = ""
    notes: Annotated[tuple[str, ...], "all else that did not go as it should"] = ()
    tables: Annotated[Mapping[str, SealedTable] | None, LEFT_OUT, "of a sealed run, the tables"] = None
    verdict: Annotated[Verdict | None, LEFT_OUT, "of a sealed run"] = None
    disk_losses: Annotated[tuple[str, ...], LEFT_OUT, "of `losses` those that the disk did not take"] = ()
    unfinished: Annotated[Unfinished | None, LEFT_OUT, "of a sealed run that lacks rows"] = None

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
    manifest = read_section(Manifest, document)
    for name, is_one in _names(manifest):
        if not is_one(name):
            raise StoreError(f"{escaped(name[:_SHOWN])!r} is no name of a file or folder")
    for table, entry in (manifest.tables or {}).items():
        for file in entry.files:
            if file.path.rpartition("/")[0] != f"tables/{table}":
                raise StoreError(f"{escaped(file.path[:_SHOWN])!r} is no part of {escaped(table[:_SHOWN])}")
    return manifest


def _names(manifest: Manifest) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """All that becomes a name of a file or folder, each with what it has to be: one component, or a path of them."""
    own = (manifest.run, *manifest.nodes, *manifest.servers, *(manifest.tables or {}))
    of_nodes = (served.node for served in manifest.servers.values())
    for name in (*own, *of_nodes, *(worker.node for worker in manifest.workers)):
        if name:
            yield name, is_component
    if manifest.unfinished is not None:
        yield from ((site, is_beneath) for site in manifest.unfinished.folders)
    for entry in (manifest.tables or {}).values():
        yield from ((file.path, is_beneath) for file in entry.files)


def is_sealed_whole(document: Mapping[str, Any]) -> bool:
    """Whether a manifest, from JSON, of whatever version, is of a run that lacks nothing more."""
    return document.get("state") == SEALED and "unfinished" not in document
