"""Which connection of a server's the lane's calls go on, and how many of them share a write."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest

from squall.actors.load.lane import IS_BUILT
from squall.actors.load.recorder import _RECORD
from squall.actors.net import http2
from tests.unit.actors.load.test_lane_refusals import Bench

pytestmark = pytest.mark.skipif(
    not IS_BUILT, reason="the lane is not built: no C compiler was there at the install"
)
ID = slice(-14, -2)
"""Of a request, without its frames."""
NOW, FOR_EVER = 0, 10**18


class Served(Bench):
    """A lane with two connections, whose other ends this reads and answers; a reply is its id alone."""

    def __init__(self) -> None:
        super().__init__()
        self.lane.know_layout(0, b"", b"", 12, 0)
        self.peers: list[socket.socket] = []
        for _ in range(2):
            self.park_grpc()
            self.peers.append(self.peer())
        self.open: list[list[tuple[int, bytes]]] = [[], []]
        """(stream, id) of each connection's calls."""

    def turn(self) -> list[int]:
        """Lets the lane send what is due; how many calls came on each connection."""
        _, strays = self.lane.turn(time.monotonic_ns() + 1_000_000)
        assert not strays
        counts = []
        for peer, calls in zip(self.peers, self.open, strict=True):
            peer.setblocking(False)
            try:
                data = peer.recv(1 << 16)
            except BlockingIOError:
                data = b""
            new = [one for one in http2.split_frames(data, 16_384) if one.kind == http2.DATA]
            calls += [(one.stream, one.payload[ID]) for one in new]
            counts.append(len(new))
        return counts

    def answer(self, number: int, n: int) -> None:
        """The oldest `n` calls of a connection, in one write."""
        data = b""
        for stream, wire_id in self.open[number][:n]:
            data += http2.frame(http2.HEADERS, http2.END_HEADERS, stream, b"h")
            data += http2.frame(http2.DATA, 0, stream, wire_id)
            data += http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, stream, b"t")
        del self.open[number][:n]
        self.peers[number].sendall(data)

    def send_instants(self) -> list[int]:
        """`sent_ns` of all requests that have ended."""
        self.lane.flush()
        return [
            int(one) for buffer, n in self.filled for one in np.frombuffer(buffer, _RECORD, n)["sent_ns"].tolist()
        ]  # fmt: skip

    def begin_users(self, n: int) -> None:
        self.begin_closed((1, np.arange(n)), (2, n))


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.lane.close()
    served.epoll.close()
    for one in served.sockets:
        one.close()


def test_calls_that_end_on_one_connection_go_on_there_in_one_write(served: Served) -> None:
    served.begin_users(8)
    assert served.turn() == [4, 4]
    for number in (0, 0, 1, 0):
        served.answer(number, 4)
        came = served.turn()
        assert came[number] == 4
        assert sum(came) == 4
    served.answer(0, 4)
    served.answer(1, 4)
    served.turn()
    instants = served.send_instants()
    assert len(instants) == 24
    assert len(set(instants)) == 6  # a write for each time that a connection was answered


def test_both_connections_have_as_many_calls_however_they_end(served: Served) -> None:
    rng = np.random.default_rng(1)
    served.begin_users(8)
    served.turn()
    for _ in range(50):
        for number in (0, 1):
            served.answer(number, int(rng.integers(0, 5)))
        served.turn()
        assert [len(calls) for calls in served.open] == [4, 4]


def test_arrivals_that_are_due_at_once_share_a_write_on_each_connection(served: Served) -> None:
    n = 40
    served.begin_open(n, (0, NOW), (1, np.zeros(n, np.int64)))
    assert served.turn() == [20, 20]
    for number in (0, 1):
        served.answer(number, 20)
    served.turn()
    instants = served.send_instants()
    assert len(instants) == n
    assert len(set(instants)) == 2


def test_arrivals_apart_take_the_connections_in_turn(served: Served) -> None:
    gap_ns = 2_000_000
    served.begin_open(6, (0, time.monotonic_ns()), (1, np.arange(6, dtype=np.int64) * gap_ns))
    took: list[int] = []
    while len(took) < 6:
        came = served.turn()
        took += [number for number, n in enumerate(came) for _ in range(n)]
        for number, calls in enumerate(served.open):
            served.answer(number, len(calls))
    assert sorted(took) == [0, 0, 0, 1, 1, 1]
