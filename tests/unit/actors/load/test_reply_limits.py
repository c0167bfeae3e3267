"""What a reply may hold, what it costs, and what a server may send that no request asked for; without sockets."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from squall.actors.load.recorder import Recorder
from squall.actors.load.streams import _MOST_RESPONSES, StreamRule, Streams
from squall.actors.load.targets import TargetSettings, Wire
from squall.actors.messages.grpc_stream import streamed
from squall.actors.messages.grpc_wire import MESSAGE_HEAD
from squall.actors.net import http2
from squall.models.payload import ID_DIGITS, largest_reply_bytes
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.client import ClientConfig
from tests.unit.actors.load.test_http_client import Bench, StreamBench
from tests.unit.actors.messages.test_grpc import Ends, answer, begin, connected, headers, template

MIB = 1 << 20
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TOO_LARGE = "the reply is larger than 1000 B: clients.largest_reply allows more"
HEADS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n",
    "to the end": b"HTTP/1.1 200 OK\r\n\r\n",
    "error": b"HTTP/1.1 500 No\r\nContent-Length: 999999999\r\n\r\n",
}


def spec_of(*outputs: TensorSpec, rows: int = 8) -> ModelSpec:
    return ModelSpec("m", "1", (), outputs, rows)


OPEN = spec_of(TensorSpec("A", "FP32", (4,)), TensorSpec("B", "BYTES", (1,)))


@pytest.mark.parametrize(
    ("spec", "is_binary", "expected"),
    [
        (spec_of(TensorSpec("A", "FP32", (2,))), True, 17 * MIB),
        (spec_of(TensorSpec("A", "FP32", (MIB,)), rows=2), True, 32 * MIB),
        (spec_of(TensorSpec("A", "FP32", (MIB,)), rows=2), False, 80 * MIB),
        (spec_of(TensorSpec("A", "FP32", (MIB,)), rows=0), True, 24 * MIB),
        (OPEN, True, 64 * MIB),
        (spec_of(TensorSpec("A", "FP32", (-1,))), False, 64 * MIB),
        (spec_of(TensorSpec("A", "FP64", (1 << 60,))), True, 1024 * MIB),
    ],
)
def test_a_reply_may_hold_what_the_model_can_answer_with_room(
    spec: ModelSpec, is_binary: bool, expected: int
) -> None:
    assert largest_reply_bytes(spec, is_binary) == expected


def test_the_scenario_may_allow_more_and_is_written_back_as_it_was() -> None:
    config = ClientConfig.model_validate({"largest_reply": "96 MiB"})
    assert config.largest_reply_bytes == 96 * MIB
    assert config.model_dump(mode="json", by_alias=True)["largest_reply"] == "96 MiB"
    assert ClientConfig().largest_reply_bytes is None
    for wrong in ("0 B", "64", 64, "-1 MiB"):
        with pytest.raises(ValidationError):
            ClientConfig.model_validate({"largest_reply": wrong})
    target = TargetSettings("server-0", "h", 1, (None, OPEN))
    assert Wire("grpc").largest_reply_of(target) == 64 * MIB
    assert Wire("grpc", largest_reply_bytes=7).largest_reply_of(target) == 7


def limited(bench: Bench) -> Bench:
    bench.client.largest_reply_bytes = 1_000
    bench.client.send(1, b"x", b"")
    return bench


@pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))
def test_a_longer_reply_over_http_fails_and_cuts_its_connection(head: bytes) -> None:
    bench = limited(Bench())
    bench.connection.on_data(head + bytes(1_000))
    assert bench.failures == []
    bench.connection.on_data(b"x")
    assert bench.failures == [(1, TOO_LARGE)]
    assert bench.socket.is_closed


def test_a_longer_reply_in_chunks_or_whole_fails_too() -> None:
    for data in (
        CHUNKED + 501 * b"2\r\nab\r\n" + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + bytes(1_001),
    ):
        bench = limited(Bench())
        bench.connection.on_data(data)
        assert (bench.failures, bench.replies) == ([(1, TOO_LARGE)], [])


def test_of_a_stream_each_response_may_be_as_long() -> None:
    bench = limited(StreamBench())
    assert isinstance(bench, StreamBench)
    event = 800 * b"e"
    bench.connection.on_data(CHUNKED + 3 * (b"322\r\n" + event + b"\n\n\r\n"))
    assert [text for _, text in bench.events] == [event] * 3
    for _ in range(3):
        bench.connection.on_data(b"190\r\n" + 400 * b"e" + b"\r\n")
    assert bench.failures == [(1, TOO_LARGE)]


@pytest.mark.parametrize("behind", [b"0\r\nX: ", b"1;x="], ids=["trailer", "extension"])
def test_what_is_no_body_behind_the_head_ends_too(behind: bytes) -> None:
    bench = Bench()
    bench.client.send(1, b"x", b"")
    bench.connection.on_data(CHUNKED + b"1\r\na\r\n" + behind)
    for _ in range(3):
        bench.connection.on_data(30_000 * b"a")
    assert bench.failures == [(1, "malformed reply: its head is longer than 65536 bytes")]


def limited_calls(*tokens: int) -> Ends:
    ends = connected()
    ends.largest_reply_bytes = 1_000
    begin(ends, *tokens)
    ends.connection.on_data(headers(1, (":status", "200")))
    return ends


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_longer_reply_over_grpc_fails_and_its_call_is_cancelled(is_streamed: bool) -> None:
    ends = limited_calls(1, 2)
    ends.is_streamed = is_streamed
    ends.connection.on_data(http2.frame(http2.DATA, 0, 1, MESSAGE_HEAD.pack(0, 2**32 - 1) + bytes(995)))
    assert ends.failures == []
    ends.connection.on_data(http2.frame(http2.DATA, 0, 1, b"x"))
    assert ends.failures == [(1, TOO_LARGE)]
    assert http2.rst_stream(1, http2.CANCEL) in ends.socket.written
    ends.is_streamed = False
    ends.connection.on_data(answer(3, 2))
    assert [token for token, *_ in ends.replies] == [2]


def test_messages_of_a_stream_that_come_together_may_be_longer_than_one() -> None:
    ends = limited_calls(1)
    ends.is_streamed = True
    ends.connection.on_data(http2.frame(http2.DATA, 0, 1, 5 * (MESSAGE_HEAD.pack(0, 900) + bytes(900))))
    assert [len(message) for _, _, message in ends.messages] == [900] * 5
    assert ends.failures == []


def test_a_call_that_goes_on_after_it_was_cancelled_ends_its_connection() -> None:
    ends = limited_calls(1)
    for _ in range(1_200):
        if not ends.socket.is_closed:
            ends.connection.on_data(http2.frame(http2.DATA, 0, 1, bytes(1_001)))
    assert ends.failures == [(1, TOO_LARGE)]
    assert ends.why.startswith("malformed reply: more than 1000 frames")


def test_the_responses_to_one_request_have_a_number(tmp_path: Path) -> None:
    labels = {"run": "r", "node": "n"}
    recorder = Recorder(tmp_path / "requests", labels, 0, ["m"], ["server-0"], ["m"])
    streams = Streams(tmp_path / "responses", labels, 0, ["m"], ["server-0"], StreamRule(), recorder)
    made, wire_id = streamed(template(), None), b"0" * ID_DIGITS
    assert not any(streams.take(7, 1, b"", made, wire_id) for _ in range(_MOST_RESPONSES))
    assert streams.take(7, 1, b"", made, wire_id)
    assert streams.end(7, 0, made, "ok", "")[:2] == ("bad_reply", "it has more than 262144 responses")
    streams.close()
    recorder.close()


def cost_ns(made: Callable[[int], Callable[[], None]], n: int) -> int:
    """CPU time of what is made for `n`, the least of five."""

    def once() -> int:
        run = made(n)
        begun_ns = time.process_time_ns()
        run()
        return time.process_time_ns() - begun_ns

    return min(once() for _ in range(5))


def grpc_body(n: int, is_streamed: bool = False) -> Callable[[], None]:
    ends = connected()
    ends.largest_reply_bytes = 1 << 30
    ends.is_streamed = is_streamed
    begin(ends, 1)
    ends.connection.on_data(headers(1, (":status", "200")))
    first = http2.frame(http2.DATA, 0, 1, MESSAGE_HEAD.pack(0, 1 << 30))
    frame = http2.frame(http2.DATA, 0, 1, bytes(1_000))

    def run() -> None:
        ends.connection.on_data(first)
        for _ in range(n):
            ends.connection.on_data(frame)

    return run


def http_body(n: int, is_streamed: bool = False) -> Callable[[], None]:
    bench = StreamBench() if is_streamed else Bench()
    bench.client.largest_reply_bytes = 1 << 30
    bench.client.send(1, b"x", b"")
    bench.connection.on_data(CHUNKED)

    def run() -> None:
        for _ in range(n):
            bench.connection.on_data(b"3e8\r\n" + 1_000 * b"e" + b"\r\n")

    return run


WAYS = {
    "grpc": grpc_body,
    "grpc stream": lambda n: grpc_body(n, True),
    "http": http_body,
    "http stream": lambda n: http_body(n, True),
}


@pytest.mark.parametrize("made", WAYS.values(), ids=list(WAYS))
def test_a_reply_in_pieces_costs_time_by_its_length_and_not_by_the_square(
    made: Callable[[int], Callable[[], None]],
) -> None:
    made(200)()
    assert cost_ns(made, 16_000) < 24 * cost_ns(made, 2_000)  # 8 times as long; the square is 64


def test_many_small_chunks_take_memory_by_their_bytes() -> None:
    bench = Bench()
    bench.client.send(1, b"x", b"")
    bench.connection.on_data(CHUNKED)
    data = 10_000 * b"1\r\na\r\n"
    tracemalloc.start()
    for _ in range(20):
        bench.connection.on_data(data)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 2 * 200_000


PING = http2.frame(http2.PING, 0, 0, b"12345678")
FLOODS = {
    "ping": PING,
    "ping ack": http2.frame(http2.PING, http2.ACK, 0, b"12345678"),
    "settings": http2.settings({}),
    "settings ack": http2.frame(http2.SETTINGS, http2.ACK, 0),
    "priority": http2.frame(http2.PRIORITY, 0, 1, bytes(5)),
    "window of the connection": http2.window_update(0, 1),
    "window of a call": http2.window_update(1, 1),
    "reset of an ended call": http2.rst_stream(3, http2.CANCEL),
    "goaway": http2.frame(http2.GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0"),
    "unknown": http2.frame(99, 0, 1, b"x"),
    "empty data": http2.frame(http2.DATA, 0, 1),
    "padding": http2.frame(http2.DATA, http2.PADDED, 1, b"\5" + bytes(5)),
    "headers again": headers(1, (":status", "200")),
    "informational headers": headers(1, (":status", "100")),
    "headers of an ended call": headers(3, (":status", "200")),
}
TOO_MANY = "malformed reply: more than 1000 frames in a row that are of no use to a call"


def waiting() -> Ends:
    """Call 1 has its headers, call 2 on stream 3 is over."""
    ends = connected()
    begin(ends, 1, 2)
    ends.connection.on_data(answer(3, 2) + headers(1, (":status", "200")))
    ends.socket.written = b""
    return ends


@pytest.mark.parametrize("frame", FLOODS.values(), ids=list(FLOODS))
def test_a_flood_of_frames_ends_its_connection_in_one_line(frame: bytes) -> None:
    ends = waiting()
    ends.connection.on_data(900 * frame)
    assert not ends.socket.is_closed
    ends.connection.on_data(200 * frame)
    assert ends.failures == [(1, TOO_MANY)]
    assert ends.socket.is_closed
    assert len(ends.socket.written) <= 17 * 1_000


def test_a_flood_of_empty_continuations_ends_its_connection() -> None:
    ends = waiting()
    ends.connection.on_data(http2.frame(http2.HEADERS, 0, 1, b"\x88"))
    for _ in range(1_009):
        if not ends.socket.is_closed:
            ends.connection.on_data(http2.frame(http2.CONTINUATION, 0, 1))
    assert ends.failures == [(1, TOO_MANY)]


@pytest.mark.parametrize("use", ["a piece of a reply", "a request"])
def test_frames_are_counted_anew_once_a_call_goes_on(use: str) -> None:
    ends = waiting()
    for token in range(10, 15):
        ends.connection.on_data(900 * PING)
        if use == "a request":
            begin(ends, token)
        else:
            ends.connection.on_data(http2.frame(http2.DATA, 0, 1, b"x"))
    assert not ends.socket.is_closed


def test_a_long_request_may_be_told_of_in_many_small_windows() -> None:
    ends = connected({http2.INITIAL_WINDOW_SIZE: 1 << 30})
    ends.connection.on_data(http2.window_update(0, 1 << 29))
    for token in (1, 2):
        ends.connection.begin(token, b"", bytes(4 * MIB))
    ends.connection.flush()
    for _ in range(2_048):  # each 4 KiB that it has read, of the call and of the connection
        ends.connection.on_data(http2.window_update(1, 4_096) + http2.window_update(0, 4_096))
    assert not ends.socket.is_closed


def blocked_calls(n: int, n_bytes: int = 2_000) -> Ends:
    ends = connected({http2.INITIAL_WINDOW_SIZE: 0})
    ends.connection.on_data(http2.window_update(0, 1 << 30))
    for token in range(n):
        ends.connection.begin(token, b"", bytes(n_bytes))
    ends.connection.flush()
    return ends


def small_windows(n_calls: int) -> Callable[[], None]:
    ends = blocked_calls(n_calls)
    streams = range(1, 2 * n_calls, 2)
    data = b"".join(http2.window_update(streams[i % n_calls], 1) for i in range(900))

    def run() -> None:
        ends.connection.on_data(data)
        assert not ends.socket.is_closed

    return run


def test_a_window_for_one_call_costs_nothing_for_the_others_that_wait() -> None:
    assert cost_ns(small_windows, 4_000) < 6 * cost_ns(small_windows, 100)


def test_settings_that_let_waiting_requests_through_bit_by_bit_end_the_connection() -> None:
    ends = blocked_calls(2)
    for n_bytes in range(1, 1_101):
        if not ends.socket.is_closed:
            ends.connection.on_data(http2.settings({http2.INITIAL_WINDOW_SIZE: n_bytes}))
    assert ends.why == "malformed reply: more than 1000 settings that let waiting requests through bit by bit"


def test_windows_that_open_a_little_for_many_calls_are_no_flood() -> None:
    ends = blocked_calls(1_200, 300)
    ends.connection._window = 0
    ends.connection.on_data(http2.settings({http2.INITIAL_WINDOW_SIZE: 65_535}))
    ends.connection.on_data(http2.window_update(0, 360_000))
    assert (len(ends.connection._blocked), ends.socket.is_closed) == (0, False)
    ends = connected()
    ends.connection.begin(1, b"", bytes(MIB))
    for _ in range(6_900):
        ends.connection.on_data(http2.window_update(1, 152) + http2.window_update(0, 152))
    assert (len(ends.connection._blocked), ends.socket.is_closed) == (0, False)


def test_a_call_that_is_answered_before_it_is_sent_is_not_held_any_more() -> None:
    ends = connected({http2.INITIAL_WINDOW_SIZE: 1 << 20})
    for token in range(1, 101):
        ends.connection.begin(token, b"", bytes(70_000))
        ends.connection.on_data(2 * http2.window_update(2 * token - 1, 1) + answer(2 * token - 1, token))
    assert len(ends.replies) == 100
    assert (len(ends.connection._blocked), len(ends.connection._sendable)) == (0, 0)


@pytest.mark.parametrize("window", [0, 1])
def test_calls_of_which_the_windows_let_little_through_are_sent_whole_in_the_end(window: int) -> None:
    """The connection's window opens by 700 bytes, the calls' own in turn, by SETTINGS and one by one."""
    ends = connected({http2.INITIAL_WINDOW_SIZE: window})
    for token in range(4):
        ends.connection.begin(token, b"", bytes([token]) * 40_000)
    for step in range(1, 400):
        ends.connection.on_data(http2.window_update(0, 700))
        if step % 40 == 0:
            ends.connection.on_data(http2.settings({http2.INITIAL_WINDOW_SIZE: 100 * step * (step % 80 > 0)}))
        ends.connection.on_data(http2.window_update(1 + 2 * (step % 4), 900))
    ends.connection.flush()
    frames = [one for one in http2.split_frames(ends.socket.written, 1 << 24) if one.kind == http2.DATA]
    for token in range(4):
        own = [one for one in frames if one.stream == 1 + 2 * token]
        assert b"".join(one.payload for one in own) == bytes([token]) * 40_000
        assert [one.flags for one in own if one.flags] == [http2.END_STREAM]


def test_sizes_of_the_header_table_are_told_once_whatever_the_server_says_between() -> None:
    ends = connected()
    begin(ends, 1)
    for _ in range(6_500):
        for n_bytes in (4_095, 4_094):
            ends.connection._blocks.resize(n_bytes)
    ends.socket.written = b""
    begin(ends, 2)
    (frame,) = [one for one in http2.split_frames(ends.socket.written, 1 << 24) if one.kind == http2.HEADERS]
    assert frame.payload.startswith(b"\x3f\xdf\x1f")  # 4,094, once: RFC 7541, 6.3
    assert len(frame.payload) < 200


def test_a_head_whose_json_is_not_within_its_body_is_not_learnt() -> None:
    for n_bytes in (b"-5", b"5", 23 * b"9"):
        bench = Bench()
        bench.client.send(1, b"x", b"")
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nInference-Header-Content-Length: " + n_bytes
        bench.connection.on_data(head + b"\r\n\r\n{}")
        assert (len(bench.replies), bench.client.heads) == (1, {})


def test_late_replies_to_many_calls_that_were_given_up_are_no_flood() -> None:
    ends = connected()
    begin(ends, *range(600))
    for exchange in list(ends.by_token.values())[:-1]:
        del ends.by_token[exchange.token]
        ends.connection.cancel(exchange)
    late = [
        headers(stream, (":status", "200")) + http2.frame(http2.DATA, 0, stream, b"x")
        for stream in range(1, 1_199, 2)
    ]
    ends.connection.on_data(b"".join(late))
    assert not ends.socket.is_closed


def test_answers_that_the_server_does_not_read_are_limited_whatever_it_sends_between() -> None:
    ends = waiting()
    ends.socket.has_unsent = True
    for _ in range(80):
        if not ends.socket.is_closed:
            ends.connection.on_data(900 * PING + http2.frame(http2.DATA, 0, 1, b"x"))
    assert ends.failures == [(1, "malformed reply: the server asks for answers and does not read them")]
    assert len(ends.socket.written) <= 17 * 65_536
