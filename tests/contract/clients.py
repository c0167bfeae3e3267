"""A client of either protocol with a note of how each request ended, and a server that does as a script says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from squall.actors.clock import SystemClock
from squall.actors.load.client import Client, Exchange
from squall.actors.load.grpc_client import GrpcClient
from squall.actors.load.http_client import HttpClient
from squall.actors.messages.grpc_wire import grpc_template
from squall.actors.messages.http_wire import http_template
from squall.actors.messages.template import Template
from squall.actors.net.loop import Loop
from squall.actors.net.stream import Address, Route
from squall.models.made import make_inputs
from squall.models.payload import encode_body, encode_id
from tests.fakes import Behaviour, Kind, StubTriton
from tests.fakes_grpc import GrpcBehaviour, GrpcKind, StubGrpc
from tests.golden.driving import MS, REPLY_BYTES, SPEC, S

Wire = Literal["http", "grpc"]
WIRES: tuple[Wire, ...] = ("http", "grpc")
INPUTS = make_inputs(SPEC, 1, 0, 1)
TEMPLATES: Mapping[Wire, Template] = {
    "http": http_template("stub", SPEC, encode_body(SPEC, INPUTS), 1),
    "grpc": grpc_template(SPEC, INPUTS, 1),
}
PATIENCE_NS = 20 * S


@dataclass
class Reply:
    """What an exchange held during its callback."""

    instants: tuple[int, int, int]
    outcome: str
    detail: str
    body: bytes


@dataclass
class Ends:
    """How each token ended, in order."""

    template: Template
    replies: dict[int, Reply] = field(default_factory=dict)
    failures: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)

    def on_reply(self, exchange: Exchange) -> None:
        token = exchange.token
        outcome, detail = self.template.judge(exchange, encode_id(token))
        instants = (exchange.sent_ns, exchange.first_ns, exchange.done_ns)
        self.replies[token] = Reply(instants, outcome, detail, bytes(exchange.body))
        self.tokens.append(token)

    def on_failure(self, token: int, sent_ns: int, first_ns: int, why: str) -> None:
        self.failures[token] = (sent_ns, first_ns, why)
        self.tokens.append(token)


@dataclass
class Bench:
    """A client at work."""

    client: Client
    ends: Ends
    loop: Loop

    def send(self, *tokens: int, key: int | None = None) -> None:
        for token in tokens:
            template = self.ends.template
            self.client.send(token, template.head + encode_id(token), template.tail, key)
        self.client.flush()

    def turn_until(self, is_done: Callable[[], bool]) -> None:
        """Looks again every few ms: what a server has seen wakes no loop of a client."""
        until_ns = time.monotonic_ns() + PATIENCE_NS
        while not self.loop.run_until(is_done, time.monotonic_ns() + 5 * MS):
            assert time.monotonic_ns() < until_ns, self.ends

    def turn(self, s: float = 0.02) -> None:
        """For what must not come."""
        self.loop.run_until(lambda: False, time.monotonic_ns() + round(s * S))

    def open(self, n_connections: int = 2) -> None:
        self.client.open(n_connections, time.monotonic_ns() + PATIENCE_NS)


@contextmanager
def bench_of(wire: Wire, to: int | Route) -> Iterator[Bench]:
    """A client without connections yet; `to`: the route, or a port of this host."""
    ends, loop, clock = Ends(TEMPLATES[wire]), Loop(SystemClock()), SystemClock()
    route = Route(Address.resolve_all("127.0.0.1", to)[0]) if isinstance(to, int) else to
    client: Client = (
        HttpClient(loop, clock, route, ends.on_reply, ends.on_failure)
        if wire == "http"
        else GrpcClient(loop, clock, route, "stub", {}, ends.on_reply, ends.on_failure)
    )
    try:
        yield Bench(client, ends, loop)
    finally:
        client.close()
        loop.close()


HTTP_KINDS: tuple[Kind, ...] = (
    "answer", "rejected", "error", "bad_request", "reset_mid_reply", "close", "malformed", "wrong_id", "short_tensor",
    "oversized", "bytewise", "connection_close", "garbage_after", "answer_twice", "eof_body", "http_1_0", "error_200",
)  # fmt: skip
GRPC_KINDS: tuple[GrpcKind, ...] = (
    "answer", "rejected", "error", "bad_request", "trailers_only", "rst_stream", "goaway", "goaway_graceful", "reset",
    "close", "malformed", "wrong_id", "short_tensor", "oversized", "bytewise", "no_status", "split_headers", "padded",
    "ping_first", "compressed", "no_message", "two_messages", "half_message", "not_grpc", "answer_twice",
)  # fmt: skip


def stub_of(wire: Wire, *kinds: str) -> StubTriton | StubGrpc:
    """Request `i` gets the `i`-th behaviour, and after the last the first again."""
    every: list[str] = list(kinds) or ["answer"]
    if wire == "http":
        return StubTriton(lambda i: Behaviour(every[i % len(every)]), REPLY_BYTES)  # type: ignore[arg-type]
    return StubGrpc(lambda i: GrpcBehaviour(every[i % len(every)]), REPLY_BYTES)  # type: ignore[arg-type]
