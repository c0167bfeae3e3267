"""What requests say beside their inputs, and how they are answered, as a scenario and its models have it."""

from __future__ import annotations

from collections.abc import Sequence

from squall.actors.load.streams import StreamRule
from squall.actors.load.targets import Wire
from squall.actors.messages.sequence_wire import n_bytes_of
from squall.cluster.node.endpoint import Endpoint
from squall.models.payload import PLAIN, RequestOptions, refuse_json
from squall.models.spec import ModelSpec
from squall.scenarios.config.client import ClientConfig, RequestConfig, SequencesConfig, StreamConfig
from squall.scenarios.config.models import ModelScenario
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan
from squall.scenarios.promises import OF_RESPONSES, Metric
from squall.scenarios.sequences import SequenceRule


def wire_of(one: ModelScenario, streams: StreamRule | None) -> Wire:
    """How requests to a model are encoded, but for headers; `streams`: see `stream_rule`."""
    clients, options = one.clients, request_options(one.clients)
    n_between = n_bytes_of(clients.protocol, options.parameters) if clients.sequences is not None else 0
    return Wire(clients.protocol, {}, options, streams, n_between, clients.largest_reply_bytes)


def stream_rule(scenario: Scenario, specs: Sequence[ModelSpec]) -> StreamRule | None:
    """How responses that come one by one are taken; None where each request has one reply.

    Raises ScenarioError where the scenario asks what streams cannot do, or names an output that the model has not.
    """
    if len(scenario.models) > 1:
        _refuse_stateful(specs)
    clients, specs = scenario.clients, _asked(scenario, specs)
    decoupled = [spec.name for spec in specs if spec.is_decoupled]
    if clients.stream is None and not decoupled:
        asked = _promised_of_responses(scenario)
        if asked is not None:
            raise ScenarioError(
                f"promises.{asked}: the models answer with one reply; promise response times, or use clients.stream:"
                " true"
            )
        return None
    why = f"model {decoupled[0]} is decoupled, or a step of it" if decoupled else "clients.stream"
    for one in scenario.models:
        request = one.clients.request
        if request is not None and clients.protocol == "http":
            where = "clients" if one.model.request is None else one.key
            _refuse_not_generated(request, f"{where}.request", why)
    if clients.shared_memory is not None and clients.protocol == "http":
        raise ScenarioError(
            f"clients.shared_memory: generate_stream takes no tensors from there ({why}); use grpc"
        )
    if clients.shared_memory is not None and clients.shared_memory.outputs:
        raise ScenarioError(
            f"clients.shared_memory: an output has one place, and responses come one by one ({why}); use outputs: false"
        )
    return _rule_of_streams(clients.stream or StreamConfig(), specs)


def _asked(scenario: Scenario, specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    """What requests ask of each model. Raises ScenarioError as `asked_of`."""
    of_model = {one.model.name: one for one in scenario.models}
    return [asked_of(of_model.get(spec.name, scenario.models[0]), spec) for spec in specs]


def _rule_of_streams(config: StreamConfig, specs: Sequence[ModelSpec]) -> StreamRule:
    """Raises ScenarioError for tokens that no model has."""
    outputs = {spec.name: [tensor.name for tensor in spec.outputs] for spec in specs}
    if config.tokens is not None and not any(config.tokens in names for names in outputs.values()):
        has = "; ".join(
            f"model {name} has no output {config.tokens!r}, it has {', '.join(names)}"
            for name, names in outputs.items()
        )
        raise ScenarioError(f"clients.stream.tokens: {has}")
    if config.cancel is None:
        return StreamRule(config.tokens)
    return StreamRule(config.tokens, config.cancel.share, config.cancel.after)


def _promised_of_responses(scenario: Scenario) -> Metric | None:
    """What is promised of responses that come one by one, if anything."""
    return next((one.metric for one in scenario.promises or () if one.metric in OF_RESPONSES), None)


def _refuse_not_generated(request: RequestConfig, where: str, why: str) -> None:
    """Raises ScenarioError for what `generate_stream` does not carry; `where` the request is stated."""
    asked = {
        "priority": request.priority is not None,
        "timeout": request.timeout_ns is not None,
        "binary": not request.binary,
        "compression": request.compression is not None,
    }
    for key in filter(asked.get, asked):
        raise ScenarioError(
            f"{where}.{key}: generate_stream takes outputs and parameters alone ({why}); use protocol: grpc"
        )


def _refuse_stateful(specs: Sequence[ModelSpec]) -> None:
    """Raises ScenarioError for a model that only a scenario with one model can load."""
    for spec in specs:
        if spec.is_stateful:
            raise ScenarioError(
                f"models.{spec.name}: it is stateful, and such a model is loaded alone; use model instead of models"
            )


def refuse_no_sequences(scenario: Scenario, specs: Sequence[ModelSpec]) -> None:
    """Raises ScenarioError for a stateful model where requests are not of sequences."""
    if scenario.clients.sequences is None and any(spec.is_stateful for spec in specs):
        raise ScenarioError(
            f"clients.sequences: model {specs[0].name} is stateful, state the length of its sequences"
        )


def sequence_rule(
    run: str, scenario: Scenario, plan: Plan | ClosedPlan, n_workers: int, specs: Sequence[ModelSpec]
) -> SequenceRule | None:
    """Which sequence each request is of; None where requests are not of sequences.

    Raises ScenarioError for a stateful model without them, and where `concurrent` does not suit the load.
    """
    clients, where = scenario.clients, "clients.sequences"
    config = clients.sequences
    if config is None:
        refuse_no_sequences(scenario, specs)
        return None
    if clients.protocol == "http" and (clients.stream or any(one.is_decoupled for one in specs)):
        raise ScenarioError(f"{where}: generate_stream takes no sequences; use protocol: grpc")
    if isinstance(plan, ClosedPlan):
        if config.concurrent is not None:
            raise ScenarioError(
                f"{where}.concurrent: of a closed loop each user has a sequence; leave it out"
            )
        return _rule_of(config, plan.n_users, scenario.seed, run)
    if config.concurrent is None:
        raise ScenarioError(f"{where}.concurrent: a schedule needs it: how many sequences go on at once")
    if config.concurrent < n_workers:
        raise ScenarioError(
            f"{where}.concurrent: {config.concurrent} sequences at once leave some of {n_workers} workers without any;"
            " use more of them, or fewer workers"
        )
    return _rule_of(config, config.concurrent, scenario.seed, run)


def _rule_of(config: SequencesConfig, n_lanes: int, seed: int, run: str) -> SequenceRule:
    stops, waits = config.on_failure == "stop", config.order == "wait"
    return SequenceRule(n_lanes, config.length, seed, run, waits, stops, config.pinned)


def asked_of(one: ModelScenario, spec: ModelSpec) -> ModelSpec:
    """What requests ask of a model, and replies hold. Raises ScenarioError for an output or a priority that it has not,
    and for a tensor that does not travel as it is to."""
    request = one.clients.request
    if request is None:
        return spec
    if 0 < spec.n_priorities < (request.priority or 0):
        raise ScenarioError(
            f"clients.request.priority: {request.priority}, and model {spec.name} has 1 to {spec.n_priorities}: Triton"
            " takes others for the default one"
        )
    asked = spec.asking_for(request.outputs)
    if not request.binary:
        refuse_json(asked)
    return asked


def asked_at(one: ModelScenario, endpoint: Endpoint) -> ModelSpec | None:
    """What requests ask there of a model; None where it is not served."""
    spec = endpoint.spec_of(one.model.name)
    return None if spec is None else asked_of(one, spec)


def request_options(clients: ClientConfig) -> RequestOptions:
    """What each request says beside its tensors."""
    request = clients.request
    if request is None:
        return PLAIN
    return RequestOptions(request.sent_parameters(), request.binary, request.compression is not None)
