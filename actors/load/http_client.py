"""HTTP/1.1 connections to one server: a pool that grows to need, one request in flight on each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import httptools

from squall.actors.clock import Clock
from squall.actors.load.client import LARGEST_HEAD_BYTES, OnFailure, OnResponse, too_large
from squall.actors.load.lane import Flight, Lane, Stray
from squall.actors.load.sequence_pins import Pins
from squall.actors.messages.http_stream import EVENT_END
from squall.actors.messages.http_wire import json_length
from squall.actors.net.loop import Loop
from squall.actors.net.spread import PATIENCE_NS, Spread, is_own
from squall.actors.net.stream import CLOSED, LARGEST_JOINED_BYTES, Route, SocketStream, appended, words
from squall.models.payload import LARGEST_OPEN_REPLY_BYTES

_OK = 200
_HEAD_END = b"\r\n\r\n"
_MOST_KNOWN_HEADS = 1_024
"""As many as the lane knows, in its order: it is taught each once."""


class _Request(NamedTuple):
    """As it was given to `send`."""

    token: int
    head: bytes
    tail: bytes
    key: int | None


class _Head(NamedTuple):
    """What a reply's head said: the same bytes say the same again."""

    status: int
    n_json_bytes: int
    n_body_bytes: int


class HttpExchange:
    """One connection and the request on it. Knows nothing of plans or statistics.

    A reply that comes whole, with a head seen before, is not parsed: replies of one model differ in their body only.
    Any other goes through httptools.
    """

    __slots__ = (
        "_came",
        "_events",
        "_is_answer",
        "_is_chunked",
        "_is_complete",
        "_is_fed",
        "_is_framed",
        "_is_spoilt",
        "_is_to_the_end",
        "_n_head_bytes",
        "_new_head",
        "_parser",
        "_pool",
        "address",
        "body",
        "done_ns",
        "first_ns",
        "n_json_bytes",
        "sent_ns",
        "socket",
        "status",
        "token",
    )  # fmt: skip

    def __init__(self, pool: HttpClient) -> None:
        self._pool = pool
        self._parser: httptools.HttpResponseParser | None = None
        self._came: bytes | bytearray = b""  # of the body, or of an event that is not whole
        self._events: list[bytes] = []
        self._is_complete = self._is_fed = self._is_framed = self._is_spoilt = False
        self._is_answer = self._is_chunked = self._is_to_the_end = False
        self._n_head_bytes = 0  # that were parsed since the last of a body
        self._new_head = b""
        self.socket: SocketStream | None = None
        self.address = -1
        self.token = self.sent_ns = self.first_ns = self.done_ns = -1
        self.status = self.n_json_bytes = 0
        self.body = b""

    def send(self, token: int, head: bytes, tail: bytes) -> None:
        socket = self.socket
        assert socket is not None
        self.token = token
        self.first_ns = -1
        if len(tail) < LARGEST_JOINED_BYTES:
            data = head + tail
            self.sent_ns = self._pool.now()
            if not socket.write(data):
                self._pool.n_write_pauses += 1
        else:
            self.sent_ns = self._pool.now()
            socket.write(head)
            if not socket.write(tail):
                self._pool.n_write_pauses += 1

    def close(self) -> None:
        """Cuts the connection and lets go of what holds it."""
        self.token = -1
        if self.address >= 0:
            self._pool.spread.release(self.address)
            self.address = -1
        if self.socket is not None:
            self.socket.close()
        self._parser = None  # they hold each other, and no recorder runs during a measurement

    @property
    def target(self) -> int:
        """Number of its server in the lane."""
        return self._pool.target

    # squall.actors.net.stream.Owner

    def on_connected(self) -> None:
        self._pool.connected(self)

    def on_drained(self) -> None:
        return

    def on_lost(self, why: str) -> None:
        if why == CLOSED and self._is_fed and self._is_to_the_end:
            assert self._parser is not None
            self.status = self._parser.get_status_code()
            self._is_spoilt = True
            self._end(self._pool.now())
        else:
            self._pool.broken(self, why)

    def on_data(self, data: bytes) -> None:
        self._take(data, self._pool.now())

    def _take(self, data: bytes, now_ns: int) -> None:
        if self.token < 0:
            self._pool.broken(self, "the server sent what was not asked for")
            return
        if not self._is_fed:
            if self.first_ns < 0:
                self.first_ns = now_ns
            at = data.find(_HEAD_END) + len(_HEAD_END)
            head = data[:at]
            known = self._pool.heads.get(head)
            if known is not None and len(data) == at + known.n_body_bytes:
                self.done_ns = now_ns
                self.status = known.status
                self.n_json_bytes = known.n_json_bytes
                self.body = data[at:]
                assert self.socket is not None
                self._pool.completed(self, not self.socket.has_unsent)
                return
            self._begin(head)
        self._feed(data, now_ns)

    def take_back(self, stray: Stray) -> None:
        """The connection is Python's again, with what came and what is still to be written; see
        `squall.actors.load.lane`."""
        socket = self.socket
        assert socket is not None
        for flight in map(Flight._make, stray.flights):
            self.token, self.sent_ns, self.first_ns = flight.token, flight.sent_ns, flight.first_ns
            self._pool.resume(self)
        if stray.unsent:
            socket.defer(stray.unsent)
        if stray.lost >= 0:
            socket.lose(stray.lost)
        elif stray.data:
            self._take(stray.data, stray.now_ns)
        elif self.token < 0:
            self._pool.connected(self)

    def _begin(self, head: bytes) -> None:
        """A reply that must be parsed; `head` is the whole head, or shorter than its end where that has not come."""
        self._is_fed = True
        self._is_complete = self._is_framed = self._is_spoilt = False
        self._is_chunked = self._is_to_the_end = False
        self._n_head_bytes = 0
        self._new_head = head if head.endswith(_HEAD_END) else b""
        self._came = b""
        self.status = self.n_json_bytes = 0
        self._parser = httptools.HttpResponseParser(self)

    def _feed(self, data: bytes, now_ns: int) -> None:
        assert self._parser is not None
        self._n_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._is_complete:
                self._pool.broken(self, f"malformed reply: {error}")
                return
            self._is_spoilt = True
        if self._n_head_bytes > LARGEST_HEAD_BYTES:
            self._pool.broken(self, f"malformed reply: its head is longer than {LARGEST_HEAD_BYTES} bytes")
            return
        if self._pool.is_streamed and not self._tell_events(now_ns):
            return
        if len(self._came) > self._pool.largest_reply_bytes:
            self._pool.broken(self, too_large(self._pool.largest_reply_bytes))
            return
        # only here, where the parser has taken all of `data`: the next request must not get what follows this reply
        if self._is_complete:
            self._end(now_ns)

    def _tell_events(self, now_ns: int) -> bool:
        """Each event that has come whole; False where one has ended the request."""
        events, self._events = self._events, []
        return not any(self._pool.responded(self, now_ns, event) for event in events)

    def _end(self, now_ns: int) -> None:
        self.done_ns = now_ns
        self.body = bytes(self._came)
        self._came = b""
        self._parser = None
        self._is_fed = self._is_to_the_end = False
        is_sound = self._is_framed and not self._is_spoilt and 0 <= self.n_json_bytes <= len(self.body)
        if self._new_head and is_sound:
            self._pool.remember(self._new_head, _Head(self.status, self.n_json_bytes, len(self.body)))
        assert self.socket is not None
        self._pool.completed(self, not self._is_spoilt and not self.socket.has_unsent)

    # httptools

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._is_spoilt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_complete:
            return
        name = name.lower()
        if name == b"inference-header-content-length":
            self.n_json_bytes = json_length(value.decode("latin-1"))
        elif name == b"content-length":
            self._is_framed = True
        elif name == b"transfer-encoding":
            self._is_chunked = b"chunked" in value.lower()

    def on_headers_complete(self) -> None:
        """A body whose length nothing tells lasts to the end of the connection (RFC 9112, 6.3, rule 8)."""
        if not self._is_complete:
            assert self._parser is not None
            self._is_answer = self._parser.get_status_code() == _OK
            self._is_to_the_end = not (self._is_framed or self._is_chunked)

    def on_body(self, body: bytes) -> None:
        if self._is_complete:
            return
        self._n_head_bytes = 0
        n_before = len(self._came)
        self._came = appended(self._came, body)
        if not (self._pool.is_streamed and self._is_answer):
            return
        if self._came.find(EVENT_END, max(0, n_before + 1 - len(EVENT_END))) >= 0:
            *events, self._came = bytes(self._came).split(EVENT_END)
            self._events += events

    def on_message_complete(self) -> None:
        if not self._is_complete:
            assert self._parser is not None
            self._is_complete = True
            self.status = self._parser.get_status_code()
            self._is_spoilt = not self._parser.should_keep_alive()  # no longer known after this callback


class HttpClient:
    """Sends requests to one server and tells how each ended. Runs in one `Loop`; nothing here blocks.

    A request takes an idle connection, the one used last first, or last where connections go to several addresses, so
    that each has its share; with none idle it waits for a new one, and that wait is part of its send lag. One with a
    key keeps its connection, which takes no other, until `unpin`. There is no cap and no retry: each token ends in one
    call of `on_reply` or `on_failure`, unless `abandon` or `close` came before.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        route: Route,
        on_reply: Callable[[HttpExchange], None],
        on_failure: OnFailure,
        lane: Lane | None = None,
        target: int = 0,
        on_response: OnResponse | None = None,
        largest_reply_bytes: int = LARGEST_OPEN_REPLY_BYTES,
    ) -> None:
        """`target`: the server's number in the `lane`. With `on_response` each reply is a stream of responses, none of
        which may be longer than `largest_reply_bytes`."""
        self.now = clock.monotonic_ns
        self.heads: dict[bytes, _Head] = {}
        self.n_write_pauses = 0
        self.n_socket_errors = 0
        self._loop = loop
        self._route = route
        self.spread = Spread((route.address, *route.others), route.is_one_at_a_time)
        self._on_reply = on_reply
        self._on_failure = on_failure
        self._lane = lane
        self._on_response = on_response
        self.is_streamed = on_response is not None
        self.largest_reply_bytes = largest_reply_bytes
        self.target = target
        self._has_begun = False
        # not those parked in the lane; the one used last at its end; any of thousands may break
        self._idle: dict[HttpExchange, None] = {}
        self._open: set[HttpExchange] = set()
        self._connecting: set[HttpExchange] = set()
        self._by_token: dict[int, HttpExchange] = {}
        self._waiting: deque[_Request] = deque()
        self._waiting_tokens: set[int] = set()
        self._pins: Pins[HttpExchange] = Pins()
        self._following: dict[HttpExchange, _Request] = {}  # sent as soon as the reply before is told
        self._error = ""

    @property
    def n_connections(self) -> int:
        """Connections open now."""
        return len(self._open)

    def open(self, n_connections: int, until_ns: int) -> None:
        """Opens `n_connections` at once. Raises OSError where the server does not take them by `until_ns`."""
        for _ in range(n_connections):
            self._connect()
        is_in_time = self._loop.run_until(lambda: not self._connecting or bool(self._error), until_ns)
        if not is_in_time and self._open and not self._error:
            is_in_time = self._pass_over_silent()
        if self._error or not is_in_time:
            silence = "the server takes no connections" + (" or speaks no TLS" if self._route.tls else "")
            raise OSError(self._error or silence)

    def _pass_over_silent(self) -> bool:
        """Leaves out the addresses that have said nothing, where others took connections; whether these take all."""
        if not self.spread.leave_out_silent({exchange.address for exchange in self._connecting}):
            return False
        silent, self._connecting = self._connecting, set()
        for exchange in silent:
            exchange.close()
            self._connect()
        until_ns = self.now() + PATIENCE_NS
        return self._loop.run_until(lambda: not self._connecting or bool(self._error), until_ns)

    def begin(self) -> None:
        """Parks what is idle: nobody looks after connections in the lane before it runs."""
        self._has_begun = True
        if self._lane is not None and self.spread.has_several:
            self._lane.core.use_in_turn(self.target)
        idle, self._idle = self._idle, {}
        for exchange in idle:
            self._serve(exchange)

    def send(self, token: int, head: bytes, tail: bytes, key: int | None = None) -> None:
        """Writes the request now if a connection is idle, else as soon as a new one is there."""
        own = self._pins.of(key) if key is not None else None
        if own is not None:
            request = _Request(token, head, tail, key)
            if own.token < 0:
                self._use(own, request)
            else:
                self._following[own] = request
            return
        if self._idle:
            if self.spread.has_several:
                exchange = next(iter(self._idle))
                del self._idle[exchange]
            else:
                exchange, _ = self._idle.popitem()
            self._use(exchange, _Request(token, head, tail, key))
            return
        self._waiting.append(_Request(token, head, tail, key))
        self._waiting_tokens.add(token)
        self._tell_waiting()
        if len(self._connecting) < len(self._waiting_tokens):
            try:
                self._connect()
            except OSError as error:
                why = words(error)
                self._loop.soon(lambda: self._fail_one_waiting(why))

    def unpin(self, key: int) -> None:
        """The connection of that key takes others too, once it is free."""
        exchange = self._pins.release(key)
        if exchange is not None and exchange.token < 0:
            self._serve(exchange)

    def flush(self) -> None:
        """Nothing: `send` has written."""

    def abandon(self, token: int) -> tuple[int, int]:
        """Gives the request up: its connection is cut. Returns its sent_ns and first_ns, -1 where not reached."""
        exchange = self._by_token.pop(token, None)
        if exchange is None:
            self._waiting_tokens.discard(token)
            self._tell_waiting()
            return -1, -1
        self._discard(exchange)
        return exchange.sent_ns, exchange.first_ns

    def close(self) -> None:
        """Cuts every connection, those being made too. What is in flight ends without a call."""
        for exchange in (*self._open, *self._connecting):
            exchange.close()
        self._idle.clear()
        self._open.clear()
        self._connecting.clear()
        self._by_token.clear()

    def _connect(self) -> None:
        """Begins a connection. Raises OSError where that fails at once, with the last address that is left."""
        exchange = HttpExchange(self)
        number = exchange.address = self.spread.take()
        try:
            address = self.spread.addresses[number]
            exchange.socket = SocketStream(self._loop, self._route, exchange, address)
        except OSError as error:
            self.n_socket_errors += 1
            exchange.close()
            if not is_own(error) and self.spread.leave_out(number, words(error)):
                self._connect()
                return
            raise
        self._connecting.add(exchange)

    def _connect_elsewhere(self) -> None:
        """After an address took no connection."""
        try:
            self._connect()
        except OSError as error:
            self._error = words(error)
            self._fail_one_waiting(self._error)

    def _next_waiting(self) -> _Request | None:
        """The oldest waiting request that was not abandoned."""
        while self._waiting:
            request = self._waiting.popleft()
            if request.token in self._waiting_tokens:
                self._waiting_tokens.discard(request.token)
                self._tell_waiting()
                return request
        return None

    def _tell_waiting(self) -> None:
        if self._lane is not None:
            self._lane.core.set_waiting(len(self._waiting_tokens), self.target)

    def _fail_one_waiting(self, why: str) -> None:
        request = self._next_waiting()
        if request is not None:
            self._on_failure(request.token, -1, -1, f"connect: {why}")

    def _use(self, exchange: HttpExchange, request: _Request) -> None:
        token, head, tail, key = request
        self._pins.keep(key, exchange)
        self._by_token[token] = exchange
        exchange.send(token, head, tail)

    def _discard(self, exchange: HttpExchange) -> None:
        """The end of an open connection."""
        self._open.discard(exchange)
        self._pins.drop(exchange)
        exchange.close()

    def _serve(self, exchange: HttpExchange) -> None:
        """What a free connection does next: one of a sequence its own request, any other the oldest that waits."""
        if self._pins.holds(exchange):
            following = self._following.pop(exchange, None)
            if following is not None:
                self._use(exchange, following)
            return
        request = self._next_waiting() if self._waiting else None
        if request is None:
            if self._lane is not None and self._has_begun and self._lane.is_of_use(self.target):
                assert exchange.socket is not None
                self._lane.core.park_http(exchange.socket.fd, exchange, self.target)
            else:
                self._idle[exchange] = None
        else:
            self._use(exchange, request)

    # called by HttpExchange

    def remember(self, head: bytes, meaning: _Head) -> None:
        """A head that need not be parsed again."""
        if (
            len(self.heads) >= _MOST_KNOWN_HEADS
        ):  # a server that writes the time into its heads: the oldest goes
            del self.heads[next(iter(self.heads))]
        self.heads[head] = meaning
        if self._lane is not None and meaning.status == _OK:
            self._lane.core.know_head(head, meaning.n_json_bytes, meaning.n_body_bytes, self.target)

    def resume(self, exchange: HttpExchange) -> None:
        """A request that the lane has sent."""
        self._by_token[exchange.token] = exchange

    def connected(self, exchange: HttpExchange) -> None:
        self._connecting.discard(exchange)
        self._open.add(exchange)
        self.spread.came_about(exchange.address)
        self._serve(exchange)

    def responded(self, exchange: HttpExchange, t_ns: int, event: bytes) -> bool:
        """A response has come; whether it ended the request, whose connection is then cut."""
        assert self._on_response is not None
        if not self._on_response(exchange.token, t_ns, event):
            return False
        exchange.done_ns, exchange.status, exchange.body = t_ns, _OK, b""
        self.completed(exchange, False)
        return True

    def completed(self, exchange: HttpExchange, is_kept: bool) -> None:
        del self._by_token[exchange.token]
        self._on_reply(exchange)
        exchange.token = -1
        if is_kept:
            self._serve(exchange)
            return
        following = self._following.pop(exchange, None)
        self._discard(exchange)
        if following is not None:
            self.send(*following)

    def broken(self, exchange: HttpExchange, why: str) -> None:
        """The end of a connection, or of the attempt at one."""
        token, sent_ns, first_ns, number = (
            exchange.token,
            exchange.sent_ns,
            exchange.first_ns,
            exchange.address,
        )
        exchange.close()
        self.n_socket_errors += 1
        if exchange in self._connecting:
            self._connecting.discard(exchange)
            if self.spread.leave_out(number, why):
                self._connect_elsewhere()
                return
            self._error = why
            self._fail_one_waiting(why)
            return
        self._open.discard(exchange)
        self._pins.drop(exchange)
        self._idle.pop(exchange, None)
        if self._by_token.pop(token, None) is not None:
            self._on_failure(token, sent_ns, first_ns, why)
