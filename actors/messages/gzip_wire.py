"""Requests as gzip (RFC 1952), encoded once: they differ in the id, and in the bytes behind it that settle the CRC.

    │ gzip's head │ stored block: what is before the id │ id │ settling bytes │ deflated tail │ CRC-32, length │
    └──────────────── head, as long as its model's name ┘     one for each id   └────────── tail, the same ─────┘

A stored block (RFC 1951, 3.2.4) holds bytes as they are, so that an id can be written into it. The CRC of all stands at
the end; so that it does not depend on the id, the settling bytes bring that of the block to what it is with the id 0.
They mean nothing to a server: over HTTP they are 32 spaces or tabs of the JSON, in a message of gRPC a field that it
has not. CRC-32 is linear over GF(2): for texts of one length crc(a) ⊕ crc(b) ⊕ crc(c) = crc(a ⊕ b ⊕ c). Of 32 bits that
can be flipped each changes it in a way that the others together cannot (x⁸ generates the field of its polynomial, which
is primitive); which of them undo a digit is solved once.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from squall.actors.messages.grpc_wire import MESSAGE_HEAD, GrpcTemplate
from squall.actors.net import protobuf
from squall.models.payload import ID_DIGITS, PREFIX, RequestBody
from squall.models.spec import ModelSpec

_GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # deflate, no name, no time, system unknown
_STORED = struct.Struct("<BHH")
_TRAILER = struct.Struct("<II")
_CRC_BITS = 32
_SPACE, _TAB = b" \t"
_UNKNOWN_FIELD = 1_000  # of a ModelInferRequest, which has 1 to 7
_ZERO_ID = b"0" * ID_DIGITS
_DIGITS_AT_ONCE = 3


@dataclass(frozen=True)
class Settling:
    """What follows an id: `base` behind the id 0; `table[i][d]` (12, 10) is flipped where its digit i is d.

    `crc`: of the block up to there, whatever the id.
    """

    base: bytes
    table: tuple[tuple[bytes, ...], ...]
    crc: int

    @property
    def n_bytes(self) -> int:
        """As many for each id."""
        return len(self.base)


class SettlingBytes:
    """What each request of a worker has behind its id."""

    def __init__(self, settling: Settling) -> None:
        self._n_bytes = settling.n_bytes
        self._base = int.from_bytes(settling.base, "big")
        digits = [[int.from_bytes(one, "big") for one in row] for row in settling.table]
        steps = range(0, ID_DIGITS, _DIGITS_AT_ONCE)
        self._parts = [_flips_of(digits[at : at + _DIGITS_AT_ONCE]) for at in steps]

    def __call__(self, request_id: int) -> bytes:
        flips, rest = self._base, request_id
        for part in reversed(self._parts):
            rest, own = divmod(rest, len(part))
            flips ^= part[own]
        return flips.to_bytes(self._n_bytes, "big")


@cache
def settling_of(protocol: str) -> Settling:
    """That of requests over "http" or "grpc"."""
    if protocol == "http":
        base = b'"' + bytes([_SPACE]) * _CRC_BITS  # ends the id's text
        flips = [_flip(len(base), 1 + bit, _SPACE ^ _TAB) for bit in range(_CRC_BITS)]
        return _settling(base, flips, zlib.crc32(PREFIX))
    base = _settling_field(0)
    flips = [_flip(len(base), len(base) - 4 + bit // 8, 1 << bit % 8) for bit in range(_CRC_BITS)]
    return _settling(base, flips, 0)


def gzipped(body: RequestBody) -> RequestBody:
    """The same body of a request over HTTP, compressed but for what is before its tail."""
    settling = settling_of("http")
    plain = body.with_between(settling.n_bytes)
    tail = _tail(plain.suffix, plain.n_bytes - len(plain.suffix), settling.crc)
    return replace(plain, suffix=tail, front=_stored(PREFIX, settling))


def http_front() -> bytes:
    """What stands before the id in such a body."""
    return _stored(PREFIX, settling_of("http"))


def grpc_gzipped(plain: GrpcTemplate, spec: ModelSpec) -> GrpcTemplate:
    """The same request, with room for the settling bytes, its message compressed but for what is before its tail."""
    settling = settling_of("grpc")
    n_block = len(_settled_front(spec)) + ID_DIGITS + settling.n_bytes
    tail = _tail(plain.tail, n_block, settling.crc)
    return replace(plain, head=grpc_gzip_head(spec, len(tail)), tail=tail, n_between_bytes=settling.n_bytes)


def grpc_gzip_head(spec: ModelSpec, n_tail_bytes: int) -> bytes:
    """What stands before the id of a compressed message with so many bytes behind the settling bytes."""
    settling = settling_of("grpc")
    front = _stored(_settled_front(spec), settling)
    return MESSAGE_HEAD.pack(1, len(front) + ID_DIGITS + settling.n_bytes + n_tail_bytes) + front


def _settled_front(spec: ModelSpec) -> bytes:
    """Name and version of the model, and a field that brings the CRC up to the id to 0: a tail fits any model whose
    name and version together are as long."""
    before = protobuf.field(1, spec.name) + protobuf.field(2, spec.version)
    behind = protobuf.field_head(3, ID_DIGITS)
    wanted = zlib.crc32(before + _settling_field(0) + behind)
    changes = [zlib.crc32(before + _settling_field(1 << bit) + behind) ^ wanted for bit in range(_CRC_BITS)]
    return before + _settling_field(_solved(changes, wanted)) + behind


def _settling_field(value: int) -> bytes:
    return protobuf.varint(_UNKNOWN_FIELD << 3 | protobuf.FIXED32) + struct.pack("<I", value)


def _stored(front: bytes, settling: Settling) -> bytes:
    """gzip up to the id: the block is not the last, and ends behind the settling bytes."""
    n_bytes = len(front) + ID_DIGITS + settling.n_bytes
    return _GZIP_HEAD + _STORED.pack(0, n_bytes, n_bytes ^ 0xFFFF) + front


def _tail(plain: bytes, n_before_bytes: int, crc: int) -> bytes:
    """The last blocks, and gzip's end."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    length = (n_before_bytes + len(plain)) & 0xFFFFFFFF
    return packer.compress(plain) + packer.flush() + _TRAILER.pack(zlib.crc32(plain, crc), length)


def _settling(base: bytes, flips: Sequence[bytes], crc_before: int) -> Settling:
    """`flips`: what each of 32 bits changes of `base`; `crc_before`: up to the id."""

    def crc(wire_id: bytes, behind: bytes) -> int:
        return zlib.crc32(wire_id + behind, crc_before)

    settled = crc(_ZERO_ID, base)
    changes = [crc(_ZERO_ID, _xor(base, flip)) ^ settled for flip in flips]

    def undoing(digit_at: int, digit: int) -> bytes:
        wire_id = _ZERO_ID[:digit_at] + b"%d" % digit + _ZERO_ID[digit_at + 1 :]
        needed = _solved(changes, crc(wire_id, base) ^ settled)
        found = bytes(len(base))
        for bit in range(_CRC_BITS):
            if needed >> bit & 1:
                found = _xor(found, flips[bit])
        return found

    table = tuple(tuple(undoing(at, digit) for digit in range(10)) for at in range(ID_DIGITS))
    return Settling(base, table, settled)


def _solved(changes: Sequence[int], wanted: int) -> int:
    """Which of the changes, as bits, give `wanted` together (⊕); they are independent."""
    pivots: dict[int, tuple[int, int]] = {}
    for bit, change in enumerate(changes):
        value, used = _reduced(pivots, change, 1 << bit)
        assert value, "the changes depend on one another"
        pivots[value.bit_length()] = (value, used)
    return _reduced(pivots, wanted, 0)[1]


def _reduced(pivots: dict[int, tuple[int, int]], value: int, used: int) -> tuple[int, int]:
    while value and value.bit_length() in pivots:
        own, by = pivots[value.bit_length()]
        value, used = value ^ own, used ^ by
    return value, used


def _flips_of(digits: Sequence[Sequence[int]]) -> list[int]:
    """Of each number of so many digits, together."""
    found = [0]
    for row in digits:
        found = [before ^ own for before in found for own in row]
    return found


def _flip(n_bytes: int, at: int, bits: int) -> bytes:
    return bytes(at) + bytes([bits]) + bytes(n_bytes - at - 1)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
