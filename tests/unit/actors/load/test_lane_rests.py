"""A request that a socket does not take at once stays in the lane, which writes the rest as the other end reads."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from squall.actors.load.lane import IS_BUILT, Flight, Stray
from squall.actors.load.recorder import _RECORD
from squall.actors.net import http2
from squall.models.payload import ID_DIGITS, encode_id
from tests.unit.actors.load.test_lane_refusals import HEAD, Bench

pytestmark = pytest.mark.skipif(
    not IS_BUILT, reason="the lane is not built: no C compiler was there at the install"
)
MIB = 1 << 20
TAIL = np.random.default_rng(1).bytes(MIB)
SMALL_TAIL = b'"}'
WIDE = 1 << 30
HTTP_HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def request(token: int, tail: bytes = TAIL) -> bytes:
    return HEAD + encode_id(token) + tail


class Reader(Bench):
    """A lane with one connection whose other end reads as it likes; template 0 is small, 1 has a tail of 1 MiB; a
    reply is the request's id alone."""

    def __init__(self, wire: str) -> None:
        super().__init__()
        self.wire = wire
        assert self.lane.add_template(HEAD, TAIL, 1, len(HEAD) + ID_DIGITS + MIB, 0, 0, 0) == 1
        self.lane.know_layout(0, b"", b"", ID_DIGITS, ID_DIGITS if wire == "http" else 0)
        self.lane.know_head(HTTP_HEAD, ID_DIGITS, ID_DIGITS, 0)
        if wire == "grpc":
            self.fd = self.park_grpc((5, (1, WIDE, 0, 0)), (6, WIDE))
        else:
            self.fd = self.fresh()
            self.lane.park_http(self.fd, self, 0)
        self.peer().setblocking(False)
        self.came = bytearray()

    def begin(self, *templates: int) -> None:
        """An arrival of each, all of them due."""
        n = len(templates)
        self.begin_open(n, (0, 0), (1, np.zeros(n, np.int64)), (4, np.array(templates, np.int32)))

    def turn(self) -> list[Stray]:
        _, strays = self.lane.turn(time.monotonic_ns())
        return [Stray._make(one) for one in strays]

    def read(self, n_bytes: int) -> int:
        """At most so many bytes of what has come; how many."""
        try:
            data = self.peer().recv(n_bytes)
        except BlockingIOError:
            return 0
        self.came += data
        return len(data)

    def read_all(self, piece_bytes: int = 1 << 16) -> None:
        """All that the lane has to write, in small pieces; nothing of it strays."""
        n_idle = 0
        while n_idle < 3:
            assert not self.turn()
            n_idle = 0 if self.read(piece_bytes) else n_idle + 1

    def frames(self) -> list[http2.Frame]:
        return list(http2.split_frames(bytes(self.came), 16_384))

    def messages(self) -> dict[int, bytes]:
        """What came of each stream's request, and that it is whole."""
        out: dict[int, bytes] = {}
        ended = []
        for frame in self.frames():
            if frame.kind == http2.DATA:
                out[frame.stream] = out.get(frame.stream, b"") + frame.payload
                ended += [frame.stream] if frame.flags & http2.END_STREAM else []
        assert ended == sorted(out)
        return out

    def answer(self, token: int, stream: int = 1) -> None:
        wire_id = encode_id(token)
        if self.wire == "http":
            self.peer().sendall(HTTP_HEAD + wire_id)
            return
        self.peer().sendall(
            http2.frame(http2.HEADERS, http2.END_HEADERS, stream, b"h")
            + http2.frame(http2.DATA, 0, stream, wire_id)
            + http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, stream, b"t")
        )

    def records(self) -> Any:
        self.lane.flush()
        return np.concatenate([np.frombuffer(buffer, _RECORD, n) for buffer, n in self.filled])

    def watched(self) -> int:
        """The events for which its descriptor is watched, as the kernel tells while there is room."""
        return dict(self.epoll.poll(0)).get(self.fd, 0)


@pytest.fixture(params=("http", "grpc"))
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    yield from opened(request.param)


@pytest.fixture
def grpc() -> Iterator[Reader]:
    yield from opened("grpc")


def opened(wire: str) -> Iterator[Reader]:
    reader = Reader(wire)
    yield reader
    reader.lane.close()
    reader.epoll.close()
    for one in reader.sockets:
        one.close()


def test_a_receiver_that_reads_slowly_gets_the_whole_request_and_its_reply_is_recorded(
    reader: Reader,
) -> None:
    reader.begin(1)
    before_ns = time.monotonic_ns()
    assert not reader.turn()
    after_ns = time.monotonic_ns()
    assert reader.lane.counts()[4] == 1  # a pause
    reader.read_all(10_000)
    got = bytes(reader.came) if reader.wire == "http" else reader.messages()[1]
    assert got == request(0)
    reader.answer(0)
    assert not reader.turn()
    (record,) = reader.records()
    assert before_ns < record["sent_ns"] < after_ns  # when its first bytes were written, not its last
    assert record["sent_ns"] < record["first_byte_ns"] <= record["done_ns"]
    assert record["request_bytes"] == len(request(0))
    assert not reader.watched() & select.EPOLLOUT


def test_a_connection_that_ends_in_the_middle_comes_back_with_its_request(reader: Reader) -> None:
    reader.begin(1)
    assert not reader.turn()
    reader.read(100_000)
    reader.peer().close()
    (stray,) = reader.turn()
    (flight,) = map(Flight._make, stray.flights)
    assert (stray.lost >= 0, flight.token, flight.has_head) == (True, 0, 0)
    assert flight.sent_ns > 0


def test_what_python_takes_back_in_the_middle_is_what_the_other_end_lacks(reader: Reader) -> None:
    reader.begin(1)
    assert not reader.turn()
    for n_bytes in (1, 70_000, 12_345):
        reader.read(n_bytes)
        assert not reader.turn()
    (stray,) = map(Stray._make, reader.lane.reclaim(reader.fd))
    assert stray.lost == -1
    assert len(stray.unsent) > MIB // 4
    while reader.read(1 << 16):
        pass
    assert not reader.watched()  # for writing no more
    reader.came += stray.unsent
    assert (bytes(reader.came) if reader.wire == "http" else reader.messages()[1]) == request(0)


def test_an_answer_before_the_request_is_wholly_sent_is_pythons() -> None:
    """Over HTTP, where its connection cannot go on; over gRPC each stream is answered by itself."""
    for reader in opened("http"):
        reader.begin(1)
        assert not reader.turn()
        reader.answer(0)
        (stray,) = reader.turn()
        assert stray.data == HTTP_HEAD + encode_id(0)
        assert stray.unsent


def test_other_calls_of_the_connection_are_answered_while_a_long_one_waits(grpc: Reader) -> None:
    grpc.begin(0, 1, 0)
    assert not grpc.turn()
    grpc.answer(0, 1)
    assert not grpc.turn()
    assert grpc.records()["request_id"].tolist() == [0]
    grpc.peer().sendall(http2.frame(http2.PING, 0, 0, b"8 bytes!"))
    grpc.read_all()
    assert grpc.messages() == {1: request(0, SMALL_TAIL), 3: request(1), 5: request(2, SMALL_TAIL)}
    assert [(one.flags, one.payload) for one in grpc.frames() if one.kind == http2.PING] == [
        (http2.ACK, b"8 bytes!")
    ]
    grpc.answer(2, 5)
    grpc.answer(1, 3)
    assert not grpc.turn()
    assert sorted(grpc.records()["request_id"]) == [0, 1, 2]


def test_a_connection_that_is_never_empty_sends_each_request_whole_and_in_order(grpc: Reader) -> None:
    """What was written is dropped from the queue meanwhile, at places that have nothing to do with the pieces."""
    templates = np.random.default_rng(3).integers(0, 2, 24)
    grpc.begin(*templates.tolist())
    grpc.read_all(33_333)
    tails = [TAIL if number else SMALL_TAIL for number in templates]
    assert grpc.messages() == {2 * i + 1: request(i, tail) for i, tail in enumerate(tails)}


def test_a_call_above_the_window_is_pythons_and_those_within_it_go_on(grpc: Reader) -> None:
    fd = grpc.park_grpc((5, (1, MIB + 100_000, 0, 0)), (6, WIDE))
    peer = grpc.peer()
    (stray,) = map(Stray._make, grpc.lane.reclaim(grpc.fd))  # the wide one
    assert not stray.flights
    grpc.fd = fd
    peer.setblocking(False)
    grpc.begin(1, 1)
    grpc.read_all()
    assert grpc.messages() == {1: request(0)}
    assert grpc.lane.stuck_ns == 0
    peer.sendall(http2.window_update(0, MIB))
    assert not grpc.turn()
    (again,) = map(Stray._make, grpc.lane.reclaim(fd))
    next_stream, window, _, _ = again.state
    assert (next_stream, window) == (3, 2 * MIB + 100_000 - len(request(0)))


def test_a_descriptor_that_nobody_watches_goes_to_python_with_the_rest() -> None:
    for reader in opened("http"):
        reader.epoll.unregister(reader.fd)
        reader.begin(1)
        (stray,) = reader.turn()
        while reader.read(1 << 16):
            pass
        assert bytes(reader.came) + stray.unsent == request(0)


def test_small_requests_leave_nothing_to_write(reader: Reader) -> None:
    reader.begin(0)
    assert not reader.turn()
    assert reader.lane.counts()[4] == 0
    (stray,) = map(Stray._make, reader.lane.reclaim(reader.fd))
    assert stray.unsent == b""


def test_what_python_left_goes_before_what_the_lane_sends() -> None:
    for reader in opened("grpc"):
        (stray,) = map(Stray._make, reader.lane.reclaim(reader.fd))
        assert not stray.unsent
        left = http2.frame(http2.PING, http2.ACK, 0, b"8 bytes!") * 200_000
        reader.lane.park_grpc(
            reader.fd, reader, b"block", [b"h"], [b"t"], (1, WIDE, 0, 0), WIDE, 16_384, 9, 0, left
        )
        reader.begin(1)
        reader.read_all()
        assert reader.came.startswith(left)
        del reader.came[: len(left)]
        assert reader.messages() == {1: request(0)}
