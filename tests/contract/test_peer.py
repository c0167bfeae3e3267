"""What every peer of the null server does with what a client sends and the server answers, over either protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from squall.actors.messages.grpc_wire import grpc_template
from squall.actors.messages.http_wire import http_template
from squall.actors.null.grpc import GrpcService
from squall.actors.null.http import HttpPeer, HttpService
from squall.actors.null.http2 import GrpcPeer
from squall.actors.null.model import NullModel, Peer, Submit, Tally
from squall.models.made import make_inputs
from squall.models.payload import encode_body, encode_id
from squall.models.spec import head_spec
from tests.unit.actors.messages.test_grpc import Ends

SPEC = head_spec("linear_head", "1", {"width": 4, "classes": 2}, 8)
INPUTS = make_inputs(SPEC, 2, 0, 1)
HTTP = http_template("h:1", SPEC, encode_body(SPEC, INPUTS), 2)
GRPC = grpc_template(SPEC, INPUTS, 2)
NOW_NS = 77


def over_http(*tokens: int) -> bytes:
    """What a client writes, from its first byte on."""
    return b"".join(HTTP.head + encode_id(token) + HTTP.tail for token in tokens)


def over_grpc(*tokens: int) -> bytes:
    client = Ends()
    client.connection.on_connected()
    for token in tokens:
        client.connection.begin(token, GRPC.head + encode_id(token), GRPC.tail)
    client.connection.flush()
    return client.socket.written


def http_peer(model: NullModel, submit: Submit) -> Peer:
    return HttpPeer(HttpService(model, submit))


def grpc_peer(model: NullModel, submit: Submit) -> Peer:
    return GrpcPeer(GrpcService(model, submit))


@dataclass
class Bench:
    """A peer with what it has handed over, and what a client says to it."""

    make: Callable[[NullModel, Submit], Peer]
    says: Callable[..., bytes]
    taken: list[tuple[int, Tally, bytes, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.peer = self.make(NullModel("linear_head", 4, 2, 8), self._submit)

    def _submit(self, peer: Peer, stream: int, answer: Tally, wire_id: bytes, now_ns: int) -> None:
        assert peer is self.peer
        self.taken.append((stream, answer, wire_id, now_ns))

    def written(self) -> bytes:
        """What it wants written since the last time."""
        out = b"".join(self.peer.out)
        self.peer.out.clear()
        return out

    def asked(self) -> tuple[int, Tally, bytes]:
        """The one request, and nothing left to be written from before."""
        self.peer.feed(self.says(42), NOW_NS)
        self.written()
        ((stream, answer, wire_id, _),) = self.taken
        return stream, answer, wire_id


@pytest.fixture(params=[(http_peer, over_http), (grpc_peer, over_grpc)], ids=["http", "grpc"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(*request.param)


@pytest.mark.parametrize("n_bytes", [1, 7, 10_000])
def test_a_request_is_handed_over_once_when_its_last_byte_has_come(bench: Bench, n_bytes: int) -> None:
    data = bench.says(42)
    for at in range(0, len(data), n_bytes):
        assert bench.taken == []
        bench.peer.feed(data[at : at + n_bytes], NOW_NS + at)
    ((_, answer, wire_id, now_ns),) = bench.taken
    assert (answer.rows, wire_id, now_ns) == (2, encode_id(42), NOW_NS + at)
    assert not bench.peer.is_over


def test_an_answer_carries_the_requests_id_and_the_connection_goes_on(bench: Bench) -> None:
    stream, answer, wire_id = bench.asked()
    assert bench.peer.reply(stream, answer, wire_id)
    assert bench.written().count(wire_id) == 1
    assert (bench.peer.is_over, bench.peer.rows) == (False, [])


def test_a_farewell_leaves_no_request_half_answered(bench: Bench) -> None:
    stream, answer, wire_id = bench.asked()
    bench.peer.farewell()
    bench.written()
    assert bench.peer.reply(stream, answer, wire_id)
    assert wire_id in bench.written()
