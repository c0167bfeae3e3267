"""What a run stands on: agents on the nodes, clocks, collectors, the server and the connected workers."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actors.checkup_tools import GPU_MEND, NSYS_MEND
from actors.clock import SystemClock
from actors.engine import Rules, templates_needed
from actors.link import TlsSettings
from actors.loadgen import Answers, LoadWorker, WorkerSettings
from actors.shared_memory import SharedMemorySettings, unregister_all
from actors.values import CheckRule
from analysis.clock_track import ClockTrack
from analysis.store import RunStore
from cluster.agent import SERVER
from cluster.collectors import BATCHES_MEND, Collectors
from cluster.endpoint import Endpoint, attach
from cluster.nodes import Nodes
from cluster.placement import Node, Placement
from cluster.progress import Screen
from cluster.spawn import Handle, spawn
from models.reference import read_answers, reference_answers
from models.spec import ModelSpec
from scenarios.closed import ClosedPlan, deal_closed
from scenarios.errors import ClusterError, ScenarioError, SquallError
from scenarios.plan import Plan, deal
from scenarios.scenario import Scenario

_STOP_TIMEOUT_S = 120.0
_MOST_SENT_BYTES = 512 * 2**20  # of plans on their way to workers: a part of 32 of the largest plan is 70 MB
_SERVER_TIMEOUT_S = 900.0  # fetching and unpacking the server on first use is part of it


@dataclass
class Worker:
    """A load worker, with `n_planned` arrivals or users; `running` refers to its run, `is_lost` once its actor died."""

    handle: Handle
    node: Node
    n_planned: int
    running: Any = None
    is_lost: bool = False


class Sending:
    """Calls begun with arguments of some size: so many that what is under way stays below `most_bytes`.

    Ray keeps the arguments of a call in its object store until the actor has taken them.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._begun: deque[tuple[Handle, Any, int]] = deque()

    def add(self, handle: Handle, reference: Any, n_bytes: int) -> None:
        """Notes a call; waits for earlier ones where they are too many. Raises what `Handle.wait` raises."""
        self._begun.append((handle, reference, n_bytes))
        while len(self._begun) > 1 and sum(size for _, _, size in self._begun) > self._most_bytes:
            self._wait_for_first()

    def finish(self) -> None:
        """Waits for all of them."""
        while self._begun:
            self._wait_for_first()

    def _wait_for_first(self) -> None:
        handle, reference, _ = self._begun.popleft()
        handle.wait(reference)


class Deployment:
    """Built by `deploy`; `release` undoes it. The manifest in the store is kept up to date on the way."""

    def __init__(self, scenario: Scenario, store: RunStore, screen: Screen, anchor_ns: int) -> None:
        self.nodes = Nodes(store.run, scenario.profile, anchor_ns)
        self.workers: list[Worker] = []
        self.collectors = Collectors(screen)
        self.server_agent: Handle | None = None
        self.server_label = ""
        self._endpoint: Endpoint | None = None
        self._stopping: Any = None
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
        return self._endpoint.spec.version if self._endpoint is not None else self._scenario.model.version

    def deploy(self, plan: Plan | ClosedPlan, placement: Placement) -> None:
        """Everything up to the start instant. Raises SquallError where a part of it cannot be had."""
        scenario = self._scenario
        for node in dict.fromkeys((placement.server, *placement.clients)):
            self.nodes.add(node)
        self.server_label = placement.server.label
        self.server_agent = self.nodes.agents[self.server_label]
        if placement.note:
            self._screen.step(placement.note)
        if scenario.clients.shared_memory is not None:
            refuse_two_nodes(placement)
        self.nodes.start_clocks()
        self._store.update(nodes=self._describe_nodes())
        self._find_collectors(placement)
        endpoint = self._endpoint = self._start_server(placement.server)
        self._spawn_workers(plan, placement, endpoint)
        self.server_agent.call("observe_server", endpoint)
        self._observe_gpus()
        self._choose_tracing()

    def begin_stop(self) -> None:
        """Asks the server to end, without waiting for it."""
        if self.server_agent is not None and self._stopping is None:
            self._stopping = self.server_agent.begin("stop_server")

    def release(self) -> list[str]:
        """Stops server and observers and removes the nodes' scratch folders; returns what did not go well."""
        notes = []
        if self.server_agent is not None and self._stopping is not None:
            try:
                notes += self.server_agent.wait(self._stopping, _STOP_TIMEOUT_S)
            except ClusterError as error:
                notes.append(f"server: {error}")
        url = self._scenario.server.url
        if self._scenario.clients.shared_memory is not None and url is not None and self.workers:
            notes += unregister_all(self._store.run, url.rstrip("/"), tls_of(self._scenario))
        return notes + self.nodes.release()

    def _describe_nodes(self) -> dict[str, Any]:
        agents, clocks = self.nodes.agents, self.nodes.clocks()
        return {
            label: {**agents[label].call("describe"), **clock_facts(clocks[label])}
            for label in sorted(agents)
        }

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
        if scenario.server.url is None and scenario.model.repository is None:
            collectors.turn_on("batches")
        else:
            reason = "the served model is not one of squall's and records no batches"
            collectors.lose("batches", reason, BATCHES_MEND)
        reason_nvml = None
        if not placement.is_server_here:
            reason_nvml = "the server is on no node of the Ray cluster"
        elif profile.nvml != "off":
            reason_nvml = agent.call("missing_nvml")
        collectors.choose("nvml", profile.nvml, reason_nvml, GPU_MEND)
        collectors.choose("nsys", profile.nsys, self._missing_nsys(placement, agent), NSYS_MEND)
        self._store.update(collectors=collectors.to_mapping())

    def _missing_nsys(self, placement: Placement, agent: Handle) -> str | None:
        server, profile = self._scenario.server, self._scenario.profile
        if profile.nsys == "off":
            return None
        if server.image is not None or (server.url is not None and profile.nsys_session is None):
            return (
                "nsys profiles a server that squall starts itself, and one at server.url whose session"
                " profile.nsys_session names"
            )
        if not placement.is_server_here:
            return "the server is on no node of the Ray cluster"
        reason: str | None = agent.call("missing_nsys")
        return reason

    def _observe_gpus(self) -> None:
        assert self.server_agent is not None
        profile = self._scenario.profile
        if self.collectors.is_on("nvml"):
            try:
                self.server_agent.call("observe_gpus", profile.gpm == "auto")
            except ClusterError as error:
                self.collectors.choose("nvml", profile.nvml, str(error), GPU_MEND)

    def _choose_tracing(self) -> None:
        """Triton's trace API, where the server holds it. Batch records tell more, so that its lack is no loss."""
        assert self.server_agent is not None
        reason = "the scenario turns it off"
        if self._scenario.profile.triton_trace == "auto":
            reason = self.server_agent.call("missing_trace")
        if reason is None:
            self.server_agent.call("turn_tracing", True)
            self.collectors.turn_on("triton trace")
        else:
            self.collectors.leave_out("triton trace", reason)
        self._store.update(collectors=self.collectors.to_mapping())

    def _start_server(self, node: Node) -> Endpoint:
        scenario = self._scenario
        if scenario.server.url is not None:
            self._screen.step(f"attaching to {scenario.server.url}")
            endpoint = attach(scenario.model, scenario.server, tls_of(scenario))
            if self.collectors.is_on("nsys"):
                self.nodes.agents[node.label].call("attach_profiler", scenario.profile)
        else:
            self._screen.step(f"starting Triton with {scenario.model.name}")
            agent = self.nodes.agents[node.label]
            try:
                endpoint = agent.call(
                    "start_server", scenario, self.collectors.is_on("nsys"), timeout_s=_SERVER_TIMEOUT_S
                )
            except SquallError:
                with contextlib.suppress(SquallError):  # why the server failed matters more than its log
                    self.keep_server_log()
                raise
        server = {
            "node": node.label, "model": endpoint.spec.name, "version": endpoint.spec.version,
            "source": endpoint.source, "server_version": endpoint.server_version,
            "batch_record": endpoint.has_records,
        }  # fmt: skip
        self._store.update(servers={SERVER: server})
        self._screen.step(f"Triton {endpoint.server_version} ({endpoint.source}) serves {endpoint.spec.name}")
        return endpoint

    def keep_server_log(self) -> None:
        """Copies the server's log into the run directory, if a server was started."""
        assert self.server_agent is not None
        log = self.server_agent.call("server_log")
        if log:
            self._store.write_text("logs/server-0.log", log.decode(errors="replace"))

    def _spawn_workers(self, plan: Plan | ClosedPlan, placement: Placement, endpoint: Endpoint) -> None:
        clients = self._scenario.clients
        seats = [node for _ in range(clients.workers_per_node) for node in placement.clients]
        port = endpoint.port if clients.protocol == "http" else endpoint.grpc_port
        is_plain = (
            clients.protocol == "grpc" and clients.tls is None
        )  # of https the URL says only what HTTP speaks
        tls = None if is_plain else tls_of(self._scenario)
        headers = expand_headers(clients.headers, os.environ)
        n_workers = len(seats)
        parts = deal_closed(plan, n_workers) if isinstance(plan, ClosedPlan) else deal(plan, n_workers)
        check, answers = self._expect(plan, n_workers, endpoint.spec)
        sending = Sending(_MOST_SENT_BYTES)
        for index, (node, part) in enumerate(zip(seats, parts, strict=True)):
            settings = WorkerSettings(
                run=self._store.run, node=node.label, worker=index, target=SERVER, host=endpoint.host, port=port,
                protocol=clients.protocol, tls=tls, unix=clients.unix, headers=headers,
                spin_ns=clients.spin_ns, spec=endpoint.spec, seed=self._scenario.seed,
                shapes=dict(self._scenario.model.shapes),
                rules=Rules(clients.timeout_ns, clients.max_in_flight, phase_timeouts(self._scenario)),
                n_connections=clients.connections, check=check,
                spill_dir=self.nodes.agents[node.label].call("spill_dir"),
                shared_memory=self._memory(endpoint),
            )  # fmt: skip
            handle = spawn(f"worker {index}", node, LoadWorker, settings, SystemClock(), n_threads=3)
            assert isinstance(part, Plan | ClosedPlan)
            self.workers.append(Worker(handle, node, len(part)))
            sending.add(
                handle, handle.begin("prepare", part, answers), part.n_bytes if isinstance(part, Plan) else 0
            )
        sending.finish()
        self._store.update(
            workers=[
                {
                    "worker": index,
                    "node": worker.node.label,
                    "has_lane": worker.handle.call("has_lane"),
                    "n_users" if isinstance(plan, ClosedPlan) else "n_planned": worker.n_planned,
                }
                for index, worker in enumerate(self.workers)
            ]
        )
        self._screen.step(f"{len(self.workers)} workers on {len(placement.clients)} node(s) are connected")

    def _memory(self, endpoint: Endpoint) -> SharedMemorySettings | None:
        config = self._scenario.clients.shared_memory
        if config is None:
            return None
        return SharedMemorySettings(config.inputs, config.outputs, endpoint.url, endpoint.tls)

    def _expect(
        self, plan: Plan | ClosedPlan, n_workers: int, spec: ModelSpec
    ) -> tuple[CheckRule | None, Answers | None]:
        """How replies are compared and with what, as the manifest then says; (None, None) where they are not."""
        config = self._scenario.clients.check
        if config is None:
            return None, None
        if isinstance(plan, ClosedPlan):
            every, kinds = config.every(plan.n_users), plan.request_kinds()
        else:
            every, kinds = config.every(n_workers), templates_needed(plan)
        rule = CheckRule(every, config.rtol, config.atol)
        source = {}
        if config.reference is not None:
            answers, source["reference_sha256"] = read_answers(Path(config.reference), spec, kinds)
        else:
            self._screen.step(f"computing the answers to {len(kinds)} payloads")
            answers = reference_answers(spec, self._scenario.model.settings, self._scenario.seed, kinds)
        self._store.update(value_checks={**asdict(rule), **source})
        return rule, answers


def clock_facts(clock: ClockTrack) -> dict[str, Any]:
    """What the manifest says of a node's clock: its offset when it was last read, bound, drift and track."""
    last_ns = int(clock.at_ns[-1]) if clock.probed_ns is None else clock.probed_ns[1]
    return {
        "clock_offset_ns": clock.target_ns(last_ns) - last_ns, "clock_error_ns": clock.largest_error_ns,
        "clock_drift_ppm": clock.drift_ppm, "clock_track": clock.to_mapping(),
    }  # fmt: skip


def refuse_two_nodes(placement: Placement) -> None:
    """Raises ClusterError unless the clients share memory with the server."""
    elsewhere = [node.label for node in placement.clients if node != placement.server]
    if elsewhere or not placement.is_server_here:
        where = (
            f"on {placement.server.label}" if placement.is_server_here else "on no node of the Ray cluster"
        )
        raise ClusterError(
            f"clients.shared_memory: the server is {where}, the clients on "
            f"{', '.join(elsewhere or [placement.server.label])}: they share no memory; use it with a server that "
            "squall starts, or with a server.url on loopback"
        )


def tls_of(scenario: Scenario) -> TlsSettings | None:
    """How everything speaks TLS with the server; None where neither `clients.tls` nor an https URL asks for it."""
    tls, url = scenario.clients.tls, scenario.server.url
    if tls is not None:
        return TlsSettings(**tls.model_dump())
    return TlsSettings() if url is not None and url.startswith("https:") else None


def phase_timeouts(scenario: Scenario) -> dict[int, int]:
    """The timeouts that phases set themselves, in ns by index of the phase."""
    return {
        index: phase.timeout_ns for index, phase in enumerate(scenario.phases) if phase.timeout_ns is not None
    }


def expand_headers(headers: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """`${NAME}` in a value becomes that environment variable, so that no token stands in scenario or manifest.

    Raises ScenarioError for a variable that is not set.
    """

    def value_of(key: str, found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise ScenarioError(f"clients.headers.{key}: the environment variable {found[1]} is not set")
        return environment[found[1]]

    return {
        key: re.sub(r"\$\{(\w+)\}", lambda found, key=key: value_of(key, found), value)  # type: ignore[misc]
        for key, value in headers.items()
    }
