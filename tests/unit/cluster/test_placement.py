"""Which node gets which server, and where the clients go."""

from __future__ import annotations

from typing import Any

import pytest

from squall.cluster.placement import Node, Placement, place
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError

PHASES = [
    {"name": "m", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "1/s"}},
    {"name": "d", "kind": "drain", "duration": "1s"},
]
IN_CLUSTER = {"listen": "cluster"}


def scenario(**changes: Any) -> Scenario:
    model = {"name": "linear_head"}
    return scenario_from_mapping(
        {"name": "n", "seed": 1, "model": model, "phases": PHASES, **changes}, "test"
    )


def node(number: int, n_gpus: int = 0, address: str = "") -> Node:
    return Node(f"node-{number}", f"id-{number}", address or f"10.0.0.{number + 1}", n_gpus, number == 0)


def servers_of(found: Placement) -> list[tuple[str, str, tuple[int, ...] | None]]:
    return [(seat.name, seat.node.label, seat.entry.gpus) for seat in found.servers]


def clients_of(found: Placement) -> list[str]:
    return [one.label for one in found.clients]


def test_the_server_goes_to_the_node_with_most_gpus_else_to_the_drivers() -> None:
    found = place([node(0), node(1, 1), node(2, 8)], scenario())
    assert (servers_of(found), clients_of(found)) == ([("server-0", "node-2", None)], ["node-2"])
    assert "all clients run on its node, node-2" in found.note
    assert servers_of(place([node(1), node(0)], scenario())) == [("server-0", "node-0", None)]


def test_a_cluster_of_one_node_holds_both_and_one_of_none_is_refused() -> None:
    found = place([node(0)], scenario())
    assert (clients_of(found), found.note) == (["node-0"], "")
    with pytest.raises(ClusterError, match="the Ray cluster has no node that is alive"):
        place([], scenario())


def test_servers_that_answer_in_the_cluster_take_gpu_nodes_in_turn_and_clients_the_others() -> None:
    nodes = [node(0), node(1, 2), node(2, 1), node(3)]
    found = place(nodes, scenario(server=IN_CLUSTER, servers={"count": 3}))
    assert servers_of(found) == [
        ("server-0", "node-1", None), ("server-1", "node-2", None), ("server-2", "node-1", None),
    ]  # fmt: skip
    assert (clients_of(found), [one.label for one in found.server_nodes]) == (
        ["node-0", "node-3"],
        ["node-1", "node-2"],
    )


def test_one_server_for_each_gpu_sees_that_gpu_alone() -> None:
    nodes = [node(0), node(1, 2), node(2, 1)]
    found = place(nodes, scenario(server=IN_CLUSTER, servers={"per": "gpu"}))
    assert servers_of(found) == [
        ("server-0", "node-1", (0,)), ("server-1", "node-1", (1,)), ("server-2", "node-2", (0,)),
    ]  # fmt: skip
    on_loopback = place(nodes, scenario(servers={"per": "gpu"}))
    assert servers_of(on_loopback) == [("server-0", "node-1", (0,)), ("server-1", "node-1", (1,))]
    assert clients_of(on_loopback) == ["node-1"]
    with pytest.raises(ClusterError, match=r"servers\.per: gpu, but no GPU is known on any node"):
        place([node(0)], scenario(servers={"per": "gpu"}))
    with pytest.raises(ClusterError, match="server-1: gpus, but no GPU is known on node-0"):
        place([node(0)], scenario(servers=[{}, {"gpus": [0]}]))


def test_without_gpus_servers_take_all_nodes_but_the_drivers() -> None:
    nodes = [node(0), node(1), node(2)]
    found = place(nodes, scenario(server=IN_CLUSTER, servers={"per": "node"}))
    assert servers_of(found) == [("server-0", "node-1", None), ("server-1", "node-2", None)]
    assert clients_of(found) == ["node-0"]
    alone = place([node(0)], scenario(server=IN_CLUSTER, servers={"per": "node"}))
    assert (servers_of(alone), clients_of(alone)) == ([("server-0", "node-0", None)], ["node-0"])


def test_a_public_address_is_refused_and_so_are_servers_that_not_all_clients_reach() -> None:
    nodes = [node(0), node(1, 1, "8.8.8.8")]
    with pytest.raises(
        ClusterError, match=r"node-1 has the public address 8\.8\.8\.8, and Triton asks nobody"
    ):
        place(nodes, scenario(server=IN_CLUSTER))
    assert servers_of(place(nodes, scenario())) == [("server-0", "node-1", None)], "loopback is nobody else's"
    with pytest.raises(ClusterError, match="some listen on loopback, some in the cluster"):
        place(nodes[:1], scenario(servers=[{}, {"listen": "cluster"}]))


def test_clients_of_servers_that_run_already_go_where_none_is() -> None:
    nodes = [node(0), node(1), node(2), node(3)]
    urls = scenario(servers=[{"url": "http://a:8000"}, {"url": "http://b:8000"}, {"url": "http://c:8000"}])
    found = place(nodes, urls, ["10.0.0.3", "10.0.0.4", "10.9.9.9"])
    assert [(seat.node.label, seat.is_here) for seat in found.servers] == [
        ("node-2", True), ("node-3", True), ("node-0", False),
    ]  # fmt: skip
    assert clients_of(found) == ["node-0", "node-1"]
    everywhere = place(nodes[:2], scenario(servers=[{"url": "http://a:8000"}, {"url": "http://b:8000"}]),
                       ["10.0.0.1", "10.0.0.2"])  # fmt: skip
    assert clients_of(everywhere) == ["node-0", "node-1"]


def test_a_url_on_loopback_keeps_all_clients_on_the_drivers_node() -> None:
    nodes = [node(1), node(0)]
    found = place(nodes, scenario(server={"url": "http://127.0.0.1:8000"}), ["127.0.0.1"])
    assert (servers_of(found), clients_of(found)) == ([("server-0", "node-0", None)], ["node-0"])
    assert "the server's URL is on loopback" in found.note
