from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from squall.actors.clock import SystemClock
from squall.actors.sampling.threads import Family, ThreadSource
from squall.analysis.storage.schema import arrow_schema

PR_SET_NAME = 15
MS = 1_000_000


class NamedThreads:
    """Threads of this process under names of their own; all end with it."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self._threads: list[threading.Thread] = []

    def run(self, name: str, work: Callable[[], object]) -> None:
        """Returns when the thread has its name."""
        is_named = threading.Event()

        def named() -> None:
            ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())
            is_named.set()
            work()

        self._threads.append(threading.Thread(target=named, daemon=True))
        self._threads[-1].start()
        assert is_named.wait(20)

    def join(self) -> None:
        """Returns when the kernel has none of them any more, a little after Python."""
        self.end.set()
        for thread in self._threads:
            thread.join(20)
            while os.path.exists(f"/proc/self/task/{thread.native_id}"):
                pass


@pytest.fixture
def threads() -> Iterator[NamedThreads]:
    threads = NamedThreads()
    yield threads
    threads.join()


def spin_for_cpu_ms(cpu_ms: int, done: threading.Event) -> Callable[[], None]:
    def spin() -> None:
        end_ns = time.thread_time_ns() + cpu_ms * MS
        while time.thread_time_ns() < end_ns:
            pass
        done.set()

    return spin


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["thread_name"]: row for row in rows}


def test_a_thread_that_spins_and_one_that_waits_are_told_apart_by_name(threads: NamedThreads) -> None:
    go, is_spun = threading.Event(), threading.Event()

    def spin_then_wait() -> None:
        go.wait(20)
        spin_for_cpu_ms(80, is_spun)()
        threads.end.wait(20)

    def wait_often() -> None:
        while not threads.end.wait(0.002):
            pass

    threads.run("spins", spin_then_wait)
    threads.run("waits", wait_often)
    threads.run("sleeps", lambda: threads.end.wait(20))
    source = ThreadSource(lambda: [os.getpid()])
    assert source.sample(0) == []
    go.set()
    assert is_spun.wait(20)
    found = by_name(source.sample(10**9))
    spins, waits = found["spins"], found["waits"]
    assert spins["cpu_ns"] >= 80 * MS
    assert spins["cpu_user_ns"] + spins["cpu_system_ns"] >= 60 * MS  # whole ticks of 10 ms, each of the two
    assert waits["cpu_ns"] < spins["cpu_ns"] / 4
    assert waits["voluntary_switches"] >= 3
    assert waits["state"] in "SRD"
    assert "sleeps" not in by_name(source.sample(2 * 10**9))
    assert spins["process"] == os.getpid()
    assert spins["process_name"] == Path("/proc/self/comm").read_text().strip()
    assert set(arrow_schema("thread_samples").names) <= {*spins, "run", "phase", "node", "server"}


def test_a_thread_that_ended_leaves_its_cpu_time_to_the_processs_total(threads: NamedThreads) -> None:
    source = ThreadSource(lambda: [os.getpid()])
    source.sample(0)
    is_spun = threading.Event()
    threads.run("ends", spin_for_cpu_ms(60, is_spun))
    assert is_spun.wait(20)
    threads.join()
    rows = source.sample(10**9)
    assert "ends" not in by_name(rows)
    facts = source.facts()
    assert facts["unattributed_cpu_ns"] >= 50 * MS  # threads and process are read some ms of own CPU apart
    assert facts["process_cpu_ns"] >= facts["unattributed_cpu_ns"]


def test_a_thread_that_came_in_the_interval_has_all_of_its_cpu_time(threads: NamedThreads) -> None:
    source = ThreadSource(lambda: [os.getpid()])
    source.sample(0)
    is_spun = threading.Event()

    def spin_then_wait() -> None:
        spin_for_cpu_ms(40, is_spun)()
        threads.end.wait(20)

    threads.run("comes", spin_then_wait)
    assert is_spun.wait(20)
    row = by_name(source.sample(10**9))["comes"]
    assert row["cpu_ns"] >= 40 * MS
    assert source.facts()["unattributed_cpu_ns"] < 40 * MS


def write_thread(root: Path, pid: int, tid: int, cpu_ns: int, ticks: int, switches: int) -> None:
    folder = root / str(pid) / "task" / str(tid)
    folder.mkdir(parents=True, exist_ok=True)
    (root / str(pid) / "comm").write_text("triton\n")
    (folder / "schedstat").write_text(f"{cpu_ns} {cpu_ns // 10} {switches}\n")
    after = " ".join(["0"] * 10)
    (folder / "stat").write_text(f"{tid} (a (b) c) S {after} {ticks} {2 * ticks} 0 0\n")
    (folder / "status").write_text(
        f"Name:\ta\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t{2 * switches}\n"
    )


def test_a_row_is_the_difference_of_the_kernels_counts(tmp_path: Path) -> None:
    write_thread(tmp_path, 5, 6, 1_000, 1, 10)
    source = ThreadSource(lambda: [5], str(tmp_path))
    assert source.sample(0) == []
    write_thread(tmp_path, 5, 6, 51_000, 4, 13)
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    (row,) = source.sample(100)
    assert row == {
        "process": 5, "process_name": "triton", "thread": 6, "thread_name": "a (b) c", "state": "S", "t_ns": 100,
        "interval_ns": 100, "cpu_ns": 50_000, "run_delay_ns": 5_000, "cpu_user_ns": 3 * tick_ns,
        "cpu_system_ns": 6 * tick_ns, "voluntary_switches": 3, "involuntary_switches": 6,
    }  # fmt: skip
    assert source.sample(200) == [], "it did nothing since"


def test_an_id_that_another_thread_has_now_counts_from_zero(tmp_path: Path) -> None:
    write_thread(tmp_path, 5, 6, 1_000_000, 50, 10)
    source = ThreadSource(lambda: [5], str(tmp_path))
    source.sample(0)
    write_thread(tmp_path, 5, 6, 3_000, 0, 2)
    (row,) = source.sample(100)
    assert (row["cpu_ns"], row["voluntary_switches"]) == (3_000, 2)


def test_without_schedstat_the_ticks_tell_of_another_thread(tmp_path: Path) -> None:
    for ticks in (9, 2):
        write_thread(tmp_path, 5, 6, 0, ticks, 10)
        (tmp_path / "5/task/6/schedstat").unlink()
        if ticks == 9:
            source = ThreadSource(lambda: [5], str(tmp_path))
            source.sample(0)
    (row,) = source.sample(100)
    assert row["cpu_user_ns"] == 2 * 10**9 // os.sysconf("SC_CLK_TCK")


TWO_THREADS = """
import sys, threading
end = threading.Event()
threads = [threading.Thread(target=end.wait) for _ in range(2)]
for one in threads:
    one.start()
print(flush=True)
sys.stdin.readline()
end.set()
sys.stdin.readline()
"""


@pytest.mark.parametrize("most", [512, 1])
def test_the_files_of_threads_are_kept_open_and_freed_with_them(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Of a process whose threads nobody else begins or ends."""
    monkeypatch.setattr("squall.actors.sampling.threads._MOST_OPEN", most)
    command = [sys.executable, "-S", "-c", TWO_THREADS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        tasks = f"/proc/{process.pid}/task"

        def n_open() -> int:
            links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
            return sum(os.path.realpath(link).startswith(f"{tasks}/") for link in links)

        process.stdout.readline()
        source = ThreadSource(lambda: [process.pid])
        source.sample(0)
        assert n_open() == min(most, 3)
        source.sample(1)
        process.stdin.write("\n")
        process.stdin.flush()
        while len(os.listdir(tasks)) > 1:
            pass
        source.sample(3)
        assert n_open() <= 1
        assert source.facts()["n_threads_ended"] == 2
        source.close()
        assert n_open() == 0
        process.stdin.close()


def test_without_schedstat_the_ticks_are_there_and_the_rest_is_null(tmp_path: Path) -> None:
    for ticks in (1, 3):
        write_thread(tmp_path, 5, 6, 0, ticks, 10)
        (tmp_path / "5/task/6/schedstat").unlink()
        if ticks == 1:
            source = ThreadSource(lambda: [5], str(tmp_path))
            source.sample(0)
    (row,) = source.sample(100)
    assert (row["cpu_ns"], row["run_delay_ns"]) == (None, None)
    assert row["cpu_user_ns"] == 2 * 10**9 // os.sysconf("SC_CLK_TCK")
    assert not source.facts()["has_schedstat"]


def test_processes_that_come_and_end_are_no_error_and_give_no_row_of_what_was_before(tmp_path: Path) -> None:
    pids = [5, 7]
    write_thread(tmp_path, 5, 6, 1_000, 1, 10)
    source = ThreadSource(lambda: pids, str(tmp_path))
    assert source.sample(0) == []
    write_thread(tmp_path, 7, 8, 9_000_000, 1, 10)
    assert source.sample(1) == []
    (tmp_path / "5/task/6/schedstat").write_text("")  # as the kernel's, which is gone though it is open
    (tmp_path / "5").rename(tmp_path / "gone")
    write_thread(tmp_path, 7, 8, 9_500_000, 1, 11)
    (row,) = source.sample(2)
    assert (row["process"], row["cpu_ns"]) == (7, 500_000)
    assert source.facts()["n_threads_ended"] == 1


def test_the_family_of_a_process_is_its_living_descendants() -> None:
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        pytest.skip("the kernel lists no children: built without CONFIG_PROC_CHILDREN")
    code = "import subprocess, sys; subprocess.run(['cat'], stdin=sys.stdin)"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    clock = SystemClock()
    try:
        end = time.monotonic() + 20
        while len(found := Family([child.pid], clock).pids()) < 2 and time.monotonic() < end:
            pass
        assert len(found) == 2
        assert child.pid in found
        assert set(found) < set(Family([os.getpid()], clock).pids())
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    assert Family([child.pid], clock).pids() == ()


class StillClock:
    at_ns = 0

    def monotonic_ns(self) -> int:
        return self.at_ns


def test_the_family_is_looked_up_every_five_seconds_and_at_once_for_other_roots(tmp_path: Path) -> None:
    clock = StillClock()
    for pid in (5, 7):
        write_thread(tmp_path, pid, pid, 0, 0, 0)
    children = tmp_path / "5/task/5/children"
    family = Family([5], clock, str(tmp_path))
    assert family.pids() == (5,)
    children.write_text("7 ")
    clock.at_ns = 4_999_999_999
    assert family.pids() == (5,)
    clock.at_ns += 1
    assert family.pids() == (5, 7)
    family.set_roots([7])
    assert family.pids() == (7,)
