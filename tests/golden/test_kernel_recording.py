"""Recording the kernels of real processes in windows, with a CUPTI of known behaviour: what is there, and what is said
of a process that hangs, dies, comes late, loses records or has no CUPTI."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from squall.actors.inject.kernel_ring import KernelRing, RingStatus, recorded_activities
from squall.actors.inject.library import built_library
from squall.actors.spill import read_spill
from squall.cluster.node.injected import kernel_rings
from squall.cluster.node.injected.kernel_recording import KernelRecording
from squall.cluster.node.injected.kernel_rings import KernelRings, records_folder
from squall.cluster.node.injected.kernel_windows import read_windows
from squall.cluster.node.injected.ring_folder import rings_of
from squall.cluster.node.spills import Spills
from squall.scenarios.config.duty import Duty
from tests.kernel_hosts import PATIENCE_S, Built, KernelHost

pytestmark = pytest.mark.skipif(built_library("kernels") is None, reason="the kernel library was not built")

MS, S = 1_000_000, 1_000_000_000
LABELS = {"run": "r", "node": "node-0", "server": "server-0"}
Row = dict[str, Any]


@dataclass
class Server:
    """The folder of a server, its recording, and processes of it."""

    folder: Path
    build: Built
    recording: KernelRecording
    rings: Path
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self, **settings: str) -> KernelHost:
        """A process that has made its first CUDA call."""
        n_before = len(list(self.rings.iterdir()))
        host = self.stack.enter_context(KernelHost(self.build, self.rings, settings))
        assert host.ask("init") == 1
        assert len(list(self.rings.iterdir())) == n_before + 1
        return host

    def record(self, *spans_s: tuple[float, float]) -> None:
        """Whole, in these stretches from now on."""
        now_ns = time.monotonic_ns() + 2 * S  # recording begins 2 s before a phase
        self.recording.record([(now_ns + round(a * S), now_ns + round(b * S)) for a, b in spans_s], "whole")

    def wait_on(self, n: int = 1) -> None:
        """Until `n` processes have answered that they record."""
        wait_until(lambda: sum("recording" in one.status for one in self.known().processes) >= n)

    def known(self) -> Any:
        return read_windows(records_folder(self.folder))

    def told(self) -> list[str]:
        return self.recording.spill(Spills(self.folder, "node-0"), LABELS)

    def rows(self) -> list[Row]:
        """Of table recordings, after `told`."""
        path = Spills(self.folder, "node-0").spill_dir / "recordings-library.arrows"
        if not path.exists():
            return []
        with pa.OSFile(str(path)) as file:
            return [row for table in read_spill(file) for row in table.to_pylist()]

    def kernels(self, host: KernelHost) -> list[tuple[int, int, int]]:
        """(number, start_ns, end_ns) of the kernels of a process that were recorded."""
        paths = [one.path for one in self.known().processes if one.pid == host.pid]
        pieces = [piece for path in paths if path.exists() for piece in recorded_activities(path)]
        return [
            (int(row["correlation_id"]), int(row["start_ns"]), int(row["end_ns"]))
            for piece in pieces
            for row in piece.kernels
        ]


def wait_until(is_so: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def server(kernel_build: Built, tmp_path: Path) -> Iterator[Server]:
    recording = KernelRecording(tmp_path)
    rings = Path(recording.begin(["kernels", "copies"])["SQUALL_KERNELS"])
    found = Server(tmp_path, kernel_build, recording, rings)
    with found.stack:
        yield found
    recording.close(keeps_files=False)
    assert rings_of(tmp_path, "kernels") is None


def test_kernels_of_all_processes_are_recorded_in_a_window_and_none_outside(server: Server) -> None:
    hosts = [server.start(), server.start()]
    for host in hosts:
        host.ask("kernels 10")
    server.record((0, 60))
    server.wait_on(2)
    for host in hosts:
        host.ask("kernels 20")
    server.recording.stop()
    for host in hosts:
        host.ask("kernels 30")
    assert server.told() == []
    (row,) = server.rows()
    assert row["begun_ns"] <= row["start_ns"] < row["end_ns"] <= row["done_ns"]
    assert (row["n_processes"], row["kinds"], row["server"]) == (2, "kernels,copies", "server-0")
    for host in hosts:
        kernels = server.kernels(host)
        assert [number for number, _, _ in kernels] == list(range(10, 30))
        assert all(row["start_ns"] <= start_ns <= end_ns <= row["end_ns"] for _, start_ns, end_ns in kernels)
    facts = server.recording.facts()
    assert (facts.n_windows, facts.recorded_ns) == (1, row["end_ns"] - row["start_ns"])
    assert {one.process for one in facts.processes} == {host.pid for host in hosts}


def test_a_duty_gives_a_window_a_period_at_its_instants(server: Server) -> None:
    host = server.start()
    start_ns = time.monotonic_ns() + 100 * MS
    server.recording.record([(start_ns, start_ns + 600 * MS)], Duty(50 * MS, 200 * MS))
    while time.monotonic_ns() < start_ns + 700 * MS:
        host.ask("kernels 1")
        time.sleep(0.001)
    assert server.told() == []
    rows = server.rows()
    assert len(rows) == 3
    for index, row in enumerate(rows):
        on_ns = start_ns + index * 200 * MS + 75 * MS
        assert on_ns <= row["begun_ns"] <= row["start_ns"]
        assert row["end_ns"] >= on_ns + 50 * MS
    for _, at_ns, end_ns in server.kernels(host):
        assert any(row["begun_ns"] <= at_ns <= end_ns <= row["done_ns"] + MS for row in rows)
    n_within = sum(any(r["start_ns"] <= at < r["end_ns"] for r in rows) for _, at, _ in server.kernels(host))
    assert n_within > 30


def test_a_process_that_does_not_answer_is_told_and_the_others_go_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_rings, "_ANSWER_S", 0.5)
    hangs, lives = server.start(), server.start()
    os.kill(hangs.pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(hangs.pid).status() == psutil.STATUS_STOPPED)
    server.record((0, 60))
    server.wait_on()
    lives.ask("kernels 5")
    server.recording.stop()
    os.kill(hangs.pid, signal.SIGCONT)
    assert server.told() == [
        f"kernels: process {hangs.pid} did not answer within 0.5 s when recording was switched on"
    ]
    (row,) = server.rows()
    assert row["n_processes"] == 1
    assert len(server.kernels(lives)) == 5


def test_a_killed_process_leaves_its_records_and_the_window_ends_at_its_last_flush(server: Server) -> None:
    dies, lives = server.start(), server.start()
    server.record((0, 60))
    server.wait_on(2)
    dies.ask("kernels 7")
    time.sleep(0.5)  # two flushes of the library
    killed_ns = time.monotonic_ns()
    dies.kill()
    lives.ask("kernels 5")
    assert server.told() == [
        f"kernels: process {dies.pid} is gone when recording was switched off",
    ]
    (row,) = server.rows()
    assert row["start_ns"] < row["end_ns"] < killed_ns < row["done_ns"]
    assert len(server.kernels(dies)) == 7
    assert len(server.kernels(lives)) == 5


def test_a_process_that_begins_within_a_window_ends_it_and_begins_another(server: Server) -> None:
    first = server.start()
    server.record((0, 60))
    server.wait_on()
    first.ask("kernels 3")
    begun_ns = time.monotonic_ns()
    second = server.start()
    server.wait_on(2)
    second.ask("kernels 4")
    assert server.told() == []
    one, two = server.rows()
    assert one["start_ns"] < begun_ns < one["end_ns"] < two["start_ns"] < two["end_ns"]
    assert one["done_ns"] == two["begun_ns"]
    assert (one["n_processes"], two["n_processes"]) == (1, 2)
    assert all(two["start_ns"] <= at_ns < two["end_ns"] for _, at_ns, _ in server.kernels(second))
    assert len(server.kernels(second)) == 4


def test_a_window_that_lost_records_counts_as_not_recorded(server: Server) -> None:
    host = server.start(SQUALL_KERNEL_RING_BYTES="8192")
    server.record((0, 60))
    server.wait_on()
    host.ask("kernels 100000")
    told = server.told()
    assert len(told) == 2
    assert "are lost: these count as not recorded" in told[0]
    assert "found no room in its ring" in told[1]
    assert server.recording.facts().n_outside > 0, "which is all of it"
    (row,) = server.rows()
    assert row["begun_ns"] < row["start_ns"] == row["end_ns"] < row["done_ns"]


def test_without_a_cupti_there_is_no_window_and_its_status_says_why(server: Server) -> None:
    host = server.start(SQUALL_CUPTI="/nowhere/libcupti.so")
    server.record((0, 0.1))
    host.ask("kernels 5")
    wait_until(lambda: any("no cupti" in one.status for one in server.known().processes))
    assert server.told() == []
    assert server.rows() == []
    (process,) = server.recording.facts().processes
    assert "kernels no cupti (" in process.status


def test_a_window_that_is_over_when_it_is_asked_for_is_told(server: Server) -> None:
    now_ns = time.monotonic_ns()
    server.recording.record([(now_ns - 2 * S, now_ns - S)], Duty(500 * MS, S))
    wait_until(server.told)
    assert server.told() == ["kernels: a window was over before recording could be switched on for it"]


def test_what_an_agent_that_died_had_not_taken_is_taken_by_who_comes_after(server: Server) -> None:
    host = server.start()
    server.record((0, 60))
    server.wait_on()
    host.ask("kernels 5")
    server.recording.stop()
    # the agent has not spilled; its folder is adopted, and the ring has more by then
    host.kill()
    after = KernelRecording(server.folder)
    assert after.spill(Spills(server.folder, "node-0"), LABELS) == []
    (row,) = server.rows()
    assert row["n_processes"] == 1
    assert len(server.kernels(host)) == 5
    assert after.facts().n_windows == 1


def test_a_recording_that_was_on_when_its_agent_died_keeps_its_records_and_no_stretch(server: Server) -> None:
    host = server.start()
    server.record((0, 60))
    server.wait_on()
    host.ask("kernels 5")
    wait_until(lambda: server.kernels(host))
    folder = records_folder(server.folder)
    died = {path.name: path.read_bytes() for path in folder.iterdir()}  # as its disk is while it is on
    host.ask("kernels 6")
    server.recording.stop()
    host.kill()
    for path in folder.iterdir():
        path.write_bytes(died[path.name] + (b"cut" if path.suffix == ".records" else b'{"windows": ['))
    after = KernelRecording(server.folder)
    (told,) = after.spill(Spills(server.folder, "node-0"), LABELS)
    assert "recording was on when its agent died" in told
    assert after.facts().n_outside >= 5, "which is all of it"
    (row,) = server.rows()
    assert row["start_ns"] == row["end_ns"] <= row["done_ns"]
    assert [number for number, _, _ in server.kernels(host)][:5] == list(range(5))


def test_a_fault_of_the_reader_is_told_and_leaves_no_process_recording(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start()
    (path,) = server.rings.glob("*.ring")
    ring = KernelRing(path)
    server.record((0, 60))
    server.wait_on()

    def fails(_: KernelRings) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(KernelRings, "look", fails)
    wait_until(lambda: ring.state.status is RingStatus.READY)
    ring.close()
    assert server.told() == ["kernels: recording ended: RuntimeError: a fault"]
    assert len(server.rows()) == 1
