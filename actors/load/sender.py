"""The thread of a worker that sends: it takes the scheduling that `squall.actors.process.priority` chooses, and loses
it in time.

rehearse ─ … ─ raise_thread ─ send, look, send, look … ─ restore
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from squall.actors.process.priority import (
    LINUX,
    MEND,
    MOST_SHARE,
    POLICY_NAMES,
    REALTIME_PRIORITY,
    Powers,
    Priority,
    System,
    as_near_as_may_be,
    choose,
    own_niceness,
    powers,
)
from squall.scenarios.errors import ClusterError
from squall.scenarios.records import SenderScheduling
from squall.scenarios.units import NS_PER_S

WINDOW_NS = NS_PER_S // 10
PENANCE_NS = NS_PER_S


class Sender:
    """The scheduling of the thread that sends: `rehearse` before the start, `raise_thread` and `restore` around it.

    All in that thread; `scheduling` is what it has, or will have. With `normal` the thread stays as it is.
    """

    def __init__(
        self,
        wanted: Priority,
        is_spinning: bool,
        core: int | None,
        has: Powers | None = None,
        system: System = LINUX,
    ) -> None:
        """`core`: its own; None where it shares all of the process's."""
        self._wanted = wanted
        self._choice = choose(wanted, has if has is not None else powers(), is_spinning, core is not None)
        self._system = system
        self._core = core
        self._cores_before: set[int] | None = None
        self.scheduling = SenderScheduling(policy="other", realtime_priority=0, niceness=0)

    def rehearse(self) -> SenderScheduling:
        """Whether the kernel gives what was chosen; the other threads of the process get their niceness for good.

        Raises ClusterError where `realtime` is asked for and not to be had.
        """
        if self._wanted != "normal":
            own_niceness(self._choice.niceness, self._system)
        found = self.tried()
        if self._wanted == "realtime" and found.policy != "fifo":
            raise ClusterError(f"clients.priority: realtime may not be had: {found.why_less}; {MEND}")
        return found

    def tried(self) -> SenderScheduling:
        """What the kernel gives; the thread is as any other afterwards."""
        self.raise_thread()
        self.restore()
        return self.scheduling

    def raise_thread(self) -> None:
        """This thread is scheduled as chosen from now on."""
        refused = self._take_core()
        why = self.lift() or self._choice.why_not or refused
        policy, priority = self._system.policy(0)
        cores = tuple(sorted(self._system.cores(0))) if self._cores_before is not None else ()
        name = POLICY_NAMES.get(policy, str(policy))
        self.scheduling = SenderScheduling(
            policy=name,
            realtime_priority=priority,
            niceness=self._system.niceness(0),
            cores=cores,
            why_less=why,
        )

    def _take_core(self) -> str:
        """Empty, or why the thread cannot have its core."""
        if self._core is None:
            return ""
        try:
            before = self._system.cores(0)
            self._system.set_cores(0, {self._core})
        except OSError as error:
            return f"core {self._core}: {error.strerror}"
        self._cores_before = before
        return ""

    def restore(self) -> None:
        """As the other threads of the process again, on every core that it had.

        Not below them: what calls `raise_thread` must come to it in time, on a host that is full too.
        """
        self.lower()
        if self._wanted != "normal":
            as_near_as_may_be(self._system, 0, self._choice.niceness)
        if self._cores_before is not None:
            with suppress(OSError):
                self._system.set_cores(0, self._cores_before)
            self._cores_before = None

    def lift(self) -> str:
        """Real time where that was chosen, else the best niceness. Empty, or why the kernel refused real time.

        Threads and processes that this thread begins do not inherit it (SCHED_RESET_ON_FORK).
        """
        if self._wanted == "normal":
            return ""
        refused = ""
        if self._choice.is_realtime:
            as_near_as_may_be(self._system, 0, 0)  # what is below real time, for `lower`
            try:
                self._system.set_policy(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, REALTIME_PRIORITY)
                return ""
            except OSError as error:
                refused = f"the kernel refused real time: {error.strerror}"
        as_near_as_may_be(self._system, 0, self._choice.niceness)
        return refused

    def lower(self) -> None:
        """As any thread at niceness 0; without CAP_SYS_NICE the flag of fork cannot be taken back."""
        if self._wanted == "normal":
            return
        if self._system.policy(0)[0] != os.SCHED_OTHER:
            try:
                self._system.set_policy(0, os.SCHED_OTHER, 0)
            except PermissionError:
                self._system.set_policy(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, 0)
        as_near_as_may_be(self._system, 0, 0)

    @property
    def goes_first(self) -> bool:
        """Whether it goes before ordinary work."""
        return self.scheduling.policy == "fifo" or self.scheduling.niceness < 0


class Governor:
    """Takes its priority from a sender that computes too much, for a second at least: a client at its limit competes
    with the server as any process does, and does not shut it out.

    `look` every few ms, in the sender's thread. The kernel's own limit (95 % of a second) is the net below.
    """

    def __init__(self, sender: Sender, has_own_core: bool) -> None:
        self._sender = sender
        self._has_own_core = has_own_core
        self._since_ns = 0
        self._cpu_ns = 0
        self._back_ns = 0
        self.n_demotions = 0
        self.demoted_ns = 0

    @property
    def is_needed(self) -> bool:
        """False where the sender has no priority, or a core of its own to spend it on."""
        return self._sender.goes_first and not self._has_own_core

    def look(self, now_ns: int, cpu_ns: int | None = None) -> None:
        """`cpu_ns`: CPU time of the thread so far; None: it is read, where it is needed."""
        if now_ns - self._since_ns < WINDOW_NS:
            return
        cpu_ns = time.thread_time_ns() if cpu_ns is None else cpu_ns
        wall_ns, used_ns, is_first = now_ns - self._since_ns, cpu_ns - self._cpu_ns, not self._since_ns
        self._since_ns, self._cpu_ns = now_ns, cpu_ns
        if is_first:
            return
        is_busy = used_ns > MOST_SHARE * wall_ns
        if self._back_ns:
            self.demoted_ns += wall_ns
            if now_ns >= self._back_ns and not is_busy:
                self._back_ns = 0
                self._sender.lift()
        elif is_busy:
            self._back_ns = now_ns + PENANCE_NS
            self.n_demotions += 1
            self._sender.lower()
