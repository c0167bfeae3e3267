"""The same scenario with fewer of its servers: one, and all but one."""

from __future__ import annotations

from typing import Any

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.config.servers import ServersCount
from squall.scenarios.errors import ScenarioError

ALL, ONE, ONE_DOWN = "all", "one", "one down"


def refuse_without_gpus(scenario: Scenario) -> None:
    """Raises ScenarioError for a scenario whose servers cannot be made fewer by GPU, or with a promise about one that
    would be left out."""
    servers = scenario.stated_servers
    is_per_gpu = isinstance(servers, ServersCount) and servers.per == "gpu"
    is_list = isinstance(servers, tuple) and len(servers) > 1
    if is_list and isinstance(servers, tuple):
        is_list = all(one.gpus is not None or one.url is not None for one in servers)
    if not (is_per_gpu or is_list):
        raise ScenarioError(
            "--gpus: needs servers: {per: gpu}, or a list of two or more, each with gpus or url: all, one, and all but"
            " one are measured"
        )
    try:
        _with(scenario, 1)
    except ScenarioError as error:
        raise ScenarioError(f"--gpus: one server alone is measured too: {error}") from error


def fewer(scenario: Scenario, n_servers: int, n_server_nodes: int) -> list[tuple[str, int, Scenario]]:
    """Name, number of servers and scenario of one server, and of all but one where these are two or more; `n_servers`
    and their nodes as the run with all of them had. None of a single server.

    Raises ScenarioError where servers per GPU are on several nodes, whose GPUs a list cannot name, or a promise is
    about a server that is left out.
    """
    numbers = [(ONE, 1), *([(ONE_DOWN, n_servers - 1)] if n_servers > 2 else [])]
    if n_servers < 2:
        return []
    if isinstance(scenario.stated_servers, ServersCount) and n_server_nodes > 1:
        raise ScenarioError(
            f"--gpus: servers per GPU are on {n_server_nodes} nodes: write servers as a list with gpus, on one node"
        )
    return [(name, n, _with(scenario, n)) for name, n in numbers]


def _with(scenario: Scenario, n: int) -> Scenario:
    mapping: dict[str, Any] = scenario.to_mapping()
    if isinstance(scenario.stated_servers, tuple):
        mapping["servers"] = mapping["servers"][:n]
    else:
        mapping["servers"] = [{"gpus": [index]} for index in range(n)]
    return scenario_from_mapping(mapping, scenario.name)
