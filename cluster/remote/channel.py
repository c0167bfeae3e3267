"""Messages between the driver and a process of ours over a socket of our own: whole Python objects, either way.

Who connects proves that it knows the process's token (HMAC both ways: `multiprocessing.connection`). Large arrays go
as they lie in memory, in pieces, so that neither side holds a message twice.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

Address = tuple[str, int] | str
"""Host and port, or the name of a Unix socket of this machine's network namespace ("\\0…")."""

_PIECE_BYTES = 4 * 2**20
_HANDSHAKE_S = 10.0
_SILENT_AFTER_S, _PROBE_EVERY_S, _N_PROBES = 5, 5, 3
_NOTHING_ACKNOWLEDGED_MS = 20_000


def network() -> str:
    """Names what a Unix socket without a path can reach: the kernel and the network namespace of this process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')}"


class Channel:
    """One end of a connection. One thread sends, one receives; `close` from any thread ends both."""

    def __init__(self, link: socket.socket, token: bytes, is_server: bool) -> None:
        """Takes `link`. Raises OSError, EOFError or AuthenticationError where the peer is not ours."""
        _keep_alive(link)
        self._socket = link
        link.settimeout(None)
        seconds = int(_HANDSHAKE_S).to_bytes(8, "little") + bytes(8)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            link.setsockopt(socket.SOL_SOCKET, option, seconds)
        self._connection = Connection(os.dup(link.fileno()))
        try:
            steps = (
                (deliver_challenge, answer_challenge) if is_server else (answer_challenge, deliver_challenge)
            )
            for step in steps:
                step(self._connection, token)
        except BaseException:
            self.close()
            raise
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            link.setsockopt(socket.SOL_SOCKET, option, bytes(16))

    def send(self, message: Any) -> None:
        """Raises OSError where nobody receives any more, and what pickling `message` raises."""
        self.send_packed(*packed(message))

    def send_packed(self, head: bytes, buffers: list[memoryview]) -> None:
        """As `send`, of what `packed` has made."""
        self._connection.send_bytes(pickle.dumps((head, [len(one) for one in buffers])))
        for buffer in buffers:
            for start in range(0, len(buffer), _PIECE_BYTES):
                self._connection.send_bytes(buffer[start : start + _PIECE_BYTES])

    def receive(self) -> Any:
        """The next message. Raises EOFError or OSError at the end, and what unpickling it raises."""
        head, sizes = pickle.loads(self._connection.recv_bytes())
        buffers = []
        for size in sizes:
            buffer = bytearray(size)
            at = 0
            while at < size:
                at += self._connection.recv_bytes_into(buffer, at)
            buffers.append(buffer)
        return pickle.loads(head, buffers=buffers)

    def close(self) -> None:
        """Ends the connection for both sides, and whoever waits in `send` or `receive`."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def forget(self) -> None:
        """Gives the descriptor back; after `close`, once nobody sends or receives any more."""
        self._connection.close()


def packed(message: Any) -> tuple[bytes, list[memoryview]]:
    """A message as bytes, and the memory of its large arrays, not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return head, [one.raw() for one in buffers]


def connect(address: Address, token: bytes, timeout_s: float) -> Channel:
    """Raises OSError, EOFError or AuthenticationError where the process is not there or not ours."""
    if isinstance(address, str):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(timeout_s)
        try:
            link.connect(address)
        except OSError:
            link.close()
            raise
    else:
        link = socket.create_connection(address, timeout_s)
    return Channel(link, token, is_server=False)


def listen(host: str | None) -> tuple[socket.socket, Address]:
    """A listener for one connection: on an ephemeral port of `host`, or None: on a Unix socket without a path."""
    if host is None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"\0squall-{os.urandom(16).hex()}"
        link.bind(name)
        link.listen(1)
        return link, name
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    link = socket.create_server((host, 0), family=family, backlog=1)
    return link, (host, link.getsockname()[1])


def _keep_alive(link: socket.socket) -> None:
    """A peer whose machine is gone is found out within 20 s or so."""
    if link.family == socket.AF_UNIX:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, _SILENT_AFTER_S),
        (socket.TCP_KEEPINTVL, _PROBE_EVERY_S),
        (socket.TCP_KEEPCNT, _N_PROBES),
        (socket.TCP_USER_TIMEOUT, _NOTHING_ACKNOWLEDGED_MS),
    ):
        link.setsockopt(socket.IPPROTO_TCP, option, value)
