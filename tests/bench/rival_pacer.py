"""Open HTTP load as a plain asyncio program makes it: one loop.call_later per request, raw connections.

    python rival_pacer.py HOST PORT PATH BODY_FILE N_JSON_BYTES OFFSETS_FILE N CONNECTIONS LOOP

OFFSETS_FILE: int64 ns from the start, of which the first N are sent; LOOP: uvloop or asyncio. A request that finds no
free connection goes out on the next one that is released. Prints one JSON object; times in us. Send lag is the instant
just before the write minus the scheduled one: negative where a timer fires early. Any reply but 200 ends it.
"""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any

_LEAD_NS = 200_000_000
_TIMEOUT_S = 10.0


class Pacer:
    """Sends request i at `start_ns + offsets[i]`."""

    def __init__(self, message: bytes, offsets: array[int]) -> None:
        self.message = message
        self.offsets = offsets
        self.sent_ns = array("q", bytes(8 * len(offsets)))
        self.done_ns = array("q", bytes(8 * len(offsets)))
        self.n_left = len(offsets)
        self.free: list[Connection] = []
        self.waiting: deque[int] = deque()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.start_ns = 0

    def schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self.start_ns = time.monotonic_ns() + _LEAD_NS
        for index, offset in enumerate(self.offsets):
            loop.call_later((self.start_ns + offset - time.monotonic_ns()) / 1e9, self.fire, index)

    def fire(self, index: int) -> None:
        if self.free:
            self.free.pop().send(index)
        else:
            self.waiting.append(index)

    def release(self, connection: Connection) -> None:
        self.n_left -= 1
        if self.waiting:
            connection.send(self.waiting.popleft())
        else:
            self.free.append(connection)
        if not self.n_left and not self.end.done():
            self.end.set_result(None)

    def fail(self, why: str) -> None:
        if not self.end.done():
            self.end.set_exception(RuntimeError(why))


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection with at most one request in flight."""

    def __init__(self, pacer: Pacer) -> None:
        self.pacer = pacer
        self.index = 0
        self.buffer = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.pacer.free.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.pacer.fail(f"connection lost: {exc}")

    def send(self, index: int) -> None:
        self.index = index
        self.pacer.sent_ns[index] = time.monotonic_ns()
        self.transport.write(self.pacer.message)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[: end + 2].lower()
        if not head.startswith(b"http/1.1 200"):
            self.pacer.fail(f"not 200: {self.buffer[:200]!r}")
            return
        at = head.index(b"\r\ncontent-length:") + 17
        if len(self.buffer) >= end + 4 + int(head[at : head.index(b"\r\n", at)]):
            self.pacer.done_ns[self.index] = time.monotonic_ns()
            self.buffer = b""
            self.pacer.release(self)


def quantiles(values: list[int], percents: tuple[int, ...]) -> dict[str, float]:
    """In us, of ns."""
    values.sort()
    return {f"p{q}": round(values[q * len(values) // 100] / 1_000, 1) for q in percents}


async def run(
    host: str, port: int, message: bytes, offsets: array[int], n_connections: int
) -> dict[str, Any]:
    pacer = Pacer(message, offsets)
    loop = asyncio.get_running_loop()
    await asyncio.gather(
        *(loop.create_connection(lambda: Connection(pacer), host, port) for _ in range(n_connections))
    )
    pacer.schedule()
    await asyncio.wait_for(pacer.end, (_LEAD_NS + offsets[-1]) / 1e9 + _TIMEOUT_S)
    sent, start_ns = pacer.sent_ns, pacer.start_ns
    return {
        "n_ok": len(offsets),
        "n_failed": 0,
        "elapsed_s": (max(pacer.done_ns) - start_ns) / 1e9,
        "service_us": quantiles([b - a for a, b in zip(sent, pacer.done_ns, strict=True)], (50, 95, 99)),
        "send_lag_us": quantiles(
            [at - start_ns - due for at, due in zip(sent, offsets, strict=True)], (50, 99)
        ),
    }


def main() -> None:
    host, port, path, body_file, n_json_bytes, offsets_file, n, n_connections, loop = sys.argv[1:]
    body = Path(body_file).read_bytes()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {n_json_bytes}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    offsets = array("q", Path(offsets_file).read_bytes())[: int(n)]
    work = run(host, int(port), head.encode() + body, offsets, int(n_connections))
    version = f"Python {platform.python_version()}"
    if loop == "uvloop":
        import uvloop

        version += f", uvloop {uvloop.__version__}"
        result = uvloop.run(work)
    else:
        result = asyncio.run(work)
    print(json.dumps({"version": version, **result}))


main()
