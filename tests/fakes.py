"""Stand-ins that script what the real thing would do, and note what they really did."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import re
import socket
import struct
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, Self, TypeVar

NS_PER_S = 1_000_000_000


@dataclass
class FakeClock:
    """A clock that stands still until it is set or advanced."""

    now_ns: int = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def advance(self, by_ns: int) -> None:
        self.now_ns += by_ns


@dataclass(frozen=True)
class DriftingClock:
    """The machine's monotonic clock at another offset and rate, so that the truth about it is known exactly.

    Reads base + offset_ns + (base - from_ns) x drift_ppb / 10^9, in whole ns.
    """

    offset_ns: int
    drift_ppb: int
    from_ns: int

    def monotonic_ns(self) -> int:
        return self.reading(time.monotonic_ns())

    def reading(self, base_ns: int) -> int:
        """What it reads when the machine's clock reads `base_ns`."""
        return base_ns + self.offset_ns + (base_ns - self.from_ns) * self.drift_ppb // NS_PER_S


Kind = Literal[
    "answer", "rejected", "error", "bad_request", "hang", "reset_mid_reply", "close", "malformed", "wrong_id",
    "short_tensor", "oversized", "bytewise", "connection_close", "garbage_after", "answer_twice", "eof_body",
    "http_1_0", "error_200", "huge_head", "upgrade", "json_below_0", "json_too_long", "json_digits",
]  # fmt: skip
"""What the stub does with a request:

answer            status 200, the request's own id, `tensor_bytes` bytes of output
rejected          503 in Triton's words for a full queue, with the request's id in front as Triton puts it
error bad_request 500 and 400 with an error object
hang              no reply, ever
reset_mid_reply   half of a reply, then RST
close             end of the connection without a reply
malformed         something that is not HTTP
wrong_id          a reply with another request's id
short_tensor oversized    fewer and more tensor bytes than the model's spec says
bytewise          the answer in pieces of one byte
connection_close  the answer with `Connection: close`
garbage_after     the answer and, in the same segment, bytes that nobody asked for
answer_twice      the answer two times in one segment
eof_body          an answer without a length, ended by the end of the connection
http_1_0          the same from a server of HTTP/1.0
error_200         an error object with status 200
huge_head         the answer with 2 MB of one header before it
upgrade           101, as if another protocol had been asked for
json_below_0 json_too_long json_digits the answer, its JSON of -5 bytes, of more than there are, of 5,000 digits
"""


@dataclass(frozen=True)
class Behaviour:
    """`kind` after at least `service_s` from the arrival of the whole request."""

    kind: Kind = "answer"
    service_s: float = 0.0


@dataclass
class Seen:
    """What the stub did, by request id; instants of CLOCK_MONOTONIC. `models`: the one that each request asked, in
    small letters over HTTP."""

    arrived_ns: dict[int, int] = field(default_factory=dict)
    replied_ns: dict[int, int] = field(default_factory=dict)
    models: dict[int, str] = field(default_factory=dict)
    n_connections: int = 0
    connections: dict[int, int] = field(default_factory=dict)
    """What names the connection that each came over."""


SeenT = TypeVar("SeenT", bound=Seen)


class LoopbackServer(ABC, Generic[SeenT]):
    """A server of a test on loopback, in a thread and an event loop of its own; use as a context manager."""

    def __init__(self, seen: SeenT) -> None:
        self.seen = seen
        self.port = 0
        self.halt = asyncio.Event()
        """Set when the server is to end."""
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it ends."""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._is_ready.wait(10):
            raise RuntimeError("the stub server did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.halt.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._listen())
        finally:
            self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0, backlog=1_024)
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        await self.halt.wait()
        await asyncio.sleep(0.05)  # a connection that was just taken gets its task, which then ends it
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()
        await asyncio.sleep(0.02)  # the transports' last callbacks

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.seen.n_connections += 1
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class StubTriton(LoopbackServer[Seen]):
    """An HTTP/1.1 server that takes KServe v2 inferences and does as its script says.

    `script(request_id)` gives the behaviour. `n_lanes`: how many requests are served at one time, the others queue
    (None: all). `reads` False: connections are taken and never read.
    """

    def __init__(
        self,
        script: Callable[[int], Behaviour] = lambda _: Behaviour(),
        tensor_bytes: int = 8,
        n_lanes: int | None = None,
        reads: bool = True,
    ) -> None:
        super().__init__(Seen())
        self._script = script
        self._tensor_bytes = tensor_bytes
        self._reads = reads
        self._lanes = asyncio.Semaphore(n_lanes) if n_lanes is not None else None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._reads:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await self.halt.wait()
        while await self._exchange(reader, writer):
            pass

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; True if the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(head.partition(b"\r\ncontent-length: ")[2].split(b"\r\n")[0]))
        if b"\r\ncontent-encoding: gzip\r\n" in head:
            body = gzip.decompress(body)
        request_id = int(body[7:19])
        self.seen.arrived_ns[request_id] = time.monotonic_ns()
        self.seen.models[request_id] = head.partition(b"/v2/models/")[2].partition(b"/")[0].decode()
        self.seen.connections[request_id] = id(writer)
        behaviour = self._script(request_id)
        if self._lanes is None:
            await wait_for(behaviour.service_s)
        else:
            async with self._lanes:
                await wait_for(behaviour.service_s)
        self.seen.replied_ns[request_id] = time.monotonic_ns()
        return await self._do(behaviour.kind, request_id, writer)

    async def _do(self, kind: Kind, request_id: int, writer: asyncio.StreamWriter) -> bool:
        answer = _answer(request_id, self._tensor_bytes)
        if kind == "hang":
            await self.halt.wait()
        elif kind == "reset_mid_reply":
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            await asyncio.sleep(0.02)  # the half reply is on its way before RST throws it away
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif kind == "bytewise":
            for byte in answer:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            return True
        elif kind != "close":
            writer.write(self._bytes_of(kind, request_id, answer))
            await writer.drain()
            if kind in ("eof_body", "http_1_0", "connection_close"):
                writer.write_eof()
                await asyncio.sleep(0.02)
            return kind not in ("malformed", "connection_close", "eof_body", "http_1_0")
        return False

    def _bytes_of(self, kind: Kind, request_id: int, answer: bytes) -> bytes:
        if kind == "rejected":
            return _error(503, f"[request id: {request_id:012d}] Exceeds maximum queue size")
        if kind == "error":
            return _error(500, "stub: broken on purpose")
        if kind == "bad_request":
            return _error(400, "stub: unexpected shape")
        size = self._tensor_bytes
        made: dict[Kind, Callable[[], bytes]] = {
            "malformed": lambda: b"SMTP ready\r\n\r\n",
            "wrong_id": lambda: _answer(request_id + 1, size),
            "short_tensor": lambda: _answer(request_id, size - 4),
            "oversized": lambda: _answer(request_id, size + 400_000),
            "connection_close": lambda: _answer(request_id, size, "Connection: close\r\n"),
            "garbage_after": lambda: answer + b"garbage",
            "answer_twice": lambda: answer + answer,
            "eof_body": lambda: _without_length(answer, b"1.1"),
            "http_1_0": lambda: _without_length(answer, b"1.0"),
            "error_200": lambda: _error(200, "stub: in words only"),
            "huge_head": lambda: _answer(request_id, size, f"X-Trace: {'x' * 2_000_000}\r\n"),
            "upgrade": lambda: b"HTTP/1.1 101 Other\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
            "json_below_0": lambda: _JSON_BYTES.sub(b"\\1-5", answer),
            "json_too_long": lambda: _JSON_BYTES.sub(b"\\g<1>100000", answer),
            "json_digits": lambda: _JSON_BYTES.sub(b"\\g<1>" + 5_000 * b"9", answer),
        }
        return made[kind]() if kind in made else answer


_JSON_BYTES = re.compile(rb"(Inference-Header-Content-Length: )\d+")


async def wait_for(service_s: float) -> None:
    """At least `service_s`: the loop's own timers may fire up to its clock's resolution early."""
    end_ns = time.monotonic_ns() + round(service_s * NS_PER_S)
    while (left_ns := end_ns - time.monotonic_ns()) > 0:
        await asyncio.sleep(left_ns / NS_PER_S)


def _answer(request_id: int, tensor_bytes: int, extra: str = "") -> bytes:
    described = {
        "name": "OUTPUT", "datatype": "FP32", "shape": [1, tensor_bytes // 4],
        "parameters": {"binary_data_size": tensor_bytes},
    }  # fmt: skip
    content = json.dumps({"id": f"{request_id:012d}", "outputs": [described]}).encode()
    head = (
        f"HTTP/1.1 200 OK\r\n{extra}Inference-Header-Content-Length: {len(content)}\r\n"
        f"Content-Length: {len(content) + tensor_bytes}\r\n\r\n"
    )
    return head.encode() + content + bytes(tensor_bytes)


def _without_length(answer: bytes, version: bytes) -> bytes:
    """The answer with a body that lasts to the end of the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n")[1:] if not line.startswith(b"Content-Length")]
    return b"\r\n".join([b"HTTP/%b 200 OK" % version, *lines, b"", body])


def _error(status: int, text: str) -> bytes:
    content = json.dumps({"error": text}).encode()
    return f"HTTP/1.1 {status} Stub\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def main() -> None:
    """Serves answers from this process until stdin closes; the port goes to stdout. For the bench."""
    with StubTriton(tensor_bytes=int(sys.argv[1])) as stub:
        print(stub.port, flush=True)
        while os.read(0, 4_096):
            pass


if __name__ == "__main__":
    main()


def out_of_memory(_path: Path, _memory_limit_bytes: int) -> None:
    """A step of a bench, by whose name another process finds it."""
    raise MemoryError("no room")
