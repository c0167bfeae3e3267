"""`squall doctor`: of each node, what works for a run, what does not, and the command that mends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from actors.checkup import Finding
from cluster.clocksync import ClockWatch, clock_domain, utc_minus_monotonic_ns
from cluster.doctor_node import OPTIONAL, REQUIRED, NodeCheckup
from cluster.interrupts import Interrupts
from cluster.placement import Node
from cluster.progress import Screen
from cluster.session import Session
from cluster.spawn import Handle, spawn
from scenarios.errors import ClusterError, SquallError

_START_TIMEOUT_S = 90.0
"""The first process on a node imports squall from a cold disk."""
_CHECK_TIMEOUT_S = 300.0
"""More than all deadlines of the checks together."""
_LARGE_BOUND_NS = 1_000_000
_NODE_MEND = "install this squall on the node (same Python, same wheel) and look at its Ray worker's log"
_LOCAL_RAY_MEND = "free memory and disk, unset RAY_ variables, or name a Ray that runs: --ray ADDRESS"
_JOIN_MEND = "ray start --head on the address named, with the same Ray and token; ray status"


def diagnose(ray_address: str | None, interrupts: Interrupts) -> dict[str, Any]:
    """All nodes' findings, JSON-able; see `docs/doctor.md`. `can_run`: nothing is missing on any node.

    Where Ray cannot be started or joined this machine is looked at without it, and that is a finding too.
    """
    screen = Screen()
    own = NodeCheckup()
    driver = own.versions()
    try:
        screen.step("starting Ray" if ray_address is None else f"joining Ray at {ray_address}")
        with Session(ray_address) as session:
            interrupts.install_again()
            with interrupts.allowed():
                nodes = session.nodes()
                screen.step(
                    f"looking at {len(nodes)} node{'s' * (len(nodes) != 1)}, some seconds each at once"
                )
                found = examine(nodes, driver)
    except ClusterError as error:
        what, mend = str(error), _LOCAL_RAY_MEND if ray_address is None else _JOIN_MEND
        with interrupts.allowed():
            alone = [Finding("Ray", "missing", what, mend), *own.findings()]
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


def examine(nodes: Sequence[Node], driver: Mapping[str, str | None]) -> dict[str, list[Finding]]:
    """The findings of each node, all nodes at once; one that does not answer has a finding that says so."""
    handles = {node.label: spawn("checkup", node, NodeCheckup, n_threads=1) for node in nodes}
    found: dict[str, list[Finding]] = {}
    begun: dict[str, Any] = {}
    starting = {label: handle.begin("versions") for label, handle in handles.items()}
    for label, reference in starting.items():
        try:
            versions = handles[label].wait(reference, _START_TIMEOUT_S)
            found[label] = compare_versions(versions, driver)
            found[label] += handles[label].call("ray_findings", handles[label].settled())
            begun[label] = handles[label].begin("findings")
        except SquallError as error:
            found[label] = [Finding("node", "missing", _one_line(error), _NODE_MEND)]
    for label, reference in begun.items():
        try:
            found[label] += handles[label].wait(reference, _CHECK_TIMEOUT_S)
        except SquallError as error:
            found[label].append(Finding("node", "missing", _one_line(error), _NODE_MEND))
    for node in nodes:
        if node.label in begun:
            found[node.label].append(clock_finding(node, handles[node.label]))
            with suppress(SquallError):
                handles[node.label].call("close")
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


def clock_finding(node: Node, handle: Handle) -> Finding:
    """How well the node's clock is known: exactly where it is the driver's, else by probes."""
    try:
        if handle.call("clock_domain") == clock_domain():
            return Finding("clock", "ok", "the driver's own: no error between the two")
        address, token = handle.call("open_clock", node.address)
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
