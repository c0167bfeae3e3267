"""gRPC over HTTP/2 to one server: unary calls as streams over several connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from squall.actors.clock import Clock
from squall.actors.load.client import OnFailure, OnResponse
from squall.actors.load.grpc_connection import GrpcConnection, GrpcExchange
from squall.actors.load.lane import Lane
from squall.actors.load.sequence_pins import Pins
from squall.actors.messages.grpc_headers import call_headers
from squall.actors.messages.grpc_wire import PATH, STREAM_PATH
from squall.actors.net.loop import Loop
from squall.actors.net.spread import PATIENCE_NS, Spread, is_own
from squall.actors.net.stream import Route, SocketStream, words
from squall.models.payload import LARGEST_OPEN_REPLY_BYTES

LentCall = tuple[int, int, int, int, int]
"""at_ns, scheduled_ns, phase, number of the template, index of the user."""


class GrpcClient:
    """Sends requests to one server and tells how each ended. Runs in one `Loop`; nothing here blocks.

    Calls go to the open connections in turn; where each has all the streams that the server allows, the call waits
    for a new connection, and that wait is part of its send lag. Calls of one key stay on the connection of the first,
    and wait for that one. There is no cap and no retry: a call that a GOAWAY
    or a reset refused has failed. Frames are written by `flush`, those of one turn in one piece per connection.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        route: Route,
        authority: str,
        metadata: Mapping[str, str],
        on_reply: Callable[[GrpcExchange], None],
        on_failure: OnFailure,
        lane: Lane | None = None,
        lend: Callable[[int], LentCall] | None = None,
        readopt: Callable[[list[Any]], None] | None = None,
        target: int = 0,
        on_response: OnResponse | None = None,
        largest_reply_bytes: int = LARGEST_OPEN_REPLY_BYTES,
    ) -> None:
        """With a `lane`, `target` is the server's number there, `lend` gives up a call of the engine's and tells what
        the lane must know of it, and `readopt` takes back what the lane returns. With `on_response` each call is a
        stream of responses, none of which may be longer than `largest_reply_bytes`."""
        self.now = clock.monotonic_ns
        self.on_reply = on_reply
        self.on_failure = on_failure
        self.n_write_pauses = 0
        self.n_socket_errors = 0
        self.by_token: dict[int, GrpcExchange] = {}
        self.lane = lane
        self.target = target
        self.largest_reply_bytes = largest_reply_bytes
        self._lend = lend
        self._readopt = readopt
        self._loop = loop
        self._route = route
        self.spread = Spread((route.address, *route.others), route.is_one_at_a_time)
        scheme = "https" if route.tls else "http"
        self._on_response = on_response
        self._headers = call_headers(
            scheme, authority, metadata, PATH if on_response is None else STREAM_PATH
        )
        self._open: deque[GrpcConnection] = deque()  # the next to use first
        self._connecting: set[GrpcConnection] = set()
        self._leaving: set[GrpcConnection] = set()  # take no new calls
        self._dirty: list[GrpcConnection] = []
        self._waiting: dict[int, tuple[bytes, bytes, int | None]] = {}
        self._in_line: dict[
            int, GrpcConnection
        ] = {}  # of those, the ones that wait for the connection of their key
        self._pins: Pins[GrpcConnection] = Pins()
        self._n_wanted = 1
        self._n_others = 0  # open connections with room that the lane does not have, as it was told
        self._error = ""

    @property
    def n_connections(self) -> int:
        """Connections open now."""
        return len(self._open) + len(self._leaving)

    def open(self, n_connections: int, until_ns: int) -> None:
        """Opens `n_connections` at once. Raises OSError where the server does not take them by `until_ns`."""
        self._n_wanted = n_connections
        for _ in range(n_connections):
            self._connect()
        is_in_time = self._loop.run_until(lambda: not self._connecting or bool(self._error), until_ns)
        if not is_in_time and self._open and not self._error:
            is_in_time = self._pass_over_silent()
        if self._error or not is_in_time:
            over = " over TLS" if self._route.tls else ""
            raise OSError(self._error or f"the server does not answer as HTTP/2{over} does")

    def _pass_over_silent(self) -> bool:
        """Leaves out the addresses that have said nothing, where others took connections; whether these take all."""
        if not self.spread.leave_out_silent({connection.address for connection in self._connecting}):
            return False
        silent, self._connecting = self._connecting, set()
        for connection in silent:
            connection.close()
            self._connect()
        until_ns = self.now() + PATIENCE_NS
        return self._loop.run_until(lambda: not self._connecting or bool(self._error), until_ns)

    def begin(self) -> None:
        """Nothing: a connection is parked when it has had a reply."""

    def send(self, token: int, head: bytes, tail: bytes, key: int | None = None) -> None:
        """Puts the request on a connection; the next `flush` writes it."""
        own = self._pins.of(key) if key is not None else None
        if own is not None:
            if own.has_room:
                own.begin(token, head, tail)
            else:
                self._waiting[token] = (head, tail, key)
                self._in_line[token] = own
            return
        n_open = len(self._open)
        for i in range(2 * n_open):  # those of the lane only where no other has room
            connection = self._open[0]
            self._open.rotate(-1)
            if connection.is_parked and i >= n_open:
                connection.reclaim()
            if not connection.is_parked and connection.has_room:
                self._pins.keep(key, connection)
                connection.begin(token, head, tail)
                break
        else:
            self._waiting[token] = (head, tail, key)
            self._tell_waiting()
        if len(self._open) + len(self._connecting) < self._n_wanted or len(self._waiting) - len(
            self._in_line
        ) > len(self._connecting):
            self._replenish()

    def unpin(self, key: int) -> None:
        """Nothing more of that key follows."""
        self._pins.release(key)

    def flush(self) -> None:
        """Writes what `send` has put together."""
        if self.lane is not None:
            n_others = sum(not one.is_parked and one.has_room for one in self._open)
            if n_others != self._n_others:
                self._n_others = n_others
                self.lane.core.set_others(n_others, self.target)
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for connection in dirty:
                connection.flush()

    def abandon(self, token: int) -> tuple[int, int]:
        """Gives the request up: its stream is cancelled. Returns its sent_ns and first_ns, -1 where not reached."""
        exchange = self.by_token.pop(token, None)
        if exchange is None:
            self._waiting.pop(token, None)
            self._in_line.pop(token, None)
            self._tell_waiting()
            return -1, -1
        exchange.connection.cancel(exchange)
        return exchange.sent_ns, exchange.first_ns

    def close(self) -> None:
        """Cuts every connection, those being made too. What is in flight ends without a call."""
        for connection in (*self._open, *self._connecting, *self._leaving):
            connection.close()
        self._open.clear()
        self._connecting.clear()
        self._leaving.clear()
        self.by_token.clear()

    def _replenish(self) -> None:
        """As many connections as are wanted: one more where calls wait, and those that the server ended."""
        try:
            self._connect()
        except OSError as error:
            self._loop.soon(partial(self._fail_one_waiting, words(error)))

    def _connect_elsewhere(self) -> None:
        """After an address took no connection."""
        try:
            self._connect()
        except OSError as error:
            self._error = words(error)
            self._fail_one_waiting(self._error)

    def _connect(self) -> None:
        """Begins a connection. Raises OSError where that fails at once, with the last address that is left."""
        connection = GrpcConnection(self, self._headers)
        number = connection.address = self.spread.take()
        try:
            address = self.spread.addresses[number]
            connection.socket = SocketStream(self._loop, self._route, connection, address)
        except OSError as error:
            self.n_socket_errors += 1
            connection.close()
            if not is_own(error) and self.spread.leave_out(number, words(error)):
                self._connect()
                return
            raise
        self._connecting.add(connection)

    def _fail_one_waiting(self, why: str) -> None:
        token = next((one for one in self._waiting if one not in self._in_line), None)
        if token is not None:
            del self._waiting[token]
            self._tell_waiting()
            self.on_failure(token, -1, -1, f"connect: {why}")

    def _tell_waiting(self) -> None:
        if self.lane is not None:
            self.lane.core.set_waiting(len(self._waiting), self.target)

    # squall.actors.load.grpc_connection.Calls

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_streamed(self) -> bool:
        return self._on_response is not None

    def on_message(self, exchange: GrpcExchange, t_ns: int, message: bytes) -> None:
        assert self._on_response is not None
        if self._on_response(exchange.token, t_ns, message):
            exchange.done_ns = t_ns
            del self.by_token[exchange.token]
            exchange.connection.cancel(exchange)
            self.on_reply(exchange)

    def lend(self, exchange: GrpcExchange) -> None:
        assert self.lane is not None
        assert self._lend is not None
        assert exchange.connection.socket is not None
        del self.by_token[exchange.token]
        self.lane.core.lend(
            exchange.connection.socket.fd, exchange.stream, exchange.token, *self._lend(exchange.token),
            exchange.sent_ns, exchange.first_ns, int(exchange.http_status >= 0),
        )  # fmt: skip

    def readopt(self, items: list[Any]) -> None:
        assert self._readopt is not None
        self._readopt(items)

    def mark_dirty(self, connection: GrpcConnection) -> None:
        self._dirty.append(connection)

    def ready(self, connection: GrpcConnection) -> None:
        self._connecting.discard(connection)
        self._open.append(connection)
        self.spread.came_about(connection.address)
        self.room(connection)

    def room(self, connection: GrpcConnection) -> None:
        while self._waiting and connection.has_room:
            in_line = self._in_line
            token = next((one for one in self._waiting if in_line.get(one, connection) is connection), None)
            if token is None:
                return
            head, tail, key = self._waiting.pop(token)
            in_line.pop(token, None)
            self._pins.keep(key, connection)
            connection.begin(token, head, tail)
            self._tell_waiting()

    def _let_go(self, connection: GrpcConnection) -> None:
        """It takes no more calls: what kept to it goes to others."""
        self._pins.drop(connection)
        for token in [token for token, own in self._in_line.items() if own is connection]:
            del self._in_line[token]
            self.send(token, *self._waiting.pop(token))

    def leaving(self, connection: GrpcConnection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._leaving.add(connection)
        self._let_go(connection)

    def broken(self, connection: GrpcConnection, why: str) -> None:
        number = connection.address
        exchanges = connection.close()
        self.n_socket_errors += 1
        if connection in self._connecting:
            self._connecting.discard(connection)
            if self.spread.leave_out(number, why):
                self._connect_elsewhere()
                return
            self._error = why
            self._fail_one_waiting(why)
        if connection in self._open:
            self._open.remove(connection)
        self._leaving.discard(connection)
        self._let_go(connection)
        for exchange in exchanges:
            if self.by_token.pop(exchange.token, None) is not None:
                self.on_failure(exchange.token, exchange.sent_ns, exchange.first_ns, why)

    def gone(self, connection: GrpcConnection) -> None:
        self._leaving.discard(connection)
        connection.close()
