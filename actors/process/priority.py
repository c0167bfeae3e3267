"""How a process and its sending thread are scheduled: what they may have, what is chosen, and what they got.

A sender that waits for a core is late by that wait. On a host with other work a wake-up at niceness 15 waits for
seconds, at 0 for a slice of whoever runs, in real time for nobody (sched(7)). A thread in real time that computes all
the time shuts out everybody else instead, the server first: there `squall.actors.load.sender.Governor` takes it away.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from squall.scenarios.records import RayPriority

Priority = Literal["auto", "realtime", "normal"]
POLICY_NAMES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline", 7: "ext"}
REALTIME_PRIORITY = 1
"""The lowest: whatever else on the host is in real time goes first, as do all its interrupts' threads (50)."""
CLIENT_NICENESS = -10
"""Of a worker's threads beside its sender, which may hold the interpreter's lock when it wants it."""
OBSERVER_NICENESS = -5
"""Before the server and other work, so that its samples come when the CPU is scarce; behind the workers."""
MOST_SHARE = 0.7
"""Of a core that a sender may use with priority: above it the server of a small host would wait for it."""
_SYS_NICE = 23  # bit of CAP_SYS_NICE (capability.h)
_LEAST_NICENESS = -20
_RUNTIME = "/proc/sys/kernel/sched_rt_runtime_us"
_PASSES = 3
MEND = (
    "as root, or with limits.conf: `USER - rtprio 1` and `USER - nice -10`"
    " (docker run --cap-add SYS_NICE --ulimit rtprio=1)"
)


@dataclass(frozen=True)
class Powers:
    """What this process may raise: all with CAP_SYS_NICE, else down to `least_niceness` (RLIMIT_NICE) and up to
    `most_realtime` (RLIMIT_RTPRIO). `is_throttled`: the kernel leaves other work a share beside real time."""

    is_privileged: bool
    least_niceness: int
    most_realtime: int
    is_throttled: bool


@dataclass(frozen=True)
class Choice:
    """`niceness` is of the threads that are not in real time. `why_not`: what stands against real time; empty if
    nothing does."""

    is_realtime: bool
    niceness: int
    why_not: str = ""


class System(Protocol):
    """The calls of the kernel that are needed; a test puts another in its place."""

    def threads(self) -> list[int]:
        """Ids of this process's threads."""

    def niceness(self, tid: int) -> int: ...

    def set_niceness(self, tid: int, niceness: int) -> None: ...

    def policy(self, tid: int) -> tuple[int, int]:
        """Policy and real-time priority of a thread."""

    def set_policy(self, tid: int, policy: int, priority: int) -> None: ...

    def cores(self, tid: int) -> set[int]: ...

    def set_cores(self, tid: int, cores: set[int]) -> None: ...


class Linux:
    """The kernel that this process runs on. Niceness and policy are a thread's there, not a process's."""

    def threads(self) -> list[int]:
        return [int(name) for name in os.listdir("/proc/self/task")]

    def niceness(self, tid: int) -> int:
        return os.getpriority(os.PRIO_PROCESS, tid)

    def set_niceness(self, tid: int, niceness: int) -> None:
        os.setpriority(os.PRIO_PROCESS, tid, niceness)

    def policy(self, tid: int) -> tuple[int, int]:
        return os.sched_getscheduler(tid) & ~os.SCHED_RESET_ON_FORK, os.sched_getparam(tid).sched_priority

    def set_policy(self, tid: int, policy: int, priority: int) -> None:
        os.sched_setscheduler(tid, policy, os.sched_param(priority))

    def cores(self, tid: int) -> set[int]:
        return os.sched_getaffinity(tid)

    def set_cores(self, tid: int, cores: set[int]) -> None:
        os.sched_setaffinity(tid, cores)


LINUX = Linux()


def powers() -> Powers:
    """Of this process, by its capabilities and limits; a call may be refused all the same (seccomp, cgroups)."""
    capabilities = 0
    for line in _text("/proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            capabilities = int(line.split()[1], 16)
    nice_limit, _ = resource.getrlimit(resource.RLIMIT_NICE)
    realtime_limit, _ = resource.getrlimit(resource.RLIMIT_RTPRIO)
    return Powers(
        is_privileged=bool(capabilities >> _SYS_NICE & 1),
        least_niceness=_LEAST_NICENESS if nice_limit == resource.RLIM_INFINITY else min(19, 20 - nice_limit),
        most_realtime=99 if realtime_limit == resource.RLIM_INFINITY else realtime_limit,
        is_throttled=_text(_RUNTIME).strip() not in ("", "-1"),
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def choose(wanted: Priority, has: Powers, is_spinning: bool, has_own_core: bool) -> Choice:
    """What a sender gets. `is_spinning`: it waits busily before each send (`clients.spin`).

    With `realtime` the user has weighed what `auto` keeps from: a busy wait in real time on a core that others need.
    """
    least = _LEAST_NICENESS if has.is_privileged else has.least_niceness
    if wanted == "normal":
        return Choice(False, 0)
    niceness = min(0, max(CLIENT_NICENESS, least))
    if not has.is_privileged and has.most_realtime < REALTIME_PRIORITY:
        return Choice(False, niceness, "no CAP_SYS_NICE, and RLIMIT_RTPRIO is 0")
    if wanted == "auto" and not has_own_core:
        if is_spinning:
            return Choice(False, niceness, "clients.spin waits busily, on a core that others share")
        if not has.is_throttled:
            return Choice(
                False, niceness, "the kernel would leave others nothing beside it (sched_rt_runtime_us)"
            )
    return Choice(True, niceness)


def own_niceness(niceness: int, system: System = LINUX) -> int:
    """Gives every thread of this process that niceness, or as near as the kernel lets it; returns the worst there is.

    Threads that begin meanwhile inherit from their makers, which is why it looks more than once.
    """
    for _ in range(_PASSES):
        wrong = [tid for tid, now in _nicenesses(system) if now != niceness]
        if not wrong:
            break
        for tid in wrong:
            as_near_as_may_be(system, tid, niceness)
    return max((now for _, now in _nicenesses(system)), default=niceness)


def _nicenesses(system: System) -> Iterator[tuple[int, int]]:
    for tid in system.threads():
        with suppress(ProcessLookupError):
            yield tid, system.niceness(tid)


def as_near_as_may_be(system: System, tid: int, niceness: int) -> None:
    """The kernel takes or refuses a value whole: from the wanted one towards what the thread has."""
    with suppress(ProcessLookupError):
        now = system.niceness(tid)
        for value in range(niceness, now, 1 if now > niceness else -1):
            try:
                system.set_niceness(tid, value)
            except PermissionError:
                continue
            return


def own_session_niceness(niceness: int, path: Path = Path("/proc/self/autogroup")) -> None:
    """Among sessions, where the kernel groups by them (autogroups) and this process leads one: niceness counts within a
    session alone. What is refused stays."""
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            path.write_text(str(niceness))


def settle_process(system: System = LINUX, oom: Path = Path("/proc/self/oom_score_adj")) -> RayPriority:
    """Undoes what Ray gives to what it starts, where the system allows: niceness 15, and the first place among the
    kernel's victims. For a process that starts."""
    given = max((now for _, now in _nicenesses(system)), default=0)
    niceness = own_niceness(0, system) if given > 0 else given
    oom_given = _oom(oom)
    if oom_given > 0:
        with suppress(OSError):
            oom.write_text("0")
    return RayPriority(
        niceness_given=given,
        niceness=niceness,
        oom_score_adj_given=oom_given,
        oom_score_adj=_oom(oom),
    )


def _oom(path: Path) -> int:
    return int(_text(str(path)).strip() or 0)
