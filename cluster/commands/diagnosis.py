"""`squall doctor`: of each node, what works for a run, what does not, and the command that mends it."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from squall.actors.clock import clock_domain, utc_minus_monotonic_ns
from squall.actors.doctor.checkup import Finding
from squall.actors.net.triton_control import authority
from squall.cluster.driver.clocksync import ClockWatch
from squall.cluster.interrupts import Interrupts
from squall.cluster.node.checkup import OPTIONAL, REQUIRED, NodeCheckup
from squall.cluster.placement import Node, node_at
from squall.cluster.progress import Screen
from squall.cluster.remote.session import Session
from squall.cluster.remote.spawn import Handle, same_code, spawn
from squall.scenarios.config.servers import SERVER_URL
from squall.scenarios.errors import ClusterError, SquallError, TargetError

_START_TIMEOUT_S = 90.0
"""The first process on a node imports squall from a cold disk."""
_CHECK_TIMEOUT_S = 300.0
"""More than all deadlines of the checks together."""
_LARGE_BOUND_NS = 1_000_000
_NODE_MEND = "install this squall on the node (same Python, same wheel) and look at its Ray worker's log"
_JOIN_MEND = "ray start --head on the address named, with the same Ray and token; ray status"
WIDTH = 80
_STYLES = {"ok": "green", "limited": "yellow", "missing": "bold red"}


def diagnose(ray_address: str | None, interrupts: Interrupts, server: str | None = None) -> dict[str, Any]:
    """All nodes' findings, JSON-able; see `docs/doctor.md`. `can_run`: nothing is missing on any node.

    `server`: URL of a server that runs; its node has a finding about it. Raises TargetError where it is no address.

    Without `ray_address` this machine alone, which needs no Ray; where Ray cannot be joined as well, and that is a
    finding.
    """
    at = _place_of(server) if server is not None else None
    screen = Screen()
    own = NodeCheckup()
    driver = own.versions()
    try:
        if ray_address is not None:
            screen.step(f"joining Ray at {ray_address}")
        with Session(ray_address) as session:
            interrupts.install_again()
            with interrupts.allowed():
                nodes = session.nodes()
                screen.step(
                    f"looking at {len(nodes)} node{'s' * (len(nodes) != 1)}, some seconds each at once"
                )
                found = examine(nodes, driver, at)
    except ClusterError as error:
        with interrupts.allowed():
            alone = [Finding("Ray", "missing", str(error), _JOIN_MEND), *own.findings()]
            alone += own.server_findings(at[1]) if at is not None else []
        found = {"this machine": alone}
    return summarise(found, driver)


def summarise(found: Mapping[str, Sequence[Finding]], driver: Mapping[str, str | None]) -> dict[str, Any]:
    """The result as `--json` prints it."""
    nodes = {
        label: {
            "status": worst(findings),
            "findings": [asdict(one) for one in findings],
        }
        for label, findings in found.items()
    }
    can_run = bool(nodes) and all(one["status"] != "missing" for one in nodes.values())
    return {"driver": dict(driver), "nodes": nodes, "can_run": can_run}


def worst(findings: Sequence[Finding]) -> str:
    """The status that a node has for its worst finding."""
    return max((one.status for one in findings), key=("ok", "limited", "missing").index, default="missing")


def _place_of(url: str) -> tuple[str, int]:
    """IP address and port of a server. Raises TargetError."""
    if not re.match(SERVER_URL, url):
        raise TargetError(f"--server {url}: write http://host:port or https://host:port")
    host, port = authority(url)
    try:
        return socket.gethostbyname(host), port
    except (OSError, UnicodeError) as error:
        raise TargetError(f"--server {url}: no address for {host}: {error}") from error


def _of_server(
    nodes: Sequence[Node], handles: Mapping[str, Handle[NodeCheckup]], address: str, port: int
) -> tuple[str, list[Finding]]:
    """Label of its node, else of the driver's, and what that says of it."""
    node = node_at(nodes, address)
    if node is None:
        what = "is on no node of the Ray cluster: its batches and kernels cannot be read"
        driver = next(one for one in nodes if one.is_driver)
        return driver.label, [Finding("server", "limited", what, "start Ray on its node")]
    return node.label, handles[node.label].call(NodeCheckup.server_findings, port)


def examine(
    nodes: Sequence[Node], driver: Mapping[str, str | None], server: tuple[str, int] | None = None
) -> dict[str, list[Finding]]:
    """The findings of each node, all nodes at once; one that does not answer has a finding that says so.

    `server`: IP address and port of one that runs.
    """
    had: dict[str, str] = {}
    with suppress(ClusterError):  # the node itself says below what it lacks
        had = same_code(nodes)
    handles = {node.label: spawn("checkup", node, 1, NodeCheckup) for node in nodes}
    found: dict[str, list[Finding]] = {}
    begun: dict[str, Future[list[Finding]]] = {}
    starting = {label: handle.begin(NodeCheckup.versions) for label, handle in handles.items()}
    for label, reference in starting.items():
        try:
            versions = handles[label].wait(reference, _START_TIMEOUT_S)
            found[label] = compare_versions(versions, driver)
            if label in had:
                what = f"has {had[label]}: a run brings this squall to it, which takes seconds each time"
                found[label].append(
                    Finding("squall", "limited", what, "install the driver's wheel on the node")
                )
            if any(node.ray_id for node in nodes):
                found[label] += handles[label].call(NodeCheckup.ray_findings, handles[label].settled())
            begun[label] = handles[label].begin(NodeCheckup.findings)
        except SquallError as error:
            found[label] = [Finding("node", "missing", _one_line(error), _NODE_MEND)]
    for label, checking in begun.items():
        try:
            findings = handles[label].wait(checking, _CHECK_TIMEOUT_S)
            found[label] += findings
        except SquallError as error:
            found[label].append(Finding("node", "missing", _one_line(error), _NODE_MEND))
    if server is not None:
        with suppress(SquallError):  # its node does not answer: told above
            label, findings = _of_server(nodes, handles, *server)
            found[label] += findings
    for node in nodes:
        if node.label in begun:
            found[node.label].append(clock_finding(node, handles[node.label]))
            with suppress(SquallError):
                handles[node.label].call(NodeCheckup.close)
    return found


def compare_versions(node: Mapping[str, str | None], driver: Mapping[str, str | None]) -> list[Finding]:
    """What a node has installed against what the driver has: plans and records are pickled between them."""
    found = []
    python = (node["python"] or "").rpartition(".")[0]
    if python != (driver["python"] or "").rpartition(".")[0]:
        what = f"Python {node['python']}, the driver has {driver['python']}"
        found.append(
            Finding("packages", "missing", what, f"make the node's environment with {driver['python']}")
        )
    for name in (*REQUIRED, *OPTIONAL):
        here, there = node.get(name), driver.get(name)
        if here == there:
            continue
        is_fatal = (here is None and name in REQUIRED) or name in ("squall", "ray")
        what = f"{name} {here or 'is not installed'}, the driver has {there or 'none'}"
        mend = (
            f"pip install {name}=={there}, on the node"
            if there
            else f"pip install {name}=={here}, on the driver"
        )
        found.append(Finding("packages", "missing" if is_fatal else "limited", what, mend))
    if node.get("squall") == driver.get("squall") and node.get("source") != driver.get("source"):
        what = f"squall {node['squall']} of other source than the driver's ({node['source']}, {driver['source']})"
        found.append(Finding("packages", "limited", what, "install the same wheel on every node"))
    if found:
        return found
    same = f"squall {node['squall']}, Python {node['python']}, the same packages as the driver"
    return [Finding("packages", "ok", same)]


def clock_finding(node: Node, handle: Handle[NodeCheckup]) -> Finding:
    """How well the node's clock is known: exactly where it is the driver's, else by host."""
    try:
        if handle.call(NodeCheckup.clock_domain) == clock_domain():
            return Finding("clock", "ok", "the driver's own: no error between the two")
        address, token = handle.call(NodeCheckup.open_clock, node.address)
        watch = ClockWatch(utc_minus_monotonic_ns())
        try:
            watch.add(node.label, address, token)
            watch.settle()
            bound_ns = watch.tracks()[node.label].largest_error_ns
        finally:
            watch.stop()
    except ClusterError as error:
        text = " ".join(str(error).split())
        mend = "let UDP or TCP pass from the driver to the node's ephemeral ports (ip_local_port_range)"
        return Finding("clock", "missing", text, mend)
    what = f"known within {bound_ns / 1_000:.0f} us of the driver's"
    if bound_ns > _LARGE_BOUND_NS:
        mend = "put driver and node on one switch or in one zone, and off a busy link"
        return Finding("clock", "limited", f"{what}: waits below that are not told apart", mend)
    return Finding("clock", "ok", what)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def render(result: Mapping[str, Any], width: int = WIDTH) -> RenderableType:
    """What `squall doctor` prints, from `diagnose`, within `width` columns."""
    driver = result["driver"]
    head = Text(
        f"squall doctor   squall {driver['squall']}, Python {driver['python']}, Ray {driver['ray']}", "bold"
    )
    parts: list[RenderableType] = [head]
    for label, node in result["nodes"].items():
        parts += [Text(), _node_table(label, node, width)]
    return Group(*parts, Text(), _verdict(result))


def _node_table(label: str, node: Mapping[str, Any], width: int) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, width=width, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold"
    )  # fmt: skip
    table.add_column(label, no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("")
    for one in node["findings"]:
        text = Text(one["what"])
        if one["mend"]:
            text.append("\nmend: ", "dim")
            text.append(one["mend"], "cyan")
        table.add_row(one["topic"], Text(one["status"], _STYLES[one["status"]]), text)
    return table


def _verdict(result: Mapping[str, Any]) -> Text:
    counts = dict.fromkeys(_STYLES, 0)
    for node in result["nodes"].values():
        for one in node["findings"]:
            counts[one["status"]] += 1
    text = Text()
    is_fine = result["can_run"]
    text.append("CAN RUN" if is_fine else "CANNOT RUN", "bold green" if is_fine else "bold red")
    text.append(f"   {counts['ok']} ok, {counts['limited']} limited, {counts['missing']} missing", "dim")
    return text
