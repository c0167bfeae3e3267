"""Which node does what: pure, from what the nodes are and what the scenario asks for."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from squall.scenarios.config.scenario import Scenario
from squall.scenarios.config.servers import ServerEntry, ServersCount
from squall.scenarios.errors import ClusterError
from squall.scenarios.records import Frozen
from squall.scenarios.sizes import LARGEST_SERVER_COUNT

_SHARED = (
    "a server that squall starts answers on loopback only, unless server.listen is cluster: all clients run on its"
    " node, {label}"
)
_LOOPBACK_URL = "the server's URL is on loopback: all clients run on the driver's node, {label}"
_PUBLIC = (
    "server.listen: cluster: {label} has the public address {address}, and Triton asks nobody who it is: start it"
    " yourself behind what guards it, and name it as a url"
)


class Node(Frozen):
    """A node of the Ray cluster, or this machine: `label` node-0, node-1, …; `ray_id` is Ray's own, empty without Ray;
    `address` its IP."""

    label: str
    ray_id: str
    address: str
    n_gpus: int
    is_driver: bool


class Seat(Frozen):
    """A server and its node. `is_here` False: it is on none of the nodes, and `node` asks it for statistics."""

    name: str
    entry: ServerEntry
    node: Node
    is_here: bool = True


class Placement(Frozen):
    """Where servers and clients are. `note`: what the user would not expect; empty if nothing."""

    servers: tuple[Seat, ...]
    clients: tuple[Node, ...]
    note: str = ""

    @property
    def server_nodes(self) -> tuple[Node, ...]:
        """Each once, that of server-0 first."""
        return tuple(dict.fromkeys(seat.node for seat in self.servers))


def place(nodes: Sequence[Node], scenario: Scenario, addresses: Sequence[str] = ()) -> Placement:
    """Servers and clients; `addresses`: IPs of the servers that run already, empty where squall starts them.

    Servers that squall starts and that answer on loopback go, with their clients, to the node with most GPUs (the
    driver's where none has any). Those that answer in the cluster go in turn to the nodes with GPUs, without any to
    all but the driver's; clients to the nodes that are left, where none is to all. For servers that run already the
    clients go to the nodes without one, where there is none to all. Raises ClusterError without nodes, for
    `servers.per` that comes to nothing, `gpus` of a node without any, and for a node with a public address.
    """
    if not nodes:
        raise ClusterError("the Ray cluster has no node that is alive")
    driver = max(nodes, key=lambda node: node.is_driver)
    if addresses:
        return _around(nodes, driver, _named(scenario.servers or ()), addresses)
    entries = scenario.servers
    listens = {one.listen for one in entries} if entries is not None else {scenario.server.listen}
    if listens == {"loopback"}:
        host = max(nodes, key=lambda node: (node.n_gpus, node.is_driver))
        note = _SHARED.format(label=host.label) if len(nodes) > 1 else ""
        return Placement(_seats(scenario, (host,)), (host,), note)
    if len(listens) > 1:
        raise ClusterError(
            "servers: some listen on loopback, some in the cluster: clients could not reach all"
        )
    hosts = (
        [node for node in nodes if node.n_gpus] or [node for node in nodes if not node.is_driver] or [driver]
    )
    seats = _seats(scenario, hosts)
    used = {seat.node for seat in seats}
    for node in sorted(used, key=lambda one: one.label):
        if not ipaddress.ip_address(node.address).is_private:
            raise ClusterError(_PUBLIC.format(label=node.label, address=node.address))
    return Placement(seats, _others(nodes, used))


def _around(
    nodes: Sequence[Node], driver: Node, entries: dict[str, ServerEntry], addresses: Sequence[str]
) -> Placement:
    """For servers that run already."""
    found = [node_at(nodes, address) for address in addresses]
    seats = tuple(
        Seat(name, entry, node or driver, node is not None)
        for (name, entry), node in zip(entries.items(), found, strict=True)
    )
    if any(ipaddress.ip_address(address).is_loopback for address in addresses):
        note = _LOOPBACK_URL.format(label=driver.label) if len(nodes) > 1 else ""
        return Placement(seats, (driver,), note)
    return Placement(seats, _others(nodes, {node for node in found if node is not None}))


def node_at(nodes: Sequence[Node], address: str) -> Node | None:
    """The node with that IP, the driver's for one on loopback; None where there is none."""
    if ipaddress.ip_address(address).is_loopback:
        return max(nodes, key=lambda node: node.is_driver)
    return next((node for node in nodes if node.address == address), None)


def _seats(scenario: Scenario, hosts: Sequence[Node]) -> tuple[Seat, ...]:
    """The servers to be started, on `hosts` in turn; one for each host or GPU where the scenario says so."""
    entries = scenario.servers
    if entries is not None:
        named = _named(entries).items()
        seats = tuple(Seat(name, one, hosts[i % len(hosts)]) for i, (name, one) in enumerate(named))
        for seat in seats:
            if seat.entry.gpus is not None and not seat.node.n_gpus:
                raise ClusterError(f"{seat.name}: gpus, but no GPU is known on {seat.node.label}")
        return seats
    is_by_gpu = isinstance(scenario.stated_servers, ServersCount) and scenario.stated_servers.per == "gpu"
    places = [(host, gpu) for host in hosts for gpu in (range(host.n_gpus) if is_by_gpu else (None,))]
    if not places:
        raise ClusterError("servers.per: gpu, but no GPU is known on any node")
    if len(places) > LARGEST_SERVER_COUNT:
        raise ClusterError(
            f"servers.per: {len(places)} servers are above the {LARGEST_SERVER_COUNT} of a run"
        )
    named = _named(scenario.entries_for(len(places))).items()
    return tuple(
        Seat(name, one if gpu is None else one.model_copy(update={"gpus": (gpu,)}), host)
        for (name, one), (host, gpu) in zip(named, places, strict=True)
    )


def _named(entries: Sequence[ServerEntry]) -> dict[str, ServerEntry]:
    return {f"server-{index}": entry for index, entry in enumerate(entries)}


def _others(nodes: Sequence[Node], used: set[Node]) -> tuple[Node, ...]:
    return tuple(node for node in nodes if node not in used) or tuple(nodes)
