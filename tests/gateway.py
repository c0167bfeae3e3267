"""A gateway before a server: it asks for a header and refuses some paths, as Triton's restricted APIs do."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

_HEAD_END = b"\r\n\r\n"


@dataclass
class Gateway:
    """Forwards HTTP/1.1 to a port of loopback where `header` has `value`, and the path holds none of `refused`.

    Use as a context manager: `port` is known inside. What it lets through and what it refuses is in `passed` and
    `turned_away`. A refusal repeats what the caller sent, and colours it red.
    """

    upstream: int
    header: str
    value: str
    refused: Sequence[str] = ()
    passed: list[str] = field(default_factory=list)
    turned_away: list[str] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> Self:
        is_up = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(is_up,), daemon=True)
        self._thread.start()
        assert is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    def _serve(self, is_up: threading.Event) -> None:
        async def main() -> None:
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            is_up.set()
            await self._over.wait()
            server.close()

        asyncio.run(main())  # which ends what is still relayed

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            while True:
                head, body = await _message(reader)
                path = head.split(b" ", 2)[1].decode()
                why = self._why_not(path, head)
                if why is None:
                    self.passed.append(path)
                    up_writer.write(head + body)
                    writer.write(b"".join(await _message(up_reader)))
                else:
                    self.turned_away.append(path)
                    writer.write(why)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            up_writer.close()

    def _why_not(self, path: str, head: bytes) -> bytes | None:
        said = _field(head, self.header)
        if said != self.value:
            return _reply("401 Unauthorized", f"\x1b[31mwho is {said}?")
        if any(one in path for one in self.refused):
            return _reply("403 Forbidden", f"\x1b[31mnot for {said}")
        return None


def _field(head: bytes, name: str) -> str | None:
    lines = head.decode("latin-1").split("\r\n")[1:]
    found = [line.partition(":")[2].strip() for line in lines if line.lower().startswith(f"{name.lower()}:")]
    return found[0] if found else None


def _reply(status: str, error: str) -> bytes:
    body = json.dumps({"error": error}).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(_HEAD_END)
    return head, await reader.readexactly(int(_field(head, "content-length") or 0))
