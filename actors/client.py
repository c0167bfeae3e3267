"""HTTP/1.1 connections to one server: a pool that grows to need, one request in flight on each."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from actors.clock import Clock

_HEADER_LENGTH = b"inference-header-content-length"
_CLOSED = "the server closed the connection"
_LARGEST_JOINED_BYTES = 65_536
"""Below this a request is copied into one buffer and written by one system call; above, its parts go by writev."""


class Exchange(Protocol):
    """A request on the wire and what came back; instants in ns of the node's clock, -1 where not reached."""

    token: int
    sent_ns: int
    first_ns: int
    done_ns: int
    status: int
    n_json_bytes: int

    @property
    def body(self) -> bytes: ...


OnReply = Callable[[Exchange], None]
OnFailure = Callable[[int, int, int, str], None]
"""Called with token, sent_ns, first_ns (-1 if not reached) and why, when the transport failed the request."""


def _words(error: Exception) -> str:
    """The system's words for an error, without its number."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else str(error)


class _Connection(asyncio.Protocol):
    """One TCP connection. Parses with httptools; knows nothing of plans or statistics."""

    __slots__ = (
        "_chunks", "_is_complete", "_is_spoilt", "_parser", "_pool", "_transport", "done_ns", "first_ns", "is_paused",
        "n_json_bytes", "now_ns", "sent_ns", "status", "token",
    )  # fmt: skip

    def __init__(self, pool: HttpClient) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._is_complete = self._is_spoilt = False
        self.is_paused = False
        self.token = self.sent_ns = self.first_ns = self.done_ns = self.now_ns = -1
        self.status = self.n_json_bytes = 0

    @property
    def body(self) -> bytes:
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def send(self, token: int, head: bytes, tail: bytes) -> None:
        transport = self._transport
        assert transport is not None
        self.token, self.first_ns, self.status, self.n_json_bytes = token, -1, 0, 0
        self._chunks = []
        self._is_complete = False
        if len(tail) < _LARGEST_JOINED_BYTES:
            data = head + tail
            self.sent_ns = self._pool.clock.monotonic_ns()
            transport.write(data)
        else:
            self.sent_ns = self._pool.clock.monotonic_ns()
            transport.writelines((head, tail))

    def abort(self) -> None:
        self.token = -1
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # a single unwritten byte pauses: `is_paused` then says that the request is not wholly out
        self._transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pool.connected(self)

    def data_received(self, data: bytes) -> None:
        if self.token < 0:
            self._pool.broken(self, "the server sent what was not asked for")
            return
        self.now_ns = self._pool.clock.monotonic_ns()
        if self.first_ns < 0:
            self.first_ns = self.now_ns
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self._is_complete:
                self._pool.broken(self, f"malformed reply: {error}")
                return
            self._is_spoilt = True
        # only here, where the parser has taken all of `data`: the next request must not get what follows this reply
        if self._is_complete:
            self._pool.completed(self, not self._is_spoilt and not self.is_paused)

    def eof_received(self) -> None:
        """Out of the pool at once: `connection_lost` comes a turn later, and a request sent meanwhile would fail."""
        self._pool.broken(self, _CLOSED)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.broken(self, _words(exc) if exc else _CLOSED)

    def pause_writing(self) -> None:
        self.is_paused = True
        self._pool.n_write_pauses += 1

    def resume_writing(self) -> None:
        self.is_paused = False

    # httptools

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._is_spoilt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == len(_HEADER_LENGTH) and name.lower() == _HEADER_LENGTH and not self._is_complete:
            self.n_json_bytes = int(value) if value.isdigit() else -1

    def on_body(self, body: bytes) -> None:
        if not self._is_complete:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        if not self._is_complete:
            self._is_complete = True
            self.done_ns = self.now_ns
            self.status = self._parser.get_status_code()
            self._is_spoilt = not self._parser.should_keep_alive()  # no longer known after this callback


class HttpClient:
    """Sends requests to one server and tells how each ended. Runs in one event loop; nothing here blocks.

    A request takes an idle connection, the one used last first; with none idle it waits for a new one, and that
    wait is part of its send lag. There is no cap and no retry: each token ends in one call of `on_reply` or
    `on_failure`, unless `abandon` or `close` came before.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        host: str,
        port: int,
        on_reply: OnReply,
        on_failure: OnFailure,
    ) -> None:
        self.clock = clock
        self.n_write_pauses = 0
        self._loop = loop
        self._address = (host, port)
        self._on_reply = on_reply
        self._on_failure = on_failure
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._by_token: dict[int, _Connection] = {}
        self._waiting: deque[tuple[int, bytes, bytes]] = deque()
        self._waiting_tokens: set[int] = set()
        self._connects: set[asyncio.Task[None]] = set()
        self._n_connecting = 0  # attempts that have given no connection yet
        self._is_closing = False

    @property
    def n_connections(self) -> int:
        """Connections open now."""
        return len(self._open)

    async def open(self, n_connections: int) -> None:
        """Opens `n_connections` at once. Raises OSError where the server does not take them."""
        self._n_connecting += n_connections
        attempts = (self._connect() for _ in range(n_connections))
        for error in await asyncio.gather(*attempts, return_exceptions=True):
            if error is not None:
                raise error

    async def _connect(self) -> None:
        """Makes one connection of those counted in `_n_connecting`."""
        try:
            await self._loop.create_connection(lambda: _Connection(self), *self._address)
        except OSError:
            self._n_connecting -= 1
            raise

    def send(self, token: int, head: bytes, tail: bytes) -> None:
        """Writes the request now if a connection is idle, else as soon as a new one is there."""
        if self._idle:
            self._send_on(self._idle.pop(), token, head, tail)
            return
        self._waiting.append((token, head, tail))
        self._waiting_tokens.add(token)
        if self._n_connecting < len(self._waiting_tokens):
            self._n_connecting += 1
            task = self._loop.create_task(self._connect_for_waiting())
            self._connects.add(task)
            task.add_done_callback(self._connects.discard)

    def abandon(self, token: int) -> tuple[int, int]:
        """Gives the request up: its connection is cut. Returns its sent_ns and first_ns, -1 where not reached."""
        connection = self._by_token.pop(token, None)
        if connection is None:
            self._waiting_tokens.discard(token)
            return -1, -1
        self._open.discard(connection)
        connection.abort()
        return connection.sent_ns, connection.first_ns

    async def close(self) -> None:
        """Cuts every connection and waits for the attempts under way."""
        self._is_closing = True
        for task in self._connects:
            task.cancel()
        await asyncio.gather(*self._connects, return_exceptions=True)
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()
        self._open.clear()
        await asyncio.sleep(0)  # lets the loop run connection_lost of each

    async def _connect_for_waiting(self) -> None:
        try:
            await self._connect()
        except OSError as error:
            self._fail_one_waiting(_words(error))

    def _next_waiting(self) -> tuple[int, bytes, bytes] | None:
        """The oldest waiting request that was not abandoned."""
        while self._waiting:
            request = self._waiting.popleft()
            if request[0] in self._waiting_tokens:
                self._waiting_tokens.discard(request[0])
                return request
        return None

    def _fail_one_waiting(self, why: str) -> None:
        request = self._next_waiting()
        if request is not None:
            self._on_failure(request[0], -1, -1, f"connect: {why}")

    def _send_on(self, connection: _Connection, token: int, head: bytes, tail: bytes) -> None:
        self._by_token[token] = connection
        connection.send(token, head, tail)

    # called by _Connection

    def connected(self, connection: _Connection) -> None:
        if self._is_closing:
            connection.abort()
            return
        self._n_connecting -= 1
        self._open.add(connection)
        self._serve(connection)

    def _serve(self, connection: _Connection) -> None:
        request = self._next_waiting()
        if request is None:
            self._idle.append(connection)
        else:
            self._send_on(connection, *request)

    def completed(self, connection: _Connection, is_kept: bool) -> None:
        if self._by_token.pop(connection.token, None) is None:
            return
        self._on_reply(connection)
        connection.token = -1
        if is_kept:
            self._serve(connection)
        else:
            self._open.discard(connection)
            connection.abort()

    def broken(self, connection: _Connection, why: str) -> None:
        """The end of a connection, whoever ended it; may come more than once."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        token, sent_ns, first_ns = connection.token, connection.sent_ns, connection.first_ns
        connection.abort()
        if self._by_token.pop(token, None) is not None:
            self._on_failure(token, sent_ns, first_ns, why)
