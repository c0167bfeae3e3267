"""A null Triton behind a proxy that spoils its replies: whatever comes, each request ends, and so does the run."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from squall.actors.load.engine import Rules
from squall.actors.net import http2
from tests.golden.driving import MS, S, assert_one_row_each, column, plan_of, run_worker, settings_of
from tests.null_process import NullProcess, null_spec

N = 40
TIMEOUT_NS = 500 * MS
ENDS = {"ok", "bad_reply", "transport_error", "timeout", "server_error", "rejected"}
Spoil = Callable[[bytes], bytes]
_ID = re.compile(rb"0{9}\d{3}")


def flipped(data: bytes, place: float, value: int) -> bytes:
    at = int(place * len(data))
    return data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]


def cut(data: bytes, place: float, length: int) -> bytes:
    at = int(place * len(data))
    return data[:at] + data[at + length :]


def stuffed(data: bytes, place: float, more: bytes) -> bytes:
    at = int(place * len(data))
    return data[:at] + more + data[at:]


def doubled(data: bytes, place: float, length: int) -> bytes:
    at = int(place * len(data))
    return data[:at] + data[at : at + length] + data[at:]


places = st.floats(0, 1, exclude_max=True)
edits = st.one_of(
    st.builds(lambda place, value: lambda data: flipped(data, place, value), places, st.integers(1, 255)),
    st.builds(lambda place, n: lambda data: cut(data, place, n), places, st.integers(1, 60)),
    st.builds(lambda place, more: lambda data: stuffed(data, place, more), places, st.binary(min_size=1)),
    st.builds(lambda place, n: lambda data: doubled(data, place, n), places, st.integers(1, 60)),
    st.builds(lambda place: lambda data: data[: int(place * len(data))], places),
    st.builds(lambda noise: lambda _: noise, st.binary(max_size=300)),
    st.builds(
        lambda frame, n: lambda data: n * frame + data,
        st.sampled_from(
            [
                http2.frame(http2.PING, 0, 0, b"8 bytes!"), http2.settings({}), http2.window_update(0, 1),
                http2.frame(http2.PRIORITY, 0, 1, bytes(5)), http2.frame(http2.DATA, 0, 1), b"\xff\xff\xff" + bytes(6),
                b"1\r\na\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"ffffffffffffffff\r\n",
                b"X: y\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n",
            ]
        ),
        st.sampled_from([1, 900, 2_000]),
    ),
)  # fmt: skip
endings = st.sampled_from(["go on", "go on", "close", "reset"])
spoilings = st.tuples(st.lists(edits, min_size=1, max_size=3), endings)


class Spoiler:
    """Forwards connections to `port`; a reply with the id of a request in `spoilings` is edited and then ends so.

    Each connection has a thread of its own. Use as a context manager.
    """

    def __init__(self, port: int) -> None:
        self.spoilings: dict[int, tuple[list[Spoil], str]] = {}
        self.n_spoilt = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1_024)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._is_over = threading.Event()

    def __enter__(self) -> Spoiler:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, serve: Callable[[], None]) -> None:
        thread = threading.Thread(target=serve)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_over.is_set():
            if select.select([self._listener], [], [], 0.05)[0]:
                client, _ = self._listener.accept()
                self._start(lambda client=client: self._forward(client))  # type: ignore[misc]

    def _forward(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            while not self._is_over.is_set():
                for ready in select.select([client, server], [], [], 0.05)[0]:
                    data = ready.recv(65_536)
                    if not data or not self._pass(ready is server, data, client, server):
                        return

    def _pass(self, is_reply: bool, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        """Sends `data` on, spoilt if it is a reply that shall be; True if the connection goes on."""
        if not is_reply:
            server.sendall(data)
            return True
        ending = "go on"
        for found in _ID.findall(data):
            edits, ending = self.spoilings.get(int(found), ([], ending))
            self.n_spoilt += bool(edits)
            for edit in edits:
                data = edit(data) if data else data
        client.sendall(data)
        if ending == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return ending == "go on"


@pytest.fixture(scope="module")
def null() -> Iterator[NullProcess]:
    with NullProcess() as null:
        yield null


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_whatever_a_reply_is_turned_into_each_request_ends_once_and_the_run_goes_on(
    null: NullProcess, protocol: str
) -> None:
    plan = plan_of([i * 2 * MS for i in range(N)], 5 * S)
    seen, untouched = set(), set()

    @settings(
        max_examples=12, derandomize=True, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # to shrink would take minutes, and replies race with the end of their connection
    )  # fmt: skip
    @given(st.lists(spoilings, min_size=N // 4, max_size=N // 4))
    def run(spoiled: list[tuple[list[Spoil], str]]) -> None:
        with tempfile.TemporaryDirectory() as folder, Spoiler(null.ports[protocol]) as spoiler:
            spoiler.spoilings = dict(zip(count(0, 4), spoiled, strict=False))
            worker = settings_of(Path(folder), spoiler.port, Rules(TIMEOUT_NS), 8, null_spec(), protocol)
            rows = run_worker(worker, plan)
        assert_one_row_each(rows, plan)
        assert spoiler.n_spoilt > 0
        outcomes = column(rows, "outcome")
        assert set(outcomes) <= ENDS
        seen.update(outcomes[::4])
        others = [outcome for i, outcome in enumerate(outcomes) if i % 4]
        untouched.update(others)
        # over HTTP only a request that was sent just before the end of a spoilt connection is touched by it; over gRPC
        # all that share the connection are, and how many do is a matter of who is scheduled when
        if protocol == "http":
            assert others.count("ok") > len(others) * 0.7
            assert set(others) <= {"ok", "transport_error"}

    run()
    assert {"bad_reply", "transport_error", "timeout"} <= seen
    assert "ok" in untouched
