"""What every connection does for its socket, and for the lane that lends it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.grpc_client import GrpcClient
from squall.actors.load.grpc_connection import GrpcConnection
from squall.actors.load.http_client import HttpClient, HttpExchange
from squall.actors.load.lane import Flight, Stray
from squall.models.payload import ID_DIGITS, encode_id
from tests.contract.clients import WIRES, Bench, Wire, bench_of, stub_of

NOW = SystemClock().monotonic_ns
SENT_NS = 5
FRESH = {"http": (0, 0, 0, 0), "grpc": (3, 65_535, 0, 0)}
"""State of a stray; over gRPC with stream 1 begun."""


def connection_of(bench: Bench) -> HttpExchange | GrpcConnection:
    """The only one."""
    assert isinstance(bench.client, HttpClient | GrpcClient)
    (connection,) = bench.client._open
    return connection


@contextmanager
def connected(wire: Wire, *kinds: str) -> Iterator[tuple[Bench, HttpExchange | GrpcConnection]]:
    with stub_of(wire, *kinds) as stub, bench_of(wire, stub.port) as bench:
        bench.open(1)
        yield bench, connection_of(bench)


def lend(bench: Bench, connection: HttpExchange | GrpcConnection) -> None:
    """As if the lane had it: the client knows it as open, and holds it for no request."""
    if isinstance(connection, GrpcConnection):
        connection.is_parked = True
    else:
        assert isinstance(bench.client, HttpClient)
        bench.client._idle.clear()


def flight(token: int) -> Flight:
    """A request that the lane has sent on stream 1."""
    return Flight(token, SENT_NS, SENT_NS, 0, 0, SENT_NS, -1, 1, 0, b"")


def stray(
    connection: HttpExchange | GrpcConnection,
    wire: Wire,
    flights: list[Flight],
    lost: int = -1,
    unsent: bytes = b"",
) -> Stray:
    return Stray(connection, lost, b"", NOW(), unsent, FRESH[wire], [tuple(one) for one in flights])


# squall.actors.net.stream.Owner


@pytest.mark.parametrize("wire", WIRES)
def test_a_connection_that_is_lost_fails_what_is_on_it_once_and_is_open_no_more(wire: Wire) -> None:
    with connected(wire, "hang") as (bench, connection):
        bench.send(7)
        connection.on_drained()
        connection.on_lost("the cable was cut")
        assert [(token, end[2]) for token, end in bench.ends.failures.items()] == [(7, "the cable was cut")]
        assert (bench.client.n_connections, bench.client.n_socket_errors) == (0, 1)
        bench.turn()
        assert bench.ends.tokens == [7]


@pytest.mark.parametrize("wire", WIRES)
def test_data_that_is_no_reply_fails_the_request_and_cuts_the_connection(wire: Wire) -> None:
    with connected(wire, "hang") as (bench, connection):
        bench.send(7)
        connection.on_data(b"SMTP ready, at your service\r\n\r\n")
        assert list(bench.ends.failures) == [7]
        assert bench.client.n_connections == 0


# squall.actors.load.lane.Owner


@pytest.mark.parametrize("wire", WIRES)
def test_a_stray_without_a_request_serves_the_next_one(wire: Wire) -> None:
    with connected(wire) as (bench, connection):
        lend(bench, connection)
        connection.take_back(stray(connection, wire, []))
        bench.send(4)
        bench.turn_until(lambda: 4 in bench.ends.tokens)
        assert bench.ends.replies[4].outcome == "ok"
        assert bench.client.n_connections == 1


@pytest.mark.parametrize("wire", WIRES)
def test_what_the_lane_had_sent_on_a_lost_stray_fails_with_the_instant_of_its_send(wire: Wire) -> None:
    with connected(wire, "hang") as (bench, connection):
        lend(bench, connection)
        connection.take_back(stray(connection, wire, [flight(7)], lost=0))
        assert [(token, end[0]) for token, end in bench.ends.failures.items()] == [(7, SENT_NS)]
        assert bench.client.n_connections == 0


def test_what_the_socket_did_not_take_of_the_lane_is_written_and_answered() -> None:
    """Over HTTP, where a request is whole in itself."""
    with connected("http") as (bench, connection):
        lend(bench, connection)
        template = bench.ends.template
        request = template.head + encode_id(9) + template.tail
        assert len(request) == template.n_bytes == len(template.head) + ID_DIGITS + len(template.tail)
        connection.take_back(stray(connection, "http", [flight(9)], unsent=request))
        bench.turn_until(lambda: 9 in bench.ends.tokens)
        assert bench.ends.replies[9].instants[0] == SENT_NS
        assert bench.ends.replies[9].outcome == "ok"
