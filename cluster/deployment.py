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

from actors.clock import SystemClock
from actors.engine import Rules, templates_needed
from actors.link import TlsSettings
from actors.loadgen import Answers, LoadWorker, WorkerSettings
from actors.profiler import MEND as NSYS_MEND
from actors.shared_memory import SharedMemorySettings, unregister_all
from actors.values import CheckRule
from analysis.store import RunStore
from analysis.timeline import ClockMap
from cluster.agent import SERVER, NodeAgent
from cluster.clocksync import clock_domain, probe
from cluster.placement import Node, Placement
from cluster.progress import Screen
from cluster.server import Endpoint, attach
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
_NVML_MEND = "run the server on a node with an NVIDIA driver"
_BATCHES_MEND = "serve a head of `squall models list`"


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
        self.agents: dict[str, Handle] = {}
        self.clocks: dict[str, ClockMap] = {}
        self.workers: list[Worker] = []
        self.collectors: dict[str, dict[str, str]] = {}
        self.server_agent: Handle | None = None
        self._stopping: Any = None
        self._scenario = scenario
        self._store = store
        self._screen = screen
        self._anchor_ns = anchor_ns

    @property
    def served_model(self) -> str:
        """Name of the model under load."""
        return self._scenario.model.name

    @property
    def server_clock(self) -> ClockMap:
        """Clock of the server's node."""
        return next(self.clocks[label] for label, agent in self.agents.items() if agent is self.server_agent)

    def deploy(self, plan: Plan | ClosedPlan, placement: Placement) -> None:
        """Everything up to the start instant. Raises SquallError where a part of it cannot be had."""
        for node in dict.fromkeys((placement.server, *placement.clients)):
            self.agents[node.label] = spawn(
                "agent", node, NodeAgent, self._store.run, node.label, n_threads=4
            )
        self.server_agent = self.agents[placement.server.label]
        if placement.note:
            self._screen.step(placement.note)
        if self._scenario.clients.shared_memory is not None:
            refuse_two_nodes(placement)
        self._read_clocks()
        self._find_collectors(placement)
        endpoint = self._start_server(placement.server)
        self._spawn_workers(plan, placement, endpoint)
        for label, agent in self.agents.items():
            is_server = label == placement.server.label
            with_gpu = is_server and self.is_on("nvml")
            agent.call("start_samplers", self._scenario.profile, endpoint if is_server else None, with_gpu)

    def is_on(self, collector: str) -> bool:
        """True if that collector runs."""
        return self.collectors.get(collector, {}).get("status") == "on"

    def begin_stop(self) -> None:
        """Asks the server to end, without waiting for it."""
        if self.server_agent is not None and self._stopping is None:
            self._stopping = self.server_agent.begin("stop_server")

    def release(self) -> list[str]:
        """Stops server and samplers and removes the nodes' scratch folders; returns what did not go well."""
        notes = []
        if self.server_agent is not None and self._stopping is not None:
            try:
                notes += self.server_agent.wait(self._stopping, _STOP_TIMEOUT_S)
            except ClusterError as error:
                notes.append(f"server: {error}")
        url = self._scenario.server.url
        if self._scenario.clients.shared_memory is not None and url is not None and self.workers:
            notes += unregister_all(self._store.run, url.rstrip("/"), tls_of(self._scenario))
        for agent in self.agents.values():
            try:
                agent.call("close")
            except ClusterError as error:
                notes.append(f"clean-up: {error}")
        self.agents.clear()
        return notes

    def _read_clocks(self) -> None:
        own = clock_domain()
        nodes = {}
        for label, agent in sorted(self.agents.items()):
            if agent.call("clock_domain") == own:
                clock = ClockMap(self._anchor_ns, 0)
            else:
                clock = probe(self._anchor_ns, _reader(agent))
            self.clocks[label] = clock
            nodes[label] = {
                **agent.call("describe"), "clock_offset_ns": clock.offset_ns, "clock_error_ns": clock.error_ns
            }  # fmt: skip
        self._store.update(nodes=nodes)

    def _find_collectors(self, placement: Placement) -> None:
        """Decides what is collected and says once what is not. Raises ClusterError for a required one."""
        scenario, agent = self._scenario, self.agents[placement.server.label]
        is_ours = scenario.server.url is None and scenario.server.image is None
        self.set_collector("triton", "on")
        self.set_collector("host", "on")
        if scenario.server.url is None and scenario.model.repository is None:
            self.set_collector("batches", "on")
        else:
            reason = "the served model is not one of squall's and records no batches"
            self.set_collector("batches", "missing", reason, _BATCHES_MEND)
        reason_nvml = None
        if not placement.is_server_here:
            reason_nvml = "the server is on no node of the Ray cluster"
        elif scenario.profile.nvml != "off":
            reason_nvml = agent.call("missing_nvml")
        self._choose("nvml", scenario.profile.nvml, reason_nvml, _NVML_MEND)
        reason_nsys = None
        if not is_ours:
            reason_nsys = "nsys profiles only a server that squall starts itself"
        elif scenario.profile.nsys != "off" and not agent.call("has_nsys"):
            reason_nsys = f"nsys is not on the PATH of {placement.server.label}"
        self._choose("nsys", scenario.profile.nsys, reason_nsys, NSYS_MEND)
        self._store.update(collectors=self.collectors)

    def _choose(self, name: str, wanted: str, reason: str | None, mend: str) -> None:
        if wanted == "off":
            self.set_collector(name, "off", "the scenario turns it off")
        elif reason is None:
            self.set_collector(name, "on")
        elif wanted == "required":
            raise ClusterError(f"profile.{name} is required, but {reason}; {mend}")
        else:
            self.set_collector(name, "missing", reason, mend)

    def set_collector(self, name: str, status: str, reason: str = "", mend: str = "") -> None:
        """Notes that a collector is on, off or missing, and says so on the screen if it is missing."""
        self.collectors[name] = {"status": status, "reason": reason, "mend": mend}
        if status == "missing":
            self._screen.missing(name, reason, mend)

    def _start_server(self, node: Node) -> Endpoint:
        scenario = self._scenario
        if scenario.server.url is not None:
            self._screen.step(f"attaching to {scenario.server.url}")
            endpoint = attach(scenario.model, scenario.server, tls_of(scenario))
        else:
            self._screen.step(f"starting Triton with {scenario.model.name}")
            agent = self.agents[node.label]
            try:
                endpoint = agent.call(
                    "start_server", scenario, self.is_on("nsys"), timeout_s=_SERVER_TIMEOUT_S
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
                n_connections=clients.connections, spill_dir=self.agents[node.label].call("spill_dir"), check=check,
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


def _reader(agent: Handle) -> Any:
    return lambda: agent.call("monotonic_ns")
