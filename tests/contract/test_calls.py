"""What every owner of gRPC connections keeps of its calls: the client, and the one that tests of frames put there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.grpc_client import GrpcClient
from squall.actors.load.grpc_connection import Calls, GrpcConnection, GrpcExchange
from squall.actors.messages.grpc_headers import call_headers
from squall.actors.net import http2
from squall.actors.net.loop import Loop
from squall.actors.net.stream import Address, Route
from tests.unit.actors.messages.test_grpc import Ends, SocketStream


class Bench(NamedTuple):
    """A connection whose server's settings have come, its owner, and how calls ended."""

    calls: Calls
    connection: GrpcConnection
    ends: list[int]


def of_client(loop: Loop) -> Bench:
    ends: list[int] = []

    def on_reply(exchange: GrpcExchange) -> None:
        ends.append(exchange.token)

    def on_failure(token: int, *_: object) -> None:
        ends.append(-token)

    route = Route(Address.resolve_all("127.0.0.1", 1)[0])
    client = GrpcClient(loop, SystemClock(), route, "h:1", {}, on_reply, on_failure)
    connection = GrpcConnection(client, call_headers("http", "h:1", {}))
    connection.socket = SocketStream()  # type: ignore[assignment]
    return Bench(client, connection, ends)


class Noting(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.ends: list[int] = []

    def on_reply(self, exchange: GrpcExchange) -> None:
        self.ends.append(exchange.token)

    def on_failure(self, token: int, sent_ns: int, first_ns: int, why: str) -> None:
        super().on_failure(token, sent_ns, first_ns, why)
        self.ends.append(-token)


def of_fake(_: Loop) -> Bench:
    fake = Noting()
    return Bench(fake, fake.connection, fake.ends)


@pytest.fixture(params=[of_client, of_fake], ids=["client", "fake"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    loop = Loop(SystemClock())
    made: Bench = request.param(loop)
    made.connection.on_connected()
    made.connection.on_data(http2.settings({}))
    yield made
    loop.close()


def reset(stream: int) -> bytes:
    return http2.rst_stream(stream, http2.CANCEL)


def test_a_call_is_held_by_its_token_until_it_ends(bench: Bench) -> None:
    for token in (1, 2, 3):
        bench.connection.begin(token, b"head", b"tail")
    bench.connection.flush()
    assert sorted(bench.calls.by_token) == [1, 2, 3]
    assert {exchange.connection for exchange in bench.calls.by_token.values()} == {bench.connection}
    assert all(exchange.sent_ns > 0 for exchange in bench.calls.by_token.values())
    status = http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 3, b"\x88")
    bench.connection.on_data(reset(1) + status)
    assert bench.ends == [-1, 2]
    assert list(bench.calls.by_token) == [3]


def test_the_end_of_a_connection_fails_each_of_its_calls_once(bench: Bench) -> None:
    for token in (1, 2):
        bench.connection.begin(token, b"head", b"tail")
    bench.connection.flush()
    bench.connection.on_lost("the cable was cut")
    assert sorted(bench.ends) == [-2, -1]
    assert bench.calls.by_token == {}
    bench.calls.broken(bench.connection, "again")
    assert sorted(bench.ends) == [-2, -1]


def test_without_a_lane_nothing_waits_and_nothing_is_lent(bench: Bench) -> None:
    assert (bench.calls.lane, bench.calls.has_waiting, bench.calls.n_write_pauses) == (None, False, 0)
    before = bench.calls.now()
    assert before <= bench.calls.now()
