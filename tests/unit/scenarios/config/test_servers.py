"""Several servers in a scenario: what an entry inherits, how many there are, and what cannot be together."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import yaml

from squall.scenarios.config.clients.routing import RoutingConfig, RoutingKind
from squall.scenarios.config.loader import load_scenario, make_scenario, scenario_from_mapping
from squall.scenarios.config.scenario import Scenario

S = 1_000_000_000
URLS = [{"url": "http://a:8000"}, {"url": "http://b:8000"}]


def mapping(servers: Any = None, closed: bool = False, **more: Any) -> dict[str, Any]:
    arrivals = {"kind": "closed", "users": 3} if closed else {"kind": "poisson", "rate": "9/s"}
    phases = [
        {"name": "m", "kind": "measure", "duration": "1s", "arrivals": arrivals},
        {"name": "drain", "kind": "drain", "duration": "1s"},
    ]
    whole = {"name": "x", "seed": 1, "model": {"name": "linear_head"}, "phases": phases, **more}
    return whole if servers is None else {**whole, "servers": servers}


def scenario_of(servers: Any = None, **more: Any) -> Scenario:
    return scenario_from_mapping(mapping(servers, **more), "test")


def test_without_servers_there_is_one_with_the_settings_of_server() -> None:
    scenario = scenario_of(server={"nice": 3, "start_timeout": "7s", "http_port": 8000})
    (entry,) = scenario.servers or ()
    assert (entry.nice, entry.start_timeout_ns, entry.http_port) == (3, 7 * S, 8000)
    assert (entry.weight, entry.gpus, entry.listen) == (1.0, None, "loopback")
    assert "servers" not in scenario.to_mapping()


def test_so_many_servers_are_alike() -> None:
    scenario = scenario_of({"count": 3}, server={"nice": 3, "listen": "cluster"})
    entries = scenario.servers or ()
    assert [(entry.nice, entry.listen) for entry in entries] == [(3, "cluster")] * 3
    assert entries == scenario.entries_for(3)


@pytest.mark.parametrize("per", ["gpu", "node"])
def test_how_many_there_are_for_each_gpu_or_node_only_the_nodes_say(per: str) -> None:
    scenario = scenario_of({"per": per}, server={"nice": 3})
    assert scenario.servers is None
    assert [entry.nice for entry in scenario.entries_for(2)] == [3, 3]


def test_an_entry_has_what_server_says_where_it_says_nothing_itself() -> None:
    server = {"nice": 3, "stop_timeout": "7s", "listen": "cluster"}
    first, second = scenario_of([{}, {"nice": 0, "gpus": []}], server=server).servers or ()
    assert (first.nice, first.stop_timeout_ns, first.listen, first.gpus) == (3, 7 * S, "cluster", None)
    assert (second.nice, second.stop_timeout_ns, second.listen, second.gpus) == (0, 7 * S, "cluster", ())


FORMS: list[Any] = [
    {"count": 2},
    {"per": "gpu"},
    URLS,
    [{"gpus": [0, 2], "weight": 0.5, "nice": 0}, {"image": "a:1", "runtime": "podman", "http_port": 80}],
]


@pytest.mark.parametrize("servers", FORMS)
def test_the_resolved_mapping_loads_back_to_an_equal_scenario(servers: Any) -> None:
    server = {} if servers == URLS else {"nice": 4}
    scenario = scenario_of(servers, server=server, clients={"routing": {"kind": "weighted"}})
    again = scenario_from_mapping(yaml.safe_load(yaml.safe_dump(scenario.to_mapping())), "again")
    assert again == scenario
    assert again.digest() == scenario.digest() != scenario_of().digest()


def test_what_is_written_out_and_what_is_inherited_are_one_scenario() -> None:
    written = scenario_of([{"nice": 4}, {"nice": 4}], server={"nice": 4})
    assert written.digest() == scenario_of([{}, {}], server={"nice": 4}).digest()


def test_a_change_of_server_reaches_the_entries_of_a_scenario_that_exists() -> None:
    changed = make_scenario(scenario_of([{}, {"nice": 2}]), {"server.nice": 5, "servers.1.weight": 1})
    assert [entry.nice for entry in changed.servers or ()] == [5, 2]


def test_an_override_sets_servers_and_a_key_of_one(tmp_path: Any) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(mapping()))
    assert len(load_scenario(path, ["servers.count=4"]).servers or ()) == 4
    path.write_text(yaml.safe_dump(mapping(URLS)))
    loaded = load_scenario(path, ["servers[1].url=http://c:1", "server.control.load=[other]"])
    entries = loaded.servers or ()
    assert [(one.url, list(one.control.load) if one.control else None) for one in entries] == [
        ("http://a:8000", ["other"]),
        ("http://c:1", ["other"]),
    ]


def test_one_entry_is_one_server() -> None:
    scenario = scenario_of(URLS[:1], clients={"unix": "/tmp/s"})
    assert [entry.url for entry in scenario.servers or ()] == ["http://a:8000"]


def test_weights_count_where_the_routing_goes_by_them() -> None:
    for kind in ("weighted", "sticky"):
        entries = scenario_of([{}, {"weight": 2}], clients={"routing": {"kind": kind}}).servers
        assert [entry.weight for entry in entries or ()] == [1.0, 2.0]
    assert scenario_of([{"weight": 3}, {"weight": 3}]).clients.routing.kind == "round-robin"


def test_the_plan_says_the_server_but_where_a_worker_chooses() -> None:
    chosen = {kind for kind in get_args(RoutingKind) if not RoutingConfig(kind=kind).is_planned}
    assert chosen == {"least-in-flight", "two-choices"}
