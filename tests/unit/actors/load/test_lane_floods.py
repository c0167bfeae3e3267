"""Frames that no request asked for: the lane answers so many, then the connection is Python's, which ends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from squall.actors.load.lane import IS_BUILT
from squall.actors.net import http2
from tests.unit.actors.load.test_lane_rests import Reader, opened

pytestmark = pytest.mark.skipif(
    not IS_BUILT, reason="the lane is not built: no C compiler was there at the install"
)
PING = http2.frame(http2.PING, 0, 0, b"8 bytes!")


@pytest.fixture
def grpc() -> Iterator[Reader]:
    yield from opened("grpc")


def sent(grpc: Reader, data: bytes) -> None:
    """All of it, in pieces that the lane reads one by one."""
    for place in range(0, len(data), 8_192):
        grpc.peer().sendall(data[place : place + 8_192])
        assert not grpc.turn()


@pytest.mark.parametrize(
    "frame",
    [PING, http2.window_update(0, 1), http2.window_update(1, 1)],
    ids=["ping", "window of the connection", "window of a call"],
)
def test_a_flood_becomes_pythons_and_the_rest_of_it_is_not_answered(grpc: Reader, frame: bytes) -> None:
    grpc.begin(0)
    assert not grpc.turn()
    sent(grpc, 1_004 * frame)  # a call allows 4 besides
    grpc.peer().sendall(5 * frame)
    (stray,) = grpc.turn()
    assert stray.data == 5 * frame
    assert stray.state[3] == 1_001


def test_a_flood_of_empty_data_becomes_pythons(grpc: Reader) -> None:
    grpc.begin(0)
    assert not grpc.turn()
    start = http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"h") + http2.frame(http2.DATA, 0, 1, b"0" * 12)
    sent(grpc, start + 1_002 * http2.frame(http2.DATA, 0, 1))
    grpc.peer().sendall(http2.frame(http2.DATA, 0, 1))
    (stray,) = grpc.turn()
    assert stray.state[3] == 1_001


def test_frames_are_counted_anew_once_a_call_goes_on(grpc: Reader) -> None:
    grpc.begin(*[0] * 20)
    assert not grpc.turn()
    for token in range(20):
        sent(grpc, 900 * PING)
        grpc.answer(token, 2 * token + 1)
        assert not grpc.turn()
        grpc.read(1 << 20)
    assert sorted(grpc.records()["request_id"]) == list(range(20))


def test_a_long_request_may_be_told_of_in_many_small_windows(grpc: Reader) -> None:
    grpc.begin(1)
    grpc.read_all()
    sent(grpc, 2_000 * http2.window_update(1, 512))


def test_answers_that_are_not_read_are_limited_whatever_comes_between(grpc: Reader) -> None:
    n = 100
    grpc.begin(*[0] * n)
    strays = grpc.turn()
    for token in range(n):
        for _ in range(3):
            grpc.peer().sendall(300 * PING)
            strays = strays or grpc.turn()
        if strays:
            break
        grpc.answer(token, 2 * token + 1)
        strays = grpc.turn()
    (stray,) = strays
    assert stray.data.startswith(PING)
    assert len(stray.unsent) <= 17 * 65_536 + 1_000


def test_what_was_counted_goes_with_the_connection(grpc: Reader) -> None:
    fd = grpc.park_grpc((5, (1, 65_535, 0, 900)))
    peer = grpc.peer()
    peer.sendall(100 * PING)
    assert not grpc.turn()
    peer.sendall(PING)
    (stray,) = grpc.turn()
    assert stray.state[3] == 1_001
    assert fd != grpc.fd
