"""A gRPC server that does as its script says, mostly what no server should."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

from hpack import Decoder, Encoder
from tritonclient.grpc import service_pb2

from squall.actors.net import http2
from tests.fakes import LoopbackServer, Seen, wait_for

GrpcKind = Literal[
    "answer", "rejected", "error", "bad_request", "trailers_only", "hang", "rst_stream", "goaway", "goaway_graceful",
    "reset", "close", "malformed", "wrong_id", "short_tensor", "oversized", "bytewise", "no_status", "split_headers",
    "padded", "ping_first", "compressed", "no_message", "two_messages", "half_message", "not_grpc", "answer_twice",
    "huge_headers", "cut", "cut_close", "flood",
]  # fmt: skip
"""What the stub does with a request:

answer            HEADERS, DATA with the request's own id and `tensor_bytes` bytes of output, trailers with status 0
rejected          UNAVAILABLE in Triton's words for a full queue, with the request's id in front
error bad_request INTERNAL with a message that needs percent-encoding, and INVALID_ARGUMENT; HEADERS, then trailers
trailers_only     as `error`, but the status comes in the first HEADERS, which end the stream
hang              no reply, ever
rst_stream        RST_STREAM with the behaviour's `code` instead of a reply
goaway            GOAWAY that does not cover this stream, then the end: the request was not processed
goaway_graceful   two GOAWAYs as gRPC's C core sends them: the first takes every stream until the client has seen it
                  (it answers a PING), the second names the last one; the answers of all that were opened, the end
reset close       RST, and the end of the connection, without a reply
malformed         bytes that are not HTTP/2
wrong_id          a reply with another request's id
short_tensor oversized    fewer and more tensor bytes than the model's spec says
bytewise          the answer in pieces of one byte
no_status         trailers without grpc-status
split_headers     HEADERS and CONTINUATION, in pieces of one byte
padded            padded HEADERS and DATA, trailers with a priority (legal; gRPC's own C core takes it for broken)
ping_first        PING and changed SETTINGS before the answer and in the middle of it
compressed        the flag for a compressed message, without any grpc-encoding
no_message two_messages half_message    none, two, and the front half of a message; status 0 in each case
not_grpc          status 502 and HTML, as a proxy without its server answers
answer_twice      the answer two times on the same stream
huge_headers      HEADERS and CONTINUATION with 2 MB of one header before the answer; ends the connection
cut cut_close     HEADERS and two messages, then RST_STREAM, and the end of the connection
flood             20,000 PINGs and SETTINGS, and no reply
"""

_EVERY_STREAM = (1 << 31) - 1
_LEAVING = b"leaving!"
_PREFIX = struct.Struct(">BL")
_UNARY = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_OPEN = [(":status", "200"), ("content-type", "application/grpc")]
_MESSAGE = "stub: broken 100 % on purpose ñ"
"""Of `error`; it cannot travel as it is."""


@dataclass(frozen=True)
class GrpcBehaviour:
    """`kind` after at least `service_s` from the arrival of the whole request; `code` is that of RST_STREAM."""

    kind: GrpcKind = "answer"
    service_s: float = 0.0
    code: int = 2


@dataclass
class GrpcSeen(Seen):
    """Also what HTTP/2 shows. `resets`: code of the client's RST_STREAM, by request id."""

    resets: dict[int, int] = field(default_factory=dict)
    n_ping_acks: int = 0
    n_settings_acks: int = 0
    most_streams: int = 0
    """Most requests open at one time on one connection."""
    faults: list[str] = field(default_factory=list)
    """What a client did against HTTP/2."""
    calls: Counter[int] = field(default_factory=Counter)
    """Calls by connection."""


class StubGrpc(LoopbackServer[GrpcSeen]):
    """A gRPC server that takes ModelInfer and does as its script says.

    `script(request_id)` gives the behaviour. `reads` False: connections are taken and never read.
    `stream_window_bytes`: what a client may send of a request at first; once that is used up it gets as much again
    for every `refill_s`. `max_concurrent_streams` is announced, and what a client opens beyond it is refused.
    `is_streamed`: it takes ModelStreamInfer instead, one request a call.
    """

    def __init__(
        self,
        script: Callable[[int], GrpcBehaviour] = lambda _: GrpcBehaviour(),
        tensor_bytes: int = 8,
        reads: bool = True,
        stream_window_bytes: int | None = None,
        refill_s: float = 0.001,
        max_concurrent_streams: int | None = None,
        is_streamed: bool = False,
    ) -> None:
        super().__init__(GrpcSeen())
        self.is_streamed = is_streamed
        self.script = script
        self.tensor_bytes = tensor_bytes
        self.reads = reads
        self.stream_window_bytes = stream_window_bytes
        self.refill_s = refill_s
        self.max_concurrent_streams = max_concurrent_streams

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        try:
            await connection.serve()
        except http2.ProtocolFault as error:
            self.seen.faults.append(str(error))
        finally:
            await connection.end()


class _Connection:
    """One HTTP/2 connection; every request is served by a task of its own."""

    def __init__(self, stub: StubGrpc, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stub = stub
        self._seen = stub.seen
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()
        self._decoder = Decoder()
        self._encoder = Encoder()
        self._bodies: dict[int, bytearray] = {}
        """What came of each request that is not yet whole."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ids: dict[int, int] = {}
        """Request ids by stream."""
        self._room = asyncio.Condition()
        self._window = http2.DEFAULT_WINDOW_BYTES
        self._stream_window = http2.DEFAULT_WINDOW_BYTES
        self._credits: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._last_stream = 0
        self._has_ended = self._is_leaving = False
        self._client_knows = asyncio.Event()
        """It has seen that the server leaves."""

    async def serve(self) -> None:
        """Until the client leaves or breaks the protocol."""
        if not self._stub.reads:
            self._writer.transport.pause_reading()  # type: ignore[attr-defined]
            await self._stub.halt.wait()
        if await self._reader.readexactly(len(http2.PREFACE)) != http2.PREFACE:
            raise http2.ProtocolFault("no preface")
        values = {}
        if self._stub.stream_window_bytes is not None:
            values[http2.INITIAL_WINDOW_SIZE] = self._stub.stream_window_bytes
        if self._stub.max_concurrent_streams is not None:
            values[http2.MAX_CONCURRENT_STREAMS] = self._stub.max_concurrent_streams
        await self._write(http2.settings(values))
        while True:
            await self._take(await self._frame())

    async def end(self) -> None:
        """No task outlives the connection."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _frame(self) -> http2.Frame:
        head = await self._reader.readexactly(http2.HEAD_BYTES)
        n_bytes = int.from_bytes(head[:3], "big")
        if n_bytes > http2.DEFAULT_FRAME_BYTES:
            raise http2.ProtocolFault(f"a frame of {n_bytes} bytes")
        (frame,) = http2.split_frames(head + await self._reader.readexactly(n_bytes), n_bytes)
        return frame

    async def _write(self, *frames: bytes) -> None:
        async with self._lock:
            self._put(b"".join(frames))
            await self._writer.drain()

    def _put(self, data: bytes) -> None:
        """Nothing follows the end of the connection."""
        if not self._has_ended:
            self._writer.write(data)

    async def _take(self, frame: http2.Frame) -> None:
        kind, flags, stream, payload = frame
        if kind == http2.HEADERS:
            await self._open(frame)
        elif kind == http2.DATA:
            await self._take_data(frame)
        elif kind == http2.SETTINGS and flags & http2.ACK:
            self._seen.n_settings_acks += 1
        elif kind == http2.SETTINGS:
            async with self._room:
                values = http2.read_settings(payload)
                self._stream_window = values.get(http2.INITIAL_WINDOW_SIZE, self._stream_window)
                self._room.notify_all()
            await self._write(http2.frame(http2.SETTINGS, http2.ACK, 0))
        elif kind == http2.PING and flags & http2.ACK:
            self._seen.n_ping_acks += 1
            if payload == _LEAVING:
                self._client_knows.set()
        elif kind == http2.PING:
            await self._write(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.WINDOW_UPDATE:
            async with self._room:
                if stream:
                    self._credits[stream] = self._credits.get(stream, 0) + http2.read_u32(payload)
                else:
                    self._window += http2.read_u32(payload)
                self._room.notify_all()
        elif kind == http2.RST_STREAM:
            self._bodies.pop(stream, None)
            if stream in self._ids:
                self._seen.resets[self._ids[stream]] = http2.read_u32(payload)
            if stream in self._tasks and not self._has_ended:
                self._tasks[stream].cancel()

    async def _open(self, frame: http2.Frame) -> None:
        block, flags = http2.unpadded(frame), frame.flags
        while not flags & http2.END_HEADERS:
            more = await self._frame()
            if more.kind != http2.CONTINUATION or more.stream != frame.stream:
                raise http2.ProtocolFault("a header block is interrupted")
            block, flags = block + more.payload, more.flags
        headers = {str(name): str(value) for name, value in self._decoder.decode(block)}
        if not frame.stream & 1 or frame.stream <= self._last_stream:
            raise http2.ProtocolFault(f"stream {frame.stream} after {self._last_stream}")
        if self._client_knows.is_set():
            raise http2.ProtocolFault(f"stream {frame.stream} after GOAWAY")
        self._last_stream = frame.stream
        if (
            headers.get(":path") != (_STREAM if self._stub.is_streamed else _UNARY)
            or headers.get("te") != "trailers"
        ):
            raise http2.ProtocolFault(f"no call of ModelInfer: {headers}")
        most = self._stub.max_concurrent_streams
        n_open = len(self._bodies) + len(self._tasks) + 1
        if most is not None and n_open > most:
            await self._write(http2.rst_stream(frame.stream, http2.ERROR_NAMES.index("REFUSED_STREAM")))
            self._seen.faults.append(f"{n_open} streams, {most} are allowed")
            return
        self._seen.most_streams = max(self._seen.most_streams, n_open)
        self._bodies[frame.stream] = bytearray()

    async def _take_data(self, frame: http2.Frame) -> None:
        stream, n_bytes = frame.stream, len(frame.payload)
        if n_bytes:
            await self._write(http2.window_update(0, n_bytes))
        if stream not in self._bodies:
            return
        self._bodies[stream] += http2.unpadded(frame)
        if frame.flags & http2.END_STREAM:
            body = bytes(self._bodies.pop(stream))
            is_compressed, _ = _PREFIX.unpack_from(body)
            message = gzip.decompress(body[_PREFIX.size :]) if is_compressed else body[_PREFIX.size :]
            self._tasks[stream] = asyncio.create_task(self._answer(stream, message))
        elif n_bytes:
            if self._stub.stream_window_bytes is not None:
                await asyncio.sleep(self._stub.refill_s)
            await self._write(http2.window_update(stream, n_bytes))

    async def _answer(self, stream: int, message: bytes) -> None:
        try:
            request = service_pb2.ModelInferRequest.FromString(message)
            request_id = int(request.id)
            self._seen.models[request_id] = request.model_name
            self._ids[stream] = request_id
            self._seen.calls[id(self)] += 1
            self._seen.arrived_ns[request_id] = time.monotonic_ns()
            self._seen.connections[request_id] = id(self)
            behaviour = self._stub.script(request_id)
            await wait_for(behaviour.service_s)
            self._seen.replied_ns[request_id] = time.monotonic_ns()
            await self._do(behaviour, stream, request_id)
        except OSError:
            pass
        finally:
            self._tasks.pop(stream, None)

    async def _do(self, behaviour: GrpcBehaviour, stream: int, request_id: int) -> None:
        kind = behaviour.kind
        if kind == "hang":
            await self._stub.halt.wait()
        elif kind == "flood":
            await self._write(10_000 * (http2.frame(http2.PING, 0, 0, b"8 bytes!") + http2.settings({})))
            await self._stub.halt.wait()
        elif kind == "rst_stream":
            await self._write(http2.rst_stream(stream, behaviour.code))
        elif kind in ("cut", "cut_close"):
            async with self._lock:
                self._put(self._headers(stream, _OPEN))
            await self._send(stream, self._payload("two_messages", request_id), 0, False)
            await (
                self._end() if kind == "cut_close" else self._write(http2.rst_stream(stream, behaviour.code))
            )
        elif kind in ("reset", "close", "malformed", "goaway"):
            await self._end_with(kind, stream)
        elif kind == "goaway_graceful":
            await self._leave(stream, request_id)
        elif kind in ("rejected", "error", "bad_request", "trailers_only"):
            await self._fail(kind, stream, request_id)
        elif kind == "bytewise":
            payload = self._payload(kind, request_id)
            async with self._lock:
                answer = self._headers(stream, _OPEN) + http2.frame(http2.DATA, 0, stream, payload)
                for byte in answer + self._trailers(stream):
                    self._put(bytes([byte]))
                    await self._writer.drain()
                    await asyncio.sleep(0)
        elif kind == "not_grpc":
            html = b"<html>502 Bad Gateway</html>"
            async with self._lock:
                head = self._headers(stream, [(":status", "502"), ("content-type", "text/html")])
                self._put(head + http2.frame(http2.DATA, http2.END_STREAM, stream, html))
        else:
            await self._reply(kind, stream, request_id)

    async def _reply(self, kind: GrpcKind, stream: int, request_id: int) -> None:
        """The kinds that are an answer but for a detail."""
        if kind == "ping_first":
            values = {
                http2.INITIAL_WINDOW_SIZE: 100_000,
                http2.MAX_FRAME_SIZE: 32_768,
                http2.HEADER_TABLE_SIZE: 0,
            }
            await self._write(http2.frame(http2.PING, 0, 0, b"8 bytes!"), http2.settings(values))
        is_split, is_padded = kind == "split_headers", kind == "padded"
        for _ in range(2 if kind == "answer_twice" else 1):
            said = [*_OPEN, ("x-trace", "x" * 2_000_000)] if kind == "huge_headers" else _OPEN
            async with self._lock:
                self._put(self._headers(stream, said, is_split=is_split, is_padded=is_padded))
            if kind != "no_message":
                await self._send(
                    stream, self._payload(kind, request_id), 7 if is_padded else 0, kind == "ping_first"
                )
            async with self._lock:
                extra = [("x-note", "no status")] if kind == "no_status" else None
                self._put(self._trailers(stream, extra, is_split, is_padded))
                await self._writer.drain()

    async def _fail(self, kind: GrpcKind, stream: int, request_id: int) -> None:
        status, text = {
            "rejected": (14, f"[request id: {request_id:012d}] Exceeds maximum queue size"),
            "bad_request": (3, "stub: unexpected shape"),
        }.get(kind, (13, _MESSAGE))
        trailer = [("grpc-status", str(status)), ("grpc-message", quote(text, safe=" :[]"))]
        async with self._lock:
            if kind == "trailers_only":
                self._put(self._headers(stream, _OPEN + trailer, http2.END_STREAM))
            else:
                self._put(self._headers(stream, _OPEN) + self._trailers(stream, trailer))
            await self._writer.drain()

    async def _leave(self, stream: int, request_id: int) -> None:
        """The first stream that is told to leave also sees to the end."""
        is_first, self._is_leaving = not self._is_leaving, True
        if is_first:
            await self._write(_goaway(_EVERY_STREAM), http2.frame(http2.PING, 0, 0, _LEAVING))
            await self._client_knows.wait()
        await self._reply("answer", stream, request_id)
        if is_first:
            while len(self._tasks) > 1 or self._bodies:
                await asyncio.sleep(0.001)
            await self._write(_goaway(self._last_stream))
            await self._end()

    async def _end_with(self, kind: GrpcKind, stream: int) -> None:
        """The kinds that end the connection at once."""
        if kind == "goaway":
            await self._write(_goaway(max(stream - 2, 0)))
        elif kind == "malformed":
            await self._write(b"SMTP ready\r\n\r\n")
        elif kind == "reset":
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
            return
        await self._end()

    async def _end(self) -> None:
        self._has_ended = True
        self._writer.write_eof()
        # the client reads all that came before anything it still sends meets a RST
        await asyncio.sleep(0.05)
        self._writer.transport.abort()

    async def _send(self, stream: int, payload: bytes, n_pad: int, pings: bool) -> None:
        """DATA frames as the client's windows allow; padding counts too (section 6.9.1)."""
        extra = 1 + n_pad if n_pad else 0
        at = 0
        while at < len(payload):
            async with self._room:
                await self._room.wait_for(lambda: self._free(stream) > extra)
                n_bytes = min(
                    len(payload) - at, self._free(stream) - extra, http2.DEFAULT_FRAME_BYTES - extra
                )
                if pings and at == 0 and n_bytes > 1:
                    n_bytes //= 2
                self._window -= n_bytes + extra
                self._used[stream] = self._used.get(stream, 0) + n_bytes + extra
            part = payload[at : at + n_bytes]
            if n_pad:
                await self._write(
                    http2.frame(http2.DATA, http2.PADDED, stream, bytes([n_pad]) + part + bytes(n_pad))
                )
            else:
                await self._write(http2.frame(http2.DATA, 0, stream, part))
            if pings:
                await self._write(http2.frame(http2.PING, 0, 0, b"the half"), http2.settings({}))
            at += n_bytes

    def _free(self, stream: int) -> int:
        used = self._used.get(stream, 0)
        return min(self._window, self._stream_window + self._credits.get(stream, 0) - used)

    def _payload(self, kind: GrpcKind, request_id: int) -> bytes:
        size = self._stub.tensor_bytes + {"short_tensor": -4, "oversized": 400_000}.get(kind, 0)
        response = service_pb2.ModelInferResponse(
            model_name="stub", model_version="1", id=f"{request_id + (kind == 'wrong_id'):012d}"
        )
        response.outputs.add(name="OUTPUT", datatype="FP32", shape=[1, size // 4])
        response.raw_output_contents.append(bytes(size))
        if self._stub.is_streamed:
            response = service_pb2.ModelStreamInferResponse(infer_response=response)
        message: bytes = response.SerializeToString()
        payload = _PREFIX.pack(int(kind == "compressed"), len(message)) + message
        return {"two_messages": payload * 2, "half_message": payload[: len(payload) // 2]}.get(kind, payload)

    def _trailers(
        self,
        stream: int,
        headers: list[tuple[str, str]] | None = None,
        is_split: bool = False,
        is_padded: bool = False,
    ) -> bytes:
        headers = [("grpc-status", "0"), ("grpc-message", "")] if headers is None else headers
        return self._headers(stream, headers, http2.END_STREAM, is_split, is_padded, has_priority=is_padded)

    def _headers(
        self,
        stream: int,
        headers: list[tuple[str, str]],
        flags: int = 0,
        is_split: bool = False,
        is_padded: bool = False,
        has_priority: bool = False,
    ) -> bytes:
        """A header block in its frames. It must be written before the next is made: blocks share the table."""
        is_huge = any(len(value) > http2.DEFAULT_FRAME_BYTES for _, value in headers)
        block = self._encoder.encode(
            headers, huffman=not is_huge
        )  # hpack's time for it grows with the square
        if is_split or len(block) > http2.DEFAULT_FRAME_BYTES:
            size = 1 if is_split else http2.DEFAULT_FRAME_BYTES
            pieces = [block[at : at + size] for at in range(0, len(block), size)]
            frames = [http2.frame(http2.HEADERS, flags, stream, pieces[0])]
            frames += [http2.frame(http2.CONTINUATION, 0, stream, piece) for piece in pieces[1:-1]]
            return b"".join(frames) + http2.frame(http2.CONTINUATION, http2.END_HEADERS, stream, pieces[-1])
        if has_priority:
            block, flags = bytes(4) + b"\x10" + block, flags | http2.PRIORITY_FLAG
        if is_padded:
            block, flags = b"\x05" + block + bytes(5), flags | http2.PADDED
        return http2.frame(http2.HEADERS, flags | http2.END_HEADERS, stream, block)


def _goaway(last_stream: int) -> bytes:
    return http2.frame(http2.GOAWAY, 0, 0, struct.pack(">LL", last_stream, 0))
