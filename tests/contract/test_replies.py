"""What is judged as a reply: exchanges of real clients, and the plain ones of tests, which must mean the same."""

from __future__ import annotations

from typing import Any

import pytest

from squall.actors.load.grpc_connection import GrpcExchange
from squall.models.payload import encode_id
from tests.contract.clients import TEMPLATES, Reply, Wire, bench_of, stub_of
from tests.unit.actors.messages.test_grpc import reply as exchange_of
from tests.unit.actors.messages.test_http_wire import Reply as HttpReply
from tests.unit.actors.messages.test_value_check import Reply as EitherReply

HTTP = ("answer", "rejected", "error", "bad_request", "wrong_id", "short_tensor", "eof_body", "error_200")
GRPC = ("answer", "rejected", "error", "wrong_id", "short_tensor", "no_status", "not_grpc", "no_message")


def replies_of(wire: Wire, kinds: tuple[str, ...]) -> dict[str, Reply]:
    """What a client's exchange held after each kind of answer."""
    with stub_of(wire, *kinds) as stub, bench_of(wire, stub.port) as bench:
        bench.open(1)
        bench.send(*range(len(kinds)))
        bench.turn_until(lambda: len(bench.ends.tokens) == len(kinds))
        assert bench.ends.failures == {}
        return {kind: bench.ends.replies[token] for token, kind in enumerate(kinds)}


@pytest.fixture(scope="module")
def http() -> dict[str, Reply]:
    return replies_of("http", HTTP)


@pytest.fixture(scope="module")
def grpc() -> dict[str, Reply]:
    return replies_of("grpc", GRPC)


def verdict(wire: Wire, reply: Any, token: int) -> tuple[str, str]:
    return TEMPLATES[wire].judge(reply, encode_id(token))


def test_a_plain_http_reply_is_judged_as_an_exchange_that_holds_the_same(http: dict[str, Reply]) -> None:
    for token, kind in enumerate(HTTP):
        real = http[kind]
        for plain in (HttpReply(**real.held), EitherReply(**real.held)):
            assert verdict("http", plain, token) == (real.outcome, real.detail), kind
    assert {reply.outcome for reply in http.values()} == {"ok", "rejected", "server_error", "bad_reply"}


def test_a_plain_grpc_reply_is_judged_as_an_exchange_that_holds_the_same(grpc: dict[str, Reply]) -> None:
    for token, kind in enumerate(GRPC):
        real = grpc[kind]
        held = real.held
        made = exchange_of(held["body"], held["grpc_status"], held["grpc_message"], held["http_status"])
        for plain in (EitherReply(**held), made):
            assert verdict("grpc", plain, token) == (real.outcome, real.detail), kind
    assert {reply.outcome for reply in grpc.values()} == {"ok", "rejected", "server_error", "bad_reply"}


def test_a_reply_tells_what_it_has_not(http: dict[str, Reply], grpc: dict[str, Reply]) -> None:
    assert 0 < http["answer"].held["n_json_bytes"] < len(http["answer"].held["body"])
    assert http["error"].held["n_json_bytes"] == 0
    assert grpc["no_status"].held["grpc_status"] == -1
    assert grpc["not_grpc"].held["http_status"] == 502
    fresh: Any = GrpcExchange(None, 1, 42)  # type: ignore[arg-type]
    assert (fresh.http_status, fresh.grpc_status, fresh.body) == (-1, -1, b"")
    plain = EitherReply(b"")  # of an answer, where a test names no more than its bytes
    whole = {**http["answer"].held, **grpc["answer"].held}
    assert all(
        getattr(plain, name) == whole[name]
        for name in ("status", "http_status", "grpc_status", "grpc_message")
    )
