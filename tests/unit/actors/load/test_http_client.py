"""An HTTP connection without sockets, against whatever a broken server may send."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.actors.load.http_client import HttpClient, HttpExchange
from squall.actors.messages.http_wire import http_template
from squall.models.made import make_inputs
from squall.models.payload import encode_body, encode_id
from squall.models.spec import ModelSpec, TensorSpec
from tests.fakes import FakeClock

SPEC = ModelSpec("m", "3", (TensorSpec("INPUT", "FP32", (4,)),), (TensorSpec("OUTPUT", "FP32", (2,)),), 8)
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"


class SocketStream:
    """As `squall.actors.net.stream.SocketStream` for a socket that takes everything."""

    has_unsent = False

    def __init__(self) -> None:
        self.is_closed = False

    def write(self, data: bytes) -> bool:
        return bool(data)

    def close(self) -> None:
        self.is_closed = True


class Bench:
    """A client with one connection, and how its requests ended."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, bytes]] = []
        self.failures: list[tuple[int, str]] = []
        self.client = HttpClient(None, FakeClock(5), None, self.on_reply, self.on_failure)  # type: ignore[arg-type]
        self.connection = HttpExchange(self.client)
        self.socket = SocketStream()
        self.connection.socket = self.socket  # type: ignore[assignment]
        self.client.connected(self.connection)

    def on_reply(self, exchange: HttpExchange) -> None:
        self.replies.append((exchange.token, exchange.body))
        template = http_template("h", SPEC, encode_body(SPEC, make_inputs(SPEC, 1, 0, 1)), 1)
        outcome, _ = template.judge(exchange, encode_id(exchange.token))
        assert outcome in ("bad_reply", "rejected", "server_error")

    def on_failure(self, token: int, sent_ns: int, first_ns: int, why: str) -> None:
        del sent_ns, first_ns
        self.failures.append((token, why))


def test_a_head_that_was_parsed_once_is_known_and_a_chunked_one_never() -> None:
    bench = Bench()
    for token, data in enumerate((GOOD, CHUNKED, GOOD[:-2] + b"[]", CHUNKED)):
        bench.client.send(token, b"x", b"y")
        bench.connection.on_data(data)
        assert bench.replies[-1] == (token, b"[]" if data.endswith(b"[]") else b"{}")
    assert list(bench.client.heads) == [GOOD[:-2]]


def test_a_known_head_with_another_length_behind_it_is_still_parsed() -> None:
    bench = Bench()
    bench.client.send(1, b"x", b"")
    bench.connection.on_data(GOOD)
    bench.client.send(2, b"x", b"")
    bench.connection.on_data(GOOD[:-1])
    assert len(bench.replies) == 1
    bench.connection.on_data(b"}")
    assert bench.replies[1] == (2, b"{}")
    bench.client.send(3, b"x", b"")
    bench.connection.on_data(GOOD + b"garbage")
    assert bench.replies[2] == (3, b"{}")
    assert bench.socket.is_closed


lines = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 503 No\r\n", b"HTTP/1.0 200 OK\r\n", b"Content-Length: 5\r\n", b"\r\n",
        b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n",
        b"Inference-Header-Content-Length: 99\r\n", b"Connection: close\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n",
        GOOD, CHUNKED,
    ]
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(st.one_of(lines, st.binary(max_size=20)), max_size=12), st.integers(1, 40))
def test_whatever_a_server_sends_a_request_ends_at_most_once_and_nothing_is_raised(
    sent: list[bytes], n_bytes: int
) -> None:
    bench = Bench()
    bench.client.send(1, b"x", b"")
    data = b"".join(sent)
    for place in range(0, len(data), n_bytes):
        if not bench.socket.is_closed:
            bench.connection.on_data(data[place : place + n_bytes])
    assert len(bench.replies) + len(bench.failures) <= 1
    assert all(why.startswith(("malformed", "the server")) for _, why in bench.failures)
