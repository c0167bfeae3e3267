"""Header blocks of one HTTP/2 connection that carries gRPC calls: HPACK (RFC 7541) with what it says remembered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import hpack

from squall.actors.messages.grpc_wire import PATH
from squall.actors.net import http2
from squall.actors.net.http2 import ProtocolFault

_MOST_KNOWN_BLOCKS = 64
_LARGEST_TABLE_BYTES = 4_096
_MOST_STATUS_DIGITS = 9


class Fields(NamedTuple):
    """What a header block says of a call; -1 and empty where it does not."""

    http_status: int
    grpc_status: int
    grpc_message: str


def call_headers(
    scheme: str, authority: str, metadata: Mapping[str, str], path: str = PATH
) -> list[tuple[str, str]]:
    """The headers of every call of the method `path`; doc/PROTOCOL-HTTP2.md, "Requests"."""
    own = {name.lower(): value for name, value in metadata.items()}
    authority = own.pop("host", authority)  # what HTTP/2 has in its place
    return [
        (":method", "POST"), (":scheme", scheme), (":path", path), (":authority", authority), ("te", "trailers"),
        ("content-type", "application/grpc"), ("user-agent", "squall"), *own.items(),
    ]  # fmt: skip


class HeaderBlocks:
    """Both directions of a connection. `steady`: the request's block once it encodes the same again, else None."""

    def __init__(self, headers: list[tuple[str, str]]) -> None:
        """`headers`: those of every request."""
        self.steady: bytes | None = None
        self._headers = headers
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._n_encoded = 0
        self._table_sizes: list[int] = []  # the smallest and the last since the block before; RFC 7541, 4.2
        self._known: dict[bytes, Fields] = {}

    def encode(self) -> bytes:
        """The request's headers: literal at first, from the second time on all in the table, so that they repeat."""
        for n_bytes in self._table_sizes:
            self._encoder.header_table_size = n_bytes
        self._table_sizes = []
        block: bytes = self._encoder.encode(self._headers)
        self._n_encoded += 1
        if self._n_encoded > 1:
            self.steady = block
        if len(block) > http2.DEFAULT_FRAME_BYTES:
            raise ValueError(f"{len(block)} bytes of headers are more than a frame holds")
        return block

    def resize(self, table_bytes: int) -> None:
        """The server's limit for the table of our headers."""
        n_bytes = min(table_bytes, _LARGEST_TABLE_BYTES)
        self._table_sizes = sorted({min([n_bytes, *self._table_sizes]), n_bytes})
        self.steady, self._n_encoded = None, 0

    def known(self, said: Fields) -> list[bytes]:
        """The blocks that say just that, and will while the table stays as it is."""
        return [block for block, fields in self._known.items() if fields == said]

    def read(self, block: bytes) -> Fields:
        """What a block says. It is remembered while nothing changes the table that its meaning hangs on.

        Raises ProtocolFault.
        """
        known = self._known.get(block)
        return known if known is not None else self._decode(block)

    def _decode(self, block: bytes) -> Fields:
        table = self._decoder.header_table
        before = (tuple(table.dynamic_entries), table.maxsize)
        try:
            headers = dict(self._decoder.decode(block, raw=True))
            fields = Fields(
                _status(headers.get(b":status", b"-1")),
                _status(headers.get(b"grpc-status", b"-1")),
                headers.get(b"grpc-message", b"").decode(errors="replace"),
            )
        except hpack.HPACKError as error:  # its text may hold an address in memory
            raise ProtocolFault(f"headers that cannot be read: {type(error).__name__}") from error
        except ValueError as error:
            raise ProtocolFault(f"headers that cannot be read: {error}") from error
        if (tuple(table.dynamic_entries), table.maxsize) != before:
            self._known.clear()
        elif len(self._known) < _MOST_KNOWN_BLOCKS:
            self._known[block] = fields
        return fields


def _status(digits: bytes) -> int:
    """Raises ValueError for what no status is."""
    if len(digits) > _MOST_STATUS_DIGITS:
        raise ValueError(f"a status of {len(digits)} digits")
    return int(digits)
