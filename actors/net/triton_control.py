"""What a server says of itself and of its models: short requests over one kept connection, HTTP or HTTPS."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from squall.actors.net.stream import CLOSED, TlsSettings, words
from squall.scenarios.foreign_text import printable, secrets_of, without_secrets

_TIMEOUT_S = 5.0
_HTTP_PORT, _HTTPS_PORT = 80, 443
_REFUSED = (401, 403)
_REASON_CHARACTERS = 200


@dataclass(frozen=True)
class Access:
    """How a server is spoken to: by `tls` where its URL is https (None: the system's authorities), with `headers` in
    every call. These may be secrets, so that no text of an access has them."""

    tls: TlsSettings | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


PLAIN = Access()
"""Without headers; https by the system's authorities."""


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
    """Asks one server, directly as the load goes to it, whatever http_proxy says. Use it from one thread."""

    def __init__(self, url: str, access: Access = PLAIN, timeout_s: float | None = None) -> None:
        """Connects with the first request; `timeout_s`: for each step of one, 5 unless told.

        Raises OSError for files of TLS that cannot be used.
        """
        host, port = authority(url)
        timeout_s = _TIMEOUT_S if timeout_s is None else timeout_s
        self._headers = dict(access.headers)
        if urllib.parse.urlsplit(url).scheme == "https":
            tls = access.tls or TlsSettings()
            self._connection: http.client.HTTPConnection = _TlsConnection(
                host, port, tls.context("http/1.1"), tls.server_name or host, timeout_s
            )
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)

    def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
        """The body of the answer. Raises ControlError where there is none or its status is not 200."""
        was_open = self._connection.sock is not None
        try:
            try:
                return self._exchange(method, path, body)
            except (ConnectionError, http.client.BadStatusLine):
                if not was_open:
                    raise
                self._connection.close()  # the server had closed it meanwhile: a new one tells
                return self._exchange(method, path, body)
        except ControlError:
            raise
        except OSError as error:
            self._connection.close()
            raise ControlError(_words(error)) from error
        except http.client.HTTPException as error:
            self._connection.close()
            raise ControlError(f"it does not speak HTTP ({type(error).__name__})") from error

    def ask_json(self, path: str, method: str = "GET") -> Any:
        """The answer read as JSON. Raises ControlError, for what is no JSON too."""
        body = self.ask(path, method)
        try:
            return json.loads(body)
        except ValueError as error:
            raise ControlError(f"{path} is no JSON: {error}") from error

    def close(self) -> None:
        """Closes the connection; another request opens it again."""
        self._connection.close()

    def _exchange(self, method: str, path: str, body: bytes | None) -> bytes:
        self._connection.request(method, path, body, self._headers)
        reply = self._connection.getresponse()
        answer = reply.read()
        if reply.status != http.client.OK:
            reason = without_secrets(_reason(answer), secrets_of(self._headers))[:_REASON_CHARACTERS]
            said = f": {reason}" if reason and reply.status in _REFUSED else ""
            error = ControlError(f"status {reply.status}{said}")
            error.status, error.reason = reply.status, reason
            raise error
        return answer


class _TlsConnection(http.client.HTTPConnection):
    """HTTPS with a server name of its own; Python's takes the host."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext, server_name: str, timeout_s: float
    ) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._context = context
        self._server_name = server_name

    def connect(self) -> None:
        super().connect()
        plain = self.sock
        try:
            self.sock = self._context.wrap_socket(plain, server_hostname=self._server_name)
        except OSError:
            plain.close()
            self.close()
            raise
        except ValueError as error:  # a server name that is none
            plain.close()
            self.close()
            raise OSError(f"TLS: {error}") from error

    def send(self, data: Any) -> None:
        try:
            super().send(data)
        except OSError:
            if (
                self.sock is not None
            ):  # TLS 1.3 refuses a client only now: reading raises what the server said
                self.sock.recv(1)
            raise


def _reason(answer: bytes) -> str:
    """Of Triton's `{"error": …}`, in one line."""
    try:
        return printable(str(json.loads(answer)["error"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _words(error: OSError) -> str:
    if isinstance(error, http.client.RemoteDisconnected):
        return CLOSED
    return words(error)
