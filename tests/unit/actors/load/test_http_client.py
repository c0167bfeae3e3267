"""An HTTP connection without sockets, against whatever a broken server may send."""

from __future__ import annotations

import socket

from hypothesis import given
from hypothesis import strategies as st

from squall.actors.load.http_client import HttpClient, HttpExchange
from squall.actors.messages.http_wire import http_template
from squall.actors.net.stream import Address, Route
from squall.models.made import make_inputs
from squall.models.payload import encode_body, encode_id
from squall.models.spec import ModelSpec, TensorSpec
from tests.fakes import FakeClock
from tests.many_examples import examples

ROUTE = Route(Address(socket.AF_INET, ("127.0.0.1", 9)))
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
        self.client = HttpClient(None, FakeClock(5), ROUTE, self.on_reply, self.on_failure)  # type: ignore[arg-type]
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


@examples(400)
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


class StreamBench(Bench):
    """Whose replies are streams; `most`: responses after which it hangs up."""

    def __init__(self, most: int = 1_000) -> None:
        super().__init__()
        self.events: list[tuple[int, bytes]] = []
        self.client = HttpClient(
            None, FakeClock(5), ROUTE, self.on_reply, self.on_failure, on_response=self.on_response  # type: ignore[arg-type]
        )  # fmt: skip
        self.connection = HttpExchange(self.client)
        self.connection.socket = self.socket  # type: ignore[assignment]
        self.client.connected(self.connection)
        self._most = most

    def on_reply(self, exchange: HttpExchange) -> None:
        self.replies.append((exchange.status, exchange.body))

    def on_response(self, token: int, t_ns: int, message: bytes) -> bool:
        assert t_ns > 0
        self.events.append((token, message))
        return len(self.events) >= self._most


def chunked(*chunks: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in chunks if one) + b"0\r\n\r\n"


@given(
    st.lists(st.sampled_from([b"data: {}", b"data: [1]", b"x"]), max_size=6),
    st.integers(1, 30),
    st.integers(1, 200),
)
def test_events_are_told_once_each_however_chunks_and_reads_are_cut(
    events: list[bytes], n_chunk_bytes: int, n_read_bytes: int
) -> None:
    bench = StreamBench()
    bench.client.send(4, b"x", b"")
    text = b"".join(one + b"\n\n" for one in events)
    data = chunked(*(text[at : at + n_chunk_bytes] for at in range(0, len(text), n_chunk_bytes)))
    for at in range(0, len(data), n_read_bytes):
        bench.connection.on_data(data[at : at + n_read_bytes])
    assert bench.events == [(4, one) for one in events]
    assert bench.replies == [(200, b"")]
    assert not bench.socket.is_closed


def test_a_stream_that_ends_within_an_event_leaves_it_in_the_body() -> None:
    bench = StreamBench()
    bench.client.send(4, b"x", b"")
    bench.connection.on_data(chunked(b"data: {}\n\nda"))
    assert (bench.events, bench.replies) == ([(4, b"data: {}")], [(200, b"da")])


def test_an_error_reply_to_a_stream_is_no_event() -> None:
    bench = StreamBench()
    bench.client.send(4, b"x", b"")
    bench.connection.on_data(b"HTTP/1.1 400 No\r\nContent-Length: 16\r\n\r\n" + b'{"error":"no"}\n\n')
    assert (bench.events, bench.replies) == ([], [(400, b'{"error":"no"}\n\n')])


def test_who_hangs_up_gets_no_more_and_its_connection_is_cut() -> None:
    bench = StreamBench(most=2)
    bench.client.send(4, b"x", b"")
    bench.connection.on_data(chunked(b"a\n\n", b"b\n\nc\n\n"))
    assert bench.events == [(4, b"a"), (4, b"b")]
    assert bench.replies == [(200, b"")]
    assert bench.socket.is_closed
