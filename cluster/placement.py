"""Which node does what: pure, from what the nodes are."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from squall.scenarios.errors import ClusterError

_SHARED = (
    "the server that squall starts answers on loopback only: all clients run on its node, {label}; to load "
    "it from other nodes, start Triton yourself and pass --server URL"
)
_LOOPBACK_URL = "the server's URL is on loopback: all clients run on the driver's node, {label}"


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
    """The node of the server and those of clients.

    `is_server_here` False: the server is on none of the nodes, and `server` is the one that asks it for
    statistics. `note`: what the user would not expect; empty if nothing.
    """

    server: Node
    clients: tuple[Node, ...]
    is_server_here: bool = True
    note: str = ""


def place(nodes: Sequence[Node], server_address: str | None = None) -> Placement:
    """Server and clients; `server_address`: IP of a server that runs already, None for one that squall
    starts.

    One that squall starts goes, with its clients, to the node with most GPUs (the driver's where none has
    any). For one that runs on a node the clients go to all other nodes, for one elsewhere to all. Raises
    ClusterError without nodes.
    """
    if not nodes:
        raise ClusterError("the Ray cluster has no node that is alive")
    driver = max(nodes, key=lambda node: node.is_driver)
    if server_address is None:
        server = max(nodes, key=lambda node: (node.n_gpus, node.is_driver))
        note = _SHARED.format(label=server.label) if len(nodes) > 1 else ""
        return Placement(server, (server,), note=note)
    if ipaddress.ip_address(server_address).is_loopback:
        note = _LOOPBACK_URL.format(label=driver.label) if len(nodes) > 1 else ""
        return Placement(driver, (driver,), note=note)
    found = next((node for node in nodes if node.address == server_address), None)
    if found is None:
        return Placement(driver, tuple(nodes), is_server_here=False)
    return Placement(found, tuple(node for node in nodes if node is not found) or (found,))
