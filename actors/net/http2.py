"""Frames of HTTP/2 (RFC 9113), without sockets: what both ends of a gRPC connection share."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
DEFAULT_WINDOW_BYTES = 65_535
"""Flow-control window of a connection and of each stream before any SETTINGS or WINDOW_UPDATE; section 6.9.2."""
LARGEST_WINDOW_BYTES = 2**31 - 1
DEFAULT_FRAME_BYTES = 16_384
LARGEST_STREAM_ID = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
"""Frame types; section 6."""

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)
"""Settings; section 6.5.2."""

ERROR_NAMES = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
    "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
)  # fmt: skip
"""Error codes by number; section 7."""
CANCEL = 8

_HEAD = struct.Struct(">HBBBL")
_SETTING = struct.Struct(">HL")
_U32 = struct.Struct(">L")


class ProtocolFault(Exception):
    """The peer broke HTTP/2 or gRPC; the connection cannot go on. The text says how."""


class Frame(NamedTuple):
    """One frame; `payload` without the 9 bytes of its head."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def head_of(kind: int, flags: int, stream: int, n_bytes: int) -> bytes:
    """The 9 bytes in front of a payload of `n_bytes`."""
    return _HEAD.pack(n_bytes >> 8, n_bytes & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return _HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def settings(values: Mapping[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values.items()))


def window_update(stream: int, n_bytes: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, _U32.pack(n_bytes))


def rst_stream(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, _U32.pack(code))


def error_name(code: int) -> str:
    """The name of an error code, or its number."""
    return ERROR_NAMES[code] if code < len(ERROR_NAMES) else f"error {code}"


def read_u32(payload: bytes, at: int = 0) -> int:
    """A 31-bit number of four bytes, its reserved bit dropped. Raises ProtocolFault where it is cut short."""
    if len(payload) < at + 4:
        raise ProtocolFault("a frame is shorter than its type needs")
    return int(_U32.unpack_from(payload, at)[0]) & 0x7FFF_FFFF


def read_settings(payload: bytes) -> dict[int, int]:
    """The values of a SETTINGS frame, the last of a key counting. Raises ProtocolFault for a broken length."""
    if len(payload) % _SETTING.size:
        raise ProtocolFault("a SETTINGS frame is no multiple of 6 bytes")
    return dict(_SETTING.iter_unpack(payload))


def split_frames(data: bytes, largest_bytes: int) -> Iterator[Frame]:
    """The whole frames at the front of `data`; the rest starts after HEAD_BYTES + len(payload) of each.

    Raises ProtocolFault for a frame above `largest_bytes`, before its payload has come.
    """
    at, end = 0, len(data)
    while end - at >= HEAD_BYTES:
        high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
        n_bytes = high << 8 | low
        if n_bytes > largest_bytes:
            raise ProtocolFault(f"a frame of {n_bytes} bytes, more than the {largest_bytes} allowed")
        if end - at - HEAD_BYTES < n_bytes:
            return
        at += HEAD_BYTES + n_bytes
        yield Frame(kind, flags, stream & 0x7FFF_FFFF, data[at - n_bytes : at])


def n_needed(data: bytes | bytearray) -> int:
    """Length that `data`, which begins with a frame and does not hold it whole, must reach for more to be known."""
    if len(data) < HEAD_BYTES:
        return HEAD_BYTES
    high, low, *_ = _HEAD.unpack_from(data)
    return HEAD_BYTES + int(high << 8 | low)


def unpadded(frame: Frame) -> bytes:
    """The payload of a DATA or HEADERS frame without padding and priority. Raises ProtocolFault."""
    start, end = 0, len(frame.payload)
    if frame.flags & PADDED:
        if not end:
            raise ProtocolFault("a padded frame without its pad length")
        start, end = 1, end - frame.payload[0]
    if frame.kind == HEADERS and frame.flags & PRIORITY_FLAG:
        start += 5
    if start > end:
        raise ProtocolFault("a frame's padding is longer than the frame")
    return frame.payload[start:end]
