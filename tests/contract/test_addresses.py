"""Clients of both protocols over a name with several addresses: shares, one that goes, none that is left."""

from __future__ import annotations

import socket

import pytest

from squall.actors.load.grpc_client import GrpcClient
from squall.actors.load.http_client import HttpClient
from squall.actors.net.spread import Spread
from squall.actors.net.stream import Address, Route
from tests.contract.clients import WIRES, Bench, Wire, bench_of
from tests.null_process import NullProcess

GONE = Address(socket.AF_INET, ("127.0.0.3", 9))


def opened(bench: Bench, n_connections: int) -> Spread:
    assert isinstance(bench.client, HttpClient | GrpcClient)
    bench.open(n_connections)
    return bench.client.spread


@pytest.mark.parametrize("wire", WIRES)
def test_connections_go_to_every_address_that_takes_them(wire: Wire) -> None:
    with NullProcess() as one, NullProcess("--host=127.0.0.2") as other:
        hosts = ("127.0.0.1", one), ("127.0.0.2", other)
        both = [Address(socket.AF_INET, (host, null.ports[wire])) for host, null in hosts]
        for is_one_at_a_time in (False, True):
            route = Route(both[0], others=(both[1], GONE), is_one_at_a_time=is_one_at_a_time)
            with bench_of(wire, route) as bench:
                used = {use.address: use for use in opened(bench, 7).used("s")}
            found = [used[str(address)].n_connections for address in (*both, GONE)]
            if is_one_at_a_time:
                assert found == [7, 0, 0]
            else:
                assert sorted(found) == [0, 3, 4]
                assert used[str(GONE)].why_left_out == "Connection refused"


@pytest.mark.parametrize("wire", WIRES)
def test_one_server_at_an_ipv4_and_an_ipv6_address_has_connections_at_both(wire: Wire) -> None:
    with NullProcess("--host=::") as null:  # which takes those to IPv4 addresses, too
        port = null.ports[wire]
        both = [Address(socket.AF_INET6, ("::1", port, 0, 0)), Address(socket.AF_INET, ("127.0.0.1", port))]
        with bench_of(wire, Route(both[0], others=(both[1],))) as bench:
            used = {use.address: use.n_connections for use in opened(bench, 7).used("s")}
    assert used == {f"[::1]:{port}": 4, f"127.0.0.1:{port}": 3}


@pytest.mark.parametrize("wire", WIRES)
def test_where_no_address_takes_a_connection_the_last_reason_is_told(wire: Wire) -> None:
    also_gone = Address(socket.AF_INET, ("127.0.0.4", 9))
    with (
        bench_of(wire, Route(GONE, others=(also_gone,))) as bench,
        pytest.raises(OSError, match="Connection refused"),
    ):
        bench.open(3)


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
