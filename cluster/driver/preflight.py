"""What can be checked of a run before Ray starts: a wrong address, model or payload costs no session."""

from __future__ import annotations

import os
import socket
import urllib.parse

from squall.cluster.driver.client_workers import expand_headers
from squall.cluster.node.endpoint import attach, tls_of
from squall.cluster.node.server import free_ports, refuse_no_model
from squall.models.payload import make_inputs
from squall.models.spec import ModelSpec
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import TargetError
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan


def server_address(scenario: Scenario) -> str | None:
    """IP address of the server at `server.url`; None where squall starts one. Raises TargetError."""
    if scenario.server.url is None:
        return None
    host = urllib.parse.urlsplit(scenario.server.url).hostname or ""
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise TargetError(f"server.url: no address for {host}: {error}") from error


def check_before_ray(scenario: Scenario, plan: Plan | ClosedPlan, is_local: bool) -> None:
    """A server at `server.url` is ready, has the model, and the model takes what the plan sends; of one to be started
    by a local session, its ports are free and its repository has the model.

    Raises TargetError, and ScenarioError for a payload that the model does not take.
    """
    expand_headers(scenario.clients.headers, os.environ)
    server = scenario.server
    if server.url is not None:
        server_address(scenario)
        refuse_payloads(scenario, plan, attach(scenario.model, server, tls_of(scenario)).spec)
    elif is_local:
        refuse_no_model(scenario.model)
        free_ports(server)


def refuse_payloads(scenario: Scenario, plan: Plan | ClosedPlan, spec: ModelSpec) -> None:
    """Makes one payload of the most rows. Raises ScenarioError where the model does not take it."""
    if isinstance(plan, ClosedPlan):
        most = max((rows for rows, _ in plan.request_kinds()), default=0)
    else:
        most = int(plan.rows.max(initial=0))
    if most:
        make_inputs(spec, most, 0, scenario.seed, dict(scenario.model.shapes))
