"""Who had the CPU of a node, second by second, each core of it, and how long server and clients waited for it.

See docs/sampling.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from squall.actors.process.proc_files import OpenFiles, ProcFile, gained, process_cpu_ns, read_once
from squall.actors.sampling.cgroups import (
    Quota,
    groups_of,
    pressure_file,
    throttling,
    tightest_quota,
)
from squall.actors.sampling.cpu_groups import OtherProcesses, ProcessTree, Roots, grouped
from squall.actors.sampling.host import CPU_FIELDS, cpu_times, psi_ns
from squall.actors.sampling.source import OwnNode, Pids, Row, Sampled
from squall.analysis.columns import INTERVAL, OF_NODE, PhaseAt, T, Table, columns
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

_LOOK_NS = 5 * NS_PER_S
_MOST_OPEN = 256
"""Files of threads kept open, beside the 512 of `squall.actors.sampling.threads`: a process may often have 1,024."""
_IDLE = (3, 4)
"""Fields of the cpu line of /proc/stat that are no work: idle, iowait."""
_STEAL = 7
_N_FIELDS = 8
_HZ_PER_KHZ = 1_000

TABLES = (
    Table(
        "core_samples",
        "second of a logical CPU",
        PhaseAt("t_ns"),
        columns(
            *OF_NODE,
            "core  id  logical CPU",
            T,
            INTERVAL,
            """
            cpu_user      ratio  share of the interval in user mode
            cpu_system    ratio  share in the kernel, without interrupts
            cpu_irq       ratio  share in interrupts and softirqs: network work lands here
            cpu_steal     ratio  share taken by the hypervisor for other guests
            cpu_idle      ratio  share idle, waiting for a disk included
            frequency_hz  Hz?    clock of the core at t_ns
            """,
        ),
    ),
    Table(
        "cpu_samples",
        "second of a node's CPU: who had it, and who waited for it",
        PhaseAt("t_ns"),
        columns(
            *OF_NODE,
            T,
            INTERVAL,
            """
            n_cores                    count   logical CPUs
            server_ns                  ns?     CPU time of the server's processes; null where none is known here
            clients_ns                 ns      CPU time of the load workers
            squall_ns                  ns      CPU time of the run's other parts: driver, agent, observer, nsys, the Ray
                                               it started
            others_ns                  ns      CPU time of all else, the kernel's own threads and interrupts included
            steal_ns                   ns      CPU time that the hypervisor calls stolen; idle as well where virtual
                                               cores wake slowly
            idle_ns                    ns      CPU time idle, waiting for a disk included
            server_wait_ns             ns?     time in which threads of the server could run and had no CPU, summed over
                                               them (schedstat)
            clients_wait_ns            ns?     the same of the load workers' threads
            server_runs                count?  times a thread of the server got a CPU (schedstat)
            clients_runs               count?  the same of the load workers' threads
            server_cores               count?  logical CPUs that the server may run on (its affinity)
            server_cores_busy_ns       ns?     CPU time that anybody had of these
            server_cores_free_ns       ns?     idle time of the one of these that was idle longest
            is_quota_shared            claim?  load workers use up the server's CPU quota too
            psi_cpu_some_ns            ns?     time in which some task of the node waited for a CPU (PSI)
            psi_cpu_full_ns            ns?     time in which all tasks of the node did; Linux has it as 0
            server_psi_some_ns         ns?     time in which some task of the server's cgroup waited (v2)
            server_psi_full_ns         ns?     time in which all tasks of the server's cgroup waited (v2)
            server_quota_cores         cores?  tightest CPU quota of the server: cpu.max
            server_periods             count?  periods of that quota with something to run
            server_throttled_periods   count?  those in which it was used up
            server_throttled_ns        ns?     time held back by it, summed over CPUs
            clients_quota_cores        cores?  tightest CPU quota of the load workers: cpu.max
            clients_periods            count?  periods of that quota with something to run
            clients_throttled_periods  count?  those in which it was used up
            clients_throttled_ns       ns?     time held back by it, summed over CPUs
            """,
        ),
    ),
)


class CoreSource:
    """One row of core_samples for each logical CPU and tick."""

    table = "core_samples"

    def __init__(self, proc: str = "/proc", cpus: str = "/sys/devices/system/cpu") -> None:
        """`proc` and `cpus`: other folders, for a test."""
        self._stat = ProcFile(f"{proc}/stat")
        self._cpus = cpus
        self._clocks: dict[int, ProcFile] = {}
        self._previous: dict[int, tuple[int, dict[str, int]]] = {}

    def sample(self, now_ns: int) -> list[Row]:
        """Raises OSError where /proc/stat cannot be read."""
        stat = self._stat.read()
        if stat is None:
            raise OSError(f"{self._stat.path} cannot be read")
        rows = []
        for line in stat.splitlines():
            if not line.startswith(b"cpu"):
                break  # they come first
            name, *words = line.split()
            if name != b"cpu":
                rows += self._rows_of(int(name[3:]), cpu_times(words), now_ns)
        return rows

    def losses(self) -> list[str]:
        return []

    def facts(self) -> dict[str, Any]:
        """`has_frequency`: some core tells its clock. A virtual machine's does not."""
        return {"has_frequency": any(not file.is_missing for file in self._clocks.values())}

    def _rows_of(self, core: int, current: dict[str, int], now_ns: int) -> list[Row]:
        known = self._previous.get(core)
        if known is None:
            self._previous[core] = (now_ns, current)
            self._clocks[core] = ProcFile(f"{self._cpus}/cpu{core}/cpufreq/scaling_cur_freq")
            return []
        then_ns, before = known
        spent = {name: max(0, current[name] - before[name]) for name in CPU_FIELDS}
        total = sum(spent.values())
        if not total:
            return []
        self._previous[core] = (now_ns, current)
        row = {
            "core": core, "t_ns": now_ns, "interval_ns": now_ns - then_ns,
            "cpu_user": (spent["user"] + spent["nice"]) / total, "cpu_system": spent["system"] / total,
            "cpu_irq": (spent["irq"] + spent["softirq"]) / total, "cpu_steal": spent["steal"] / total,
            "cpu_idle": (spent["idle"] + spent["iowait"]) / total, "frequency_hz": self._frequency_hz(core),
        }  # fmt: skip
        return [row]

    def _frequency_hz(self, core: int) -> float | None:
        file = self._clocks[core]
        data = None if file.is_missing else file.read()
        return float(int(data) * _HZ_PER_KHZ) if data and data.strip().isdigit() else None


@dataclass
class _Limits:
    """What bounds a group of processes: cores that it may run on, its tightest quota, its pressure file."""

    cores: frozenset[int] | None = None
    quota: Quota | None = None
    pressure: str | None = None


class _Counts(Frozen):
    """Everything cumulative at one instant. Ticks of the node and of each core; CPU by process; time waited, and times
    run, by thread's file."""

    at_ns: int
    ticks: tuple[int, ...]
    ticks_of: dict[int, tuple[int, ...]]
    cpu_ns: dict[str, dict[int, int]]
    waited: dict[str, dict[str, tuple[int, int]]]
    psi: dict[str, int | None]
    throttling: dict[str, tuple[Quota, tuple[int, int, int]] | None]


@dataclass
class CpuSource:
    """One row of cpu_samples a tick. What the node does not offer is null, and `facts` names it.

    CPU of processes is their exact clock, that of the node its ticks of 10 ms: what is left over is the others'. A
    process that ends takes the CPU of its last interval along, to the others. `cpu_clock` and `affinity`: the system's,
    or a test's.
    """

    server_pids: Callable[[], Sequence[int]]
    clients: Pids
    own: Pids
    proc: str = "/proc"
    cpu_clock: Callable[[int], int | None] = process_cpu_ns
    affinity: Callable[[int], Collection[int]] = os.sched_getaffinity
    table: str = field(default="cpu_samples", init=False)

    def __post_init__(self) -> None:
        self._stat = ProcFile(f"{self.proc}/stat")
        self._pressure = ProcFile(f"{self.proc}/pressure/cpu")
        self._tree = ProcessTree(self.proc)
        self._schedules = OpenFiles(_MOST_OPEN)
        self._groups: dict[str, list[int]] = {}
        self._limits: dict[str, _Limits] = {}
        self._is_shared: bool | None = None
        self._others = OtherProcesses(self.proc, self.cpu_clock)
        self._looked: tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
        self._has_schedstat = True
        self._tick_ns = NS_PER_S // os.sysconf("SC_CLK_TCK")
        self._previous: _Counts | None = None

    def sample(self, now_ns: int) -> list[Row]:
        """Raises OSError where /proc/stat cannot be read."""
        self._look(now_ns)
        current, before = self._read(now_ns), self._previous
        if before is not None and current.ticks == before.ticks:  # within one tick of the kernel's count
            return []
        self._previous = current
        return [] if before is None else [self._row(current, before)]

    def losses(self) -> list[str]:
        return []

    def facts(self) -> dict[str, Any]:
        """`has_schedstat`: the kernel tells how long threads wait. `quotas`: what bounds server and clients (cores).
        `others`: the processes of others that had most CPU while this sampled, by name."""
        self._others.look(self._tree.look(), self._groups)
        return {
            "others": self._others.busiest(),
            "has_schedstat": self._has_schedstat,
            "quotas": {name: one.quota.cores for name, one in self._limits.items() if one.quota is not None},
            "n_processes": {name: len(pids) for name, pids in self._groups.items()},
        }

    def close(self) -> None:
        """Frees what is kept open; call when its sampler has stopped."""
        self._schedules.close()

    def _look(self, now_ns: int) -> None:
        """Whose processes are whose, every 5 s, and as soon as other ones are known as the server's, the clients' or
        the run's own."""
        server, clients, own = tuple(self.server_pids()), self.clients.pids, self.own.pids
        looked = self._looked
        if looked is not None and looked[1:] == (server, clients, own) and now_ns - looked[0] < _LOOK_NS:
            return
        self._looked = (now_ns, server, clients, own)
        tree = self._tree.look()
        roots = Roots(frozenset(server), frozenset(clients), frozenset(own))
        self._groups = grouped(tree, roots)
        self._others.look(tree, self._groups)
        beside = clients or own
        self._limits = {"server": self._bounds(server), "clients": self._bounds(beside)}
        quota = self._limits["server"].quota
        self._is_shared = None
        if quota is not None:  # the clients use it up, too
            self._is_shared = (quota.folder, quota.is_v2) in groups_of(beside[0], self.proc)

    def _bounds(self, pids: Sequence[int]) -> _Limits:
        """Of the first process that is there: all of a group are started alike."""
        for pid in pids:
            try:
                cores = frozenset(self.affinity(pid))
            except OSError:
                continue
            return _Limits(cores, tightest_quota(pid, self.proc), pressure_file(pid, self.proc))
        return _Limits()

    def _read(self, now_ns: int) -> _Counts:
        stat = self._stat.read()
        if stat is None:
            raise OSError(f"{self._stat.path} cannot be read")
        pressure = self._pressure.read()
        own = self._limits["server"].pressure
        of_server = read_once(own) if own is not None else None
        node, *each = (
            line.split(None, _N_FIELDS + 1) for line in stat.splitlines() if line.startswith(b"cpu")
        )
        return _Counts(
            now_ns,
            _ticks(node),
            {int(words[0][3:]): _ticks(words) for words in each},
            {name: self._clocks(pids) for name, pids in self._groups.items()},
            {name: self._waited(self._groups[name]) for name in ("server", "clients")},
            {
                "psi_cpu_some_ns": psi_ns(pressure, "some"), "psi_cpu_full_ns": psi_ns(pressure, "full"),
                "server_psi_some_ns": psi_ns(of_server, "some"), "server_psi_full_ns": psi_ns(of_server, "full"),
            },
            {name: _throttled(one.quota) for name, one in self._limits.items()},
        )  # fmt: skip

    def _clocks(self, pids: Sequence[int]) -> dict[int, int]:
        return {pid: cpu_ns for pid in pids if (cpu_ns := self.cpu_clock(pid)) is not None}

    def _waited(self, pids: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Time each thread could run and had no CPU, and times it got one; empty where the kernel does not tell."""
        found: dict[str, tuple[int, int]] = {}
        for pid in pids if self._has_schedstat else ():
            try:
                threads = os.listdir(f"{self.proc}/{pid}/task")
            except OSError:  # it has ended
                continue
            for thread in threads:
                path = f"{self.proc}/{pid}/task/{thread}/schedstat"
                words = (self._schedules.read(path) or b"").split()
                if len(words) == 3:
                    found[path] = int(words[1]), int(words[2])
                elif not os.path.exists(path) and os.path.exists(f"{self.proc}/{pid}/task/{thread}"):
                    self._has_schedstat = False
        return found

    def _row(self, current: _Counts, before: _Counts) -> Row:
        spent = self._spent(current.ticks, before.ticks)
        for path in {path for of in before.waited.values() for path in of} - {
            path for of in current.waited.values() for path in of
        }:
            self._schedules.drop(path)
        idle_ns, steal_ns = sum(spent[index] for index in _IDLE), spent[_STEAL]
        own = {name: _gained(current.cpu_ns[name], before.cpu_ns.get(name, {})) for name in current.cpu_ns}
        busy_ns = sum(spent) - idle_ns - steal_ns
        return {
            "t_ns": current.at_ns, "interval_ns": current.at_ns - before.at_ns,
            "n_cores": os.cpu_count() or 1,
            "server_ns": own["server"] if self._groups["server"] else None,
            "clients_ns": own["clients"], "squall_ns": own["squall"],
            "others_ns": max(0, busy_ns - sum(own.values())), "idle_ns": idle_ns, "steal_ns": steal_ns,
            **self._waits("server", current, before), **self._waits("clients", current, before),
            **self._of_server_cores(current, before),
            "is_quota_shared": self._is_shared,
            **{name: gained(now, before.psi[name]) for name, now in current.psi.items()},
            **_held("server", current, before), **_held("clients", current, before),
        }  # fmt: skip

    def _of_server_cores(self, current: _Counts, before: _Counts) -> Row:
        """How many there are, who had them, and how long the idlest was free: null where no process of the server is
        known here."""
        cores = self._limits["server"].cores
        if cores is None:
            return dict.fromkeys(("server_cores", "server_cores_busy_ns", "server_cores_free_ns"))
        known = cores & current.ticks_of.keys() & before.ticks_of.keys()
        spent = [self._spent(current.ticks_of[core], before.ticks_of[core]) for core in known]
        free_ns = [sum(one[index] for index in _IDLE) for one in spent]
        busy_ns = sum(sum(one) - one[_STEAL] for one in spent) - sum(free_ns)
        is_known = known == cores
        return {
            "server_cores": len(cores),
            "server_cores_busy_ns": busy_ns if is_known else None,
            "server_cores_free_ns": max(free_ns, default=0) if is_known else None,
        }

    def _spent(self, now: tuple[int, ...], before: tuple[int, ...]) -> list[int]:
        """Nanoseconds by field of a cpu line."""
        return [max(0, later - then) * self._tick_ns for later, then in zip(now, before, strict=True)]

    def _waits(self, group: str, current: _Counts, before: _Counts) -> Row:
        names = (f"{group}_wait_ns", f"{group}_runs")
        if not self._has_schedstat or not self._groups[group]:
            return dict.fromkeys(names)
        now, then = current.waited[group], before.waited.get(group, {})
        return {
            name: _gained(
                {path: one[index] for path, one in now.items()},
                {path: one[index] for path, one in then.items()},
            )
            for index, name in enumerate(names)
        }


SAMPLED = (
    Sampled[OwnNode]("core_samples", lambda to: to.host_interval_ns, lambda _: CoreSource()),
    Sampled[OwnNode](
        "cpu_samples",
        lambda to: to.host_interval_ns,
        lambda node: CpuSource(node.server_pids, node.clients, node.own),
    ),
)


def _ticks(words: Sequence[bytes]) -> tuple[int, ...]:
    """Of a cpu line of /proc/stat."""
    return tuple(map(int, words[1 : _N_FIELDS + 1]))


def _gained(now: Mapping[Any, int], before: Mapping[Any, int]) -> int:
    """What all of them gained. One that is new counts nothing: what it had before may be of any time."""
    return sum(max(0, count - before[one]) for one, count in now.items() if one in before)


def _throttled(quota: Quota | None) -> tuple[Quota, tuple[int, int, int]] | None:
    found = throttling(quota) if quota is not None else None
    return (quota, found) if quota is not None and found is not None else None


def _held(group: str, current: _Counts, before: _Counts) -> Row:
    """The quota of a group and what it did in the interval; null without one, or where it has just been set."""
    now, then = current.throttling.get(group), before.throttling.get(group)
    names = ("periods", "throttled_periods", "throttled_ns")
    row: Row = {f"{group}_quota_cores": now[0].cores if now is not None else None}
    if now is None or then is None or now[0].folder != then[0].folder:
        return {**row, **dict.fromkeys(f"{group}_{name}" for name in names)}
    counts = zip(names, now[1], then[1], strict=True)
    return {**row, **{f"{group}_{name}": max(0, a - b) for name, a, b in counts}}
