"""What a run stands on: agents on the nodes, clocks, collectors, servers and the connected workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from squall.actors.load.shared_memory import unregister_all
from squall.actors.load.trial import Trial, TrialRequest
from squall.actors.process.cores import Split
from squall.actors.sampling.observer import Observer
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.deployed import NodeFacts
from squall.analysis.storage.store import RunStore
from squall.analysis.wording import names_text
from squall.cluster.driver.client_workers import (
    Worker,
    expected_replies,
    refuse_two_nodes,
    seats_of,
    spawn_workers,
    told_of_addresses,
    told_of_scheduling,
    worker_facts,
)
from squall.cluster.driver.deployed_server import DeployedServer
from squall.cluster.driver.locust_crew import Crew, spawn_crew
from squall.cluster.driver.locust_facts import first_facts
from squall.cluster.driver.locust_settings import locust_settings
from squall.cluster.driver.nodes import Nodes
from squall.cluster.driver.observed_collectors import together
from squall.cluster.driver.payload_bringing import bring, packing_place
from squall.cluster.driver.payload_packing import Requests, encoded_by_model, told_in_manifest
from squall.cluster.driver.trials import Try, try_requests
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.endpoint import Endpoint, headers_of
from squall.cluster.placement import Node, Placement
from squall.cluster.progress import Screen
from squall.cluster.remote.spawn import Handle, ask_all, end_all, wait_all
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, SquallError, StoreError, TargetError
from squall.scenarios.locust_plan import LocustPlan
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import PhaseSpan, Plan
from squall.scenarios.run_plan import RunPlan
from squall.scenarios.units import NS_PER_S

_STOP_TIMEOUT_S = 120.0
_TRIAL_MARGIN_S = 60.0
"""Beside the wait for its reply: to connect, and for an agent that is busy."""


class Deployment:
    """Built by `deploy`; `release` undoes it. The manifest in the store is kept up to date on the way."""

    def __init__(self, scenario: Scenario, store: RunStore, screen: Screen, anchor_ns: int) -> None:
        self.nodes = Nodes(store.run, store.run_dir, scenario.profile, anchor_ns)
        self.workers: list[Worker] = []
        self.servers: list[DeployedServer] = []
        self.locust: Crew | None = None
        self._splits: dict[str, Split] = {}
        self._scenario = scenario
        self._store = store
        self._screen = screen

    def deploy(self, plan: RunPlan, placement: Placement) -> None:
        """Everything up to the start instant. Raises SquallError where a part of it cannot be had."""
        scenario = self._scenario
        nodes = dict.fromkeys((*placement.server_nodes, *placement.clients))
        sites = self.nodes.add(nodes, [(seat.name, seat.node) for seat in placement.servers])
        for label, had in self.nodes.shipped_to.items():
            self._screen.step(f"this squall was brought to {label} for the run, which has {had}")
        if placement.note:
            self._screen.step(placement.note)
        if scenario.clients.shared_memory is not None:
            refuse_two_nodes(placement)
        self.nodes.start_clocks()
        for seat in placement.servers:
            site = sites[seat.name]
            agent, observer = self.nodes.agents[site], self.nodes.observers[seat.node.label]
            self.servers.append(
                DeployedServer(seat, site, agent, observer, scenario, self._screen, self._store.run_dir)
            )
        self._store.amend(replace(self._store.manifest, nodes=self._describe_nodes()))
        self._tell_of_ray()
        self._split_cores(placement)
        for server in self.servers:
            server.find_collectors()
        self.note_collectors()
        self._start_servers()
        self._try_others(plan, placement)
        here = {server.label: server for server in reversed(self.servers) if server.is_here}
        for server in here.values():  # early: what the GPUs do by themselves shows meanwhile
            server.observe_gpus()
        if isinstance(plan, LocustPlan):
            self._spawn_locust(plan, placement)
        else:
            self._spawn_workers(plan, placement)
        self._observe_clients()
        for server in self.servers:
            server.observe()
        for server in self.servers:
            server.choose_tracing()
        self.note_collectors()

    def try_requests(self, plan: RunPlan, endpoints: Mapping[str, Endpoint], attempt: Try) -> None:
        """See `squall.cluster.driver.trials.try_requests`; nothing where the scenario asks for none, and of Locust,
        whose requests only its users know. Raises TargetError."""
        if isinstance(plan, LocustPlan) or not (self._scenario.clients.try_first and endpoints):
            return
        tried = try_requests(
            self._scenario, plan, endpoints, lambda told: self._screen.step(told, "yellow"), attempt
        )
        known = self._store.manifest
        self._store.amend(replace(known, tried=(*known.tried, *tried)))

    def _try_others(self, plan: RunPlan, placement: Placement) -> None:
        """From the first client node, those that were not there before Ray was."""
        tried = {one.server for one in self._store.manifest.tried}
        others = {one.name: one.endpoint for one in self.servers if one.name not in tried}
        agent = self.nodes.hosts[placement.clients[0].label]

        def attempt(request: TrialRequest, number: int) -> Trial:
            asked = agent.begin(NodeAgent.try_request, request, number)
            return agent.wait(asked, request.timeout_ns / NS_PER_S + _TRIAL_MARGIN_S)

        try:
            self.try_requests(plan, others, attempt)
        except TargetError:
            with suppress(SquallError):  # why a server does not take it matters more than its log
                self.keep_server_logs()
            raise

    def note_collectors(self) -> None:
        """What is collected, as it stands now, for the manifest."""
        found = together([server.collectors for server in self.servers])
        self._store.amend(replace(self._store.manifest, collectors=found))

    def record_kernels(
        self, clocks: Mapping[str, ClockTrack], start_ns: int, spans: Sequence[PhaseSpan]
    ) -> None:
        """See `ServerLibraries.record`; `clocks` by label of the node."""
        for server in self.servers:
            server.record_kernels(clocks[server.label], start_ns, spans)

    def restore_models(self) -> list[str]:
        """Puts the models of servers that run already back, where a scenario changed them; what could not be, as
        sentences. Does so once; raises nothing."""
        left = [one for server in self.servers for one in server.restore_models()]
        known, changed = self._store.manifest, {}
        for server in self.servers:
            if server.name in known.servers and server.control is not None:
                changed[server.name] = replace(known.servers[server.name], control=server.control)
        if changed and not self._store.is_sealed:
            with suppress(StoreError):  # a full disk: what is left is told all the same
                self._store.amend(replace(known, servers={**known.servers, **changed}))
        return left

    def release(self, keeps: Collection[str] = ()) -> list[str]:
        """Stops workers, servers and observers and removes the nodes' scratch folders; returns what did not go well.

        `keeps`: sites whose folder stays.
        """
        notes = self.restore_models()
        if self.locust is not None:
            self.locust.end()
        end_all(worker.handle for worker in self.workers)
        for server in self.servers:
            if server.stopping is not None:
                try:
                    losses = server.agent.wait(server.stopping, _STOP_TIMEOUT_S)
                    notes += losses
                except ClusterError as error:
                    notes.append(f"{server.name}: {error}")
        if self._scenario.clients.shared_memory is not None and self.workers:
            for server in self.servers:
                if not server.is_started:
                    notes += unregister_all(self._store.run, server.endpoint.url, server.endpoint.access)
        return notes + self.nodes.release(keeps)

    def _describe_nodes(self) -> dict[str, NodeFacts]:
        agents, clocks = self.nodes.hosts, self.nodes.clocks()
        with_ray = {label: agent for label, agent in agents.items() if self.nodes.is_of_ray(label)}
        asked = {label: agent.begin_settled() for label, agent in with_ray.items()}
        described = ask_all(agents, NodeAgent.describe)
        given, folders, found = wait_all(with_ray, asked), self.nodes.folders, {}
        for label in sorted(agents):
            facts = replace(described[label], folder=folders[label], ray=given.get(label))
            if label not in given:
                facts = replace(facts, ray_watchdogs=())
            found[label] = with_clock(facts, clocks[label])
        return found

    def _observe_clients(self) -> None:
        by_node: dict[str, list[int]] = {}
        asked: list[tuple[str, Handle[object], Future[int]]]
        if self.locust is not None:
            asked = self.locust.begin_pids()
        else:
            asked = [(one.node.label, one.handle, one.handle.begin_pid()) for one in self.workers]
        for label, handle, reference in asked:
            by_node.setdefault(label, []).append(handle.wait(reference))
        observers = self.nodes.observers
        told = {
            label: observers[label].begin(Observer.set_client_pids, tuple(pids))
            for label, pids in by_node.items()
        }
        wait_all(observers, told)

    def _start_servers(self) -> None:
        """All at once. Raises SquallError where one does not come up."""
        for server in self.servers:
            if server.is_started:
                self.nodes.with_server.add(server.site)
            server.begin(self._splits[server.label].others)
        for server in self.servers:
            server.finish(self._store)
            self.note_collectors()
            facts = {**self._store.manifest.servers, server.name: server.describe()}
            self._store.amend(replace(self._store.manifest, servers=facts))

    def _tell_of_ray(self) -> None:
        """What Ray does to processes that could not be mended from inside."""
        nodes = self._store.manifest.nodes
        for what in dict.fromkeys(what for facts in nodes.values() for what in facts.ray_watchdogs):
            where = names_text([label for label, facts in nodes.items() if what in facts.ray_watchdogs])
            self._screen.step(f"Ray on {where}: {what}; squall doctor has the mend", "yellow")
        given = {label: facts.ray.niceness for label, facts in nodes.items() if facts.ray is not None}
        for niceness in sorted({one for one in given.values() if one > 0}):
            where = names_text([label for label, one in given.items() if one == niceness])
            what = f"{where}: what Ray starts runs at niceness {niceness}, behind all else there"
            self._screen.step(f"{what}; start Ray with RAY_worker_niceness=0", "yellow")

    def _split_cores(self, placement: Placement) -> None:
        """Which cores the senders of each node get. Raises ClusterError where those asked for cannot be had."""
        clients = self._scenario.clients
        seats = [node.label for node in seats_of(clients, placement)]
        n_seats, hosts = Counter(seats), self.nodes.hosts
        asked = {
            label: agent.begin(NodeAgent.split_cores, clients.cores, n_seats[label])
            for label, agent in hosts.items()
        }
        self._splits = wait_all(hosts, asked)

    def keep_server_logs(self) -> None:
        """Copies the log of each server that was started here into the run directory."""
        for server in self.servers:
            server.keep_log(self._store)

    def _pack(
        self, plan: Plan | ClosedPlan, seats: Sequence[Node]
    ) -> tuple[Sequence[Requests], dict[str, tuple[str, ...]]]:
        """The requests to each model, where inputs of some are the user's, held to the models; and the files with them
        on each node of `seats`."""
        scenario = self._scenario
        found: dict[str, tuple[str, ...]] = {node.label: () for node in seats}
        if not scenario.has_data:
            return (), {}
        encoded = encoded_by_model(scenario, plan, [server.endpoint for server in self.servers])
        with packing_place() as folder:
            facts = []
            for number, requests in enumerate(encoded):
                self._screen.step(f"encoding {requests.codes.size} requests {requests.told}")
                path = folder / f"requests-{number}.packed"
                facts.append(requests.write(path))
                brought = bring(path, self.nodes, found)
                found = {label: (*paths, brought[label]) for label, paths in found.items()}
                path.unlink()
            self._store.amend(replace(self._store.manifest, **told_in_manifest(scenario, facts)))
        return encoded, found

    def _spawn_workers(self, plan: Plan | ClosedPlan, placement: Placement) -> None:
        seats = seats_of(self._scenario.clients, placement)
        endpoints = {server.name: server.endpoint for server in self.servers}
        encoded, packed = self._pack(plan, seats)
        expected = expected_replies(self._scenario, plan, len(seats), endpoints, self._screen, encoded)
        if expected is not None:
            self._store.amend(replace(self._store.manifest, value_checks=expected.checks()))
        spill_dirs = ask_all(self.nodes.hosts, NodeAgent.spill_dir)
        cores = {label: split.of_workers for label, split in self._splits.items()}
        for worker in spawn_workers(
            self._store.run, self._scenario, plan, endpoints, seats, spill_dirs, expected, cores, packed
        ):
            self.workers.append(worker)
        self._describe_workers(plan)
        self._screen.step(f"{len(self.workers)} workers on {len(placement.clients)} node(s) are connected")

    def _spawn_locust(self, plan: LocustPlan, placement: Placement) -> None:
        """Locust's master, on the first client node, and its workers, connected."""
        seats = seats_of(self._scenario.clients, placement)
        endpoints = {server.name: server.endpoint for server in self.servers}
        spill_dirs = ask_all(self.nodes.hosts, NodeAgent.spill_dir)
        headers = headers_of(self._scenario)
        settings = locust_settings(
            self._store.run, self._scenario, plan, endpoints, seats, spill_dirs, headers
        )
        crew = self.locust = spawn_crew(*settings, {node.label: node for node in seats})
        self.workers += [Worker(one, node, 0) for one, node in zip(crew.workers, seats, strict=True)]
        account = crew.connect()
        self._store.amend(replace(self._store.manifest, locust=first_facts(crew.settings, account)))
        self._describe_workers(plan)
        where = f"{len(self.workers)} workers on {len(placement.clients)} node(s)"
        self._screen.step(
            f"Locust {account.version}: {where} are connected to the master on {crew.node.label}"
        )

    def _describe_workers(self, plan: RunPlan) -> None:
        facts = worker_facts(self.workers, plan)
        self._store.amend(replace(self._store.manifest, workers=facts))
        for line in told_of_scheduling(facts):
            self._screen.step(line, "yellow")
        spread, left_out = told_of_addresses(facts)
        for line in spread:
            self._screen.step(line)
        for line in left_out:
            self._screen.step(line, "yellow")


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
