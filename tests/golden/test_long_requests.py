"""Requests of 1 MiB and more, which a socket may not take at once: what was written, and who writes the rest."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.lane import IS_BUILT
from squall.actors.load.worker import LoadWorker
from squall.actors.net.loop import Loop
from squall.actors.net.stream import Address, Route, SocketStream
from squall.models.spec import ModelSpec, TensorSpec
from tests.bench.engine import closed_plan
from tests.fakes_grpc import StubGrpc
from tests.golden.driving import (
    MS,
    REPLY_BYTES,
    S,
    assert_one_row_each,
    column,
    numbers,
    plan_of,
    requests_of,
    run_worker,
    settings_of,
)  # fmt: skip
from tests.null_process import NullProcess, null_spec

MIB = 1 << 20
NUMBERS = MIB // 4
SPEC = ModelSpec(
    "stub", "1", (TensorSpec("INPUT", "FP32", (NUMBERS,)),), (TensorSpec("OUTPUT", "FP32", (2,)),), 8
)
PROTOCOLS = ("http", "grpc")


class Owner:
    """Notes what its socket tells."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_connected(self) -> None:
        self.told.append("connected")

    def on_data(self, data: bytes) -> None:
        self.told.append(f"{len(data)} bytes")

    def on_drained(self) -> None:
        self.told.append("drained")

    def on_lost(self, why: str) -> None:
        self.told.append(why)


class Line:
    """A connected stream and its other end."""

    def __init__(self, loop: Loop, listener: socket.socket) -> None:
        self.owner = Owner()
        self.loop = loop
        self.stream = SocketStream(loop, Route(Address.resolve_all(*listener.getsockname())[0]), self.owner)
        self.peer, _ = listener.accept()
        self.peer.setblocking(False)
        self.came = bytearray()
        self.turn_until("connected")

    def turn_until(self, word: str, n_read_bytes: int = 0) -> None:
        """Handles events, and reads at the other end, until the owner was told `word`."""
        for _ in range(10_000):
            if word in self.owner.told:
                return
            for fd, events in self.loop.wait(time.monotonic_ns() + MS):
                self.loop.handlers[fd](events)
            if n_read_bytes and select.select([self.peer], [], [], 0)[0]:
                self.came += self.peer.recv(n_read_bytes)
        raise AssertionError(self.owner.told)

    def read_the_rest(self) -> None:
        while select.select([self.peer], [], [], 0.05)[0]:
            self.came += self.peer.recv(MIB)


@pytest.fixture
def line() -> Iterator[Line]:
    loop = Loop(SystemClock())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = Line(loop, listener)
        yield line
        line.stream.close()
        line.peer.close()
    loop.close()


def test_pieces_reach_a_slow_reader_whole_and_in_order(line: Line) -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(0, 60_000, 700)  # 20 MiB in more pieces than a system call writes
    parts = [rng.bytes(int(n)) for n in sizes]
    assert not line.stream.write_parts(parts)
    assert not line.stream.write(b"after them")
    line.turn_until("drained", n_read_bytes=777_777)
    line.read_the_rest()
    assert bytes(line.came) == b"".join(parts) + b"after them"
    assert line.stream.write_parts([b"again", b"", b"!"])
    assert not line.stream.has_unsent


def test_what_is_handed_over_is_what_the_other_end_lacks(line: Line) -> None:
    parts = [bytes([i]) * 100_000 for i in range(200)]
    assert not line.stream.write_parts(parts)
    assert line.stream.hand_over(1_000) is None
    rest = line.stream.hand_over(1 << 30)
    assert rest
    assert not line.stream.has_unsent
    line.read_the_rest()
    assert bytes(line.came) + rest == b"".join(parts)
    line.stream.defer(rest)
    line.turn_until("drained", n_read_bytes=MIB)
    line.read_the_rest()
    assert bytes(line.came) == b"".join(parts)


@pytest.mark.parametrize("way", ["at once", "in pieces"])
def test_nothing_of_a_connection_that_broke_is_handed_over(way: str, line: Line) -> None:
    line.stream._sock.shutdown(socket.SHUT_WR)
    is_out = line.stream.write(b"one") if way == "at once" else line.stream.write_parts([b"o", b"ne"])
    assert not is_out
    assert line.stream.hand_over(1 << 30) is None
    line.turn_until("Broken pipe")


@pytest.mark.skipif(not IS_BUILT, reason="the lane is not built: no C compiler was there at the install")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_long_requests_stay_in_the_lane(protocol: str, tmp_path: Path) -> None:
    """So many at a time that a connection of gRPC always has something to write."""
    n_users = 32
    with NullProcess(f"--width={NUMBERS}") as null:
        settings = settings_of(
            tmp_path, null.ports[protocol], Rules(30 * S), n_users if protocol == "http" else 2,
            null_spec(NUMBERS), protocol,
        )  # fmt: skip
        worker = LoadWorker(settings, SystemClock())
        worker.prepare(closed_plan(n_users, 1.0, 1))
        worker.run(SystemClock().monotonic_ns() + 30 * MS)
    rows = requests_of(settings)
    assert set(column(rows, "outcome")) == {"ok"}
    assert min(numbers(rows, "request_bytes")) > MIB
    assert worker._lane is not None
    assert worker._lane.n_done > (rows.num_rows - n_users) // 2  # the first replies are Python's
    assert worker._lane.n_done > n_users // 2


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_dies_while_requests_are_written_leaves_a_row_of_each(
    protocol: str, tmp_path: Path
) -> None:
    plan = plan_of([i * 5 * MS for i in range(300)], 120 * S)
    with NullProcess(f"--width={NUMBERS}") as null:
        settings = settings_of(tmp_path, null.ports[protocol], Rules(60 * S), 2, null_spec(NUMBERS), protocol)
        rows = run_worker(settings, plan, meanwhile=lambda worker: _kill_within(worker, null))
    assert_one_row_each(rows, plan)
    assert "transport_error" in column(rows, "outcome")
    assert set(column(rows, "outcome")) <= {"ok", "transport_error"}


def _kill_within(worker: LoadWorker, null: NullProcess) -> None:
    """When it has sent some."""
    until_ns = time.monotonic_ns() + 5 * S
    while worker.n_issued() < 30 and time.monotonic_ns() < until_ns:
        time.sleep(0.01)
    null.kill()


@pytest.mark.usefixtures("way")
def test_windows_that_are_used_up_and_opened_again_let_several_long_calls_through(tmp_path: Path) -> None:
    plan = plan_of([i * 5 * MS for i in range(8)], 20 * S)
    with StubGrpc(tensor_bytes=REPLY_BYTES, stream_window_bytes=300_000, refill_s=0.0) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, spec=SPEC, protocol="grpc"), plan)
    assert column(rows, "outcome") == ["ok"] * 8
    assert stub.seen.faults == []
