"""The load workers of a run: where they sit, what each is told, and how their plans reach them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from squall.actors.client_worker import ClientWorker, Progress, Standing
from squall.actors.clock import SystemClock
from squall.actors.load.choice import Choice
from squall.actors.load.engine import Rules
from squall.actors.load.shared_memory import SharedMemorySettings
from squall.actors.load.targets import TargetSettings
from squall.actors.load.worker import (
    Answers,
    LoadWorker,
    ModelRequests,
    Outputs,
    WorkerSettings,
)
from squall.actors.messages.value_check import ValueRule
from squall.analysis.storage.collected import ValueChecks
from squall.analysis.storage.deployed import WorkerFacts
from squall.cluster.driver.deciding import late_limits
from squall.cluster.driver.payload_packing import Requests
from squall.cluster.driver.payload_wires import (
    asked_at,
    asked_of,
    request_options,
    sequence_rule,
    stream_rule,
)
from squall.cluster.node.endpoint import Endpoint, headers_of, specs_of
from squall.cluster.placement import Node, Placement
from squall.cluster.progress import Screen
from squall.cluster.remote.spawn import Handle, ask_all, spawn
from squall.models.answer_function import function_answers, load_function
from squall.models.reference import Kind, answers_to, made_requests, of_asked, read_answers
from squall.models.spec import ModelSpec
from squall.models.validation import SUFFIX as VALIDATION_SUFFIX
from squall.models.validation import read_validation
from squall.scenarios.config.client import CHOSEN_AT_SEND, ClientConfig, RoutingConfig, ValueCheckConfig
from squall.scenarios.config.models import ModelScenario
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, ScenarioError
from squall.scenarios.plan.closed import ClosedPlan, deal_closed
from squall.scenarios.plan.plan import Plan, codes_by_model, deal, kinds_of
from squall.scenarios.records import Frozen
from squall.scenarios.run_plan import RunPlan

_MOST_SENT_BYTES = 512 * 2**20  # of plans on their way to workers: a part of 32 of the largest plan is 70 MB


_THREADS = 3
"""Of a worker's calls: its run, its state and the end."""


@dataclass
class Worker:
    """A process that makes load, with `n_planned` arrivals or users, 0 of Locust, whose master deals them out;
    `running` refers to its run, `is_lost` once what makes the load died.

    `asked`: a call for its state that it has not answered yet; `state`: the last one that it gave.
    """

    handle: Handle[ClientWorker]
    node: Node
    n_planned: int
    running: Future[None] | None = None
    is_lost: bool = False
    asked: Future[Standing] | None = None
    state: Progress | None = None

    def start(self, start_ns: int) -> None:
        """Tells it to run from `start_ns` of its node's clock, without waiting."""
        self.running = self.handle.begin(ClientWorker.run, start_ns)

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether its run, once begun, is over: see `Handle.is_done`."""
        assert self.running is not None, "it is told to run when all are prepared"
        return self.handle.is_done(self.running, within_s)


class Sending:
    """Calls begun with arguments of some size: so many that what is under way stays below `most_bytes`.

    What is on its way to a process stays in the driver's memory until the process has taken it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._begun: deque[tuple[Handle[LoadWorker], Future[None], int]] = deque()

    def add(self, handle: Handle[LoadWorker], reference: Future[None], n_bytes: int) -> None:
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


class Expected(Frozen):
    """How replies are compared and with what: the rule of each model, None of one whose replies are not compared;
    `reference_sha256` of the user's file, None where there is none."""

    rules: tuple[ValueRule | None, ...]
    answers: Answers
    reference_sha256: str | None = None

    def checks(self) -> ValueChecks:
        """For the manifest; of several models what the first one has whose replies are compared."""
        rule = next(rule for rule in self.rules if rule is not None)
        return ValueChecks(
            every=rule.every, rtol=rule.rtol, atol=rule.atol, reference_sha256=self.reference_sha256
        )


def expected_replies(
    scenario: Scenario,
    plan: Plan | ClosedPlan,
    n_workers: int,
    endpoints: Mapping[str, Endpoint],
    screen: Screen,
    encoded: Sequence[Requests] = (),
) -> Expected | None:
    """What the scenario asks replies to be held to; None where it does not. `endpoints`: by name of the server;
    `encoded`: the requests to each model, where the driver encodes them."""
    is_streamed = stream_rule(scenario, specs_of(endpoints.values())) is not None
    n_parties = (plan.n_users if isinstance(plan, ClosedPlan) else n_workers) * len(endpoints)
    rules: list[ValueRule | None] = []
    answers: dict[Kind, Outputs | Sequence[Outputs]] = {}
    sha256s = []
    for number, (one, kinds) in enumerate(zip(scenario.models, kinds_by_model(plan), strict=True)):
        config = one.clients.check
        rules.append(None if config is None else ValueRule(config.every(n_parties), config.rtol, config.atol))
        if config is None:
            continue
        spec = next(spec for at in endpoints.values() if (spec := at.spec_of(one.model.name)) is not None)
        asked = asked_of(one, spec)
        own = encoded[number] if encoded else None
        try:
            found, sha256 = _answers(one, config, spec, kinds, screen, own, is_streamed)
        except ScenarioError as error:
            raise ScenarioError(f"models.{one.model.name}: {error}") from error
        found = of_asked(found, asked)
        first = plan.models[number].first
        answers |= {(rows, variant + first): outputs for (rows, variant), outputs in found.items()}
        sha256s.append(sha256)
    if not sha256s:
        return None
    return Expected(tuple(rules), answers, next(filter(None, sha256s), None))


def _answers(
    one: ModelScenario,
    config: ValueCheckConfig,
    spec: ModelSpec,
    kinds: set[Kind],
    screen: Screen,
    encoded: Requests | None,
    is_streamed: bool,
) -> tuple[Answers, str | None]:
    """The right outputs of a model, and the sha256 of what they come from where that is a file."""
    if config.reference is not None:
        path = Path(config.reference)
        if path.suffix != VALIDATION_SUFFIX:
            return read_answers(path, spec, kinds, is_streamed)
        found, sha256 = read_validation(path, spec, kinds)
        return (_as_responses(found) if is_streamed else found), sha256
    made = made_requests(spec, kinds, one.seed, one.model.shapes, one.clients.inputs)
    requests = made if encoded is None else encoded.read()
    if config.function is not None:
        screen.step(f"asking {config.function} for the answers to {len(kinds)} payloads")
        function = load_function(config.function)
        return function_answers(function, spec, requests, is_streamed), function.sha256
    screen.step(f"computing the answers to {len(kinds)} payloads of {spec.name}")
    answers = answers_to(spec, one.model.settings, requests, one.model.weights)
    return (_as_responses(answers) if is_streamed else answers), None


def _as_responses(answers: Mapping[Kind, Outputs]) -> Answers:
    """Of streams of one response each."""
    return {kind: (outputs,) for kind, outputs in answers.items()}


def kinds_by_model(plan: Plan | ClosedPlan) -> list[set[Kind]]:
    """The distinct (rows, variant) that the plan may need of each model, its variants counted from 0."""
    return [
        set(zip(*(column.tolist() for column in kinds_of(codes)), strict=True))
        for codes in codes_by_model(plan.kind_codes(), plan.models)
    ]


def spawn_workers(
    run: str,
    scenario: Scenario,
    plan: Plan | ClosedPlan,
    endpoints: Mapping[str, Endpoint],
    seats: Sequence[Node],
    spill_dirs: Mapping[str, str],
    expected: Expected | None,
    cores: Mapping[str, Sequence[int]],
    packed: Mapping[str, tuple[str, ...]],
) -> Iterator[Worker]:
    """A worker on each of `seats`, as soon as its process is asked for; at the end all are prepared and connected.

    `endpoints`: by name of the server, in the order in which the plan counts them. `spill_dirs`: by label of the node;
    so `cores`, of its workers in their order, and `packed`, the files of encoded requests where there are some. Raises
    SquallError where one cannot be had.
    """
    n = len(seats)
    parts: Iterable[Plan | ClosedPlan] = (
        deal_closed(plan, n) if isinstance(plan, ClosedPlan) else deal(plan, n)
    )
    sending = Sending(_MOST_SENT_BYTES)
    specs = specs_of(endpoints.values())
    alike = replace(
        _settings(run, scenario, endpoints, expected),
        streams=stream_rule(scenario, specs),
        sequences=sequence_rule(run, scenario, plan, n, specs),
    )
    left = {label: iter(of_node) for label, of_node in cores.items()}
    for index, (node, part) in enumerate(zip(seats, parts, strict=True)):
        settings = replace(
            alike, worker=index, node=node.label, spill_dir=spill_dirs[node.label], core=next(left[node.label], None),
            packed=packed.get(node.label, ()),
        )  # fmt: skip
        handle = spawn(f"worker {index}", node, _THREADS, LoadWorker, settings, SystemClock())
        yield Worker(handle, node, len(part))
        n_bytes = part.n_bytes if isinstance(part, Plan) else 0
        answers = expected.answers if expected is not None else None
        sending.add(handle, handle.begin(LoadWorker.prepare, part, answers), n_bytes)
    sending.finish()


def _settings(
    run: str, scenario: Scenario, endpoints: Mapping[str, Endpoint], expected: Expected | None
) -> WorkerSettings:
    """Those of the first worker, but for its node and the folder for its spill files."""
    clients, models = scenario.clients, scenario.models
    rules = (None,) * len(models) if expected is None else expected.rules
    targets = targets_of(scenario, endpoints)
    return WorkerSettings(
        run=run, node="", worker=0, targets=targets, choice=choice_of(clients.routing), protocol=clients.protocol,
        headers=headers_of(scenario), spin_ns=clients.spin_ns,
        seed=scenario.seed,
        models=tuple(
            ModelRequests(dict(one.model.shapes), one.clients.inputs, request_options(one.clients), rule)
            for one, rule in zip(models, rules, strict=True)
        ),
        rules=Rules(clients.timeout_ns, clients.max_in_flight, phase_timeouts(scenario)),
        n_connections=clients.connections, priority=clients.priority,
        spill_dir="", late_limits=late_limits(scenario), largest_reply_bytes=clients.largest_reply_bytes,
    )  # fmt: skip


def targets_of(scenario: Scenario, endpoints: Mapping[str, Endpoint]) -> tuple[TargetSettings, ...]:
    """The servers as workers load them."""
    clients, memory, models = scenario.clients, scenario.clients.shared_memory, scenario.models
    is_plain = clients.protocol == "grpc" and clients.tls is None  # https says only what HTTP speaks
    return tuple(
        TargetSettings(
            name, one.host, one.port if clients.protocol == "http" else one.grpc_port,
            tuple(asked_at(model, one) for model in models),
            None if is_plain else one.access.tls, clients.unix,
            None if memory is None else SharedMemorySettings(memory.inputs, memory.outputs, one.url, one.access),
        )
        for name, one in endpoints.items()
    )  # fmt: skip


def choice_of(routing: RoutingConfig) -> Choice:
    """Who says which server a request is for."""
    return routing.kind if routing.kind in CHOSEN_AT_SEND else "planned"


def worker_facts(workers: Sequence[Worker], plan: RunPlan) -> tuple[WorkerFacts, ...]:
    """For the manifest."""
    handles = {index: worker.handle for index, worker in enumerate(workers)}
    reasons, scheduling = ask_all(handles, ClientWorker.no_lane), ask_all(handles, ClientWorker.scheduling)
    addresses = ask_all(handles, ClientWorker.addresses)
    return tuple(
        WorkerFacts(
            worker=index,
            node=worker.node.label,
            has_lane=not reason,
            no_lane=reason,
            n_planned=worker.n_planned if isinstance(plan, Plan) else None,
            n_users=worker.n_planned if isinstance(plan, ClosedPlan) else None,
            scheduling=scheduling[index],
            addresses=addresses[index],
        )
        for index, (worker, reason) in enumerate(zip(workers, reasons.values(), strict=True))
    )


def told_of_addresses(facts: Sequence[WorkerFacts]) -> tuple[list[str], list[str]]:
    """From `worker_facts`: a line for each server whose name has several addresses, with the connections to each, and
    one for each address that was left out."""
    by_server: dict[str, dict[str, int]] = {}
    out: dict[tuple[str, str, str], int] = {}
    for one in (one for worker in facts for one in worker.addresses):
        counts = by_server.setdefault(one.server, {})
        counts[one.address] = counts.get(one.address, 0) + one.n_connections
        if one.why_left_out:
            key = one.server, one.address, one.why_left_out
            out[key] = out.get(key, 0) + 1
    spread = [
        f"{server} has {len(counts)} addresses; connections: "
        + ", ".join(f"{n} to {address}" for address, n in counts.items())
        for server, counts in by_server.items()
        if len(counts) > 1
    ]
    return spread, [
        f"{address} of {server} is left out by {n} worker{'s' * (n != 1)}: {why}"
        for (server, address, why), n in out.items()
    ]


def told_of_scheduling(facts: Sequence[WorkerFacts]) -> list[str]:
    """From `worker_facts`: what senders got that is less than was asked for, in a line for each reason."""
    found: dict[tuple[str, int, str], int] = {}
    for one in facts:
        got = one.scheduling
        if got is not None and got.why_less:
            key = got.policy, got.niceness, got.why_less
            found[key] = found.get(key, 0) + 1
    return [
        f"{n} worker{'s' * (n != 1)} send{'s' * (n == 1)} at {_policy_text(policy, niceness)}: {why}"
        for (policy, niceness, why), n in found.items()
    ]


def _policy_text(policy: str, niceness: int) -> str:
    return "real-time priority" if policy == "fifo" else f"niceness {niceness}, not in real time"


def seats_of(clients: ClientConfig, placement: Placement) -> list[Node]:
    """The node of each worker, round the nodes."""
    return [node for _ in range(clients.workers_per_node) for node in placement.clients]


def refuse_two_nodes(placement: Placement) -> None:
    """Raises ClusterError unless the clients share memory with the server."""
    (seat,) = placement.servers  # a scenario with several has no shared memory
    elsewhere = [node.label for node in placement.clients if node != seat.node]
    if elsewhere or not seat.is_here:
        where = f"on {seat.node.label}" if seat.is_here else "on none of the nodes"
        raise ClusterError(
            f"clients.shared_memory: the server is {where}, the clients on "
            f"{', '.join(elsewhere or [seat.node.label])}: they share no memory; use it with a server that "
            "squall starts, or with a server.url on loopback"
        )


def phase_timeouts(scenario: Scenario) -> dict[int, int]:
    """The timeouts that phases set themselves, in ns by index of the phase."""
    return {
        index: phase.timeout_ns for index, phase in enumerate(scenario.phases) if phase.timeout_ns is not None
    }
