"""What every client does with its requests, whatever the server does, and what its exchanges tell of them."""

from __future__ import annotations

import socket

import pytest

from squall.actors.clock import SystemClock
from tests.contract.clients import GRPC_KINDS, HTTP_KINDS, WIRES, Wire, bench_of, stub_of

NOW = SystemClock().monotonic_ns


@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_comes_with_its_instants_in_order_and_is_the_requests_own(wire: Wire) -> None:
    with stub_of(wire) as stub, bench_of(wire, stub.port) as bench:
        bench.open()
        assert bench.client.n_connections == 2
        begun_ns = NOW()
        bench.send(*range(10))
        bench.turn_until(lambda: len(bench.ends.tokens) == 10)
        assert sorted(bench.ends.replies) == list(range(10))
        for reply in bench.ends.replies.values():
            sent_ns, first_ns, done_ns = reply.instants
            assert begun_ns <= sent_ns < first_ns <= done_ns <= NOW()
            assert reply.outcome == "ok"
            assert reply.body
        assert (bench.client.n_socket_errors, bench.client.n_write_pauses) == (0, 0)


@pytest.mark.parametrize("wire", WIRES)
def test_each_request_ends_once_whatever_the_server_does(wire: Wire) -> None:
    """Two of each kind of answer, one after the other: what one does to its connection is no other's end."""
    kinds = HTTP_KINDS if wire == "http" else GRPC_KINDS
    n = 2 * len(kinds)
    with stub_of(wire, *kinds) as stub, bench_of(wire, stub.port) as bench:
        bench.open(1)
        for token in range(n):
            bench.send(token)
            bench.turn_until(lambda token=token: token in bench.ends.tokens)  # type: ignore[misc]
        bench.turn()
        ends = bench.ends
        assert sorted(ends.tokens) == list(range(n))
        by_kind = {
            kind: [ends.replies[i].outcome if i in ends.replies else "failed" for i in (at, at + len(kinds))]
            for at, kind in enumerate(kinds)
        }
        assert all(len(set(outcomes)) == 1 for outcomes in by_kind.values()), by_kind
        assert {outcome for outcome, _ in by_kind.values()} == {
            "ok", "rejected", "server_error", "bad_reply", "failed"
        }  # fmt: skip
        assert (by_kind["answer"][0], by_kind["close"][0], by_kind["malformed"][0]) == (
            "ok",
            "failed",
            "failed",
        )
        for sent_ns, first_ns, why in ends.failures.values():
            assert sent_ns > 0
            assert first_ns == -1 or first_ns >= sent_ns
            assert why
        assert bench.client.n_socket_errors > 0


@pytest.mark.parametrize("wire", WIRES)
def test_what_is_abandoned_or_cut_ends_without_a_call(wire: Wire) -> None:
    with stub_of(wire, "hang") as stub, bench_of(wire, stub.port) as bench:
        bench.open(3)
        bench.send(1, 2, 3)
        bench.turn_until(lambda: len(stub.seen.arrived_ns) == 3)
        sent_ns, first_ns = bench.client.abandon(1)
        assert 0 < sent_ns <= NOW()
        assert first_ns == -1
        bench.client.close()
        bench.turn()
        assert bench.ends.tokens == []
        assert bench.client.n_connections == 0


@pytest.mark.parametrize("wire", WIRES)
def test_a_request_that_is_given_up_before_it_left_was_never_sent(wire: Wire) -> None:
    """Without a connection it waits for one."""
    with stub_of(wire) as stub, bench_of(wire, stub.port) as bench:
        bench.send(1, 2)
        assert bench.client.abandon(1) == (-1, -1)
        bench.turn_until(lambda: bool(bench.ends.tokens))
        bench.turn()
        assert list(bench.ends.replies) == [2]
        assert list(stub.seen.arrived_ns) == [2]


@pytest.mark.parametrize("wire", WIRES)
def test_a_server_that_is_not_there_fails_the_opening_and_each_request_once(wire: Wire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with bench_of(wire, port) as bench:
        with pytest.raises(OSError, match="refused"):
            bench.open()
        bench.send(1, 2)
        bench.turn_until(lambda: len(bench.ends.tokens) == 2)
        bench.turn()
        assert sorted(bench.ends.tokens) == [1, 2]
        assert all(
            end[:2] == (-1, -1) and end[2].startswith("connect") for end in bench.ends.failures.values()
        )
        assert bench.client.n_socket_errors >= 2


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_goes_on_after_its_server_has_cut_every_connection(wire: Wire) -> None:
    with stub_of(wire, "answer", "close") as stub, bench_of(wire, stub.port) as bench:
        bench.open(1)
        for token in (1, 2, 4):
            bench.send(token)
            bench.turn_until(lambda token=token: token in bench.ends.tokens)  # type: ignore[misc]
        assert list(bench.ends.failures) == [1]
        assert list(bench.ends.replies) == [2, 4]


@pytest.mark.parametrize("wire", WIRES)
def test_requests_of_one_key_have_one_connection_until_it_is_unpinned(wire: Wire) -> None:
    with stub_of(wire) as stub, bench_of(wire, stub.port) as bench:
        bench.open(3)

        def ask(token: int, key: int | None) -> int:
            bench.send(token, key=key)
            bench.turn_until(lambda: token in bench.ends.tokens)
            return stub.seen.connections[token]

        first = ask(0, 7)
        others = [ask(token, None) for token in range(1, 9)]
        assert [ask(token, 7) for token in (9, 10, 11)] == [first] * 3
        assert (first in others) == (wire == "grpc"), "over HTTP it takes no other"
        bench.client.unpin(7)
        assert first in [ask(token, None) for token in range(12, 20)], "nor is it lost"
        assert bench.client.n_connections == 3
        assert {bench.ends.replies[token].outcome for token in range(20)} == {"ok"}


@pytest.mark.parametrize("wire", WIRES)
def test_a_request_of_a_key_whose_connection_broke_has_another_which_it_keeps(wire: Wire) -> None:
    with stub_of(wire, "answer", "close", *["answer"] * 18) as stub, bench_of(wire, stub.port) as bench:
        bench.open(2)
        for token in range(5):
            bench.send(token, key=7)
            bench.turn_until(lambda token=token: token in bench.ends.tokens)  # type: ignore[misc]
        found = [stub.seen.connections[token] for token in range(5)]
        assert [*bench.ends.failures] == [1]
        assert found[0] == found[1]
        assert len({*found[2:]}) == 1
        assert found[2] != found[1]
        bench.send(5, key=7)
        bench.client.abandon(5)
        bench.send(6, key=7)
        bench.turn_until(lambda: 6 in bench.ends.tokens)
        assert bench.ends.replies[6].outcome == "ok"
        bench.client.unpin(7)
        bench.client.unpin(7)
