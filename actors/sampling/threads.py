"""CPU, waiting and switches of every thread of a server's processes: who spins, who waits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from squall.actors.clock import Clock
from squall.actors.process.proc_files import OpenFiles, gained, process_cpu_ns, read_once
from squall.actors.sampling.source import OwnServer, Row, Sampled
from squall.analysis.columns import INTERVAL, OF_SERVER, PhaseAt, T, Table, columns
from squall.scenarios.units import NS_PER_S

_FAMILY_NS = 5 * NS_PER_S
_MOST_OPEN = 512

TABLES = (
    Table(
        "thread_samples",
        "second of a thread of the server that ran or switched in it",
        PhaseAt("t_ns"),
        columns(
            *OF_SERVER,
            """
            process       id    process id on its node
            process_name  text  name of the process
            thread        id    thread id on its node
            thread_name   text  name of the thread
            """,
            T,
            INTERVAL,
            """
            cpu_ns                ns?     CPU time by the scheduler's exact count (schedstat); the two below come in
                                          ticks of 10 ms
            cpu_user_ns           ns      CPU time in user mode: a thread that spins has all of the interval
            cpu_system_ns         ns      CPU time in the kernel
            run_delay_ns          ns?     time in which it could run and had no CPU (schedstat)
            voluntary_switches    count?  times it gave up the CPU to wait
            involuntary_switches  count?  times the CPU was taken from it
            state                 text    R running, S sleeping, D uninterruptible, … at t_ns
            """,
        ),
    ),
)


class Family:
    """The living processes among `pids`, and their descendants, looked up again every 5 s.

    A server starts and ends processes with its models. Where the kernel lists no children (CONFIG_PROC_CHILDREN), only
    `pids` themselves.
    """

    def __init__(self, pids: Sequence[int], clock: Clock, proc: str = "/proc") -> None:
        """`proc`: another folder than /proc, for a test."""
        self._roots = tuple(pids)
        self._clock = clock
        self._proc = proc
        self._found: tuple[int, tuple[int, ...]] | None = None

    def set_roots(self, pids: Sequence[int]) -> None:
        """From now on it is these: the server was started again."""
        self._roots = tuple(pids)
        self._found = None

    def pids(self) -> tuple[int, ...]:
        """May be called from several threads."""
        now_ns = self._clock.monotonic_ns()
        found = self._found
        if found is None or now_ns - found[0] >= _FAMILY_NS:
            self._found = found = (now_ns, self._look())
        return found[1]

    def _look(self) -> tuple[int, ...]:
        found: set[int] = set()
        open_ = list(self._roots)
        while open_:
            pid = open_.pop()
            try:
                threads = os.listdir(f"{self._proc}/{pid}/task") if pid not in found else []
            except OSError:  # it has ended
                continue
            found.add(pid)
            for thread in threads:
                open_ += map(int, (read_once(f"{self._proc}/{pid}/task/{thread}/children") or b"").split())
        return tuple(sorted(found))


class _Counts(NamedTuple):
    """Cumulative counts of one thread; `cpu_ns` and `run_delay_ns` are None where there is no schedstat."""

    cpu_ns: int | None
    run_delay_ns: int | None
    n_runs: int | None
    user_ticks: int
    system_ticks: int
    voluntary: int | None
    involuntary: int | None


@dataclass
class _Process:
    """What is known of one process: its threads' counts, and its own CPU clock at the last sample."""

    at_ns: int
    cpu_ns: int | None
    threads: dict[int, _Counts]


class ThreadSource:
    """One row of thread_samples for every thread that ran or switched since the last sample.

    A thread that has ended takes its last CPU time along: `facts` says how much CPU of the processes no row has.
    """

    table = "thread_samples"

    def __init__(self, pids: Callable[[], Sequence[int]], proc: str = "/proc") -> None:
        """`pids`: the server's processes now; `proc`: another folder than /proc, for a test."""
        self._pids = pids
        self._proc = proc
        self._tick_ns = NS_PER_S // os.sysconf("SC_CLK_TCK")
        self._known: dict[int, _Process] = {}
        self._schedules = OpenFiles(_MOST_OPEN)
        self._has_schedstat = True
        self._n_ended = self._n_threads_max = 0
        self._process_cpu_ns = self._thread_cpu_ns = 0

    def sample(self, now_ns: int) -> list[Row]:
        rows = []
        n_threads = 0
        pids = set(self._pids())
        for pid in self._known.keys() - pids:
            self._forget(pid, self._known.pop(pid).threads)
        for pid in sorted(pids):
            rows += self._rows_of(pid, now_ns)
            n_threads += len(self._known[pid].threads) if pid in self._known else 0
        self._n_threads_max = max(self._n_threads_max, n_threads)
        return rows

    def losses(self) -> list[str]:
        return []

    def facts(self) -> dict[str, Any]:
        """`unattributed_cpu_ns`: CPU of the processes in no thread's row, of threads that came and went above all."""
        return {
            "n_threads_max": self._n_threads_max,
            "n_threads_ended": self._n_ended,
            "has_schedstat": self._has_schedstat,
            "process_cpu_ns": self._process_cpu_ns,
            "unattributed_cpu_ns": max(0, self._process_cpu_ns - self._thread_cpu_ns),
        }

    def close(self) -> None:
        """Frees what is kept open; call when its sampler has stopped."""
        self._schedules.close()

    def _rows_of(self, pid: int, now_ns: int) -> list[Row]:
        """Rows of one process. At its first sight none: what it did before is not of this interval."""
        try:
            threads = [int(name) for name in os.listdir(f"{self._proc}/{pid}/task")]
        except OSError:  # it has ended
            if pid in self._known:
                ended = self._known.pop(pid).threads
                self._n_ended += len(ended)
                self._forget(pid, ended)
            return []
        known = self._known.get(pid)
        current: dict[int, _Counts] = {}
        rows: list[Row] = []
        for thread in threads:
            before = known.threads.get(thread) if known else None
            counts, seen = self._read(pid, thread, before)
            if counts is None:
                continue
            current[thread] = counts
            if known is not None and seen is not None:
                row = self._row(counts, before)
                if row is not None:
                    rows.append({"thread": thread, **seen, **row})
        cpu_ns = process_cpu_ns(pid)
        if known is not None:
            gone = known.threads.keys() - current.keys()
            self._n_ended += len(gone)
            self._forget(pid, gone)
            self._settle(known, cpu_ns, rows)
            process = {"process": pid, "process_name": self._name(pid)}
            rows = [{**process, **row, "t_ns": now_ns, "interval_ns": now_ns - known.at_ns} for row in rows]
        self._known[pid] = _Process(now_ns, cpu_ns, current)
        return rows

    def _forget(self, pid: int, threads: Iterable[int]) -> None:
        for thread in threads:
            self._schedules.drop(f"{self._proc}/{pid}/task/{thread}/schedstat")

    def _settle(self, known: _Process, cpu_ns: int | None, rows: list[Row]) -> None:
        """Adds an interval of one process to the totals."""
        if cpu_ns is not None and known.cpu_ns is not None:
            self._process_cpu_ns += cpu_ns - known.cpu_ns
            self._thread_cpu_ns += sum(
                row["cpu_user_ns"] + row["cpu_system_ns"] if row["cpu_ns"] is None else row["cpu_ns"]
                for row in rows
            )

    def _read(self, pid: int, thread: int, before: _Counts | None) -> tuple[_Counts | None, Row | None]:
        """Counts of a thread, and its name and state; the latter None where it did nothing since `before`.

        One small file says whether it ran: the two others are read only then. None and None if it has ended.
        """
        path = f"{self._proc}/{pid}/task/{thread}"
        cpu_ns = delay_ns = n_runs = None
        scheduled = self._schedules.read(f"{path}/schedstat") if self._has_schedstat else None
        if scheduled:
            cpu_ns, delay_ns, n_runs = map(int, scheduled.split())
            if before is not None and (before.cpu_ns, before.n_runs) == (cpu_ns, n_runs):
                return before, None
        stat = read_once(f"{path}/stat")
        if not stat:
            return None, None
        if scheduled is None:
            self._has_schedstat = False
        name, _, rest = stat.partition(b"(")[2].rpartition(b") ")
        words = rest.split(None, 13)
        voluntary, involuntary = _switches(read_once(f"{path}/status"))
        counts = _Counts(cpu_ns, delay_ns, n_runs, int(words[11]), int(words[12]), voluntary, involuntary)
        return counts, {"thread_name": name.decode(errors="replace"), "state": words[0].decode()}

    def _row(self, counts: _Counts, before: _Counts | None) -> Row | None:
        """What changed; None if nothing did. A thread that was not there before counts from zero."""
        zero = _Counts(0, 0, 0, 0, 0, 0, 0)
        is_new = before is None or (counts.cpu_ns or 0) < (before.cpu_ns or 0)
        if before is None or is_new or counts.user_ticks < before.user_ticks:  # another's id now
            before = zero
        row = {
            "cpu_ns": gained(counts.cpu_ns, before.cpu_ns),
            "cpu_user_ns": (counts.user_ticks - before.user_ticks) * self._tick_ns,
            "cpu_system_ns": max(0, counts.system_ticks - before.system_ticks) * self._tick_ns,
            "run_delay_ns": gained(counts.run_delay_ns, before.run_delay_ns),
            "voluntary_switches": gained(counts.voluntary, before.voluntary),
            "involuntary_switches": gained(counts.involuntary, before.involuntary),
        }
        return row if any(row.values()) else None

    def _name(self, pid: int) -> str:
        return (read_once(f"{self._proc}/{pid}/comm") or b"").decode(errors="replace").rstrip("\n")


SAMPLED = (
    Sampled[OwnServer](
        "thread_samples", lambda to: to.thread_interval_ns, lambda server: ThreadSource(server.pids)
    ),
)


def _switches(status: bytes | None) -> tuple[int | None, int | None]:
    """Voluntary and involuntary context switches: the last two lines of /proc/PID/task/TID/status."""
    found: dict[bytes, int] = {}
    for line in (status or b"").rsplit(b"\n", 3)[-3:]:
        name, _, count = line.partition(b":")
        if name.endswith(b"voluntary_ctxt_switches"):
            found[name] = int(count)
    return found.get(b"voluntary_ctxt_switches"), found.get(b"nonvoluntary_ctxt_switches")
