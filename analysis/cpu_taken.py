"""Did others take the CPU of a node of the run? From the samples of its host, its workers and the server's threads.

Shares of CPU alone show nothing: a full node may serve everybody in time. What shows it is waiting: the time in which
the server's threads could run and had no CPU, or, where they were not sampled, in which any task of the node waited
(PSI).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analysis import workers as workers_of
from analysis.check import Check, not_assessed
from analysis.limits import Limits
from analysis.wording import share_text
from scenarios.units import NS_PER_S


@dataclass(frozen=True)
class CpuTaken:
    """What others had of a node: `others_ratio` of all its cores; `waited_ratio`: of the time in which the server, or
    for want of its threads anybody, wanted a CPU, the share without one."""

    node: str
    others_ratio: float
    ours_ratio: float
    waited_ratio: float

    def is_taken(self, limits: Limits) -> bool:
        """Others have a good part of the node, and who wants a CPU waits for it."""
        return self.others_ratio >= limits.taken_ratio and self.waited_ratio >= limits.waited_ratio

    @property
    def sentence(self) -> str:
        """Who had the CPU, and what that did."""
        return (
            f"Others took the CPU: {share_text(self.others_ratio)} of {self.node}'s cores, so that server and clients"
            f" had {share_text(self.ours_ratio)}, and the server waited for a core in {share_text(self.waited_ratio)}"
            " of the time in which it wanted one."
        )


def cpu_taken(
    hosts: pa.Table | None, workers: pa.Table | None, threads: pa.Table | None, limits: Limits
) -> CpuTaken | None:
    """Of the node that others took most of, from samples of the measure phases; None where too little was sampled."""
    if hosts is None or not hosts.num_rows:
        return None
    names = np.array(hosts.column("node").to_pylist())
    nodes = [
        _of_node(str(node), hosts.filter(pa.array(names == node)), workers, threads, limits)
        for node in np.unique(names)
    ]
    found = [one for one in nodes if one is not None]
    return max(found, key=lambda one: (one.is_taken(limits), one.others_ratio), default=None)


def taken_check(taken: CpuTaken | None, limits: Limits) -> Check:
    """Whether others left the CPU to the run."""
    name, meaning = (
        "CPU left by others",
        "share of the time in which the server waited for a core that others had",
    )
    if taken is None:
        why = f"it takes samples of {limits.taken_least_ns // NS_PER_S} s of the host, and waits (schedstat or PSI)"
        return not_assessed(name, None, limits.waited_ratio, "ratio", meaning, why)
    if not taken.is_taken(limits):
        value = taken.waited_ratio if taken.others_ratio >= limits.taken_ratio else 0.0
        return Check(name, value, limits.waited_ratio, "ratio", True, meaning)
    return Check(name, taken.waited_ratio, limits.waited_ratio, "ratio", False, meaning, taken.sentence)


def _of_node(
    node: str, host: pa.Table, workers: pa.Table | None, threads: pa.Table | None, limits: Limits
) -> CpuTaken | None:
    interval_ns = float(workers_of.column(host, "interval_ns").sum())
    if interval_ns < limits.taken_least_ns:
        return None
    cores_ns = interval_ns * float(workers_of.column(host, "n_cores").max())
    busy = 1.0 - _mean(host, "cpu_idle", interval_ns) - _mean(host, "cpu_iowait", interval_ns)
    ours = (_sum(host, "server_cpu_ns") + _sum(_at(workers, node), "cpu_ns")) / cores_ns
    waited = _waited(_at(threads, node), host, interval_ns)
    return None if waited is None else CpuTaken(node, max(0.0, busy - ours), ours, waited)


def _waited(threads: pa.Table | None, host: pa.Table, interval_ns: float) -> float | None:
    """Of the time in which the server's threads wanted a CPU, the share without one; else the node's own (PSI)."""
    if threads is not None and threads.num_rows:
        ran, waited = _sum(threads, "cpu_ns"), _sum(threads, "run_delay_ns")
        if ran + waited > 0.0:
            return waited / (ran + waited)
    if "psi_cpu_some_ns" in host.schema.names and host.column("psi_cpu_some_ns").null_count < host.num_rows:
        return min(1.0, _sum(host, "psi_cpu_some_ns") / interval_ns)
    return None


def _at(table: pa.Table | None, node: str) -> pa.Table | None:
    if table is None:
        return None
    return table.filter(pa.array(np.array(table.column("node").to_pylist()) == node))


def _sum(table: pa.Table | None, name: str) -> float:
    if table is None or name not in table.schema.names:
        return 0.0
    return float(np.asarray(table.column(name).drop_null().to_numpy(), dtype=np.float64).sum())


def _mean(host: pa.Table, name: str, interval_ns: float) -> float:
    """Mean over time: samples count by their length."""
    weights = workers_of.column(host, "interval_ns")
    return float((workers_of.column(host, name) * weights).sum() / interval_ns)
