"""Answers clock probes: reads this node's clock when a probe comes in and again just before the answer leaves.

A probe is 56 bytes over UDP, or over TCP on the same port number where a network drops UDP:

    8 bytes  `squallc1`
    16       the responder's token
    8        a number that the prober chose; the answer carries it back
    8 + 8    t2 and t3, signed ns, zero in a probe: this node's clock at receipt and just before the answer
    8        zero

Integers are in network order. An answer is as long as its probe and has zeros for the token. A probe without the token
gets no answer: the responder cannot be used to reflect traffic, and strangers cannot read the clock. Whatever keeps
this process from reading in time makes an answer late and never wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable

from squall.actors.clock import Clock, SystemClock

_MESSAGE = struct.Struct("!8s16sQqqQ")
MESSAGE_BYTES = _MESSAGE.size
_MAGIC = b"squallc1"
_NO_TOKEN = bytes(16)
_PORT_TRIES = 32
_MOST_STREAMS = 64


def probe_message(token: bytes, number: int) -> bytes:
    """The probe with that number, 0 <= number < 2^64."""
    return _MESSAGE.pack(_MAGIC, token, number, 0, 0, 0)


def read_answer(message: bytes) -> tuple[int, int, int] | None:
    """(number, t2, t3) of an answer; None where it is none."""
    if len(message) != MESSAGE_BYTES:
        return None
    magic, token, number, got_ns, answered_ns, _ = _MESSAGE.unpack(message)
    if magic != _MAGIC or token != _NO_TOKEN:
        return None
    return number, got_ns, answered_ns


class ClockResponder:
    """Answers in a thread of its own from construction to `close`. Raises OSError where it cannot listen at `host`."""

    def __init__(self, clock: Clock, host: str, port: int = 0) -> None:
        """`host`: the address that the driver reaches the node by; `port` 0: one that is free for both protocols."""
        self.token = secrets.token_bytes(16)
        self._clock = clock
        self._datagrams, self._listener = _bind(host, port)
        self.address: tuple[str, int] = (host, int(self._datagrams.getsockname()[1]))
        self._wake, self._woken = socket.socketpair()
        self._streams: dict[socket.socket, bytes] = {}
        self._known: set[socket.socket] = set()
        """Streams that have asked with the token: they stay where there are too many."""
        self._selector = selectors.DefaultSelector()
        handlers: dict[socket.socket, Callable[[], None]] = {
            self._datagrams: self._on_datagram,
            self._listener: self._on_connection,
        }
        for sock, handler in handlers.items():
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, handler)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="squall-clock-responder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and frees the port. May be called twice."""
        if self._thread.is_alive():
            self._wake.send(b"x")
            self._thread.join()
        for sock in (self._datagrams, self._listener, self._wake, self._woken, *self._streams):
            sock.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data()

    def _on_datagram(self) -> None:
        while True:
            try:
                message, sender = self._datagrams.recvfrom(MESSAGE_BYTES + 1)
            except BlockingIOError:
                return
            except OSError:  # an answer that met a closed port comes back here
                continue
            answer = self._answer(message, self._clock.monotonic_ns())
            if answer is not None:
                with contextlib.suppress(OSError):  # full buffer, no route: a lost answer is a lost probe
                    self._datagrams.sendto(answer, sender)

    def _on_connection(self) -> None:
        with contextlib.suppress(OSError):
            stream, _ = self._listener.accept()
            if len(self._streams) >= _MOST_STREAMS:
                self._drop(next((one for one in self._streams if one not in self._known), stream))
                if stream.fileno() < 0:
                    return
            stream.setblocking(False)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._streams[stream] = b""
            self._selector.register(stream, selectors.EVENT_READ, lambda: self._on_stream(stream))

    def _on_stream(self, stream: socket.socket) -> None:
        """Answers a whole probe; a stream that ends, errs or sends something else is closed."""
        try:
            received = stream.recv(MESSAGE_BYTES)
            got_ns = self._clock.monotonic_ns()
            pending = self._streams[stream] + received
            self._streams[stream] = pending[MESSAGE_BYTES:]
            if received and len(pending) < MESSAGE_BYTES:
                self._streams[stream] = pending
                return
            answer = self._answer(pending[:MESSAGE_BYTES], got_ns)
            if answer is not None and stream.send(answer) == MESSAGE_BYTES:
                self._known.add(stream)
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._drop(stream)

    def _drop(self, stream: socket.socket) -> None:
        if self._streams.pop(stream, None) is not None:
            self._selector.unregister(stream)
        self._known.discard(stream)
        stream.close()

    def _answer(self, message: bytes, got_ns: int) -> bytes | None:
        if len(message) != MESSAGE_BYTES:
            return None
        magic, token, number, _, _, _ = _MESSAGE.unpack(message)
        if magic != _MAGIC or not secrets.compare_digest(token, self.token):
            return None
        return _MESSAGE.pack(_MAGIC, _NO_TOKEN, number, got_ns, self._clock.monotonic_ns(), 0)


def _bind(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """A UDP socket and a TCP listener on one port number."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
    for last in (*[False] * (_PORT_TRIES - 1), True):
        datagrams, listener = (
            socket.socket(family, socket.SOCK_DGRAM),
            socket.socket(family, socket.SOCK_STREAM),
        )
        try:
            datagrams.bind((host, port))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, datagrams.getsockname()[1]))
            listener.listen(_MOST_STREAMS)
        except OSError:
            datagrams.close()
            listener.close()
            if port or last:
                raise
        else:
            return datagrams, listener
    raise AssertionError("the last try returns or raises")


def serve(clock: Clock, host: str, port: int = 0) -> None:
    """Answers until stdin ends; host, port and token (hex) go to stdout as one line."""
    responder = ClockResponder(clock, host, port)
    try:
        print(*responder.address, responder.token.hex(), flush=True)
        sys.stdin.read()
    finally:
        responder.close()


def main() -> None:
    """`python -m squall.actors.sampling.clock_responder HOST [--port PORT]`."""
    parser = argparse.ArgumentParser(description="answers clock probes until stdin ends")
    parser.add_argument("host")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    serve(SystemClock(), arguments.host, arguments.port)


if __name__ == "__main__":
    main()
