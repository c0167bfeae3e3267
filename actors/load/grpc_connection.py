"""One HTTP/2 connection that carries unary gRPC calls: frames, header compression, flow control (RFC 9113, 7541)."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from squall.actors.load.client import OnFailure, too_large
from squall.actors.load.lane import Flight, Lane, Stray
from squall.actors.messages.grpc_headers import Fields, HeaderBlocks
from squall.actors.messages.grpc_wire import MESSAGE_HEAD, message_end
from squall.actors.net import http2
from squall.actors.net.http2 import Frame, ProtocolFault
from squall.actors.net.spread import Spread
from squall.actors.net.stream import LARGEST_JOINED_BYTES, SocketStream, appended

_HEAD = struct.Struct(">HBBBL")
_MOST_HANDED_BYTES = 16 << 20
"""They are copied once for the lane, and the loop stands still for that."""
_OUR_WINDOW_BYTES = http2.LARGEST_WINDOW_BYTES
_GIVE_BACK_BYTES = _OUR_WINDOW_BYTES // 2
_OK = 200
_MOST_IDLE_FRAMES = 1_000
"""As in the lane: frames in a row that are of no use to a call. Our sends allow more: a server may return the window of
a request in small parts or each by itself, and still answer a call that was given up."""
_FRAMES_PER_CALL = 4
_BYTES_PER_FRAME = 512
_FRAMES_PER_CANCEL = 64
_MOST_RAISES = 1_000
_MOST_ACKS = 65_536
"""As in the lane: answers to PING and SETTINGS since the socket was last empty."""
_HELLO = (
    http2.PREFACE
    + http2.settings({http2.ENABLE_PUSH: 0, http2.INITIAL_WINDOW_SIZE: _OUR_WINDOW_BYTES})
    + http2.window_update(0, _OUR_WINDOW_BYTES - http2.DEFAULT_WINDOW_BYTES)
)


class GrpcExchange:
    """One call: its stream, instants and reply."""

    __slots__ = (
        "body", "came", "connection", "done_ns", "first_ns", "grpc_message", "grpc_status", "http_status", "sent_ns",
        "stream", "token", "unsent", "window",
    )  # fmt: skip

    def __init__(self, connection: GrpcConnection, stream: int, token: int) -> None:
        self.connection = connection
        self.stream = stream
        self.token = token
        self.window = 0  # beyond the one that the settings give every stream
        self.sent_ns = self.first_ns = self.done_ns = -1
        self.http_status = self.grpc_status = -1
        self.grpc_message = ""
        self.body = b""
        self.came: bytes | bytearray = b""  # of responses that come one by one: what is not yet a whole one
        self.unsent: list[memoryview] = []  # what the windows hold back, in pieces


class Calls(Protocol):
    """Whom a connection tells; `by_token` holds the calls that have not ended, of all connections."""

    by_token: dict[int, GrpcExchange]
    n_write_pauses: int
    lane: Lane | None
    target: int
    largest_reply_bytes: int

    @property
    def has_waiting(self) -> bool:
        """Whether a call waits for a connection."""

    def lend(self, exchange: GrpcExchange) -> None:
        """The call becomes the lane's; it must be on a parked connection."""

    @property
    def now(self) -> Callable[[], int]: ...

    @property
    def spread(self) -> Spread: ...

    @property
    def on_reply(self) -> Callable[[GrpcExchange], None]: ...

    @property
    def on_failure(self) -> OnFailure: ...

    @property
    def is_streamed(self) -> bool:
        """Whether messages are told one by one, and not as the body of a reply."""

    def on_message(self, exchange: GrpcExchange, t_ns: int, message: bytes) -> None:
        """A whole message has come; it may end its call."""

    def mark_dirty(self, connection: GrpcConnection) -> None:
        """It has frames to write: call its `flush`."""

    def ready(self, connection: GrpcConnection) -> None:
        """The server's settings have come."""

    def room(self, connection: GrpcConnection) -> None:
        """It can take another stream."""

    def leaving(self, connection: GrpcConnection) -> None:
        """It takes no new calls."""

    def gone(self, connection: GrpcConnection) -> None:
        """Its last call has ended after it began to leave."""

    def broken(self, connection: GrpcConnection, why: str) -> None:
        """The end of a connection, or of the attempt at one."""

    def readopt(self, items: list[Any]) -> None:
        """What the lane gave back."""


class GrpcConnection:
    """Tells its client of replies, of room and of its end; knows nothing of plans or statistics."""

    def __init__(self, client: Calls, headers: list[tuple[str, str]]) -> None:
        self.socket: SocketStream | None = None
        self.address = -1  # its number in the client's spread, while it counts there
        self._client = client
        self._blocks = HeaderBlocks(headers)
        self._exchanges: dict[int, GrpcExchange] = {}
        self._next_stream = 1
        self._rest = bytearray()  # of a frame that is not whole
        self._n_needed = 0  # its length, once that is known
        self._open_block: tuple[int, int, bytearray] | None = None
        self._out: list[bytes | memoryview] = []
        self._is_long = False  # of what is in `_out`, so that it is not joined
        self._unstamped: list[GrpcExchange] = []
        self._blocked: dict[int, GrpcExchange] = {}  # those that are not wholly sent
        # those of them whose own window lets some through
        self._sendable: OrderedDict[int, GrpcExchange] = OrderedDict()
        self._window = http2.DEFAULT_WINDOW_BYTES
        self._stream_window = http2.DEFAULT_WINDOW_BYTES
        self._frame_bytes = http2.DEFAULT_FRAME_BYTES
        self._n_most_streams = http2.LARGEST_STREAM_ID
        self._n_received = 0
        self._n_idle = self._n_acks = self._n_raises = 0
        self._n_put_bytes = 0  # since the last frame that was of use by its bytes
        self._is_ready = self._is_leaving = self._is_lost = self.is_parked = False

    @property
    def has_room(self) -> bool:
        """Whether another call may begin."""
        return (
            len(self._exchanges) < self._n_most_streams
            and not self._is_leaving
            and self._next_stream <= http2.LARGEST_STREAM_ID
        )

    @property
    def target(self) -> int:
        """Number of its server in the lane."""
        return self._client.target

    def begin(self, token: int, head: bytes, tail: bytes) -> None:
        """A new call; its frames go out with the next `flush`."""
        stream = self._next_stream
        self._next_stream += 2
        exchange = GrpcExchange(self, stream, token)
        self._exchanges[stream] = exchange
        self._client.by_token[token] = exchange
        if not self._out:
            self._client.mark_dirty(self)
        block = self._blocks.steady or self._blocks.encode()
        n_bytes = len(head) + len(tail)
        self._goes_on()
        self._n_idle -= _FRAMES_PER_CALL + n_bytes // _BYTES_PER_FRAME
        start = _HEAD.pack(0, len(block), http2.HEADERS, http2.END_HEADERS, stream) + block
        if n_bytes <= self._frame_bytes and n_bytes <= self._window and n_bytes <= self._stream_window:
            self._window -= n_bytes
            exchange.window -= n_bytes
            start += _HEAD.pack(n_bytes >> 8, n_bytes & 0xFF, http2.DATA, http2.END_STREAM, stream) + head
            if n_bytes <= LARGEST_JOINED_BYTES:
                self._out.append(start + tail)
            else:
                self._out += start, tail
                self._is_long = True
        else:
            self._out.append(start)
            first = tail[: max(0, self._frame_bytes - len(head))]
            views = memoryview(head + first), memoryview(tail)[len(first) :]
            exchange.unsent = [view for view in views if view]
            self._blocked[stream] = exchange
            self._let_through(exchange)
            self._pump()
        self._unstamped.append(exchange)
        if not self.has_room:
            self._retire_if_worn()

    def reclaim(self) -> None:
        """Makes it Python's for now, where the lane has it."""
        lane = self._client.lane
        if self.is_parked and lane is not None and self.socket is not None:
            self._client.readopt(lane.core.reclaim(self.socket.fd))

    def take_back(self, stray: Stray) -> None:
        """The connection is Python's again, with the calls on it; see `squall.actors.load.lane`."""
        socket = self.socket
        assert socket is not None
        self.is_parked = False
        self._next_stream, self._window, self._n_received, self._n_idle = stray.state
        for flight in map(Flight._make, stray.flights):
            exchange = GrpcExchange(self, flight.stream, flight.token)
            exchange.sent_ns, exchange.first_ns = flight.sent_ns, flight.first_ns
            if flight.has_head:
                exchange.http_status, exchange.came = _OK, flight.body
            self._exchanges[flight.stream] = exchange
            self._client.by_token[flight.token] = exchange
        if stray.unsent:
            socket.defer(stray.unsent)
        self._is_lost = stray.lost >= 0
        if stray.data:
            self._take(stray.data, stray.now_ns)
        if self._is_lost:
            socket.lose(stray.lost)
        elif not self.is_parked:
            self._client.room(self)

    def park(self) -> None:
        """Gives connection and calls to the lane where that can carry them on."""
        lane, socket = self._client.lane, self.socket
        if (
            lane is None
            or socket is None
            or self.is_parked
            or not self._is_plain
            or not lane.is_of_use(self.target)
        ):
            return
        heads, trailers = self._blocks.known(Fields(_OK, -1, "")), self._blocks.known(Fields(-1, 0, ""))
        if not heads or not trailers or self._blocks.steady is None:
            return
        self.flush()
        unsent = socket.hand_over(_MOST_HANDED_BYTES)
        if unsent is None:
            return
        self.is_parked = True
        state = self._next_stream, self._window, self._n_received, self._n_idle
        lane.core.park_grpc(
            socket.fd, self, self._blocks.steady, heads, trailers, state, self._stream_window, self._frame_bytes,
            self._n_most_streams, self._client.target, unsent,
        )  # fmt: skip
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in sorted(exchanges.values(), key=lambda one: one.sent_ns):
            self._client.lend(exchange)

    @property
    def _is_plain(self) -> bool:
        """Whether nothing is under way here that the lane does not know of."""
        return (
            self._is_ready
            and not self._is_leaving
            and not self._is_lost
            and not self._rest
            and self._open_block is None
            and not self._blocked
            and not self._client.has_waiting
            and all(
                not one.came and one.http_status in (-1, _OK) and one.grpc_status < 0
                for one in self._exchanges.values()
            )
        )

    def cancel(self, exchange: GrpcExchange) -> None:
        """Gives a call up; what still comes for it is not looked at."""
        del self._exchanges[exchange.stream]
        self._forget_unsent(exchange)
        self._n_idle -= _FRAMES_PER_CANCEL
        self._put(http2.rst_stream(exchange.stream, http2.CANCEL))
        self._freed()

    def flush(self) -> None:
        """Writes what was put together, and stamps the calls that begin with it."""
        if not self._out or self.socket is None:
            return
        out, self._out = self._out, []
        is_long, self._is_long = self._is_long, False
        data = b"" if is_long else b"".join(out)
        now_ns = self._client.now()
        for exchange in self._unstamped:
            exchange.sent_ns = now_ns
        self._unstamped.clear()
        is_out = self.socket.write_parts(out) if is_long else self.socket.write(data)
        if not is_out:
            self._client.n_write_pauses += 1

    def close(self) -> list[GrpcExchange]:
        """Cuts the connection; returns the calls that were on it."""
        exchanges = list(self._exchanges.values())
        self._exchanges.clear()
        self._blocked.clear()
        self._sendable.clear()
        self._out.clear()
        self._unstamped.clear()
        self._is_leaving = True
        if self.address >= 0:
            self._client.spread.release(self.address)
            self.address = -1
        if self.socket is not None:
            self.socket.close()
        return exchanges

    # squall.actors.net.stream.Owner

    def on_connected(self) -> None:
        assert self.socket is not None
        self.socket.write(_HELLO)

    def on_drained(self) -> None:
        return

    def on_lost(self, why: str) -> None:
        self._client.broken(self, why)

    def on_data(self, data: bytes) -> None:
        self._take(data, self._client.now())

    def _take(self, data: bytes, now_ns: int) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._n_needed:
                return
            data = bytes(self._rest)
        at = 0
        try:
            for frame in http2.split_frames(data, http2.DEFAULT_FRAME_BYTES):
                at += http2.HEAD_BYTES + len(frame.payload)
                self._on_frame(frame, now_ns)
        except ProtocolFault as fault:
            self._client.broken(self, f"malformed reply: {fault}")
            return
        if self._rest or at < len(data):
            self._rest = bytearray(data[at:])
            self._n_needed = http2.n_needed(self._rest)
        self.flush()
        self.park()

    # frames

    def _on_frame(self, frame: Frame, now_ns: int) -> None:
        kind = frame.kind
        self._n_idle += 1
        if self._n_idle > _MOST_IDLE_FRAMES:
            raise ProtocolFault(f"more than {_MOST_IDLE_FRAMES} frames in a row that are of no use to a call")
        if not self._is_ready and kind != http2.SETTINGS:
            raise ProtocolFault("the server does not begin as HTTP/2 does")
        if self._open_block is not None and kind != http2.CONTINUATION:
            raise ProtocolFault("a frame within a header block")
        if kind == http2.DATA:
            self._on_data_frame(frame, now_ns)
        elif kind == http2.HEADERS:
            self._on_headers(frame, now_ns)
        elif kind == http2.CONTINUATION:
            self._on_continuation(frame, now_ns)
        elif kind == http2.RST_STREAM:
            self._on_reset(frame)
        elif kind == http2.SETTINGS:
            self._on_settings(frame)
        elif kind == http2.PING:
            if len(frame.payload) != 8:
                raise ProtocolFault("a PING is not of 8 bytes")
            if not frame.flags & http2.ACK:
                self._acknowledge(http2.frame(http2.PING, http2.ACK, 0, frame.payload))
        elif kind == http2.GOAWAY:
            self._on_goaway(frame)
        elif kind == http2.WINDOW_UPDATE:
            self._on_window(frame)
        elif kind == http2.PUSH_PROMISE:
            raise ProtocolFault("a PUSH_PROMISE, which the settings forbid")

    def _exchange_of(self, frame: Frame) -> GrpcExchange | None:
        """The call of a frame; None for one that was given up. Raises ProtocolFault for one that never began."""
        exchange = self._exchanges.get(frame.stream)
        if exchange is None and (frame.stream % 2 == 0 or frame.stream >= self._next_stream):
            raise ProtocolFault(f"a frame of stream {frame.stream}, which was never begun")
        return exchange

    def _on_data_frame(self, frame: Frame, now_ns: int) -> None:
        self._n_received += len(frame.payload)
        if self._n_received >= _GIVE_BACK_BYTES:
            self._put(http2.window_update(0, self._n_received))
            self._n_received = 0
        exchange = self._exchange_of(frame)
        if exchange is None:
            return
        if exchange.http_status < 0:
            raise ProtocolFault("DATA before HEADERS")
        payload = http2.unpadded(frame) if frame.flags & http2.PADDED else frame.payload
        if payload:
            self._goes_on()
            exchange.came = appended(exchange.came, payload)
        if self._client.is_streamed and not self._tell_messages(exchange, now_ns):
            return
        if len(exchange.came) > self._client.largest_reply_bytes:
            self.cancel(exchange)  # the other calls of the connection go on
            self._fail(exchange, too_large(self._client.largest_reply_bytes))
            return
        if frame.flags & http2.END_STREAM:
            self._end(exchange, now_ns)

    def _tell_messages(self, exchange: GrpcExchange, now_ns: int) -> bool:
        """Each whole message of what has come; False where one has ended the call."""
        body, at = exchange.came, 0
        while (end := message_end(body, at)) is not None:
            if body[at]:
                raise ProtocolFault("a compressed message, which was not asked for")
            self._client.on_message(exchange, now_ns, bytes(body[at + MESSAGE_HEAD.size : end]))
            if exchange.stream not in self._exchanges:
                return False
            at = end
        if at:  # else each frame of a long message would copy all of it
            exchange.came = body[at:]
        return True

    def _on_headers(self, frame: Frame, now_ns: int) -> None:
        self._exchange_of(frame)
        block = http2.unpadded(frame)
        if frame.flags & http2.END_HEADERS:
            self._on_block(frame, block, now_ns)
        else:
            self._open_block = (frame.stream, frame.flags, bytearray(block))

    def _on_continuation(self, frame: Frame, now_ns: int) -> None:
        if self._open_block is None or self._open_block[0] != frame.stream:
            raise ProtocolFault("a CONTINUATION of nothing")
        stream, flags, block = self._open_block
        block += frame.payload
        if len(block) > http2.DEFAULT_WINDOW_BYTES:
            raise ProtocolFault(f"its headers are longer than {http2.DEFAULT_WINDOW_BYTES} bytes")
        if frame.flags & http2.END_HEADERS:
            self._open_block = None
            self._on_block(Frame(http2.HEADERS, flags, stream, b""), bytes(block), now_ns)

    def _on_block(self, frame: Frame, block: bytes, now_ns: int) -> None:
        fields = self._blocks.read(block)  # each one, also of a call that was given up: HPACK has a state
        exchange = self._exchanges.get(frame.stream)
        if exchange is None:
            return
        if exchange.first_ns < 0:
            exchange.first_ns = now_ns
        if frame.flags & http2.END_STREAM or (exchange.http_status < 0 and fields.http_status >= 200):
            self._goes_on()
        if fields.http_status >= 200:
            exchange.http_status = fields.http_status
        if fields.grpc_status >= 0:
            exchange.grpc_status, exchange.grpc_message = fields.grpc_status, fields.grpc_message
        if frame.flags & http2.END_STREAM:
            self._end(exchange, now_ns)

    def _end(self, exchange: GrpcExchange, now_ns: int) -> None:
        """The whole reply is there."""
        exchange.done_ns = now_ns
        exchange.body, exchange.came = bytes(exchange.came), b""
        del self._exchanges[exchange.stream]
        if self._forget_unsent(exchange):  # answered before it was wholly sent
            self._put(http2.rst_stream(exchange.stream, http2.CANCEL))
        if self._client.by_token.pop(exchange.token, None) is not None:
            self._client.on_reply(exchange)
        self._freed()

    def _on_reset(self, frame: Frame) -> None:
        exchange = self._exchange_of(frame)
        code = http2.read_u32(frame.payload)
        if exchange is not None:
            self._goes_on()
            del self._exchanges[frame.stream]
            self._forget_unsent(exchange)
            self._fail(exchange, f"the server reset the stream: {http2.error_name(code)}")
            self._freed()

    def _on_settings(self, frame: Frame) -> None:
        if frame.stream:
            raise ProtocolFault("SETTINGS of a stream")
        if frame.flags & http2.ACK:
            return
        values = http2.read_settings(frame.payload)
        window = values.get(http2.INITIAL_WINDOW_SIZE, self._stream_window)
        frame_bytes = values.get(http2.MAX_FRAME_SIZE, self._frame_bytes)
        if window > http2.LARGEST_WINDOW_BYTES or not http2.DEFAULT_FRAME_BYTES <= frame_bytes < 1 << 24:
            raise ProtocolFault("a setting out of its range")
        more, self._stream_window, self._frame_bytes = window - self._stream_window, window, frame_bytes
        if more > 0:
            self._n_raises += bool(self._blocked)  # each of those may send a little more of itself
            if self._n_raises > _MOST_RAISES:
                raise ProtocolFault(
                    f"more than {_MOST_RAISES} settings that let waiting requests through bit by bit"
                )
            for exchange in self._blocked.values():
                self._let_through(exchange)
        self._n_most_streams = values.get(http2.MAX_CONCURRENT_STREAMS, self._n_most_streams)
        if http2.HEADER_TABLE_SIZE in values:
            self._blocks.resize(values[http2.HEADER_TABLE_SIZE])
        self._acknowledge(http2.frame(http2.SETTINGS, http2.ACK, 0))
        if not self._is_ready:
            self._is_ready = True
            self._client.ready(self)
        self._pump()

    def _on_goaway(self, frame: Frame) -> None:
        last, code = http2.read_u32(frame.payload), http2.read_u32(frame.payload, 4)
        self._is_leaving = True
        self._client.leaving(self)
        for stream in [stream for stream in self._exchanges if stream > last]:
            exchange = self._exchanges.pop(stream)
            self._forget_unsent(exchange)
            self._fail(exchange, f"the server went away before it took the request: {http2.error_name(code)}")
        self._freed()

    def _on_window(self, frame: Frame) -> None:
        increment = http2.read_u32(frame.payload)
        if frame.stream == 0:
            self._window += increment
            if not increment or self._window > http2.LARGEST_WINDOW_BYTES:
                raise ProtocolFault("a window above its limit, or an increment of 0")
        else:
            exchange = self._exchange_of(frame)
            if exchange is not None:
                exchange.window += increment
                self._let_through(exchange)
        self._pump()

    # helpers

    def _goes_on(self) -> None:
        """A frame was of use to a call, or we have sent one."""
        if self._n_idle > 0:
            self._n_idle = 0

    def _acknowledge(self, answer: bytes) -> None:
        assert self.socket is not None
        if not self.socket.has_unsent:
            self._n_acks = 0
        self._n_acks += 1
        if self._n_acks > _MOST_ACKS:
            raise ProtocolFault("the server asks for answers and does not read them")
        self._put(answer)

    def _put(self, data: bytes | memoryview) -> None:
        if not self._out:
            self._client.mark_dirty(self)
        self._out.append(data)

    def _fail(self, exchange: GrpcExchange, why: str) -> None:
        if self._client.by_token.pop(exchange.token, None) is not None:
            self._client.on_failure(exchange.token, exchange.sent_ns, exchange.first_ns, why)

    def _forget_unsent(self, exchange: GrpcExchange) -> bool:
        """Sends no more of the call; True if there was more."""
        if not exchange.unsent:
            return False
        exchange.unsent = []
        del self._blocked[exchange.stream]
        self._sendable.pop(exchange.stream, None)
        return True

    def _freed(self) -> None:
        """A call has ended: another may begin, or the connection may end."""
        if self._is_leaving:
            if not self._exchanges:
                self._client.gone(self)
        else:
            self._client.room(self)

    def _retire_if_worn(self) -> None:
        """A connection whose stream ids are used up takes no more calls; section 5.1.1."""
        if self._next_stream > http2.LARGEST_STREAM_ID:
            self._is_leaving = True
            self._client.leaving(self)

    def _pump(self) -> None:
        """Puts out what the windows allow of the requests that wait for them."""
        while self._sendable and self._window > 0:
            exchange = next(iter(self._sendable.values()))
            while exchange.unsent and (room := min(self._window, self._stream_window + exchange.window)) > 0:
                self._put_data(exchange, room)
            if not exchange.unsent or self._stream_window + exchange.window <= 0:
                del self._sendable[exchange.stream]

    def _let_through(self, exchange: GrpcExchange) -> None:
        """The call has just begun, or its own window has become larger."""
        if exchange.unsent and self._stream_window + exchange.window > 0:
            self._sendable[exchange.stream] = exchange

    def _put_data(self, exchange: GrpcExchange, room: int) -> None:
        """Of the first piece that waits as much as there is room for, in frames; nothing is copied."""
        piece = exchange.unsent[0][:room]
        exchange.unsent[0] = exchange.unsent[0][len(piece) :]
        if not exchange.unsent[0]:
            del exchange.unsent[0]
        if not exchange.unsent:
            del self._blocked[exchange.stream]
        self._n_put_bytes += len(piece)
        if self._n_put_bytes >= _BYTES_PER_FRAME or not exchange.unsent:
            self._n_put_bytes = 0
            self._goes_on()
        self._window -= len(piece)
        exchange.window -= len(piece)
        n_bytes = self._frame_bytes
        head = http2.head_of(http2.DATA, 0, exchange.stream, n_bytes)
        n_last = len(piece) % n_bytes or min(len(piece), n_bytes)
        for at in range(0, len(piece) - n_last, n_bytes):
            self._put(head)
            self._put(piece[at : at + n_bytes])
        flags = 0 if exchange.unsent else http2.END_STREAM
        self._put(http2.head_of(http2.DATA, flags, exchange.stream, n_last))
        self._put(piece[len(piece) - n_last :])
        self._is_long = True
