"""The connection pool against sockets that the test itself holds: what happens on the wire, step by step."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.http_client import HttpClient, HttpExchange
from squall.actors.net.loop import Loop
from squall.actors.net.stream import Address, Route

OK_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Ends:
    """How each token ended, in order."""

    replies: list[tuple[int, int, bytes]] = field(default_factory=list)
    failures: list[tuple[int, str]] = field(default_factory=list)
    instants: list[tuple[int, int, int]] = field(default_factory=list)

    def on_reply(self, exchange: HttpExchange) -> None:
        self.replies.append((exchange.token, exchange.status, exchange.body))
        self.instants.append((exchange.sent_ns, exchange.first_ns, exchange.done_ns))

    def on_failure(self, token: int, sent_ns: int, first_ns: int, why: str) -> None:
        del sent_ns, first_ns
        self.failures.append((token, why))


def turn(loop: Loop, s: float) -> None:
    """Lets the loop run for `s` seconds."""
    loop.run_until(lambda: False, time.monotonic_ns() + round(s * 1e9))


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop(SystemClock())
    yield loop
    loop.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@dataclass
class Bench:
    client: HttpClient
    ends: Ends
    loop: Loop
    listener: socket.socket

    def accept(self) -> socket.socket:
        peer, _ = self.listener.accept()
        peer.settimeout(10)
        return peer

    def turn(self, s: float = 0.02) -> None:
        turn(self.loop, s)

    def open(self) -> None:
        self.client.open(1, time.monotonic_ns() + 10 * 10**9)

    def turn_until(self, n_ends: int) -> None:
        for _ in range(500):
            if len(self.ends.replies) + len(self.ends.failures) >= n_ends:
                return
            self.turn(0.01)
        raise AssertionError(f"{n_ends} requests did not end: {self.ends}")


@pytest.fixture
def bench(loop: Loop, listener: socket.socket) -> Iterator[Bench]:
    ends = Ends()
    route = Route(Address.resolve_all(*listener.getsockname())[0])
    client = HttpClient(loop, SystemClock(), route, ends.on_reply, ends.on_failure)
    yield Bench(client, ends, loop, listener)
    client.close()


def is_readable(peer: socket.socket, timeout_s: float = 0) -> bool:
    return bool(select.select([peer], [], [], timeout_s)[0])


def test_a_request_is_on_the_wire_when_send_returns_and_not_a_loop_turn_later(bench: Bench) -> None:
    bench.open()
    with bench.accept() as peer:
        bench.client.send(1, b"head", b"tail")
        # no turn of the loop in between: sent_ns is just before the write, not before the rest of a burst
        assert is_readable(peer, 5)
        assert peer.recv(100) == b"headtail"


def test_a_second_request_gets_an_attempt_of_its_own_while_the_first_connection_is_just_made(
    bench: Bench,
) -> None:
    seen: list[int] = []
    connected = bench.client.connected

    def send_another(connection: object) -> None:
        connected(connection)  # type: ignore[arg-type]
        if not seen:  # the task of the first attempt has not ended yet
            seen.append(1)
            bench.client.send(2, b"two", b"")

    bench.client.connected = send_another  # type: ignore[method-assign, assignment]
    bench.client.send(1, b"one", b"")
    bench.turn(0.1)
    with bench.accept() as first:
        assert first.recv(100) == b"one"  # and is never answered
        assert is_readable(bench.listener, 1), "request 2 waits for the connection of request 1"
        bench.turn(0.1)
        with bench.accept() as second:
            assert second.recv(100) == b"two"


def test_a_reply_in_pieces_is_one_reply_with_its_first_and_last_instant(bench: Bench) -> None:
    bench.open()
    with bench.accept() as peer:
        bench.client.send(1, b"x", b"")
        for place in range(len(OK_REPLY)):
            peer.sendall(OK_REPLY[place : place + 1])
            bench.turn(0.001)
        bench.turn_until(1)
        assert bench.ends.replies == [(1, 200, b"{}")]
        sent_ns, first_ns, done_ns = bench.ends.instants[0]
        assert sent_ns < first_ns < done_ns
        assert peer.recv(100) == b"x"
        bench.client.send(2, b"y", b"")
        bench.turn()
        assert peer.recv(100) == b"y"  # the same connection serves on
        assert bench.client.n_connections == 1


@pytest.mark.parametrize("extra", [OK_REPLY, b"garbage", OK_REPLY[:9]], ids=["a reply", "garbage", "a piece"])
def test_what_follows_a_reply_reaches_no_other_request(bench: Bench, extra: bytes) -> None:
    bench.open()
    with bench.accept() as peer:
        bench.client.send(1, b"one", b"")
        assert peer.recv(100) == b"one"
        peer.sendall(OK_REPLY + extra)
        bench.turn_until(1)
        bench.client.send(2, b"two", b"")
        bench.turn()
        assert bench.ends.replies == [(1, 200, b"{}")]
        assert bench.ends.failures == []
        with bench.accept() as other:
            assert other.recv(100) == b"two"
            other.sendall(OK_REPLY)
            bench.turn_until(2)
    assert [token for token, _, _ in bench.ends.replies] == [1, 2]


def test_a_waiting_request_is_not_given_the_second_reply_of_a_segment(bench: Bench) -> None:
    bench.open()
    with bench.accept() as peer:
        bench.client.send(1, b"one", b"")
        bench.client.send(2, b"two", b"")  # waits, and the connection of 1 is what it would get
        peer.sendall(OK_REPLY + OK_REPLY)
        bench.turn(0.001)
        with bench.accept() as other:
            bench.turn()
            assert other.recv(100) == b"two"
            other.sendall(OK_REPLY)
            bench.turn_until(2)
    assert [token for token, _, _ in bench.ends.replies] == [1, 2]
    assert all(sent <= first <= done for sent, first, done in bench.ends.instants)


def test_what_an_idle_connection_sends_unasked_ends_that_connection(bench: Bench) -> None:
    bench.open()
    with bench.accept() as peer:
        peer.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        bench.turn()
        assert bench.client.n_connections == 0
        try:
            assert peer.recv(100) == b""
        except ConnectionResetError:  # as good an end as one in order
            return


def test_a_connection_that_the_server_closes_takes_no_further_request(bench: Bench) -> None:
    bench.open()
    bench.accept().close()
    bench.turn()
    assert bench.client.n_connections == 0
    bench.client.send(1, b"one", b"")
    bench.turn()
    with bench.accept() as peer:
        assert peer.recv(100) == b"one"


def test_an_abandoned_request_ends_without_a_call_and_its_connection_is_cut(bench: Bench) -> None:
    bench.open()
    with bench.accept() as peer:
        bench.client.send(1, b"one", b"")
        peer.sendall(OK_REPLY)  # arrives with the cut
        sent_ns, first_ns = bench.client.abandon(1)
        assert sent_ns > 0
        assert first_ns == -1
        bench.turn()
        assert bench.ends == Ends()
        assert bench.client.n_connections == 0


def test_an_abandoned_request_that_waits_for_a_connection_is_never_sent(bench: Bench) -> None:
    bench.client.send(1, b"one", b"")
    assert bench.client.abandon(1) == (-1, -1)
    bench.client.send(2, b"two", b"")
    bench.turn(0.1)
    with bench.accept() as peer:
        assert peer.recv(100) == b"two"


def test_an_answer_before_the_request_is_wholly_sent_does_not_keep_the_connection(bench: Bench) -> None:
    bench.open()
    with bench.accept() as peer:
        bench.client.send(1, b"head", bytes(64 * 1024**2))
        assert bench.client.n_write_pauses == 1
        peer.sendall(OK_REPLY)
        bench.turn_until(1)
        assert bench.client.n_connections == 0


def test_closing_while_connections_are_being_made_leaves_none(bench: Bench) -> None:
    for token in range(20):
        bench.client.send(token, b"x", b"")
    bench.client.close()
    assert bench.client.n_connections == 0
    assert bench.ends == Ends()


def test_each_refused_connection_fails_one_request(loop: Loop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    ends = Ends()
    route = Route(Address.resolve_all(*address)[0])
    client = HttpClient(loop, SystemClock(), route, ends.on_reply, ends.on_failure)
    for token in range(5):
        client.send(token, b"x", b"")
    turn(loop, 0.1)
    client.close()
    assert sorted(ends.failures) == [(token, "connect: Connection refused") for token in range(5)]
