"""Protocol Buffers on the wire: fields in, fields out, without generated classes.

Source: protobuf.dev, "Encoding". What a request pays for is patched bytes; this is for making and checking them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_U64 = (1 << 64) - 1
_MOST_FIELDS = 2_048
_MOST_NUMBERS = 1_000
"""Of one repeated field: dimensions of a shape."""


class BrokenMessage(ValueError):
    """Bytes that are no protobuf message, or have a field of another type than its message says."""


def varint(value: int) -> bytes:
    """A base-128 number; a negative int64 takes ten bytes."""
    value &= _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: bytes | str) -> bytes:
    """A field of bytes, text or a message."""
    return field_head(number, len(value.encode() if isinstance(value, str) else value)) + (
        value.encode() if isinstance(value, str) else value
    )


def field_head(number: int, n_bytes: int) -> bytes:
    """What stands before the bytes of such a field."""
    return varint(number << 3 | BYTES) + varint(n_bytes)


def number(number: int, value: int) -> bytes:
    """A field of one number."""
    return varint(number << 3 | VARINT) + varint(value)


def double(number: int, value: float) -> bytes:
    """A field of one double."""
    return varint(number << 3 | FIXED64) + struct.pack("<d", value)


def packed(number: int, values: Iterable[int]) -> bytes:
    """A field of packed numbers."""
    return field(number, b"".join(varint(value) for value in values))


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and the offset behind it. Raises BrokenMessage."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & _U64, at
        shift += 7
    raise BrokenMessage("the protobuf message is cut short")


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes, int]]:
    """(number, value, offset behind it) of each field; value is bytes but for varints. Raises BrokenMessage, also for
    more fields than any message of the protocol has: each costs many times its bytes."""
    at = n_fields = 0
    while at < len(message):
        n_fields += 1
        if n_fields > _MOST_FIELDS:
            raise BrokenMessage(f"the protobuf message has more than {_MOST_FIELDS} fields")
        tag, at = read_varint(message, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = read_varint(message, at)
            yield tag >> 3, value, at
            continue
        if kind == BYTES:
            n_bytes, at = read_varint(message, at)
        elif kind in (FIXED64, FIXED32):
            n_bytes = 8 if kind == FIXED64 else 4
        else:
            raise BrokenMessage(f"a protobuf field of wire type {kind}")
        at += n_bytes
        if at > len(message):
            raise BrokenMessage("the protobuf message is cut short")
        yield tag >> 3, message[at - n_bytes : at], at


def read_numbers(value: int | bytes) -> list[int]:
    """A repeated int64, packed or one of its single fields. Raises BrokenMessage."""
    if isinstance(value, int):
        return [_signed(value)]
    numbers, at = [], 0
    while at < len(value):
        number, at = read_varint(value, at)
        numbers.append(_signed(number))
        if len(numbers) > _MOST_NUMBERS:
            raise BrokenMessage(f"a protobuf field has more than {_MOST_NUMBERS} numbers")
    return numbers


def as_bytes(value: int | bytes) -> bytes:
    """The value of a field that must hold bytes. Raises BrokenMessage."""
    if isinstance(value, int):
        raise BrokenMessage("a protobuf field has another wire type than its message says")
    return value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
