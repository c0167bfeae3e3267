"""What a run stands on: agents on the nodes, clocks, collectors, the server and the connected workers."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from squall.actors.doctor.tools import GPU_MEND, NSYS_MEND
from squall.actors.load.shared_memory import unregister_all
from squall.actors.process.cores import Split
from squall.actors.process.priority import Settled
from squall.analysis.clocks.track import ClockTrack
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.deployed import NodeFacts, RayPriority, ServerFacts, ServerScheduling
from squall.cluster.driver.client_workers import (
    Worker,
    expected_replies,
    refuse_two_nodes,
    seats_of,
    spawn_workers,
    told_of_scheduling,
    worker_facts,
)
from squall.cluster.driver.collectors.observed import ELSEWHERE, Collectors
from squall.cluster.driver.collectors.server_libraries import ServerLibraries
from squall.cluster.driver.nodes import Nodes
from squall.cluster.node.agent import SERVER, NodeAgent
from squall.cluster.node.endpoint import Endpoint, attach, tls_of
from squall.cluster.placement import Node, Placement
from squall.cluster.progress import Screen
from squall.cluster.remote.spawn import Handle, end_all
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, SquallError
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import PhaseSpan, Plan

_TRACE_MEND = "docs/triton.md tells which servers can be traced"
_STOP_TIMEOUT_S = 120.0
_SERVER_TIMEOUT_S = 900.0  # fetching and unpacking the server on first use is part of it


class Deployment:
    """Built by `deploy`; `release` undoes it. The manifest in the store is kept up to date on the way."""

    def __init__(self, scenario: Scenario, store: RunStore, screen: Screen, anchor_ns: int) -> None:
        self.nodes = Nodes(store.run, store.run_dir, scenario.profile, anchor_ns)
        self.workers: list[Worker] = []
        self.collectors = Collectors(screen)
        self.libraries = ServerLibraries(scenario, self.collectors)
        self.server_agent: Handle[NodeAgent] | None = None
        self.server_label = ""
        self._endpoint: Endpoint | None = None
        self._is_server_here = True
        self._splits: dict[str, Split] = {}
        self._stopping: Future[list[str]] | None = None
        self._scenario = scenario
        self._store = store
        self._screen = screen

    @property
    def served_model(self) -> str:
        """Name of the model under load."""
        return self._scenario.model.name

    @property
    def served_version(self) -> str:
        """Version of the model under load."""
        return (
            self._endpoint.spec.version if self._endpoint is not None else self._scenario.model.version or ""
        )

    def deploy(self, plan: Plan | ClosedPlan, placement: Placement) -> None:
        """Everything up to the start instant. Raises SquallError where a part of it cannot be had."""
        scenario = self._scenario
        self.nodes.add(dict.fromkeys((placement.server, *placement.clients)))
        self.server_label = placement.server.label
        self.server_agent = self.nodes.agents[self.server_label]
        self._is_server_here = placement.is_server_here
        if placement.note:
            self._screen.step(placement.note)
        if scenario.clients.shared_memory is not None:
            refuse_two_nodes(placement)
        self.nodes.start_clocks()
        self._store.amend(replace(self._store.manifest, nodes=self._describe_nodes()))
        self._tell_of_ray()
        self._split_cores(placement)
        self._find_collectors(placement)
        endpoint = self._endpoint = self._start_server(placement.server)
        self._spawn_workers(plan, placement, endpoint)
        self._observe_clients()
        self.server_agent.call(NodeAgent.observe_server, endpoint, placement.is_server_here)
        self._observe_gpus()
        self._choose_tracing()

    def record_kernels(
        self, clocks: Mapping[str, ClockTrack], start_ns: int, spans: Sequence[PhaseSpan]
    ) -> None:
        """See `ServerLibraries.record`; `clocks` by label of the node."""
        assert self.server_agent is not None
        self.libraries.record(self.server_agent, clocks[self.server_label], start_ns, spans)

    def begin_stop(self) -> None:
        """Asks the server to end, without waiting for it."""
        if self.server_agent is not None and self._stopping is None:
            self._stopping = self.server_agent.begin(NodeAgent.stop_server)

    def release(self, keeps: Collection[str] = ()) -> list[str]:
        """Stops workers, server and observers and removes the nodes' scratch folders; returns what did not go well.

        `keeps`: labels of nodes whose folder stays.
        """
        notes = []
        end_all(worker.handle for worker in self.workers)
        if self.server_agent is not None and self._stopping is not None:
            try:
                losses = self.server_agent.wait(self._stopping, _STOP_TIMEOUT_S)
                notes += losses
            except ClusterError as error:
                notes.append(f"server: {error}")
        url = self._scenario.server.url
        if self._scenario.clients.shared_memory is not None and url is not None and self.workers:
            notes += unregister_all(self._store.run, url.rstrip("/"), tls_of(self._scenario))
        return notes + self.nodes.release(keeps)

    def _describe_nodes(self) -> dict[str, NodeFacts]:
        agents, clocks = self.nodes.agents, self.nodes.clocks()
        found = {}
        for label in sorted(agents):
            described = agents[label].call(NodeAgent.describe)
            facts = replace(
                described, folder=self.nodes.folders[label], ray=_priority(agents[label].settled())
            )
            found[label] = with_clock(facts, clocks[label])
        return found

    def _note_collectors(self) -> None:
        self._store.amend(replace(self._store.manifest, collectors=self.collectors.states()))

    def _find_collectors(self, placement: Placement) -> None:
        """Decides what is collected and says once what is not. Raises ClusterError for a required one."""
        scenario, agent, collectors = (
            self._scenario,
            self.nodes.agents[placement.server.label],
            self.collectors,
        )
        profile = scenario.profile
        collectors.turn_on("triton")
        collectors.turn_on("host")
        if scenario.server.url is None:
            self.libraries.choose_batches(agent)
        reason_nvml = None
        if not placement.is_server_here:
            reason_nvml = ELSEWHERE
        elif profile.nvml != "off":
            reason_nvml = agent.call(NodeAgent.missing_nvml)
        collectors.choose("nvml", profile.nvml, reason_nvml, GPU_MEND)
        collectors.choose("nsys", profile.nsys, self._missing_nsys(placement, agent), NSYS_MEND)
        if scenario.server.url is None:
            self.libraries.choose_kernels(agent)
        self._note_collectors()

    def _missing_nsys(self, placement: Placement, agent: Handle[NodeAgent]) -> str | None:
        server, profile = self._scenario.server, self._scenario.profile
        if profile.nsys == "off":
            return None
        if server.image is not None or (server.url is not None and profile.nsys_session is None):
            return (
                "nsys profiles a server that squall starts itself, and one at server.url whose session"
                " profile.nsys_session names"
            )
        if not placement.is_server_here:
            return ELSEWHERE
        return agent.call(NodeAgent.missing_nsys, profile.trace)

    def _observe_clients(self) -> None:
        by_node: dict[str, list[int]] = {}
        for worker in self.workers:
            by_node.setdefault(worker.node.label, []).append(worker.handle.pid())
        for label, pids in by_node.items():
            self.nodes.agents[label].call(NodeAgent.observe_clients, tuple(pids))

    def _observe_gpus(self) -> None:
        assert self.server_agent is not None
        profile = self._scenario.profile
        if self.collectors.is_on("nvml"):
            try:
                self.server_agent.call(NodeAgent.observe_gpus, profile.gpm == "auto")
            except ClusterError as error:
                self.collectors.choose("nvml", profile.nvml, str(error), GPU_MEND)

    def _choose_tracing(self) -> None:
        """Triton's trace API, where the server holds it. Batch records tell more, so that its lack is no loss."""
        assert self.server_agent is not None
        wanted, reason = self._scenario.profile.triton_trace, None
        if wanted != "off":
            reason = self.server_agent.call(NodeAgent.missing_trace)
        self.collectors.choose("triton trace", wanted, reason, _TRACE_MEND, is_quiet=True)
        if self.collectors.is_on("triton trace"):
            self.server_agent.call(NodeAgent.turn_tracing, True)
        self._note_collectors()

    def _start_server(self, node: Node) -> Endpoint:
        scenario = self._scenario
        if scenario.server.url is not None:
            self._screen.step(f"attaching to {scenario.server.url}")
            endpoint = attach(scenario.model, scenario.server, tls_of(scenario))
            if self.collectors.is_on("nsys"):
                self.nodes.agents[node.label].call(NodeAgent.attach_profiler, scenario.profile)
            port = endpoint.port if self._is_server_here else None
            self.libraries.follow(self.nodes.agents[node.label], port)
            self._note_collectors()
        else:
            self._screen.step(f"starting Triton with {scenario.model.name}")
            agent = self.nodes.agents[node.label]
            self.nodes.server_label = node.label
            try:
                with_nsys, cores = self.collectors.is_on("nsys"), self._splits[node.label].others
                inside = self.libraries.has_batches, self.libraries.kernel_kinds
                starting = agent.begin(NodeAgent.start_server, scenario, with_nsys, cores, *inside)
                endpoint = agent.wait(starting, _SERVER_TIMEOUT_S)
            except SquallError:
                with contextlib.suppress(SquallError):  # why the server failed matters more than its log
                    self.keep_server_log()
                raise
            reason = agent.call(NodeAgent.why_without_nsys)
            if reason is not None:
                self.collectors.lose("nsys", reason, "squall doctor tries a recording on its own")
            self.libraries.confirm(agent)
            self._note_collectors()
        server = ServerFacts(
            node=node.label,
            model=endpoint.spec.name,
            version=endpoint.spec.version,
            source=endpoint.source,
            server_version=endpoint.server_version,
            batch_record=endpoint.has_records,
            steps=tuple(endpoint.steps),
            decoupled=tuple(endpoint.decoupled),
            scheduling=self._server_scheduling(node, endpoint),
        )
        self._store.amend(replace(self._store.manifest, servers={SERVER: server}))
        self._screen.step(f"Triton {endpoint.server_version} ({endpoint.source}) serves {endpoint.spec.name}")
        return endpoint

    def _server_scheduling(self, node: Node, endpoint: Endpoint) -> ServerScheduling:
        """How the server is scheduled and limited, told where nobody deploys one so; empty where it is elsewhere."""
        url = self._scenario.server.url
        if url is not None and not self._is_server_here:
            return ServerScheduling()
        port, niceness = (endpoint.port, 0) if url is not None else (None, self._scenario.server.nice)
        found = self.nodes.agents[node.label].call(NodeAgent.server_scheduling, port, niceness)
        for what in found.unusual:
            self._screen.step(f"the server is not scheduled as one that is deployed: {what}", "yellow")
        return found

    def _tell_of_ray(self) -> None:
        """What Ray does to processes that could not be mended from inside."""
        nodes = self._store.manifest.nodes
        for what in dict.fromkeys(what for facts in nodes.values() for what in facts.ray_watchdogs):
            where = ", ".join(label for label, facts in nodes.items() if what in facts.ray_watchdogs)
            self._screen.step(f"Ray on {where}: {what}; squall doctor has the mend", "yellow")
        for label, facts in nodes.items():
            if facts.ray is not None and facts.ray.niceness > 0:
                what = (
                    f"{label}: what Ray starts runs at niceness {facts.ray.niceness}, behind all else there"
                )
                self._screen.step(f"{what}; start Ray with RAY_worker_niceness=0", "yellow")

    def _split_cores(self, placement: Placement) -> None:
        """Which cores the senders of each node get. Raises ClusterError where those asked for cannot be had."""
        clients = self._scenario.clients
        seats = [node.label for node in seats_of(clients, placement)]
        for label, agent in self.nodes.agents.items():
            self._splits[label] = agent.call(NodeAgent.split_cores, clients.cores, seats.count(label))

    def keep_server_log(self) -> None:
        """Copies the server's log into the run directory, if a server was started."""
        assert self.server_agent is not None
        log = self.server_agent.call(NodeAgent.server_log)
        if log:
            self._store.write_text("logs/server-0.log", log.decode(errors="replace"))

    def _spawn_workers(self, plan: Plan | ClosedPlan, placement: Placement, endpoint: Endpoint) -> None:
        seats = seats_of(self._scenario.clients, placement)
        expected = expected_replies(self._scenario, plan, len(seats), endpoint.spec, self._screen)
        if expected is not None:
            self._store.amend(replace(self._store.manifest, value_checks=expected.checks()))
        spill_dirs = {
            node.label: self.nodes.agents[node.label].call(NodeAgent.spill_dir) for node in set(seats)
        }
        cores = {label: split.of_workers for label, split in self._splits.items()}
        for worker in spawn_workers(
            self._store.run, self._scenario, plan, endpoint, seats, spill_dirs, expected, cores
        ):
            self.workers.append(worker)
        facts = worker_facts(self.workers, isinstance(plan, ClosedPlan))
        self._store.amend(replace(self._store.manifest, workers=facts))
        for line in told_of_scheduling(facts):
            self._screen.step(line, "yellow")
        self._screen.step(f"{len(self.workers)} workers on {len(placement.clients)} node(s) are connected")


def _priority(settled: Settled) -> RayPriority:
    return RayPriority(
        niceness_given=settled.niceness_given,
        niceness=settled.niceness,
        oom_score_adj_given=settled.oom_score_adj_given,
        oom_score_adj=settled.oom_score_adj,
    )


def with_clock(node: NodeFacts, clock: ClockTrack, load_ns: tuple[int, int] | None = None) -> NodeFacts:
    """`node` with what the manifest says of its clock: its offset when it was last read, bound, drift and track.

    `load_ns`: begin and end of the load on the run clock: the bound covers them too, should no probe have come so far.
    """
    last_ns = int(clock.at_ns[-1]) if clock.probed_ns is None else clock.probed_ns[1]
    error_ns = clock.largest_error_ns
    if load_ns is not None:
        first_ns, end_ns = (clock.source_ns(run_ns) for run_ns in load_ns)
        error_ns = max(error_ns, clock.largest_error_between(first_ns, end_ns))
    return replace(
        node,
        clock_offset_ns=clock.target_ns(last_ns) - last_ns,
        clock_error_ns=error_ns,
        clock_drift_ppm=clock.drift_ppm,
        clock_track=clock.to_knots(),
    )
