"""What a server says of itself and of its models: short requests over one kept connection, HTTP or HTTPS."""

from __future__ import annotations

import http.client
import io
import math
import socket
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from squall.actors.net.access import PLAIN, Access
from squall.actors.net.stream import CLOSED, Address, TlsSettings, words
from squall.scenarios.foreign_text import json_of, printable, secrets_of, without_secrets

_TIMEOUT_S = 5.0
_MOST_BYTES = 16 * 1024**2
"""Of an answer with its head: statistics of 1,000 models with 64 batch sizes each have as many."""
_PIECE_BYTES = 16_384
_HTTP_PORT, _HTTPS_PORT = 80, 443
_REFUSED = (401, 403)
_REASON_CHARACTERS = 200


def authority(url: str) -> tuple[str, int]:
    """Host and port of `http://host:port` or `https://host[:port]`."""
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    return parts.hostname, parts.port or (_HTTPS_PORT if parts.scheme == "https" else _HTTP_PORT)


class ControlError(OSError):
    """The server did not answer with status 200; the text says what it did, in a few words.

    `status`: that of its answer, 0 without one. `reason`: what it says why, in one line; empty where it says nothing.
    """

    status = 0
    reason = ""

    @property
    def is_refused(self) -> bool:
        """Whether who asked may not ask that: status 401 or 403."""
        return self.status in _REFUSED


class Control:
    """Asks one server, directly as the load goes to it, whatever http_proxy says. Use it from one thread.

    An answer has at most 16 MiB, head and framing included: neither the server nor who is in between can make it
    larger or longer.
    """

    def __init__(
        self,
        url: str,
        access: Access = PLAIN,
        timeout_s: float | None = None,
        together_s: float = math.inf,
    ) -> None:
        """Connects with the first request; `timeout_s`: for each request from its connection to the end of its answer,
        5 unless told. `together_s`: for all that is ever asked, which then has 16 MiB altogether too.

        Raises OSError for files of TLS that cannot be used.
        """
        host, port = authority(url)
        self._timeout_s = _TIMEOUT_S if timeout_s is None else timeout_s
        self._together_s, self._together_until_s = together_s, time.monotonic() + together_s
        self._headers = dict(access.headers)
        context, server_name = None, host
        if urllib.parse.urlsplit(url).scheme == "https":
            tls = access.tls or TlsSettings()
            context, server_name = tls.context("http/1.1"), tls.server_name or host
        self._connection = _Connection(host, port, context, server_name)

    def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
        """The body of the answer. Raises ControlError where there is none in time, it is too large, or its status is
        not 200."""
        connection, was_open = self._connection, self._connection.sock is not None
        connection.until_s, within_s = min(
            (time.monotonic() + self._timeout_s, self._timeout_s), (self._together_until_s, self._together_s)
        )
        if self._together_s == math.inf:
            connection.left_bytes = _MOST_BYTES
        try:
            try:
                return self._exchange(method, path, body)
            except (ConnectionError, http.client.BadStatusLine):
                if not was_open:
                    raise
                connection.close()  # the server had closed it meanwhile: a new one tells
                return self._exchange(method, path, body)
        except ControlError:
            raise
        except TimeoutError as error:
            connection.close()
            raise ControlError(f"timed out: {path} has no whole answer within {within_s:g} s") from error
        except OSError as error:
            connection.close()
            raise ControlError(_words(error)) from error
        except _TooLarge as error:
            connection.close()
            raise ControlError(f"the answer to {path} has more than {_MOST_BYTES:,} bytes") from error
        except (http.client.HTTPException, ValueError) as error:  # ValueError: of a chunk's size
            connection.close()
            raise ControlError(f"it does not speak HTTP ({type(error).__name__})") from error

    def ask_json(self, path: str, method: str = "GET") -> Any:
        """The answer read as JSON. Raises ControlError, for what is no JSON too."""
        body = self.ask(path, method)
        try:
            return json_of(body)
        except ValueError as error:
            raise ControlError(f"{path} is no JSON: {error}") from error

    def close(self) -> None:
        """Closes the connection; another request opens it again."""
        self._connection.close()

    def _exchange(self, method: str, path: str, body: bytes | None) -> bytes:
        self._connection.request(method, path, body, self._headers)
        reply = self._connection.getresponse()
        answer = _body(reply)
        if reply.status != http.client.OK:
            reason = _reason(answer, self._headers)
            said = f": {reason}" if reason and reply.status in _REFUSED else ""
            error = ControlError(f"status {reply.status}{said}")
            error.status, error.reason = reply.status, reason
            raise error
        return answer


class _TooLarge(Exception):
    """The server has sent as much as it may."""


def _body(reply: http.client.HTTPResponse) -> bytes:
    """To its end, whatever the head says of its length: nothing is set aside for more than may come."""
    if reply.length is not None and reply.length > _MOST_BYTES:
        raise _TooLarge
    with reply:
        answer = reply.read(_MOST_BYTES)
        if reply.length:
            raise http.client.IncompleteRead(b"", reply.length)
    return answer


class _Connection(http.client.HTTPConnection):
    """HTTP, or HTTPS with a server name of its own: Python's takes the host. Whatever it does ends at `until_s`, and it
    reads no more than `left_bytes`."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, server_name: str) -> None:
        super().__init__(host, port)
        self.until_s = 0.0
        self.left_bytes = _MOST_BYTES
        self._context = context
        self._server_name = server_name

    def left_s(self) -> float:
        """Raises TimeoutError where nothing is left."""
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def connect(self) -> None:
        """To the first of the host's addresses that takes it; each has its share of the time that is left."""
        addresses = Address.resolve_all(self.host, self.port)
        for n_left in range(len(addresses), 0, -1):
            sock = socket.socket(addresses[-n_left].family)
            try:
                sock.settimeout(self.left_s() / n_left)
                sock.connect(addresses[-n_left].sockaddr)
                self.sock = sock
                break
            except OSError:
                sock.close()
                if n_left == 1:
                    raise
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            self._secure(self._context)

    def _secure(self, context: ssl.SSLContext) -> None:
        plain = self.sock
        try:
            plain.settimeout(self.left_s())
            self.sock = context.wrap_socket(plain, server_hostname=self._server_name)
        except OSError:
            plain.close()
            self.close()
            raise
        except ValueError as error:  # a server name that is none
            plain.close()
            self.close()
            raise OSError(f"TLS: {error}") from error

    def send(self, data: Any) -> None:
        """In pieces: TLS takes the timeout of a socket for that of each."""
        if self.sock is None:
            self.connect()
        try:
            for at in range(0, len(data), _PIECE_BYTES):
                self.sock.settimeout(self.left_s())
                self.sock.sendall(data[at : at + _PIECE_BYTES])
        except TimeoutError:
            raise
        except OSError:
            if self._context is not None:
                self.sock.recv(1)  # TLS 1.3 refuses a client only now: this raises what the server said
            raise

    def response_class(self, sock: socket.socket, *args: Any, **named: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        """A reply that reads within the limits."""
        reply = http.client.HTTPResponse(sock, *args, **named)
        reply.fp = io.BufferedReader(_Bounded(reply.fp.detach(), sock, self))
        return reply


class _Bounded(io.RawIOBase):
    """What comes from a socket, within the limits of its connection. Raises TimeoutError and _TooLarge."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, connection: _Connection) -> None:
        super().__init__()
        self._raw, self._sock, self._connection = raw, sock, connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._connection.left_bytes <= 0:
            raise _TooLarge
        self._sock.settimeout(self._connection.left_s())
        n_bytes: int | None = self._raw.readinto(memoryview(buffer)[: self._connection.left_bytes])
        self._connection.left_bytes -= n_bytes or 0
        return n_bytes

    def close(self) -> None:
        self._raw.close()
        super().close()


def _reason(answer: bytes, headers: Mapping[str, str]) -> str:
    """Of Triton's `{"error": …}`, the beginning, in one line without what `headers` keep secret."""
    try:
        said = without_secrets(str(json_of(answer)["error"]), secrets_of(headers))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return printable(said[:_REASON_CHARACTERS])[:_REASON_CHARACTERS]


def _words(error: OSError) -> str:
    if isinstance(error, http.client.RemoteDisconnected):
        return CLOSED
    return words(error)
