"""Several servers in a scenario: what an entry inherits, how many there are, and what cannot be together."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import yaml

from squall.scenarios.config.clients.routing import RoutingConfig, RoutingKind
from squall.scenarios.config.loader import load_scenario, make_scenario, scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.sizes import LARGEST_SERVER_COUNT

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
    (entry,) = scenario.server_entries() or ()
    assert (entry.nice, entry.start_timeout_ns, entry.http_port) == (3, 7 * S, 8000)
    assert (entry.weight, entry.gpus, entry.listen) == (1.0, None, "loopback")
    assert "servers" not in scenario.to_mapping()


def test_so_many_servers_are_alike() -> None:
    scenario = scenario_of({"count": 3}, server={"nice": 3, "listen": "cluster"})
    entries = scenario.server_entries() or ()
    assert [(entry.nice, entry.listen) for entry in entries] == [(3, "cluster")] * 3
    assert entries == scenario.entries_for(3)


@pytest.mark.parametrize("per", ["gpu", "node"])
def test_how_many_there_are_for_each_gpu_or_node_only_the_nodes_say(per: str) -> None:
    scenario = scenario_of({"per": per}, server={"nice": 3})
    assert scenario.server_entries() is None
    assert [entry.nice for entry in scenario.entries_for(2)] == [3, 3]


def test_an_entry_has_what_server_says_where_it_says_nothing_itself() -> None:
    server = {"nice": 3, "stop_timeout": "7s", "listen": "cluster"}
    first, second = scenario_of([{}, {"nice": 0, "gpus": []}], server=server).server_entries() or ()
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
    assert [entry.nice for entry in changed.server_entries() or ()] == [5, 2]


def test_an_override_sets_servers_and_a_key_of_one(tmp_path: Any) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(mapping()))
    assert len(load_scenario(path, ["servers.count=4"]).server_entries() or ()) == 4
    path.write_text(yaml.safe_dump(mapping(URLS)))
    loaded = load_scenario(path, ["servers[1].url=http://c:1", "server.control.load=[other]"])
    entries = loaded.server_entries() or ()
    assert [(one.url, list(one.control.load) if one.control else None) for one in entries] == [
        ("http://a:8000", ["other"]),
        ("http://c:1", ["other"]),
    ]


@pytest.mark.parametrize(("override", "problem"), [
    ("servers.cuont=2", "servers.cuont: unknown key, did you mean 'count'?"),
    ("servers.nice=2", "servers.nice: unknown key, allowed are count, per"),
])  # fmt: skip
def test_an_override_of_a_key_that_servers_do_not_have_names_those_they_have(
    tmp_path: Any, override: str, problem: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(mapping()))
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, [override])
    assert str(caught.value) == f"--set {override}: {problem}"
    path.write_text(yaml.safe_dump(mapping(URLS)))
    with pytest.raises(ScenarioError, match=r"servers\[1\]\.wieght: unknown key, did you mean 'weight'"):
        load_scenario(path, ["servers.1.wieght=2"])


def problem_of(servers: Any, **more: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        scenario_of(servers, **more)
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix("test: ")


@pytest.mark.parametrize(("servers", "problem"), [
    (3, "servers: 3 is neither a list of servers nor a mapping with count or per"),
    ([], "servers: [] is empty, it needs at least one entry"),
    ([3], "servers[0]: 3 is not a mapping"),
    ({}, "servers: needs exactly one of count and per, or is a list of servers"),
    ({"count": 2, "per": "gpu"}, "servers: needs exactly one of count and per, or is a list of servers"),
    ({"count": 1}, "servers.count: 1 must be at least 2"),
    ({"count": 65}, "servers.count: 65 must be at most 64"),
    ({"per": "host"}, "servers.per: 'host' must be 'gpu' or 'node'"),
    ({"cuont": 2}, "servers.cuont: unknown key, did you mean 'count'?"),
    ({"nice": 2}, "servers.nice: unknown key, allowed are count, per"),
    ([{}, {"wieght": 2}], "servers[1].wieght: unknown key, did you mean 'weight'?"),
    ([{}, {"weight": 0}], "servers[1].weight: 0 must be above 0"),
    ([{}, {"weight": float("inf")}], "servers[1].weight: inf is not a finite number"),
    ([{}, {"gpus": 1}], "servers[1].gpus: 1 is not a list"),
    ([{}, {"gpus": [-1]}], "servers[1].gpus[0]: -1 must be at least 0"),
    ([{}, {"gpus": [1, 1]}], "servers[1]: gpus: [1, 1] names one twice"),
    (
        [URLS[0], {"url": "b:1"}],
        "servers[1].url: 'b:1' must be of the form http://host:port or https://host:port",
    ),
    (
        [{**URLS[0], "gpus": [1]}],
        "servers[0]: gpus: is for a server that squall starts, the one at url has its GPUs already",
    ),
    ([*URLS, {}], "servers: [0] has a url and [2] has none: give one to all or to none"),
    ([*URLS, URLS[1]], "servers[2].url: 'http://b:8000' is that of servers[1] too"),
    ([{"url": "http://a:1"}, {"url": "http://A:1/"}], "servers[1].url: 'http://A:1/' is that of servers[0] too"),
    (
        [{"url": "https://a"}, {"url": "https://a:443"}],
        "servers[1].url: 'https://a:443' is that of servers[0] too",
    ),
    (
        [{}, {"weight": 2}],
        "servers: have different weights, and clients.routing 'round-robin' takes none; use weighted or sticky",
    ),
])  # fmt: skip
def test_a_fault_of_servers_is_one_line(servers: Any, problem: str) -> None:
    assert problem_of(servers) == problem


def test_no_more_servers_than_a_plan_takes() -> None:
    assert len(scenario_of([{}] * LARGEST_SERVER_COUNT).server_entries() or ()) == LARGEST_SERVER_COUNT
    problem = problem_of([{}] * (LARGEST_SERVER_COUNT + 1))
    assert problem.endswith("has too many entries, the most are 64")


@pytest.mark.parametrize(("key", "value"), [
    ("url", "http://c:1"), ("image", "a:1"), ("http_port", 80), ("grpc_port", 80), ("metrics_port", 80),
])  # fmt: skip
def test_what_is_of_one_server_stands_in_the_entries(key: str, value: Any) -> None:
    end = "it into the entries of servers"
    assert problem_of(URLS, server={key: value}) == f"server.{key}: is of one server, put {end}"
    said = f"server.{key}: is of one server, write servers as a list and put {end}"
    assert problem_of({"count": 2}, server={key: value}) == said


def test_listening_is_for_a_server_that_squall_starts() -> None:
    said = "listen: is for a server that squall starts, the one at url listens already"
    assert problem_of(None, server={"url": "http://a:1", "listen": "cluster"}) == f"server: {said}"
    assert problem_of([{**URLS[0], "listen": "cluster"}]) == f"servers[0]: {said}"
    assert (
        problem_of(None, server={"listen": "all"}) == "server.listen: 'all' must be 'loopback' or 'cluster'"
    )


@pytest.mark.parametrize(("servers", "more", "problem"), [
    (
        [{"url": "https://a"}, {"url": "http://b:1"}],
        {"clients": {"tls": {}}},
        "clients.tls: over protocol http it needs an https:// servers[1].url, not 'http://b:1'",
    ),
    (
        [{}, {}],
        {"clients": {"tls": {}, "protocol": "grpc"}},
        "clients.tls: needs servers[0].url, a server that squall starts speaks no TLS",
    ),
    (
        {"count": 2},
        {"clients": {"tls": {}}},
        "clients.tls: needs server.url, a server that squall starts speaks no TLS",
    ),
    (
        [{}],
        {"profile": {"nsys": "auto", "nsys_session": "mine"}},
        "profile.nsys_session: is for a server at servers[0].url; squall names its own session",
    ),
    (
        {"count": 2},
        {"profile": {"nsys": "auto"}},
        "profile.nsys: nsys profiles a run of one server, and servers are several",
    ),
    (
        [{}, {}],
        {"clients": {"shared_memory": True}},
        "clients.shared_memory: is shared with one server, and servers are several",
    ),
    (URLS, {"clients": {"unix": "/tmp/s"}}, "clients.unix: is the socket of one server, and servers are several"),
    (
        {"per": "gpu"},
        {"clients": {"unix": "/tmp/s"}},
        "clients.unix: is the socket of one server, and servers are several",
    ),
])  # fmt: skip
def test_what_holds_for_a_server_holds_for_each(servers: Any, more: dict[str, Any], problem: str) -> None:
    assert problem_of(servers, **more) == problem


def test_one_entry_is_one_server() -> None:
    scenario = scenario_of(URLS[:1], clients={"unix": "/tmp/s"})
    assert [entry.url for entry in scenario.server_entries() or ()] == ["http://a:8000"]


def test_weights_count_where_the_routing_goes_by_them() -> None:
    for kind in ("weighted", "sticky"):
        entries = scenario_of([{}, {"weight": 2}], clients={"routing": {"kind": kind}}).server_entries()
        assert [entry.weight for entry in entries or ()] == [1.0, 2.0]
    assert scenario_of([{"weight": 3}, {"weight": 3}]).clients.routing.kind == "round-robin"


def test_the_plan_says_the_server_but_where_a_worker_chooses() -> None:
    chosen = {kind for kind in get_args(RoutingKind) if not RoutingConfig(kind=kind).is_planned}
    assert chosen == {"least-in-flight", "two-choices"}


def test_an_unknown_routing_and_a_mirrored_closed_loop_are_one_line() -> None:
    assert problem_of(None, clients={"routing": {"kind": "robin"}}).startswith(
        "clients.routing.kind: 'robin' must be 'round-robin', 'random', "
    )
    assert problem_of(URLS, closed=True, clients={"routing": {"kind": "mirror"}}) == (
        "clients.routing: a user of a closed loop waits for one server's reply, so mirror has no meaning; use another"
        " kind"
    )
