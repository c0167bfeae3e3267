"""A client of one's own, which tells Locust of each request by the event `request`: HTTP over a plain socket."""

from __future__ import annotations

import socket
import time
from typing import Any
from urllib.parse import urlsplit

from locust import User, constant, task


class SocketClient:
    """One connection that is kept; what fails is told, and opened anew."""

    def __init__(self, host: str, request_event: Any) -> None:
        self._address = urlsplit(host).hostname, urlsplit(host).port
        self._host = urlsplit(host).netloc
        self._request_event = request_event
        self._socket: socket.socket | None = None

    def get(self, path: str) -> None:
        meta: dict[str, Any] = {
            "request_type": "SOCKET",
            "name": path,
            "response_length": 0,
            "response": None,
            "context": {},
            "exception": None,
        }
        start = time.perf_counter()
        try:
            meta["response_length"] = self._exchange(path)
        except OSError as error:
            meta["exception"] = error
            self.close()
        meta["response_time"] = (time.perf_counter() - start) * 1000
        self._request_event.fire(**meta)

    def _exchange(self, path: str) -> int:
        """Bytes of the reply."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=5)
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())
        reply = b""
        while b"\r\n\r\n" not in reply:
            got = self._socket.recv(65_536)
            if not got:
                raise ConnectionResetError("the server hung up")
            reply += got
        head, _, body = reply.partition(b"\r\n\r\n")
        lengths = [
            int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        ]
        n_left = sum(lengths) - len(body)
        while n_left > 0:
            n_left -= len(self._socket.recv(min(n_left, 65_536)) or b"x" * n_left)
        return len(head) + 4 + sum(lengths)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class SocketUser(User):
    """What Locust's documentation calls a user for another protocol."""

    abstract = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.client = SocketClient(self.host, environment.events.request)

    def on_stop(self) -> None:
        self.client.close()


class Caller(SocketUser):
    """Asks for health and metadata in turn."""

    wait_time = constant(0.02)

    @task
    def both(self) -> None:
        self.client.get("/v2/health/ready")
        self.client.get("/v2")
