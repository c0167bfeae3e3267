"""What can be checked of a run before its nodes are known: a wrong address, model or payload costs no session."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from squall.actors.net.stream import Address
from squall.actors.net.triton_control import authority
from squall.cluster.control.controlled import refuse_control
from squall.cluster.driver.payload_packing import Codes, GivenRequests, sendable
from squall.cluster.driver.payload_wires import asked_of, stream_rule
from squall.cluster.node.endpoint import Endpoint, access_of, attach, headers_of
from squall.cluster.node.server import free_ports, refuse_no_model
from squall.models.answer_function import load_function, refuse_no_function
from squall.models.made import make_inputs
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import ScenarioError, TargetError
from squall.scenarios.locust_plan import LocustPlan
from squall.scenarios.plan.plan import kinds_of
from squall.scenarios.run_plan import RunPlan


def server_addresses(scenario: Scenario) -> list[str]:
    """IP addresses of the servers that run already, in their order; empty where squall starts them. Raises
    TargetError."""
    return [_address(entry.url) for entry in scenario.servers or () if entry.url is not None]


def _address(url: str) -> str:
    """The first of its host's, of IPv4 where it has such: nodes are known by theirs."""
    host, port = authority(url)
    try:
        found = Address.resolve_all(host, port)
    except (OSError, UnicodeError) as error:
        raise TargetError(f"server.url: no address for {host}: {error}") from error
    return str(min(found, key=lambda one: one.family != socket.AF_INET).sockaddr[0])


def check_before_ray(scenario: Scenario, plan: RunPlan, is_local: bool) -> dict[str, Endpoint]:
    """Servers that run already are ready, have the model, and it takes what the plan sends, where the plan says that;
    of those to be started by a local session, the ports are free and the repository has the model. The function that
    knows right answers is there. Returns the servers that were asked, by name.

    Raises TargetError, and ScenarioError for a payload that the model does not take.
    """
    headers_of(scenario)
    refuse_no_answers(scenario)
    server_addresses(scenario)
    by_model: Sequence[Codes] | None = None
    found: dict[str, Endpoint] = {}
    for number, entry in enumerate(scenario.servers or ()):
        models = scenario.models_at(f"server-{number}")
        if entry.url is not None and may_be_asked(scenario, number, entry):
            endpoint = attach(models, entry, access_of(scenario, entry))
            found[f"server-{number}"] = endpoint
            if isinstance(plan, LocustPlan):
                refuse_asked(scenario, endpoint)
                continue
            by_model = sendable(scenario, plan) if by_model is None else by_model
            refuse_payloads(scenario, by_model, endpoint)
        elif entry.url is None and is_local:
            refuse_no_model(models)
            free_ports(entry)
    return found


def refuse_no_answers(scenario: Scenario, is_rehearsed: bool = False) -> None:
    """Raises ScenarioError where the function or the file that knows right answers is not there. Of a run that is
    rehearsed, whose scenario may be another's, no code is run."""
    for check in (one.clients.check for one in scenario.models):
        if check is not None and check.function is not None:
            (refuse_no_function if is_rehearsed else load_function)(check.function)
        if check is not None and check.reference is not None and not Path(check.reference).is_file():
            raise ScenarioError(f"clients.check.reference: {check.reference}: no such file")


def may_be_asked(scenario: Scenario, number: int, server: ServerConfig) -> bool:
    """Whether the server at `server.url`, of that number, has its models under load now, as the run is to have them;
    not where they are yet to be loaded, which is for the run itself. Raises TargetError where that cannot be."""
    if server.control is None:
        return True
    names = [one.name for one in scenario.models_at(f"server-{number}")]
    return refuse_control(server.control, names, server, access_of(scenario, server))


def refuse_asked(scenario: Scenario, endpoint: Endpoint) -> None:
    """What users of Locust may ask, if they ask a model at all: raises ScenarioError as `asked_of`."""
    for one in scenario.models:
        spec = endpoint.spec_of(one.model.name)
        if spec is not None:
            asked_of(one, spec)


def refuse_payloads(scenario: Scenario, by_model: Sequence[Codes], endpoint: Endpoint) -> None:
    """Makes one payload of the most rows for each model, or looks at the data's columns; `by_model`: see `sendable`.
    Raises ScenarioError where a model does not take it, or has no output of a name that is asked for, and as
    `stream_rule`."""
    specs = [spec for name in scenario.model_names if (spec := endpoint.spec_of(name)) is not None]
    if len(specs) == len(scenario.model_names):  # else another server has the rest
        stream_rule(scenario, specs)
    for one, codes in zip(scenario.models, by_model, strict=True):
        spec = endpoint.spec_of(one.model.name)
        if spec is None:  # not of this server
            continue
        asked_of(one, spec)
        if one.clients.data is not None:
            GivenRequests(one, codes, spec)
            continue
        most = int(kinds_of(codes)[0].max(initial=0))
        if most:
            make_inputs(spec, most, 0, one.seed, one.model.shapes, one.clients.inputs)
