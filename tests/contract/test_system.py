"""What every system does with priorities: the kernel, and the one that keeps its rules in tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from squall.actors.process.priority import LINUX, System
from tests.unit.actors.process.test_priority import NOBODY, SENDER, FakeKernel

NO_THREAD = 2**22 + 1
"""Above every id that the kernel gives (pid_max)."""


@dataclass
class Bench:
    """A system, and a thread of its own to change, which then ends."""

    system: System
    thread: ThreadPoolExecutor
    tid: int


@pytest.fixture(params=["linux", "fake"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with ThreadPoolExecutor(1) as thread:
        own = thread.submit(threading.get_native_id).result()
        if request.param == "linux":
            yield Bench(LINUX, thread, own)
        else:
            yield Bench(
                FakeKernel(NOBODY, affinity=set(os.sched_getaffinity(0)) & set(range(8))), thread, SENDER
            )


def test_threads_are_known_by_their_ids_and_0_is_the_caller(bench: Bench) -> None:
    system = bench.system
    assert bench.tid in system.threads()
    assert bench.thread.submit(system.niceness, 0).result() == system.niceness(bench.tid)
    assert bench.thread.submit(system.policy, 0).result() == system.policy(bench.tid)


def test_a_thread_that_is_not_there_is_told(bench: Bench) -> None:
    """It may end between its listing and its question."""
    for call, *values in (
        ("niceness",),
        ("set_niceness", 19),
        ("policy",),
        ("set_policy", os.SCHED_OTHER, 0),
    ):
        with pytest.raises(ProcessLookupError):
            getattr(bench.system, str(call))(NO_THREAD, *values)


def test_a_thread_becomes_nicer_alone(bench: Bench) -> None:
    before = {tid: bench.system.niceness(tid) for tid in bench.system.threads()}
    wanted = min(19, before[bench.tid] + 1)
    bench.system.set_niceness(bench.tid, wanted)
    assert bench.system.niceness(bench.tid) == wanted
    assert all(bench.system.niceness(tid) == now for tid, now in before.items() if tid != bench.tid)


def test_a_policy_is_read_back_without_the_flag_for_children(bench: Bench) -> None:
    bench.system.set_policy(bench.tid, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, 0)
    assert bench.system.policy(bench.tid) == (os.SCHED_OTHER, 0)


def test_cores_are_read_back_and_none_at_all_are_refused(bench: Bench) -> None:
    cores = bench.system.cores(bench.tid)
    one = {min(cores)}
    bench.system.set_cores(bench.tid, one)
    assert bench.system.cores(bench.tid) == one
    with pytest.raises(OSError, match="Invalid argument"):
        bench.system.set_cores(bench.tid, set())
    assert bench.system.cores(bench.tid) == one
