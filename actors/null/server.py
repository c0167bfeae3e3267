"""The loop of the null server: sockets, departures at their instant, the stall.

    arrival (request read) ── waits for a lane ── start ── service ── departure │ replied (its bytes are written)
                              virtual, exact: see `null_queue`                  │ actual, late by what this loop needs

Its own loop over epoll, since it must be cheaper than the clients that it answers.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from squall.actors.clock import Alarm
from squall.actors.null.faults import Fault
from squall.actors.null.model import NullModel, Peer, Tally
from squall.actors.null.queue import Lanes, Record
from squall.scenarios.units import NS_PER_MS, parse_duration

_READ_BYTES = 65_536
_NEVER_NS = 2**63 - 1
_MOST_ACCEPTS = 64  # in a row, before the loop looks at its other sockets
_FOREVER = -1
_READABLE, _WRITABLE = select.EPOLLIN, select.EPOLLOUT


@dataclass(frozen=True)
class Stall:
    """A window, from `at_ns` after the first request for `for_ns`, in which nothing is read or answered."""

    at_ns: int
    for_ns: int

    @classmethod
    def parse(cls, text: str) -> Stall:
        """Of `AT:FOR`, such as `2s:500ms`. Raises ValueError that says what to write."""
        at, colon, length = text.partition(":")
        if not colon:
            raise ValueError(f"{text!r} is no stall, write for example 2s:500ms")
        return cls(parse_duration(at), parse_duration(length))


class Connection:
    """One connection: its socket, what stands behind it, and what the kernel did not take yet."""

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        self.sock = sock
        self.peer = peer
        self.recv, self.send = sock.recv, sock.send
        self.fd = sock.fileno()
        self.unsent = b""
        self.is_tls = self.is_shaking_hands = isinstance(sock, ssl.SSLSocket)


class NullServer:
    """Sockets, timer and departures. `run` serves until `end`; not thread-safe.

    `spin_ns`: how long before a departure it polls instead of sleeping, which a wake-up would make late.
    """

    def __init__(
        self,
        model: NullModel,
        lanes: Lanes,
        record: Record | None,
        stall: Stall | None,
        spin_ns: int,
        fault: Fault | None = None,
    ) -> None:
        self._model = model
        self._fault = fault
        self._lanes = lanes
        self._record = record
        self._stall = stall
        self._stall_at_ns = _NEVER_NS
        self._spin_ns = spin_ns
        self._epoll = select.epoll()
        self._alarm = Alarm()
        self._armed_ns = 0
        # edge-triggered: arming anew takes an expiry back, so that it need not be read
        self._epoll.register(self._alarm.fd, _READABLE | select.EPOLLET)
        self._connections: dict[int, Connection] = {}
        self._connections_of: dict[Peer, Connection] = {}
        self._handlers: dict[int, Callable[[], None]] = {self._alarm.fd: lambda: None}
        self._departures: list[tuple[int, int, Peer, int, Tally, bytes, int, int, int]] = []
        """Heap of (departure_ns, count, peer, stream, answer, id, row or -1, arrival_ns, start_ns)."""
        self._endings: list[int] = []
        self._n_taken = 0
        self._is_ending = False

    def end(self) -> None:
        """`run` says farewell and returns."""
        self._is_ending = True

    def listen(
        self, listener: socket.socket, new_peer: Callable[[], Peer], tls: ssl.SSLContext | None
    ) -> None:
        """Takes connections from `listener`; each gets a peer of its own."""
        listener.setblocking(False)

        def accept() -> None:
            with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                for _ in range(_MOST_ACCEPTS):
                    sock, _ = listener.accept()
                    self._welcome(sock, new_peer(), tls)

        self.watch(listener.fileno(), accept, in_stall=False)

    def watch(self, fd: int, handler: Callable[[], None], in_stall: bool = True) -> None:
        """Calls `handler` while `fd` is readable; during a stall only if `in_stall`."""
        self._epoll.register(fd, _READABLE)
        self._handlers[fd] = handler
        if in_stall:
            self._endings.append(fd)

    def _welcome(self, sock: socket.socket, peer: Peer, tls: ssl.SSLContext | None) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                sock = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:  # the client is gone already
                sock.close()
                return
        connection = Connection(sock, peer)
        self._connections[connection.fd] = self._connections_of[peer] = connection
        self._epoll.register(connection.fd, _READABLE)
        if not connection.is_tls:
            self._flush(connection)

    def submit(self, peer: Peer, stream: int, answer: Tally, wire_id: bytes, now_ns: int) -> None:
        """A whole request was read at `now_ns`: answers it now, later, or as rejected."""
        if self._stall is not None and self._stall_at_ns == _NEVER_NS and not self._n_taken:
            self._stall_at_ns = now_ns + self._stall.at_ns
        if self._fault is not None and self._fault.takes_next():
            self._model.n_rejected += 1
            self._fault.answer(peer, stream, answer, wire_id)
            return
        times = self._lanes.enter(now_ns)
        if times is None:
            self._model.n_rejected += 1
            peer.reject(stream, wire_id)
            return
        start_ns, departure_ns = times
        self._n_taken += 1
        row = -1 if self._record is None else self._record.add(wire_id, now_ns, start_ns, departure_ns)
        if departure_ns > now_ns or self._departures:
            entry = departure_ns, self._n_taken, peer, stream, answer, wire_id, row, now_ns, start_ns
            heappush(self._departures, entry)
            return
        answer.n_answered += 1
        if peer.reply(stream, answer, wire_id) and row >= 0:
            peer.rows.append(row)

    def _depart(self, now_ns: int) -> None:
        """Answers all that is due, with one write for each connection."""
        departures = self._departures
        touched: dict[Peer, None] = {}
        while departures and departures[0][0] <= now_ns:
            departure_ns, _, peer, stream, answer, wire_id, row, arrival_ns, start_ns = heappop(departures)
            answer.n_answered += 1
            answer.queue_ns += start_ns - arrival_ns
            answer.service_ns += departure_ns - start_ns
            if peer.reply(stream, answer, wire_id):
                touched[peer] = None
                if row >= 0:
                    peer.rows.append(row)
        for peer in touched:
            self._flush(self._connections_of[peer])

    def run(self) -> None:
        """Serves until `end` is called from a handler."""
        poll, connections, handlers, now = (
            self._epoll.poll,
            self._connections,
            self._handlers,
            time.monotonic_ns,
        )
        departures = self._departures
        while not self._is_ending:
            events = poll(self._timeout())
            if departures or self._stall_at_ns != _NEVER_NS:
                now_ns = now()
                if now_ns >= self._stall_at_ns:
                    now_ns = self._wait_out_the_stall()
                    if self._is_ending:
                        break
                self._depart(now_ns)
            for fd, event in events:
                connection = connections.get(fd)
                if connection is None:
                    if fd in handlers:
                        handlers[fd]()
                    continue
                if event & _WRITABLE:
                    self._on_writable(connection)
                if event & ~_WRITABLE and connection.sock.fileno() >= 0:
                    self._on_readable(connection)
        self._say_farewell()

    def _timeout(self) -> int:
        """For epoll: 0 to poll, -1 to sleep until a socket or the alarm, which this arms for the next departure."""
        if self._departures:
            wake_ns = self._departures[0][0] - self._spin_ns
            if wake_ns <= time.monotonic_ns():
                return 0
            if wake_ns != self._armed_ns:
                self._alarm.arm(wake_ns)
                self._armed_ns = wake_ns
        return _FOREVER

    def _on_readable(self, connection: Connection) -> None:
        """Reads once; TLS until nothing is left, since what it holds decrypted is not seen by epoll."""
        peer = connection.peer
        while True:
            try:
                if connection.is_shaking_hands:
                    self._shake_hands(connection)
                data = connection.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError:
                data = b""
            if not data:
                self._close(connection)
                return
            now_ns = time.monotonic_ns()
            peer.feed(data, now_ns)
            if peer.out or peer.is_over:
                self._flush(connection)
            if self._departures and self._departures[0][0] <= now_ns:
                self._depart(now_ns)
            if not connection.is_tls or connection.unsent or connection.sock.fileno() < 0:
                return

    def _shake_hands(self, connection: Connection) -> None:
        assert isinstance(connection.sock, ssl.SSLSocket)
        connection.sock.do_handshake()
        connection.is_shaking_hands = False
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        """Writes what the peer has put out; what the kernel does not take is written when it can."""
        peer = connection.peer
        data = b"".join(peer.out)
        peer.out.clear()
        if peer.rows:
            assert self._record is not None
            self._record.stamp(peer.rows, time.monotonic_ns())
            peer.rows.clear()
        if connection.unsent:
            connection.unsent += data
            return
        try:
            n_sent = connection.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            n_sent = 0
        except OSError:
            self._close(connection)
            return
        if n_sent < len(data):
            connection.unsent = data[n_sent:]
            self._epoll.modify(connection.fd, _WRITABLE)
        elif peer.is_over:
            self._close(connection)

    def _on_writable(self, connection: Connection) -> None:
        try:
            n_sent = connection.send(connection.unsent)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self._close(connection)
            return
        connection.unsent = connection.unsent[n_sent:]
        if not connection.unsent:
            self._epoll.modify(connection.fd, _READABLE)
            if connection.peer.is_over:
                self._close(connection)
            elif connection.is_tls:
                self._on_readable(connection)

    def _close(self, connection: Connection) -> None:
        """The peer stays in the heap until its departures, which then find nobody to answer."""
        if self._connections.pop(connection.fd, None) is not None:
            del self._connections_of[connection.peer]
            connection.peer.is_over = True
            self._epoll.unregister(connection.fd)
            connection.sock.close()

    def _wait_out_the_stall(self) -> int:
        """Returns the instant when it is over; only the handlers' descriptors end it early."""
        assert self._stall is not None
        end_ns, self._stall_at_ns, self._stall = self._stall_at_ns + self._stall.for_ns, _NEVER_NS, None
        watch = select.poll()
        for fd in self._endings:
            watch.register(fd, select.POLLIN)
        while (left_ns := end_ns - time.monotonic_ns()) > 0 and not self._is_ending:
            for fd, _ in watch.poll(-(-left_ns // NS_PER_MS)):
                self._handlers[fd]()
        return time.monotonic_ns()

    def _say_farewell(self) -> None:
        for connection in list(self._connections.values()):
            connection.peer.farewell()
            connection.peer.is_over = True
            if connection.peer.out:
                self._flush(connection)
            self._close(connection)
