"""A stream socket that never blocks, over TCP, Unix or TLS; what flows over it is its owner's business."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Protocol

from squall.actors.net.loop import READABLE, WRITABLE, Loop

CLOSED = "the server closed the connection"
LARGEST_JOINED_BYTES = 65_536
"""Up to this a request is copied into one buffer and written by one system call; above, its parts are written as they
lie."""
_READ_BYTES = 65_536
_MOST_PARTS = 256
"""Pieces that one system call writes."""
_MOST_READS = 16
"""Of one TLS connection before others are looked at."""


@dataclass(frozen=True)
class TlsSettings:
    """How a client speaks TLS; paths are on the client's node.

    `ca`: PEM of the authorities that are trusted, else the system's. `certificate` and `key`: the client's own, for
    mutual TLS. `server_name`: the name that the server's certificate must have, else the host. `verify` False trusts
    any certificate.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    verify: bool = True

    def context(self, protocol: str) -> ssl.SSLContext:
        """The TLS context that offers `protocol` by ALPN. Raises OSError that names the file that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise OSError(f"the TLS authorities in {self.ca} cannot be used: {words(error)}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
            except OSError as error:
                is_told = not isinstance(error, ssl.SSLError) or error.reason is not None
                why = words(error) if is_told else "one is no PEM, or the key is encrypted"
                files = " and ".join(filter(None, (self.certificate, self.key)))
                raise OSError(f"the TLS identity in {files} cannot be used: {why}") from error
        context.set_alpn_protocols([protocol])
        return context


def _no_password() -> str:
    """OpenSSL would ask the terminal for the password of an encrypted key."""
    return ""


@dataclass(frozen=True)
class Address:
    """Where a server listens: host and port, or `unix_path`. Resolved once, so that no name service is asked later."""

    family: socket.AddressFamily
    sockaddr: str | tuple[str, int] | tuple[str, int, int, int]

    @classmethod
    def resolve_all(cls, host: str, port: int, unix_path: str | None = None) -> tuple[Address, ...]:
        """All that `host` has, each once, in the system's order. Raises OSError where it has none."""
        if unix_path is not None:
            return (cls(socket.AF_UNIX, unix_path),)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(cls(family, sockaddr) for family, _, _, _, sockaddr in found))  # type: ignore[arg-type]

    def __str__(self) -> str:
        if isinstance(self.sockaddr, str):
            return self.sockaddr
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Route:
    """How a socket reaches its server; `tls_name` is the name that TLS checks. `others`: more addresses that the
    server's name has; `is_one_at_a_time`: they are used where the ones before take no connection, else all at once."""

    address: Address
    tls: ssl.SSLContext | None = None
    tls_name: str | None = None
    others: tuple[Address, ...] = ()
    is_one_at_a_time: bool = False


def appended(before: bytes | bytearray, more: bytes) -> bytes | bytearray:
    """Both, the first of which is the caller's to give up. However many follow, each byte is copied a few times."""
    if not before:
        return more
    joined = bytearray(before) if isinstance(before, bytes) else before
    joined += more
    return joined


class Owner(Protocol):
    """Who a socket tells. After `on_lost` it tells nothing more."""

    def on_connected(self) -> None: ...

    def on_data(self, data: bytes) -> None: ...

    def on_drained(self) -> None:
        """All that was written is out, after a `write` that returned False."""

    def on_lost(self, why: str) -> None: ...


def words(error: OSError) -> str:
    """The system's words for an error, without its number."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return CLOSED
    if isinstance(error, ssl.SSLError):
        return f"TLS: {_tls_words(error)}"
    if isinstance(error, socket.gaierror):  # whose numbers are of another list
        return error.strerror or str(error)
    return os.strerror(error.errno) if error.errno else str(error)


def _tls_words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message.rstrip('.')}"
    if error.reason == "WRONG_VERSION_NUMBER":  # of OpenSSL for bytes that are no record of TLS
        return "the server does not speak TLS on this port"
    return (error.reason or str(error)).lower().replace("_", " ")


def allow_many_files() -> None:
    """Each socket is a file; the soft limit of this process, often 1,024, becomes the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # then a connection that finds none free says so
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class SocketStream:
    """One connection. Connects at once when made; `write` may be called after `on_connected` only."""

    __slots__ = (
        "_is_doomed", "_is_tls", "_is_up", "_loop", "_owner", "_recv", "_send", "_sock", "_unsent", "_wants",
    )  # fmt: skip

    def __init__(self, loop: Loop, route: Route, owner: Owner, address: Address | None = None) -> None:
        """`address`: one of the route's, None: the first. Raises OSError where connecting fails at once."""
        address = route.address if address is None else address
        self._loop = loop
        self._owner: Owner | None = owner
        self._is_up = self._is_doomed = False
        self._unsent: deque[memoryview] = deque()
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if address.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if route.tls is not None:
                # before it connects: a socket that is still connecting cannot be wrapped
                sock = route.tls.wrap_socket(
                    sock, do_handshake_on_connect=False, server_hostname=route.tls_name
                )
            number = sock.connect_ex(address.sockaddr)
            if number == errno.EAGAIN:  # a Unix socket whose queue is full; there is no waiting for it
                raise ConnectionRefusedError("the server takes no more connections")
            if number not in (0, errno.EINPROGRESS):
                raise OSError(number, os.strerror(number))
        except ValueError as error:  # a server name that is none
            sock.close()
            raise OSError(f"TLS: {error}") from error
        except BaseException:
            sock.close()
            raise
        self._sock: socket.socket = sock
        self._is_tls = route.tls is not None
        self._send, self._recv = sock.send, sock.recv
        self._wants = WRITABLE
        loop.watch(sock.fileno(), self._on_connecting, WRITABLE)

    def write(self, data: bytes) -> bool:
        """Writes at once what the socket takes, the rest as it takes more; True if all is out. `data` is not copied."""
        if self._unsent:
            self._unsent.append(memoryview(data))
            return False
        try:
            n_sent = self._send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            n_sent = 0
        except OSError as error:
            self._unsent.append(memoryview(data))
            self._lose_soon(error)
            return False
        if n_sent == len(data):
            return True
        self._unsent.append(memoryview(data)[n_sent:])
        self._want(READABLE | WRITABLE)
        return False

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> bool:
        """As `write`, of one piece after another; only TLS, which writes records, has them copied into one."""
        if self._is_tls:
            return self.write(b"".join(parts))
        is_first = not self._unsent
        self._unsent.extend(map(memoryview, parts))
        if not is_first:
            return False
        try:
            self._write_waiting()
        except OSError as error:
            self._lose_soon(error)
            return False
        if self._unsent:
            self._want(READABLE | WRITABLE)
        return not self._unsent

    def defer(self, data: bytes) -> None:
        """Writes `data` as the socket takes more: someone else has found it full."""
        self._unsent.append(memoryview(data))
        self._want(READABLE | WRITABLE)

    def hand_over(self, most_bytes: int) -> bytes | None:
        """What waits for the socket, for someone else to write; None where it is more, or the connection has ended."""
        if self._is_doomed or sum(map(len, self._unsent)) > most_bytes:
            return None
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._want(READABLE)
        return data

    def close(self) -> None:
        """Ends the connection; the owner hears nothing of it. What was not written is lost."""
        if self._owner is not None:
            self._owner = None
            self._loop.retire(self._sock.fileno(), self._sock.close)

    @property
    def fd(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def lose(self, number: int) -> None:
        """Ends the connection for an errno that someone else met on its socket, 0 for the end of the stream."""
        if number:
            self._unsent.append(memoryview(b""))  # as in `write`: nobody must take it for one that can go on
            self._lose_after_reading(os.strerror(number))
        else:
            self._lose(CLOSED)

    @property
    def has_unsent(self) -> bool:
        """Whether something written waits for the socket."""
        return bool(self._unsent)

    def _want(self, events: int) -> None:
        if events != self._wants:
            self._wants = events
            self._loop.change(self._sock.fileno(), events)

    def _lose(self, why: str) -> None:
        owner = self._owner
        self.close()
        if owner is not None:
            owner.on_lost(why)

    def _lose_soon(self, error: OSError) -> None:
        """A write has failed: nobody must take the connection for one that can go on. The owner, which called, hears of
        it later."""
        why = words(error)
        self._is_doomed = True
        self._loop.soon(lambda: self._lose_after_reading(why))

    def _lose_after_reading(self, why: str) -> None:
        """A write has failed. What the server said before is still to be read: an early answer, a TLS alert."""
        self._is_doomed = True
        while self._owner is not None:
            try:
                data = self._recv(_READ_BYTES)
            except OSError as error:
                if isinstance(error, ssl.SSLError) and error.errno == ssl.SSL_ERROR_SSL:
                    why = words(error)
                break
            if not data:
                break
            self._owner.on_data(data)
        self._lose(why)

    def _on_connecting(self, _: int) -> None:
        """The end of connect, and every step of a TLS handshake."""
        owner = self._owner
        if owner is None:
            return
        try:
            number = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number))
            if isinstance(self._sock, ssl.SSLSocket):
                self._sock.do_handshake()
        except ssl.SSLWantReadError:
            self._want(READABLE)
            return
        except ssl.SSLWantWriteError:
            self._want(WRITABLE)
            return
        except (OSError, ValueError) as error:
            self._lose(words(error) if isinstance(error, OSError) else str(error))
            return
        self._is_up = True
        self._loop.handlers[self._sock.fileno()] = self._on_ready_tls if self._is_tls else self._on_ready
        self._want(READABLE)
        owner.on_connected()

    def _on_ready(self, events: int) -> None:
        owner = self._owner
        if owner is None:
            return
        if events & WRITABLE and self._unsent:
            self._flush()
            if events == WRITABLE:
                return
        try:
            data = self._recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(words(error))
            return
        if self._owner is None:  # lost in the flush
            return
        if data:
            owner.on_data(data)
        else:
            self._lose(CLOSED)

    def _on_ready_tls(self, _: int) -> None:
        """Reads until TLS has nothing more: a record that is decrypted already makes no descriptor readable. Of a
        server that writes without end others get their turn meanwhile."""
        if self._unsent:  # whatever came may be what a write waited for
            self._flush()
        assert isinstance(self._sock, ssl.SSLSocket)
        for n_reads in count():
            if self._owner is None or (n_reads >= _MOST_READS and not self._sock.pending()):
                return
            try:
                data = self._recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                if not self._unsent:
                    self._want(READABLE)
                return
            except ssl.SSLWantWriteError:
                self._want(READABLE | WRITABLE)
                return
            except OSError as error:
                self._lose(words(error))
                return
            if not data:
                self._lose(CLOSED)
                return
            self._owner.on_data(data)

    def _flush(self) -> None:
        """Writes what waits, until the socket takes no more."""
        try:
            self._write_waiting()
        except OSError as error:
            self._lose_after_reading(words(error))
            return
        if self._unsent:
            return
        self._want(READABLE)
        if self._owner is not None:
            self._owner.on_drained()

    def _write_waiting(self) -> None:
        """Raises OSError where the connection has ended; what the socket did not take waits on."""
        unsent = self._unsent
        while unsent:
            parts = [unsent[0]] if self._is_tls else list(islice(unsent, _MOST_PARTS))
            try:
                n_sent = self._send(parts[0]) if len(parts) == 1 else self._sock.sendmsg(parts)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            is_full = n_sent < sum(map(len, parts))
            while unsent and n_sent >= len(unsent[0]):
                n_sent -= len(unsent.popleft())
            if n_sent:
                unsent[0] = unsent[0][n_sent:]
            if is_full and not self._is_tls:
                return
