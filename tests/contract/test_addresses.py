"""Clients of both protocols over a name with several addresses: shares, one that goes, none that is left."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.grpc_client import GrpcClient
from squall.actors.load.http_client import HttpClient
from squall.actors.net.loop import Loop
from squall.actors.net.spread import Spread
from squall.actors.net.stream import Address, Route
from tests.null_process import NullProcess

S = 1_000_000_000
GONE = Address(socket.AF_INET, ("127.0.0.3", 9))


@contextmanager
def client_of(
    protocol: str, addresses: list[Address], *, is_one_at_a_time: bool = False
) -> Iterator[HttpClient | GrpcClient]:
    loop, clock = Loop(SystemClock()), SystemClock()
    route = Route(addresses[0], others=tuple(addresses[1:]), is_one_at_a_time=is_one_at_a_time)
    failures: list[int] = []
    client: HttpClient | GrpcClient = (
        HttpClient(loop, clock, route, lambda _: None, lambda token, *_: failures.append(token))
        if protocol == "http"
        else GrpcClient(
            loop, clock, route, "h:1", {}, lambda _: None, lambda token, *_: failures.append(token)
        )
    )
    try:
        yield client
    finally:
        client.close()
        loop.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_connections_go_to_every_address_that_takes_them(protocol: str) -> None:
    with NullProcess() as one, NullProcess("--host=127.0.0.2") as other:
        hosts = ("127.0.0.1", one), ("127.0.0.2", other)
        both = [Address(socket.AF_INET, (host, null.ports[protocol])) for host, null in hosts]
        for is_one_at_a_time, counts in ((False, [4, 3, 0]), (True, [7, 0, 0])):
            with client_of(protocol, [*both, GONE], is_one_at_a_time=is_one_at_a_time) as client:
                client.open(7, time.monotonic_ns() + 10 * S)
                used = {use.address: use for use in client.spread.used("s")}
                found = [used[str(address)].n_connections for address in (*both, GONE)]
                assert sum(found) == 7
                if is_one_at_a_time:
                    assert found == counts
                else:
                    assert sorted(found) == sorted(counts)
                    assert used[str(GONE)].why_left_out == "Connection refused"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_one_server_at_an_ipv4_and_an_ipv6_address_has_connections_at_both(protocol: str) -> None:
    with NullProcess("--host=::") as null:  # which takes those to IPv4 addresses, too
        port = null.ports[protocol]
        both = [Address(socket.AF_INET6, ("::1", port, 0, 0)), Address(socket.AF_INET, ("127.0.0.1", port))]
        with client_of(protocol, both) as client:
            client.open(7, time.monotonic_ns() + 10 * S)
            used = {use.address: use.n_connections for use in client.spread.used("s")}
    assert used == {f"[::1]:{port}": 4, f"127.0.0.1:{port}": 3}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_where_no_address_takes_a_connection_the_last_reason_is_told(protocol: str) -> None:
    also_gone = Address(socket.AF_INET, ("127.0.0.4", 9))
    with client_of(protocol, [GONE, also_gone]) as client, pytest.raises(OSError, match="Connection refused"):
        client.open(3, time.monotonic_ns() + 10 * S)


def test_an_address_that_lost_its_connections_gets_the_next_ones() -> None:
    spread = Spread([Address(socket.AF_INET, (f"127.0.0.{i}", 1)) for i in (1, 2, 3)])
    assert [spread.take() for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    for _ in range(2):
        spread.release(1)
    assert [spread.take() for _ in range(3)] == [1, 1, 0]
    assert spread.leave_out(1, "refused")
    assert spread.take() == 2
    assert spread.leave_out(0, "refused")
    assert not spread.leave_out(2, "refused")  # all are tried again
    assert {spread.take() for _ in range(4)} == {0, 1, 2}
