"""Who had the CPU of a node in a phase, and how much of it the server lacked because somebody else had it. Pure.

A server whose threads wait for a CPU is not starved by that alone: threads of a server that is full wait for one
another. So of each second it is asked how much CPU the server lacked that somebody else had:

    lacked = min(wait, foreign, allowed - had)

    wait     time in which its threads could run and had no CPU, summed over them, less 50 us for each time one got
             one: a wake-up costs that where nobody is in its way
    foreign  CPU time of all that is not the server, on the cores that the server may run on
    allowed  CPU time that it could have had at most: its cores, or its quota if that is less, times the interval
    had      its own CPU time

`wait` is 0 where cores are free, `foreign` where the server is alone, and `allowed - had` where it has all it may have,
so that a server that saturates its own cores, and one at the end of its quota, lack nothing. What it lacked is shared
among those who ran meanwhile as their CPU time is. Beside it stands what the hypervisor took: the part of the CPU time
stolen from the node that falls on the server. `taken` is what it lacked by somebody, over that and what it had: 0.5
means that it got half of the CPU it could have used.

A thread that the server's own quota holds back counts as waiting, too. So of a second in which it was used up, the
time that it held back is taken off `wait`; and where half of the node was idle then, nobody else made the server wait.
A second in which a quota that the load workers use up too was at its end is shared among them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from squall.analysis.arrays import Floats
from squall.analysis.limits import LIMITS, Limits
from squall.analysis.tables.manifest import Manifest
from squall.analysis.wording import share_text

GROUPS = ("server", "clients", "squall", "others")
"""Who can have the CPU: the server, the load workers, the run's other parts, everybody else."""
OWN = ("clients", "squall")
WAKE_NS = 50_000
"""Of a wait, what a wake-up may cost by itself: 0.2 to 5 us of a thread that goes before all others (a machine of 2
cores, Linux 6.18, 2026-11-22), and ten times that as room; who waits for somebody's time slice waits for ms."""
STEAL = "steal"


@dataclass(frozen=True)
class CpuShares:
    """The CPU of a node in a phase. `cores`: mean cores that each of GROUPS, `steal` and `idle` had.

    `taken`: of the server's CPU, by whom (others, clients, squall, steal); None where it is not assessed: then `reason`
    says why. `taken_from_clients` is the same of the load workers. `throttled_ratio`: periods in which the server's
    quota was used up, None without one.
    """

    node: str
    phase: str
    n_samples: int
    n_cores: int
    cores: Mapping[str, float]
    server_wait_ratio: float | None = None
    clients_wait_ratio: float | None = None
    taken: Mapping[str, float] | None = None
    taken_from_clients: Mapping[str, float] | None = None
    reason: str = ""
    worst_second_ratio: float | None = None
    psi_some_ratio: float | None = None
    server_psi_some_ratio: float | None = None
    quota_cores: float | None = None
    throttled_ratio: float | None = None
    is_quota_shared: bool | None = None

    STATED: ClassVar = ("taken_ratio",)

    @property
    def taken_ratio(self) -> float | None:
        """Share of the CPU that the server could have used and somebody else had."""
        return None if self.taken is None else sum(self.taken.values())


def cpu_shares(samples: pa.Table | None, phases: Sequence[str], limits: Limits = LIMITS) -> list[CpuShares]:
    """The shares of each node in each of `phases` that has samples (`cpu_samples`), by phase and node."""
    if samples is None:
        return []
    names, nodes = (np.array(samples.column(name).to_pylist(), dtype=object) for name in ("phase", "node"))
    return [
        _shares(samples.filter(pa.array((names == phase) & (nodes == node))), str(node), phase, limits)
        for phase in phases
        for node in sorted(set(nodes[names == phase]))
    ]


def cpu_line(shares: CpuShares, has_server: bool = True) -> str:
    """`CPU of node-0: server 18 %, clients 5 %, …, of 200 %; server threads waited to run 74 % of their time`.

    `has_server`: the node is the server's, so that it is said where nothing is known of it.
    """
    parts = [f"{name} {share_text(shares.cores[name])}" for name in GROUPS if name in shares.cores]
    if shares.cores.get(STEAL, 0.0) >= 0.01:
        parts.append(f"other guests {share_text(shares.cores[STEAL])}")
    text = f"CPU of {shares.node}: {', '.join(parts)} of {shares.n_cores * 100} %"
    if shares.taken is None:
        return f"{text}; the server's not assessed: {shares.reason}" if has_server else text
    text += f"; server threads waited to run {share_text(shares.server_wait_ratio)} of their time"
    if shares.throttled_ratio:
        text += f", quota used up in {share_text(shares.throttled_ratio)} of periods"
    return text


def cpu_lines(found: Sequence[CpuShares], manifest: Manifest) -> list[str]:
    """A line for each node, of a run with several measure phases for each phase; and that the server's is not known."""
    if not found:
        return []
    has_phases = len({one.phase for one in found}) > 1
    nodes = {server.node for server in manifest.servers.values()}
    return [f"{f'{one.phase}: ' if has_phases else ''}{cpu_line(one, one.node in nodes)}" for one in found]


def _shares(rows: pa.Table, node: str, phase: str, limits: Limits) -> CpuShares:
    wall_ns = _sum(rows, "interval_ns")
    cores = {
        name: _sum(rows, f"{name}_ns") / wall_ns if wall_ns else 0.0
        for name in (*GROUPS, STEAL, "idle")
        if rows.column(f"{name}_ns").null_count < rows.num_rows
    }
    n_cores = int(_numbers(rows, "n_cores").max(initial=0))
    found = CpuShares(
        node, phase, rows.num_rows, n_cores, cores,
        _wait_ratio(rows, "server"), _wait_ratio(rows, "clients"),
        taken_from_clients=_taken_from_clients(rows),
        psi_some_ratio=_of_wall(rows, "psi_cpu_some_ns"),
        server_psi_some_ratio=_of_wall(rows, "server_psi_some_ns"),
    )  # fmt: skip
    reason = _why_not(rows)
    if reason:
        return replace(found, reason=reason)
    taken, per_second = _taken(rows, limits)
    periods = _sum(rows, "server_periods")
    quotas = _known(rows, "server_quota_cores")
    return replace(
        found,
        taken=taken,
        worst_second_ratio=float(per_second.max(initial=0.0)),
        quota_cores=float(quotas.min()) if len(quotas) else None,
        throttled_ratio=_sum(rows, "server_throttled_periods") / periods if periods else None,
        is_quota_shared=bool(_flags(rows, "is_quota_shared").any()) if len(quotas) else None,
    )


def _why_not(rows: pa.Table) -> str:
    """Why it is not known whether the server starved here; empty if it is."""
    if not len(_known(rows, "server_ns")):
        return "no process of the server is known here"
    if not len(_known(rows, "server_wait_ns")):
        return "the kernel does not tell how long threads wait for a CPU (schedstat)"
    return ""


def _taken(rows: pa.Table, limits: Limits) -> tuple[dict[str, float], Floats]:
    """By whom the server's CPU was taken over the phase, and the share taken in each second."""
    rows = rows.filter(pa.array(~_is_null(rows, "server_ns") & ~_is_null(rows, "server_wait_ns")))
    interval, had = (_numbers(rows, name) for name in ("interval_ns", "server_ns"))
    wait = _waits_for_others(rows, limits)
    by_whom = {name: _numbers(rows, f"{name}_ns") for name in ("others", *OWN)}
    is_own_quota = (_numbers(rows, "server_throttled_periods") > 0) & _flags(rows, "is_quota_shared")
    by_whom["others"] = np.where(is_own_quota, 0.0, by_whom["others"])
    foreign: Floats = np.sum(list(by_whom.values()), axis=0)
    on_its_cores = np.maximum(0.0, _numbers(rows, "server_cores_busy_ns", float("inf")) - had)
    cores = _numbers(rows, "server_cores", float("inf"))
    quota = _numbers(rows, "server_quota_cores", float("inf"))
    n_cores = _numbers(rows, "n_cores")
    allowed = np.minimum(np.minimum(cores, quota), n_cores) * interval
    lacked = np.minimum.reduce([wait, foreign, on_its_cores, np.maximum(0.0, allowed - had)])
    stolen = _stolen(rows, had)
    wanted = had + lacked + stolen
    total = float(wanted.sum())
    share = np.divide(lacked, foreign, out=np.zeros_like(lacked), where=foreign > 0)
    taken = {name: float((share * cpu).sum()) / total if total else 0.0 for name, cpu in by_whom.items()}
    taken[STEAL] = float(stolen.sum()) / total if total else 0.0
    each: Floats = np.divide(lacked + stolen, wanted, out=np.zeros_like(wanted), where=wanted > 0)
    return taken, each


def _stolen(rows: pa.Table, had: Floats) -> Floats:
    """Of the CPU time stolen from the node what falls on the server: as much as of the time that was not."""
    steal, idle = _numbers(rows, "steal_ns"), _numbers(rows, "idle_ns")
    busy = np.maximum(had, _numbers(rows, "interval_ns") * _numbers(rows, "n_cores") - steal - idle)
    return np.divide(steal * had, busy, out=np.zeros_like(had), where=busy > 0)


def _taken_from_clients(rows: pa.Table) -> dict[str, float] | None:
    """As `taken`, of the load workers: by others, and by the server on a node that they share."""
    rows = rows.filter(pa.array(~_is_null(rows, "clients_wait_ns")))
    if not rows.num_rows:
        return None
    interval, had = (_numbers(rows, name) for name in ("interval_ns", "clients_ns"))
    wait = _waits(rows, "clients")
    by_whom = {name: _numbers(rows, f"{name}_ns") for name in ("others", "server", "squall")}
    foreign: Floats = np.sum(list(by_whom.values()), axis=0)
    allowed = (
        np.minimum(_numbers(rows, "clients_quota_cores", float("inf")), _numbers(rows, "n_cores")) * interval
    )
    lacked = np.minimum(np.minimum(wait, foreign), np.maximum(0.0, allowed - had))
    total = float((had + lacked).sum())
    share = np.divide(lacked, foreign, out=np.zeros_like(lacked), where=foreign > 0)
    return {name: float((share * cpu).sum()) / total if total else 0.0 for name, cpu in by_whom.items()}


def _waits(rows: pa.Table, group: str) -> Floats:
    """What the threads of a group waited for a CPU that somebody had, in each second."""
    return np.maximum(0.0, _numbers(rows, f"{group}_wait_ns") - WAKE_NS * _numbers(rows, f"{group}_runs"))


def _waits_for_others(rows: pa.Table, limits: Limits) -> Floats:
    """What the server's threads waited in each second, less what a quota of its own made them wait."""
    waits = _waits(rows, "server")
    is_used_up = (_numbers(rows, "server_throttled_periods") > 0) & ~_flags(rows, "is_quota_shared")
    held_back = np.where(is_used_up, _numbers(rows, "server_throttled_ns"), 0.0)
    room = limits.room_ratio * _numbers(rows, "interval_ns") * _numbers(rows, "n_cores")
    is_room = is_used_up & (_numbers(rows, "idle_ns") > room)
    return np.where(is_room, 0.0, np.maximum(0.0, waits - held_back))


def _wait_ratio(rows: pa.Table, group: str) -> float | None:
    known = ~_is_null(rows, f"{group}_wait_ns") & ~_is_null(rows, f"{group}_ns")
    rows = rows.filter(pa.array(known))
    waited, had = _sum(rows, f"{group}_wait_ns"), _sum(rows, f"{group}_ns")
    return waited / (waited + had) if waited + had else None


def _of_wall(rows: pa.Table, name: str) -> float | None:
    rows = rows.filter(pa.array(~_is_null(rows, name)))
    return _sum(rows, name) / _sum(rows, "interval_ns") if rows.num_rows else None


def _is_null(rows: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    return np.asarray(rows.column(name).is_null().to_numpy(), dtype=np.bool_)


def _known(rows: pa.Table, name: str) -> Floats:
    return np.asarray(rows.column(name).drop_null().to_numpy(), dtype=np.float64)


def _numbers(rows: pa.Table, name: str, null: float = 0.0) -> Floats:
    """The column, with `null` for what is null, as all is of a column that a run of before does not have."""
    if name not in rows.column_names:
        return np.full(rows.num_rows, null)
    found = rows.column(name).cast(pa.float64()).fill_null(null)
    return np.asarray(found.to_numpy(), dtype=np.float64)


def _flags(rows: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    return np.asarray(rows.column(name).fill_null(False).to_numpy(), dtype=np.bool_)


def _sum(rows: pa.Table, name: str) -> float:
    return float(_numbers(rows, name).sum())
