"""The gRPC side without sockets: a message's bytes, a connection's frames, and whatever a broken server may send."""

from __future__ import annotations

import itertools
from typing import Any

import hpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.actors.load.grpc_connection import GrpcConnection, GrpcExchange
from squall.actors.load.lane import Lane
from squall.actors.messages.grpc_headers import call_headers
from squall.actors.messages.grpc_wire import MESSAGE_HEAD, GrpcTemplate, grpc_template
from squall.actors.messages.template import NO_ID
from squall.actors.net import http2, protobuf
from squall.actors.net.spread import Spread
from squall.models.made import make_inputs
from squall.models.payload import ID_DIGITS, encode_id
from squall.models.spec import ModelSpec, TensorSpec
from tests.many_examples import examples

SPEC = ModelSpec("m", "3", (TensorSpec("INPUT", "FP32", (4,)),), (TensorSpec("OUTPUT", "FP32", (2,)),), 8)
INPUTS = make_inputs(SPEC, 2, 0, 1)


def template() -> GrpcTemplate:
    return grpc_template(SPEC, INPUTS, 2)


def response(request_id: str = "000000000042", shape: tuple[int, ...] = (2, 2), n_bytes: int = 16) -> bytes:
    output = protobuf.field(1, "OUTPUT") + protobuf.field(2, "FP32") + protobuf.packed(3, shape)
    message = (
        protobuf.field(1, "m") + protobuf.field(2, "3") + protobuf.field(3, request_id)
        + protobuf.field(5, output) + protobuf.field(6, bytes(n_bytes))
    )  # fmt: skip
    return b"\0" + len(message).to_bytes(4, "big") + message


class SocketStream:
    """Takes what is written; as `squall.actors.net.stream.SocketStream` for a socket that is never full."""

    has_unsent = False

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes) -> bool:
        self.written += data
        return True

    def write_parts(self, parts: list[bytes | memoryview]) -> bool:
        return self.write(b"".join(parts))

    def close(self) -> None:
        self.is_closed = True


class Ends:
    """As `GrpcClient` for one connection: notes how each call ended."""

    def __init__(self) -> None:
        self.clock_ns = 0
        self.by_token: dict[int, GrpcExchange] = {}
        self.replies: list[tuple[int, int, str, bytes]] = []
        self.failures: list[tuple[int, str]] = []
        self.n_write_pauses = 0
        self.spread = Spread(())
        self.lane: Lane | None = None
        self.target = 0
        self.has_waiting = False
        self.is_streamed = False
        self.largest_reply_bytes = 1 << 20
        self.messages: list[tuple[int, int, bytes]] = []
        self.why = ""
        self.connection = GrpcConnection(self, call_headers("http", "h:1", {}))
        self.socket = SocketStream()
        self.connection.socket = self.socket  # type: ignore[assignment]

    def now(self) -> int:
        self.clock_ns += 1
        return self.clock_ns

    def on_reply(self, exchange: GrpcExchange) -> None:
        self.replies.append((exchange.token, exchange.grpc_status, exchange.grpc_message, exchange.body))

    def on_failure(self, token: int, sent_ns: int, first_ns: int, why: str) -> None:
        del sent_ns, first_ns
        self.failures.append((token, why))

    def on_message(self, exchange: GrpcExchange, t_ns: int, message: bytes) -> None:
        self.messages.append((exchange.token, t_ns, message))

    def broken(self, connection: GrpcConnection, why: str) -> None:
        self.why = why
        for exchange in connection.close():
            del self.by_token[exchange.token]
            self.on_failure(exchange.token, exchange.sent_ns, exchange.first_ns, why)

    def nothing(self, _: object) -> None:
        """There is one connection, and no lane."""

    mark_dirty = ready = room = leaving = gone = lend = readopt = nothing


def connected(settings: dict[int, int] | None = None) -> Ends:
    ends = Ends()
    ends.connection.on_connected()
    assert ends.socket.written.startswith(http2.PREFACE)
    ends.connection.on_data(http2.settings(settings or {}))
    ends.socket.written = b""
    return ends


def begin(ends: Ends, *tokens: int) -> list[http2.Frame]:
    """Sends a request per token; returns the frames that went out."""
    ends.socket.written = b""
    made = template()
    for token in tokens:
        ends.connection.begin(token, made.head + encode_id(token), made.tail)
    ends.connection.flush()
    return list(http2.split_frames(ends.socket.written, 1 << 24))


def headers(stream: int, *fields: tuple[str, str], end: bool = False) -> bytes:
    """A HEADERS frame that needs no state: each field literal, never in a table."""
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields
    )
    return http2.frame(http2.HEADERS, http2.END_HEADERS | (http2.END_STREAM if end else 0), stream, block)


def answer(stream: int, request_id: int) -> bytes:
    return (
        headers(stream, (":status", "200"), ("content-type", "application/grpc"))
        + http2.frame(http2.DATA, 0, stream, response(f"{request_id:012d}"))
        + headers(stream, ("grpc-status", "0"), end=True)
    )


def test_a_template_with_an_id_between_is_the_request_that_it_says() -> None:
    made = template()
    data = made.head + encode_id(42) + made.tail
    assert made.n_bytes == len(data)
    assert data[0] == 0
    assert int.from_bytes(data[1:5], "big") == len(data) - 5
    found: dict[int, list[int | bytes]] = {}
    for number, value, _ in protobuf.read_fields(data[5:]):
        found.setdefault(number, []).append(value)
    assert found[1] == [b"m"]
    assert found[2] == [b"3"]
    assert found[3] == [b"000000000042"]
    assert found[6] == [protobuf.field(1, "OUTPUT")]
    raw, described = found[7][0], found[5][0]
    assert isinstance(raw, bytes)
    assert isinstance(described, bytes)
    assert np.array_equal(np.frombuffer(raw, "<f4").reshape(2, 4), INPUTS["INPUT"])
    tensor = {number: value for number, value, _ in protobuf.read_fields(described)}
    assert tensor == {1: b"INPUT", 2: b"FP32", 3: b"\x02\x04"}


def reply(body: bytes, status: int = 0, message: str = "", http_status: int = 200) -> GrpcExchange:
    exchange = GrpcExchange(None, 1, 1)  # type: ignore[arg-type]
    exchange.body, exchange.grpc_status, exchange.grpc_message = body, status, message
    exchange.http_status = http_status
    return exchange


WHOLE = len(response()) - 5
QUEUE_FULL = "[request id: 000000000042] Exceeds%20maximum queue size"


@pytest.mark.parametrize(
    ("exchange", "outcome", "detail"),
    [
        (reply(response()), "ok", ""),
        (reply(response("000000000043")), "bad_reply", NO_ID),
        (
            reply(response(shape=(1, 4))),
            "bad_reply",
            "output OUTPUT is FP32 [1, 4], the model's spec says FP32 [2, 2]",
        ),
        (reply(response(n_bytes=8)), "bad_reply", "output OUTPUT has 8 bytes, the model's spec says 16"),
        (
            reply(response()[:-1]),
            "bad_reply",
            f"the reply's message says {WHOLE} bytes and has {WHOLE - 1}",
        ),
        (reply(b"\1" + response()[1:]), "bad_reply", "the reply is compressed, which was not asked for"),
        (reply(b""), "bad_reply", "the reply has no message"),
        (reply(b"\0\0\0\0\2\x1a\xff"), "bad_reply", "the protobuf message is cut short"),
        (reply(b"", 14, QUEUE_FULL), "rejected", "14 Exceeds maximum queue size"),
        (reply(b"", 3, "Request timeout expired"), "rejected", "3 Request timeout expired"),
        (reply(b"", 13, "a%0Ab"), "server_error", "13 a b"),
        (reply(b"", -1), "bad_reply", "the reply has no grpc-status"),
        (reply(b"", -1, http_status=502), "server_error", "the reply has HTTP status 502"),
    ],
)
def test_a_reply_is_judged_by_status_id_and_tensors(
    exchange: GrpcExchange, outcome: str, detail: str
) -> None:
    made = template()
    for _ in range(2):  # the second time its layout may be known
        assert made.judge(exchange, encode_id(42)) == (outcome, detail)


def test_a_known_layout_is_still_checked_to_the_byte() -> None:
    made = template()
    for request_id in (42, 43):
        assert made.judge(reply(response(f"{request_id:012d}")), encode_id(request_id)) == ("ok", "")
    assert made.judge(reply(response()), encode_id(43)) == ("bad_reply", NO_ID)
    assert made.judge(reply(response() + b"x"), encode_id(42))[0] == "bad_reply"
    assert made.judge(reply(response()[:-17] + b"\x0f" + bytes(16)), encode_id(42))[0] == "bad_reply"


def test_a_call_is_a_headers_and_a_data_frame_and_its_headers_shrink_to_table_entries() -> None:
    ends = connected()
    decoder = hpack.Decoder()
    sizes = []
    for token in (1, 2, 3, 4):
        head, data = begin(ends, token)
        assert (head.kind, head.flags, head.stream) == (http2.HEADERS, http2.END_HEADERS, 2 * token - 1)
        names: dict[Any, Any] = dict(decoder.decode(head.payload))
        assert names == dict(call_headers("http", "h:1", {}))
        assert (data.kind, data.flags) == (http2.DATA, http2.END_STREAM)
        made = template()
        assert data.payload == made.head + encode_id(token) + made.tail
        sizes.append(len(head.payload))
    assert sizes[0] > 5 * sizes[1]
    assert sizes[1] == sizes[2] == sizes[3]


def test_replies_that_come_byte_by_byte_and_across_each_other_end_their_own_calls() -> None:
    ends = connected()
    begin(ends, 7, 8)
    one, two = answer(1, 7), answer(3, 8)
    mixed = two[:30] + one + two[30:]
    first_frame = http2.HEAD_BYTES + int.from_bytes(two[:3], "big")
    mixed = two[:first_frame] + one + two[first_frame:]
    for place in range(len(mixed)):
        ends.connection.on_data(mixed[place : place + 1])
    assert [(token, status) for token, status, _, _ in ends.replies] == [(7, 0), (8, 0)]
    assert ends.replies[0][3] == response("000000000007")
    assert ends.failures == []
    assert not ends.socket.is_closed


def test_header_blocks_with_a_state_are_decoded_in_order_though_some_are_known() -> None:
    ends = connected()
    encoder = hpack.Encoder()
    tokens = range(1, 9)
    begin(ends, *tokens)
    for token in tokens:
        message = "odd" if token % 2 else "even"
        if token == 5:  # the table moves: what was index 62 is another field now
            block = encoder.encode([("x-new", "field")])
            ends.connection.on_data(http2.frame(http2.HEADERS, http2.END_HEADERS, 2 * token - 1, block))
        block = encoder.encode(
            [(":status", "200"), ("grpc-status", str(token % 2)), ("grpc-message", message)]
        )
        flags = http2.END_HEADERS | http2.END_STREAM
        ends.connection.on_data(http2.frame(http2.HEADERS, flags, 2 * token - 1, block))
    assert [(token, status, text) for token, status, text, _ in ends.replies] == [
        (token, token % 2, "odd" if token % 2 else "even") for token in tokens
    ]


def test_a_request_above_the_windows_goes_out_as_they_open() -> None:
    ends = connected({http2.INITIAL_WINDOW_SIZE: 10})
    made = template()
    whole = made.head + encode_id(1) + made.tail
    frames = begin(ends, 1)
    assert [frame.kind for frame in frames] == [http2.HEADERS, http2.DATA]
    sent = frames[1].payload
    assert len(sent) == 10
    while len(sent) < len(whole):
        ends.socket.written = b""
        ends.connection.on_data(http2.window_update(1, 25))
        (frame,) = http2.split_frames(ends.socket.written, 1 << 24)
        sent += frame.payload
    assert sent == whole
    assert frame.flags == http2.END_STREAM


def test_the_window_of_the_connection_holds_for_all_its_calls() -> None:
    ends = connected({http2.INITIAL_WINDOW_SIZE: 1 << 20})
    ends.connection.begin(1, b"a" * 40_000, b"")
    ends.connection.begin(2, b"b" * 40_000, b"")
    ends.connection.flush()
    data = [frame for frame in http2.split_frames(ends.socket.written, 1 << 24) if frame.kind == http2.DATA]
    assert sum(len(frame.payload) for frame in data) == http2.DEFAULT_WINDOW_BYTES
    assert max(len(frame.payload) for frame in data) <= http2.DEFAULT_FRAME_BYTES
    ends.socket.written = b""
    ends.connection.on_data(http2.window_update(0, 80_000 - http2.DEFAULT_WINDOW_BYTES))
    rest = list(http2.split_frames(ends.socket.written, 1 << 24))
    assert sum(len(frame.payload) for frame in rest) == 80_000 - http2.DEFAULT_WINDOW_BYTES
    assert rest[-1].flags == http2.END_STREAM


@pytest.mark.parametrize("frame_bytes", [16_384, 20_000, 1 << 20])
@pytest.mark.parametrize("window_bytes", [1, 7_000, 16_384, 65_535, 10**6])
def test_a_long_request_is_whole_in_frames_of_any_size_whatever_the_windows_let_through(
    frame_bytes: int, window_bytes: int
) -> None:
    ends = connected({http2.INITIAL_WINDOW_SIZE: window_bytes, http2.MAX_FRAME_SIZE: frame_bytes})
    ends.connection.on_data(http2.window_update(0, 1 << 30))
    head, tail = b"h" * 300, bytes(range(250)) * 1_000
    ends.connection.begin(1, head, tail)
    ends.connection.flush()
    step_bytes = max(window_bytes, 20_011)
    while ends.connection._blocked:
        ends.connection.on_data(http2.window_update(1, step_bytes))
    frames = list(http2.split_frames(ends.socket.written, frame_bytes))
    data = [frame for frame in frames if frame.kind == http2.DATA]
    assert b"".join(frame.payload for frame in data) == head + tail
    assert [frame.flags for frame in data] == [0] * (len(data) - 1) + [http2.END_STREAM]
    assert all(frame.payload for frame in data)


def test_pings_and_settings_are_acknowledged() -> None:
    ends = connected()
    ends.connection.on_data(
        http2.frame(http2.PING, 0, 0, b"12345678") + http2.settings({http2.MAX_FRAME_SIZE: 20_000})
    )
    frames = list(http2.split_frames(ends.socket.written, 1 << 24))
    assert [(frame.kind, frame.flags, frame.payload) for frame in frames] == [
        (http2.PING, http2.ACK, b"12345678"), (http2.SETTINGS, http2.ACK, b""),
    ]  # fmt: skip


def test_a_goaway_fails_the_calls_it_did_not_take_and_lets_the_others_end() -> None:
    ends = connected()
    begin(ends, 1, 2)
    ends.connection.on_data(http2.frame(http2.GOAWAY, 0, 0, bytes([0, 0, 0, 1, 0, 0, 0, 0])))
    assert ends.failures == [(2, "the server went away before it took the request: NO_ERROR")]
    assert not ends.connection.has_room
    ends.connection.on_data(answer(1, 1))
    assert [token for token, *_ in ends.replies] == [1]


def test_a_reset_stream_fails_one_call_only() -> None:
    ends = connected()
    begin(ends, 1, 2)
    ends.connection.on_data(http2.rst_stream(1, http2.ERROR_NAMES.index("REFUSED_STREAM")) + answer(3, 2))
    assert ends.failures == [(1, "the server reset the stream: REFUSED_STREAM")]
    assert [token for token, *_ in ends.replies] == [2]


def test_what_comes_for_a_call_that_was_given_up_is_not_looked_at() -> None:
    ends = connected()
    begin(ends, 1, 2)
    ends.connection.cancel(ends.by_token.pop(1))
    ends.connection.on_data(answer(1, 1) + answer(3, 2))
    assert [token for token, *_ in ends.replies] == [2]
    assert http2.rst_stream(1, http2.CANCEL) in ends.socket.written


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        http2.frame(http2.DATA, 0, 1, b"early"),
        http2.frame(http2.HEADERS, http2.END_HEADERS, 99, b"\x88"),
        http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
        http2.frame(http2.CONTINUATION, 0, 1, b""),
        http2.frame(http2.PUSH_PROMISE, 0, 1, b"\0\0\0\2"),
        http2.frame(http2.SETTINGS, 0, 0, b"12345"),
        http2.frame(http2.WINDOW_UPDATE, 0, 0, b"\0\0\0\0"),
        http2.frame(http2.GOAWAY, 0, 0, b"\0"),
        http2.frame(http2.PING, 0, 0, b"short"),
        b"\xff\xff\xff" + bytes(6),
    ],
)
def test_a_server_that_breaks_the_protocol_fails_its_calls_as_malformed(data: bytes) -> None:
    ends = connected()
    begin(ends, 1)
    ends.connection.on_data(data)
    assert len(ends.failures) == 1
    assert ends.failures[0][1].startswith("malformed reply: ")
    assert ends.socket.is_closed


frame_kinds = st.integers(0, 11)
some_frames = st.builds(
    http2.frame, frame_kinds, st.sampled_from([0, 1, 4, 5, 8, 13, 0x20, 0x2D, 255]),
    st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]), st.binary(max_size=40),
)  # fmt: skip
pieces = st.one_of(some_frames, st.binary(max_size=60), st.sampled_from([answer(1, 1), answer(3, 2)]))


@examples(400)
@given(st.lists(pieces, max_size=12), st.integers(1, 40))
def test_whatever_a_server_sends_each_call_ends_at_most_once_and_nothing_is_raised(
    sent: list[bytes], n_bytes: int
) -> None:
    ends = connected()
    begin(ends, 1, 2)
    data = b"".join(sent)
    for place in range(0, len(data), n_bytes):
        if not ends.socket.is_closed:
            ends.connection.on_data(data[place : place + n_bytes])
    ended = [token for token, *_ in ends.replies] + [token for token, _ in ends.failures]
    assert len(ended) == len(set(ended))
    assert set(ended) | set(ends.by_token) == {1, 2}
    made = template()
    for token, status, text, body in ends.replies:
        exchange = reply(body, status, text)
        assert made.judge(exchange, encode_id(token))[0] in ("ok", "bad_reply", "server_error", "rejected")


@examples(300)
@given(st.binary(max_size=80), st.integers(0, 60), st.integers(0, 255))
def test_any_message_is_judged_without_an_error(tail: bytes, place: int, byte: int) -> None:
    good = bytearray(response())
    good[min(place, len(good) - 1)] = byte
    for message in (bytes(good), b"\0" + len(tail).to_bytes(4, "big") + tail):
        assert template().judge(reply(message), b"0" * ID_DIGITS)[0] in ("ok", "bad_reply")


@given(
    texts=st.lists(st.binary(max_size=40), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 400), max_size=6),
    padding=st.booleans(),
)
def test_messages_of_a_stream_are_told_once_each_however_they_are_cut(
    texts: list[bytes], cuts: list[int], padding: bool
) -> None:
    ends = connected()
    ends.is_streamed = True
    begin(ends, 7)
    whole = b"".join(MESSAGE_HEAD.pack(0, len(text)) + text for text in texts)
    edges = sorted({0, *(cut for cut in cuts if cut < len(whole)), len(whole)})
    ends.connection.on_data(headers(1, (":status", "200")))
    for start, end in itertools.pairwise(edges):
        payload, flags = whole[start:end], 0
        if padding:
            payload, flags = bytes([3]) + payload + bytes(3), http2.PADDED
        ends.connection.on_data(http2.frame(http2.DATA, flags, 1, payload))
    assert [(token, text) for token, _, text in ends.messages] == [(7, text) for text in texts]
    instants = [t_ns for _, t_ns, _ in ends.messages]
    assert instants == sorted(instants)
    ends.connection.on_data(headers(1, ("grpc-status", "0"), end=True))
    assert ends.replies == [(7, 0, "", b"")]


def test_a_call_that_its_message_ends_gets_no_more_and_leaves_the_others_alone() -> None:
    ends = connected()
    ends.is_streamed = True
    begin(ends, 7, 8)

    def hang_up(exchange: GrpcExchange, t_ns: int, message: bytes) -> None:
        Ends.on_message(ends, exchange, t_ns, message)
        if exchange.token == 7:
            del ends.by_token[7]
            exchange.connection.cancel(exchange)

    ends.on_message = hang_up  # type: ignore[method-assign]
    two = 2 * (MESSAGE_HEAD.pack(0, 1) + b"x")
    data = [
        headers(stream, (":status", "200")) + http2.frame(http2.DATA, 0, stream, two) for stream in (1, 3)
    ]
    ends.connection.on_data(b"".join(data))
    ends.connection.on_data(http2.frame(http2.DATA, 0, 1, two))
    assert [token for token, _, _ in ends.messages] == [7, 8, 8]
    assert (ends.replies, ends.failures, ends.why) == ([], [], "")
