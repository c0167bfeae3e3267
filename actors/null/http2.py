"""One HTTP/2 connection of the null server, without its socket: frames, streams, windows both ways.

A client's header block is decoded once for each state of its table. Source: RFC 9113.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hpack import Decoder, HPACKError

from squall.actors.net import http2
from squall.actors.net.http2 import ProtocolFault
from squall.actors.null.faults import GRPC_STATUS
from squall.actors.null.grpc import (
    HEAD,
    HEAD_BLOCK,
    INFER,
    PREFIX,
    TRAILER,
    TRAILER_BLOCK,
    UNAVAILABLE,
    GrpcService,
    layout_of,
    message_of,
    refusal,
    status_of,
)
from squall.actors.null.model import QUEUE_FULL, BadRequest, Peer, Tally
from squall.actors.null.proto import GrpcAnswer

_STREAM_WINDOW_BYTES = 8 << 20
_RETURNED_BYTES = 4 << 20
"""How much a client sends before it gets that much window back."""
_MOST_BLOCKS = 256
_LARGEST_BLOCK_BYTES = 65_536
_U32 = struct.Struct(">L")


@dataclass(eq=False)
class _Upload:
    """A request whose DATA has not ended."""

    parts: list[bytes]
    n_unreturned: int = 0


@dataclass(eq=False)
class _Download:
    """A message that the client's windows hold back; `at`: how much of it is sent."""

    payload: bytes
    at: int = 0


class GrpcPeer(Peer):
    """One HTTP/2 connection. Any breach of the protocol ends it with GOAWAY."""

    def __init__(self, service: GrpcService) -> None:
        values = {http2.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES}
        room = http2.window_update(0, http2.LARGEST_WINDOW_BYTES - http2.DEFAULT_WINDOW_BYTES)
        self.out: list[bytes] = [http2.settings(values), room]
        self.rows: list[int] = []
        self.is_over = False
        self._service = service
        self._rest = b""
        self._has_preface = False
        self._decoder = Decoder()
        self._blocks: dict[bytes, str] = {}
        self._opening: tuple[int, int, bytes] | None = None
        """(stream, flags, fragments) of a header block without its end."""
        self._streams: dict[int, str] = {}
        """Path of each request without an answer."""
        self._uploads: dict[int, _Upload] = {}
        self._downloads: dict[int, _Download] = {}
        self._last_stream = 0
        self._n_unreturned = 0
        self._window = http2.DEFAULT_WINDOW_BYTES
        self._stream_window = http2.DEFAULT_WINDOW_BYTES
        self._credits: dict[int, int] = {}
        """WINDOW_UPDATEs of streams without an answer."""
        self._largest_frame = http2.DEFAULT_FRAME_BYTES

    def feed(self, data: bytes, now_ns: int) -> None:
        if self._rest:
            data = self._rest + data
        at = 0
        try:
            if not self._has_preface:
                if not http2.PREFACE.startswith(data[: len(http2.PREFACE)]):
                    raise ProtocolFault("no HTTP/2 preface")
                if len(data) < len(http2.PREFACE):
                    self._rest = data
                    return
                self._has_preface = True
                data = data[len(http2.PREFACE) :]
            for frame in http2.split_frames(data, http2.DEFAULT_FRAME_BYTES):
                at += http2.HEAD_BYTES + len(frame.payload)
                self._take(frame, now_ns)
        except (ProtocolFault, HPACKError) as error:
            self.is_over = True
            self.out.append(self._goaway(1, str(error).encode()))
        self._rest = data[at:]

    def _take(self, frame: http2.Frame, now_ns: int) -> None:
        kind, flags, stream, payload = frame
        if self._opening is not None and kind != http2.CONTINUATION:
            raise ProtocolFault("a header block is interrupted")
        if kind == http2.DATA:
            self._take_data(frame, now_ns)
        elif kind == http2.HEADERS:
            if flags & (http2.PADDED | http2.PRIORITY_FLAG):
                payload = http2.unpadded(frame)
            if not flags & http2.END_HEADERS:
                self._opening = stream, flags, payload
                return
            self._open(stream, flags, payload, now_ns)
        elif kind == http2.CONTINUATION:
            if self._opening is None or self._opening[0] != stream:
                raise ProtocolFault("CONTINUATION without HEADERS")
            _, first_flags, so_far = self._opening
            self._opening = stream, first_flags, so_far + payload
            if len(so_far) > _LARGEST_BLOCK_BYTES:
                raise ProtocolFault("a header block is too long")
            if flags & http2.END_HEADERS:
                self._opening = None
                self._open(stream, first_flags, so_far + payload, now_ns)
        else:
            self._control(frame)

    def _open(self, stream: int, flags: int, block: bytes, now_ns: int) -> None:
        path = self._blocks.get(block)
        if path is None:
            path = self._decode(block)
        if stream <= self._last_stream:
            if stream not in self._streams or not flags & http2.END_STREAM:
                raise ProtocolFault(f"HEADERS on stream {stream}, which is not new")
        elif not stream & 1:
            raise ProtocolFault("a client's streams have odd numbers")
        else:
            self._last_stream = stream
            self._streams[stream] = path
        if flags & http2.END_STREAM:
            upload = self._uploads.pop(stream, None)
            self._request(stream, b"".join(upload.parts) if upload else b"", now_ns)

    def _decode(self, block: bytes) -> str:
        """The path in a header block; kept until a block changes the table that blocks are read with."""
        table = self._decoder.header_table
        before = (table.maxsize, tuple(table.dynamic_entries))
        headers = {str(name): str(value) for name, value in self._decoder.decode(block)}
        if before != (table.maxsize, tuple(table.dynamic_entries)) or len(self._blocks) >= _MOST_BLOCKS:
            self._blocks.clear()
        else:
            self._blocks[block] = headers.get(":path", "")
        return headers.get(":path", "")

    def _take_data(self, frame: http2.Frame, now_ns: int) -> None:
        _, flags, stream, payload = frame
        n_bytes = len(payload)
        self._n_unreturned += n_bytes
        if self._n_unreturned >= _RETURNED_BYTES:
            self.out.append(http2.window_update(0, self._n_unreturned))
            self._n_unreturned = 0
        if flags & http2.PADDED:
            payload = http2.unpadded(frame)
        if stream not in self._streams:
            if stream > self._last_stream or not stream:
                raise ProtocolFault(f"DATA on stream {stream}, which is not open")
            return
        upload = self._uploads.get(stream)
        if flags & http2.END_STREAM:
            if upload:
                del self._uploads[stream]
                payload = b"".join((*upload.parts, payload))
            self._request(stream, payload, now_ns)
            return
        if upload is None:
            upload = self._uploads[stream] = _Upload([])
        upload.parts.append(payload)
        upload.n_unreturned += n_bytes
        if upload.n_unreturned >= _RETURNED_BYTES:
            self.out.append(http2.window_update(stream, upload.n_unreturned))
            upload.n_unreturned = 0

    def _request(self, stream: int, payload: bytes, now_ns: int) -> None:
        """The whole request has come."""
        path = self._streams[stream]
        if path == INFER:
            try:
                answer, wire_id = self._service.answers.answer_of(message_of(payload))
            except BadRequest as error:
                self._refuse(stream, status_of(error), str(error))
            else:
                self._service.submit(self, stream, answer, wire_id, now_ns)
            return
        status, message = self._service.page(path, payload)
        if status:
            self._refuse(stream, status, message.decode(errors="replace"))
        else:
            del self._streams[stream]
            self._begin_download(stream, PREFIX.pack(0, len(message)) + message)

    def _control(self, frame: http2.Frame) -> None:
        kind, flags, stream, payload = frame
        if kind == http2.SETTINGS and not flags & http2.ACK:
            values = http2.read_settings(payload)
            self._stream_window = values.get(http2.INITIAL_WINDOW_SIZE, self._stream_window)
            self._largest_frame = values.get(http2.MAX_FRAME_SIZE, self._largest_frame)
            self.out.append(http2.frame(http2.SETTINGS, http2.ACK, 0))
            self._pump()
        elif kind == http2.PING and not flags & http2.ACK:
            self.out.append(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.WINDOW_UPDATE:
            self._widen(stream, http2.read_u32(payload))
        elif kind == http2.RST_STREAM:
            for streams in (self._streams, self._uploads, self._downloads, self._credits):
                streams.pop(stream, None)
        elif kind == http2.GOAWAY:
            http2.read_u32(payload, 4)

    def _widen(self, stream: int, n_bytes: int) -> None:
        if not n_bytes:
            raise ProtocolFault("a WINDOW_UPDATE of 0 bytes")
        if not stream:
            self._window += n_bytes
            if self._window > http2.LARGEST_WINDOW_BYTES:
                raise ProtocolFault("the connection's window is too large")
        elif stream in self._streams or stream in self._downloads:
            self._credits[stream] = self._credits.get(stream, 0) + n_bytes
        if self._downloads:
            self._pump()

    def reply(self, stream: int, answer: Tally, wire_id: bytes) -> bool:
        if self.is_over or self._streams.pop(stream, None) is None or not isinstance(answer, GrpcAnswer):
            return False
        n_bytes, open_, lead, close = answer.layouts.get(len(wire_id)) or layout_of(answer, len(wire_id))
        if self._downloads or n_bytes > min(self._window, self._stream_window, self._largest_frame):
            self._begin_download(stream, lead + wire_id + answer.after_id)
            return True
        self._window -= n_bytes
        if self._credits:
            self._credits.pop(stream, None)
        number = _U32.pack(stream)
        self.out += (HEAD, number, open_, number, lead, wire_id, close, number, TRAILER_BLOCK)
        return True

    def reject(self, stream: int, wire_id: bytes) -> None:
        self._refuse(stream, UNAVAILABLE, f"[request id: {wire_id.decode(errors='replace')}] {QUEUE_FULL}")

    def refuse(self, stream: int, status: int, text: str) -> None:
        self._refuse(stream, GRPC_STATUS[status], text)

    def farewell(self) -> None:
        self.out.append(self._goaway(0, b"the null server ends"))

    def _goaway(self, code: int, text: bytes) -> bytes:
        return http2.frame(http2.GOAWAY, 0, 0, _U32.pack(self._last_stream) + _U32.pack(code) + text)

    def _refuse(self, stream: int, status: int, text: str) -> None:
        if self._streams.pop(stream, None) is not None:
            self._credits.pop(stream, None)
            flags = http2.END_HEADERS | http2.END_STREAM
            self.out.append(http2.frame(http2.HEADERS, flags, stream, refusal(status, text)))

    def _begin_download(self, stream: int, payload: bytes) -> None:
        self.out.append(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, HEAD_BLOCK))
        self._downloads[stream] = _Download(payload)
        self._pump()

    def _pump(self) -> None:
        """Sends of every message that was held back as much as the windows allow; the oldest stream goes first."""
        for stream, download in list(self._downloads.items()):
            payload = download.payload
            while download.at < len(payload):
                room = self._stream_window + self._credits.get(stream, 0) - download.at
                n_bytes = min(len(payload) - download.at, room, self._window, self._largest_frame)
                if n_bytes <= 0:
                    break
                part = payload[download.at : download.at + n_bytes]
                self.out.append(http2.frame(http2.DATA, 0, stream, part))
                download.at += n_bytes
                self._window -= n_bytes
            else:
                del self._downloads[stream]
                self._credits.pop(stream, None)
                self.out += (TRAILER, _U32.pack(stream), TRAILER_BLOCK)
