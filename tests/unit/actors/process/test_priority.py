"""What a sender is given by what the system allows; the system is a fake that keeps the kernel's rules."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from squall.actors.load.sender import PENANCE_NS, WINDOW_NS, Governor, Sender
from squall.actors.process.priority import MOST_SHARE, Powers, Priority, own_niceness, settle_process
from squall.actors.process.priority import choose as choose_priority
from squall.scenarios.errors import ClusterError

ROOT = Powers(is_privileged=True, least_niceness=20, most_realtime=0, is_throttled=True)
NOBODY = Powers(is_privileged=False, least_niceness=20, most_realtime=0, is_throttled=True)
BY_LIMITS = Powers(is_privileged=False, least_niceness=-5, most_realtime=1, is_throttled=True)
NICE_ONLY = Powers(is_privileged=False, least_niceness=-5, most_realtime=0, is_throttled=True)
UNTHROTTLED = Powers(is_privileged=True, least_niceness=20, most_realtime=0, is_throttled=False)
SENDER, OTHER = 100, 101


@dataclass
class FakeKernel:
    """Threads SENDER (also called 0: the caller) and OTHER; refuses what `has` does not allow."""

    has: Powers
    refuses_realtime: bool = False
    nicenesses: dict[int, int] = field(default_factory=lambda: {SENDER: 15, OTHER: 15})
    policies: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {SENDER: (os.SCHED_OTHER, 0), OTHER: (os.SCHED_OTHER, 0)}
    )
    affinity: set[int] = field(default_factory=lambda: set(range(8)))
    has_flag: bool = False

    def threads(self) -> list[int]:
        return list(self.nicenesses)

    def thread(self, tid: int) -> int:
        """Its key here."""
        if tid and tid not in self.nicenesses:
            raise ProcessLookupError(3, "No such process")
        return tid or SENDER

    def niceness(self, tid: int) -> int:
        return self.nicenesses[self.thread(tid)]

    def set_niceness(self, tid: int, niceness: int) -> None:
        tid = self.thread(tid)
        is_raise = niceness < self.nicenesses[tid]
        if is_raise and not self.has.is_privileged and niceness < self.has.least_niceness:
            raise PermissionError(13, "Permission denied")
        self.nicenesses[tid] = niceness

    def policy(self, tid: int) -> tuple[int, int]:
        return self.policies[self.thread(tid)]

    def set_policy(self, tid: int, policy: int, priority: int) -> None:
        has_flag, policy = bool(policy & os.SCHED_RESET_ON_FORK), policy & ~os.SCHED_RESET_ON_FORK
        is_allowed = self.has.is_privileged or priority <= self.has.most_realtime
        if policy == os.SCHED_FIFO and (self.refuses_realtime or not is_allowed):
            raise PermissionError(1, "Operation not permitted")
        if self.has_flag and not has_flag and not self.has.is_privileged:
            raise PermissionError(1, "Operation not permitted")  # sched(7): the flag cannot be taken back
        self.has_flag = has_flag
        self.policies[self.thread(tid)] = policy, priority

    def cores(self, tid: int) -> set[int]:
        del tid
        return set(self.affinity)

    def set_cores(self, tid: int, cores: set[int]) -> None:
        del tid
        if not cores & set(range(8)):
            raise OSError(22, "Invalid argument")
        self.affinity = set(cores)


def sender(
    kernel: FakeKernel, wanted: Priority = "auto", core: int | None = None, spin: bool = False
) -> Sender:
    return Sender(wanted, spin, core, kernel.has, kernel)


@pytest.mark.parametrize(
    ("wanted", "has", "is_spinning", "has_own_core", "is_realtime", "niceness"),
    [
        ("auto", ROOT, False, False, True, -10),
        ("auto", BY_LIMITS, False, False, True, -5),
        ("auto", NICE_ONLY, False, False, False, -5),
        ("auto", NOBODY, False, False, False, 0),
        ("auto", ROOT, True, False, False, -10),
        ("auto", ROOT, True, True, True, -10),
        ("auto", UNTHROTTLED, False, False, False, -10),
        ("auto", UNTHROTTLED, False, True, True, -10),
        ("realtime", UNTHROTTLED, True, False, True, -10),
        ("realtime", NOBODY, False, False, False, 0),
        ("normal", ROOT, False, True, False, 0),
    ],
)
def test_the_choice_is_the_best_that_is_allowed_and_harms_nobody(
    wanted: Priority, has: Powers, is_spinning: bool, has_own_core: bool, is_realtime: bool, niceness: int
) -> None:
    choice = choose_priority(wanted, has, is_spinning, has_own_core)
    assert (choice.is_realtime, choice.niceness) == (is_realtime, niceness)
    assert bool(choice.why_not) == (not is_realtime and wanted != "normal")


@pytest.mark.parametrize("has", [ROOT, BY_LIMITS])
def test_in_real_time_the_sender_alone_is_and_only_until_it_is_restored(has: Powers) -> None:
    kernel = FakeKernel(has)
    one = sender(kernel)
    found = one.rehearse()
    assert (found.policy, found.realtime_priority, found.why_less) == ("fifo", 1, "")
    assert kernel.policies[SENDER] == (os.SCHED_OTHER, 0)
    assert kernel.nicenesses[OTHER] == max(-10, has.least_niceness if not has.is_privileged else -10)
    one.raise_thread()
    assert kernel.policies == {SENDER: (os.SCHED_FIFO, 1), OTHER: (os.SCHED_OTHER, 0)}
    assert kernel.has_flag
    one.restore()
    assert kernel.policies[SENDER] == (os.SCHED_OTHER, 0)
    assert kernel.nicenesses[SENDER] == kernel.nicenesses[OTHER]


@pytest.mark.parametrize(
    ("has", "refuses", "niceness", "why"),
    [
        (NICE_ONLY, False, -5, "no CAP_SYS_NICE, and RLIMIT_RTPRIO is 0"),
        (NOBODY, False, 15, "no CAP_SYS_NICE, and RLIMIT_RTPRIO is 0"),
        (ROOT, True, -10, "the kernel refused real time: Operation not permitted"),
    ],
)
def test_where_real_time_is_not_to_be_had_it_is_the_best_niceness_and_says_why(
    has: Powers, refuses: bool, niceness: int, why: str
) -> None:
    found = sender(FakeKernel(has, refuses)).rehearse()
    assert (found.policy, found.niceness, found.why_less) == ("other", niceness, why)


def test_real_time_that_is_required_and_not_to_be_had_is_refused_before_the_start() -> None:
    with pytest.raises(
        ClusterError, match=r"clients\.priority: realtime may not be had: .*RLIMIT_RTPRIO is 0; as root"
    ):
        sender(FakeKernel(NOBODY), "realtime").rehearse()


def test_normal_leaves_every_thread_as_it_is() -> None:
    kernel = FakeKernel(ROOT)
    one = sender(kernel, "normal")
    found = one.rehearse()
    assert kernel == FakeKernel(ROOT)
    assert (found.policy, found.niceness, found.why_less) == ("other", 15, "")
    assert not one.goes_first


def test_a_sender_with_a_core_of_its_own_has_it_while_it_sends() -> None:
    kernel = FakeKernel(ROOT)
    one = sender(kernel, core=7)
    one.raise_thread()
    assert one.scheduling.cores == (7,) == tuple(kernel.affinity)
    one.restore()
    assert kernel.affinity == set(range(8))
    lost = sender(kernel, core=9)
    assert lost.rehearse().why_less == "core 9: Invalid argument"
    assert lost.scheduling.cores == ()


@pytest.mark.parametrize("has", [ROOT, BY_LIMITS, NICE_ONLY])
def test_a_sender_that_computes_too_much_loses_its_priority_until_it_computes_less(has: Powers) -> None:
    kernel = FakeKernel(has)
    one = sender(kernel)
    one.raise_thread()
    lifted = kernel.policies[SENDER], kernel.nicenesses[SENDER]
    governor = Governor(one, has_own_core=False)
    assert governor.is_needed
    now_ns, cpu_ns = 5 * PENANCE_NS, 0
    governor.look(now_ns, cpu_ns)  # the first look has nothing to compare with

    def go_on(n_windows: int, share: float) -> None:
        nonlocal now_ns, cpu_ns
        for _ in range(n_windows):
            now_ns += WINDOW_NS
            cpu_ns += round(share * WINDOW_NS)
            governor.look(now_ns, cpu_ns)

    go_on(5, MOST_SHARE - 0.01)
    assert (kernel.policies[SENDER], kernel.nicenesses[SENDER]) == lifted
    go_on(1, MOST_SHARE + 0.01)
    assert (kernel.policies[SENDER], kernel.nicenesses[SENDER]) == ((os.SCHED_OTHER, 0), 0)
    go_on(20, 1.0)  # as long as it goes on
    assert kernel.policies[SENDER] == (os.SCHED_OTHER, 0)
    go_on(1, 0.1)
    assert (kernel.policies[SENDER], kernel.nicenesses[SENDER]) == lifted
    assert (governor.n_demotions, governor.demoted_ns) == (1, 21 * WINDOW_NS)


def test_who_has_no_priority_or_a_core_of_its_own_is_not_governed() -> None:
    kernel = FakeKernel(ROOT)
    assert not Governor(sender(kernel, "normal"), has_own_core=False).is_needed
    one = sender(kernel, core=3)
    one.raise_thread()
    assert one.goes_first
    assert not Governor(one, has_own_core=True).is_needed


@pytest.mark.parametrize(("has", "left"), [(ROOT, 0), (NICE_ONLY, 0), (NOBODY, 15)])
def test_a_process_that_ray_started_sets_its_niceness_to_0_where_it_may(
    has: Powers, left: int, tmp_path: Path
) -> None:
    kernel, oom = FakeKernel(has), tmp_path / "oom_score_adj"
    oom.write_text("1000\n")
    found = settle_process(kernel, oom)
    assert (found.niceness_given, found.niceness) == (15, left)
    assert set(kernel.nicenesses.values()) == {left}
    assert (found.oom_score_adj_given, found.oom_score_adj, oom.read_text()) == (1000, 0, "0")


def test_a_process_whose_user_made_it_go_first_keeps_that(tmp_path: Path) -> None:
    kernel = FakeKernel(ROOT, nicenesses={SENDER: -3, OTHER: -3})
    assert settle_process(kernel, tmp_path / "none").niceness == -3
    assert set(kernel.nicenesses.values()) == {-3}


def test_threads_that_began_meanwhile_are_found_and_partial_steps_are_taken() -> None:
    kernel = FakeKernel(Powers(False, 7, 0, True))
    assert own_niceness(0, kernel) == 7
    assert set(kernel.nicenesses.values()) == {7}
