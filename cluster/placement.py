"""Which node does what: pure, from what the nodes are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scenarios.errors import ClusterError


@dataclass(frozen=True)
class Node:
    """A node of the Ray cluster: `label` node-0, node-1, …; `ray_id` is Ray's own; `address` its IP."""

    label: str
    ray_id: str
    address: str
    n_gpus: int
    is_driver: bool


@dataclass(frozen=True)
class Placement:
    """The node that holds the server and those that hold clients."""

    server: Node
    clients: tuple[Node, ...]


def place(nodes: Sequence[Node]) -> Placement:
    """The server goes to the node with most GPUs (the driver's where none has any), clients to all others.

    On a cluster of one node both share it. Raises ClusterError without nodes.
    """
    if not nodes:
        raise ClusterError("the Ray cluster has no node that is alive")
    server = max(nodes, key=lambda node: (node.n_gpus, node.is_driver))
    others = tuple(node for node in nodes if node is not server)
    return Placement(server, others or (server,))
