"""Samples of a node: CPU, run queue, pressure, network and memory, and the server's CPU time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from squall.actors.process.proc_files import ProcFile, process_cpu_ns
from squall.actors.sampling.source import OwnNode, Row, Sampled
from squall.analysis.columns import INTERVAL, OF_NODE, PhaseAt, T, Table, columns

_NS_PER_US = 1_000
CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The first fields of a cpu line in /proc/stat, in ticks of SC_CLK_TCK (proc_stat(5)); guest time is within user."""
_PSI = (("cpu", "some"), ("memory", "some"), ("memory", "full"), ("io", "some"), ("io", "full"))

TABLES = (
    Table(
        "host_samples",
        "sample of a node",
        PhaseAt("t_ns"),
        columns(
            *OF_NODE,
            T,
            INTERVAL,
            """
            cpu_user                ratio   CPU time in user mode over all cores' time
            cpu_system              ratio   CPU time in the kernel, interrupts included
            cpu_iowait              ratio   idle while waiting for a disk
            cpu_steal               ratio   taken by the hypervisor for other guests
            cpu_idle                ratio   idle
            n_cores                 count   logical CPUs
            run_queue               count   runnable processes at t_ns
            context_switches        count   context switches in the interval
            network_drops           count?  packets dropped on any interface in the interval
            memory_available_bytes  bytes?  memory available at t_ns
            server_cpu_ns           ns?     CPU time of the server's processes in the interval
            psi_cpu_some_ns         ns?     time in which some task waited for a CPU (PSI)
            psi_memory_some_ns      ns?     time in which some task waited for memory (PSI)
            psi_memory_full_ns      ns?     time in which all tasks waited for memory (PSI)
            psi_io_some_ns          ns?     time in which some task waited for a disk (PSI)
            psi_io_full_ns          ns?     time in which all tasks waited for a disk (PSI)
            network_rx_bytes        bytes?  bytes received on any interface but loopback
            network_tx_bytes        bytes?  bytes sent on any interface but loopback
            softirq_drops           count?  packets dropped by the network softirq, its backlog full
            softirq_squeezes        count?  times the network softirq ran out of budget (softnet_stat)
            tcp_retransmits         count?  TCP segments sent again
            tcp_listen_drops        count?  connections dropped at a listening socket
            """,
        ),
    ),
)


class HostSource:
    """One row of host_samples a tick. What the node does not offer is null, and `facts` names it.

    A counter that went back (the kernel's iowait may) counts as unchanged.
    """

    table = "host_samples"

    def __init__(self, server_pids: Callable[[], Sequence[int]], proc: str = "/proc") -> None:
        """`proc`: another folder than /proc, for a test."""
        self._server_pids = server_pids
        names = ("stat", "meminfo", "net/dev", "net/softnet_stat", "net/snmp", "net/netstat")
        self._files = {name: ProcFile(f"{proc}/{name}") for name in names}
        self._files |= {kind: ProcFile(f"{proc}/pressure/{kind}") for kind in ("cpu", "memory", "io")}
        self._previous: tuple[int, dict[str, Any]] | None = None

    def sample(self, now_ns: int) -> list[Row]:
        """Raises OSError where not even /proc/stat can be read."""
        current = self._read()
        if self._previous is None:
            self._previous = (now_ns, current)
            return []
        then_ns, before = self._previous
        spent = {name: max(0, current["cpu"][name] - before["cpu"][name]) for name in CPU_FIELDS}
        total = sum(spent.values())
        if not total:  # within one tick of the kernel's count: the next row covers this too
            return []
        self._previous = (now_ns, current)
        return [
            {
                "t_ns": now_ns, "interval_ns": now_ns - then_ns, "n_cores": current["n_cores"],
                "cpu_user": (spent["user"] + spent["nice"]) / total,
                "cpu_system": (spent["system"] + spent["irq"] + spent["softirq"]) / total,
                **{f"cpu_{name}": spent[name] / total for name in ("iowait", "steal", "idle")},
                "run_queue": current["run_queue"], "memory_available_bytes": current["memory_available_bytes"],
                "context_switches": current["context_switches"] - before["context_switches"],
                "server_cpu_ns": _spent_ns(current["server"], before["server"]),
                **_network(current["network"], before["network"]),
                **_deltas(current["counters"], before["counters"]),
            }
        ]  # fmt: skip

    def losses(self) -> list[str]:
        return []

    def facts(self) -> dict[str, Any]:
        """`missing_files` and `has_cpu_clock`: what this node does not offer leaves its columns null."""
        missing = sorted(file.path for file in self._files.values() if file.is_missing)
        return {"missing_files": missing, "has_cpu_clock": process_cpu_ns(os.getpid()) is not None}

    def _read(self) -> dict[str, Any]:
        stat = self._files["stat"].read()
        if stat is None:
            raise OSError(f"{self._files['stat'].path} cannot be read")
        words = {line[0]: line[1:] for line in (line.split(None, 9) for line in stat.splitlines()) if line}
        memory = _named(self._files["meminfo"].read() or b"")
        return {
            "cpu": cpu_times(words[b"cpu"]),
            "n_cores": sum(1 for name in words if name.startswith(b"cpu")) - 1,
            "run_queue": int(words[b"procs_running"][0]),
            "context_switches": int(words[b"ctxt"][0]),
            "memory_available_bytes": memory[b"MemAvailable"] * 1_024 if b"MemAvailable" in memory else None,
            "server": {pid: process_cpu_ns(pid) for pid in self._server_pids()},
            "network": _interfaces(self._files["net/dev"].read()),
            "counters": self._counters(),
        }

    def _counters(self) -> dict[str, int | None]:
        """Cumulative counts by column; None where the node has none of it."""
        pressure = {kind: self._files[kind].read() for kind in ("cpu", "memory", "io")}
        counters = {f"psi_{kind}_{who}_ns": psi_ns(pressure[kind], who) for kind, who in _PSI}
        drops, squeezes = _softnet(self._files["net/softnet_stat"].read())
        return {
            **counters,
            "softirq_drops": drops, "softirq_squeezes": squeezes,
            "tcp_retransmits": _paired(self._files["net/snmp"].read(), b"Tcp:", b"RetransSegs"),
            "tcp_listen_drops": _paired(self._files["net/netstat"].read(), b"TcpExt:", b"ListenDrops"),
        }  # fmt: skip


SAMPLED = (
    Sampled[OwnNode](
        "host_samples", lambda to: to.host_interval_ns, lambda node: HostSource(node.server_pids)
    ),
)


def cpu_times(words: Sequence[bytes]) -> dict[str, int]:
    """Ticks by `CPU_FIELDS`, of the numbers of a cpu line of /proc/stat."""
    return dict(zip(CPU_FIELDS, map(int, words[: len(CPU_FIELDS)]), strict=True))


def _spent_ns(current: Mapping[int, int | None], before: Mapping[int, int | None]) -> int | None:
    """CPU time of the processes between two samples; None without any, or where one came, ended or is unknown."""
    if not current or current.keys() != before.keys():
        return None
    spent = 0
    for pid, now_ns in current.items():
        then_ns = before[pid]
        if now_ns is None or then_ns is None:
            return None
        spent += now_ns - then_ns
    return spent


def _named(text: bytes) -> dict[bytes, int]:
    """`Name: count unit` lines, as in /proc/meminfo."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(b":")
        found[name] = int(rest.split()[0])
    return found


def _interfaces(text: bytes | None) -> dict[bytes, tuple[int, int, int]] | None:
    """Bytes received, bytes sent and packets dropped of every interface in /proc/net/dev."""
    if text is None:
        return None
    found = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(b":")
        counts = rest.split()
        found[name.strip()] = (int(counts[0]), int(counts[8]), int(counts[3]) + int(counts[11]))
    return found


def _network(
    current: Mapping[bytes, tuple[int, int, int]] | None, before: Mapping[bytes, tuple[int, int, int]] | None
) -> Row:
    """Sums over interfaces, drops also of loopback; one that came counts from 0, the end of one that went is lost."""
    if current is None or before is None:
        return {"network_drops": None, "network_rx_bytes": None, "network_tx_bytes": None}
    received = sent = drops = 0
    for name, counts in current.items():
        then = before.get(name, (0, 0, 0))
        drops += max(0, counts[2] - then[2])
        if name != b"lo":
            received += max(0, counts[0] - then[0])
            sent += max(0, counts[1] - then[1])
    return {"network_drops": drops, "network_rx_bytes": received, "network_tx_bytes": sent}


def psi_ns(text: bytes | None, who: str) -> int | None:
    """`total=` of one line of /proc/pressure/*, which is in us."""
    for line in (text or b"").splitlines():
        if line.startswith(who.encode()):
            return int(line.rpartition(b"total=")[2]) * _NS_PER_US
    return None


def _softnet(text: bytes | None) -> tuple[int | None, int | None]:
    """Dropped packets and used-up budgets over all CPUs: second and third hex column of softnet_stat."""
    if not text:
        return None, None
    rows = [line.split() for line in text.splitlines()]
    return sum(int(row[1], 16) for row in rows), sum(int(row[2], 16) for row in rows)


def _paired(text: bytes | None, protocol: bytes, name: bytes) -> int | None:
    """One count of /proc/net/snmp or netstat, where a line of names goes before a line of counts."""
    names: list[bytes] = []
    for line in (text or b"").splitlines():
        first, *words = line.split()
        if first != protocol:
            continue
        if not names:
            names = words
        elif name in names:
            return int(words[names.index(name)])
    return None


def _deltas(current: Mapping[str, int | None], before: Mapping[str, int | None]) -> Row:
    """Null where either is unknown."""
    row: Row = {}
    for name, now in current.items():
        then = before[name]
        row[name] = None if now is None or then is None else max(0, now - then)
    return row
