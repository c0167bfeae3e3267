"""Servers that answer what is asked of them beside the load without end, without haste, or with nonsense."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import squall.actors.net.triton_control
from squall.actors.net.access import PLAIN
from squall.actors.net.triton_control import Control, ControlError

HEAD = b"HTTP/1.1 200 OK\r\n"
LIMIT = 65_536
MOST_SENT = 16 * 1024**2
"""Of which a socket holds a part when its reader goes away."""


class Hostile:
    """Answers every request with the pieces of `answer`; `n_sent`: bytes that were taken from it."""

    def __init__(self, answer: Callable[[], Iterator[bytes]]) -> None:
        self._answer = answer
        self.n_sent = 0
        self.n_requests = 0
        self.is_over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Hostile:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        with contextlib.suppress(OSError), socket.create_connection(self._listener.getsockname()):
            pass
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            with peer, contextlib.suppress(OSError):
                while not self.is_over.is_set() and peer.recv(65_536):
                    self.n_requests += 1
                    for piece in self._answer():
                        peer.sendall(piece)
                        self.n_sent += len(piece)
            if self.is_over.is_set():
                return


def endless(head: bytes, piece: bytes) -> Callable[[], Iterator[bytes]]:
    """Four times as much as may be sent."""

    def answer() -> Iterator[bytes]:
        yield head
        for _ in range(4 * MOST_SENT // len(piece)):
            yield piece

    return answer


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squall.actors.net.triton_control, "_MOST_BYTES", LIMIT)


def told(server: Hostile, timeout_s: float = 60.0) -> str:
    """The error of one request."""
    control = Control(server.url, PLAIN, timeout_s)
    with pytest.raises(ControlError) as caught:
        control.ask_json("/v2")
    control.close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (HEAD + b"\r\n", bytes(65_536)),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"8000\r\n" + bytes(32_768) + b"\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 8_192),
        (HEAD + b"Content-Length: 999999999999999\r\n\r\n", bytes(65_536)),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2_048),
    ],
    ids=["no length", "chunks", "trailers", "a length", "100"],
)
def test_an_answer_without_end_is_left_at_the_limit(head: bytes, piece: bytes) -> None:
    with Hostile(endless(head, piece)) as server:
        assert told(server) == "the answer to /v2 has more than 65,536 bytes"
    assert server.n_sent < MOST_SENT


def test_a_gzip_that_nobody_asked_for_is_not_expanded() -> None:
    body = b"\x1f\x8b\x08" + bytes(100)
    head = HEAD + f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with Hostile(lambda: iter([head + body])) as server:
        assert told(server).startswith("/v2 is no JSON: ")


@pytest.mark.parametrize(
    "begin",
    [b"", HEAD, HEAD + b"Content-Length: 400\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\n"],
    ids=["status", "head", "body", "chunk size"],
)
def test_bytes_that_come_one_by_one_do_not_make_more_time(begin: bytes) -> None:
    def answer() -> Iterator[bytes]:
        yield begin
        for _ in range(400):  # each in time for itself
            server.is_over.wait(0.02)
            yield b"1"

    with Hostile(answer) as server:
        assert told(server, 0.5) == "timed out: /v2 has no whole answer within 0.5 s"
    assert server.n_sent < 400


def answered(body: bytes) -> bytes:
    return HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        HEAD + b"Content-Length: 10\r\n\r\n{}",
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n7FFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        answered(b'{"a": 1e999}'),
        answered(b'{"a": NaN}'),
        answered(b'{"a": -Infinity}'),
        answered(b'{"a": ' + b"9" * 5_000 + b"}"),
        answered(b"[" * 100_000),
        answered(b"\xff\xfe"),
    ],
    ids=lambda answer: repr(answer[:60])[-25:],
)
def test_a_broken_answer_is_one_line(answer: bytes) -> None:
    def once() -> Iterator[bytes]:
        yield answer
        raise ConnectionError  # ends the connection

    with Hostile(once) as server:
        assert len(told(server)) < 200


@pytest.mark.usefixtures("_small")
def test_limits_of_all_that_is_asked_hold_together() -> None:
    with Hostile(lambda: iter([answered(b"1" * 30 + b" " * 40_000)])) as server:
        one, together = Control(server.url), Control(server.url, PLAIN, None, 600.0)
        for _ in range(2):
            assert one.ask_json("/v2") == int("1" * 30)
        one.close()
        together.ask("/v2")
        with pytest.raises(ControlError, match=r"^the answer to /v2/b has more than 65,536 bytes$"):
            together.ask("/v2/b")
        n_requests = server.n_requests
        with pytest.raises(ControlError, match=r"^timed out: /v2 has no whole answer within 0 s$"):
            Control(server.url, PLAIN, None, 0.0).ask("/v2")
        assert server.n_requests == n_requests


def test_a_termination_ends_a_command_that_waits_for_a_server() -> None:
    def silence() -> Iterator[bytes]:
        server.is_over.wait()
        yield b""

    with Hostile(silence) as server:
        command = [sys.executable, "-m", "squall.cluster.entry", "init", "--url", server.url, "--out", "-"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            while not server.n_requests and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate()
    assert (process.returncode, out, err) == (1, b"", b"squall: interrupted\n")
