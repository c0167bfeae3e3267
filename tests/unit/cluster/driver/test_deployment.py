"""What a deployment refuses before it starts anything."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from squall.cluster.driver.client_workers import refuse_two_nodes
from squall.cluster.placement import Node, Placement, place
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import ClusterError

PHASES = [
    {"name": "m", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "1/s"}},
    {"name": "d", "kind": "drain", "duration": "1s"},
]
NODES = [Node(f"node-{i}", f"id-{i}", f"10.0.0.{i}", 0, i == 0) for i in range(3)]


def placed(nodes: Sequence[Node], address: str | None) -> Placement:
    """With one server, at `address` or started by squall."""
    server = {} if address is None else {"url": "http://triton:8000"}
    mapping = {"name": "n", "seed": 1, "model": {"name": "linear_head"}, "server": server, "phases": PHASES}
    return place(nodes, scenario_from_mapping(mapping, "test"), [] if address is None else [address])


@pytest.mark.parametrize("address", [None, "127.0.0.1"])
def test_a_server_that_has_its_clients_on_its_node_shares_memory_with_them(address: str | None) -> None:
    refuse_two_nodes(placed(NODES, address))
    refuse_two_nodes(placed(NODES[:1], NODES[0].address))


@pytest.mark.parametrize(
    ("placement", "where"),
    [
        (placed(NODES, NODES[1].address), "on node-1, the clients on node-0, node-2"),
        (placed(NODES, "10.9.9.9"), "on none of the nodes, the clients on node-1, node-2"),
        (placed(NODES[:1], "10.9.9.9"), "on none of the nodes, the clients on node-0"),
    ],
)
def test_clients_elsewhere_share_no_memory_with_the_server(placement: Placement, where: str) -> None:
    with pytest.raises(ClusterError, match=f"the server is {where}: they share no memory"):
        refuse_two_nodes(placement)
