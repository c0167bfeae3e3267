"""Which sequence a request is of, as bytes behind its id: as long for any request.

Source: Triton's extension_sequence.md (`sequence_id`, `sequence_start`, `sequence_end` of the request's parameters).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from squall.actors.messages.grpc_wire import parameters_field
from squall.actors.net import protobuf
from squall.models.payload import Parameter
from squall.scenarios.sequences import LEAST_ID, Place


def http_bytes(place: Place, others: bytes = b"") -> bytes:
    """What ends the id's text in the JSON, and the request's parameters; `others` as `,"name":value` each."""
    start, end = (b"true " if mark else b"false" for mark in (place.is_start, place.is_end))
    marks = b'"sequence_start":%s,"sequence_end":%s' % (start, end)
    return b'","parameters":{"sequence_id":%d,%s%s}' % (place.correlation_id, marks, others)


def grpc_bytes(place: Place) -> bytes:
    """Field 4 of a ModelInferRequest: its parameters."""
    return parameters_field(
        4,
        {
            "sequence_id": place.correlation_id,
            "sequence_start": place.is_start,
            "sequence_end": place.is_end,
        },
    )


class Placing(Protocol):
    """What says which sequence a request is of, `squall.scenarios.sequences.Sequences` or another."""

    def place(self, request_id: int) -> Place: ...


class SequenceBytes:
    """What each request of a worker has behind its id."""

    def __init__(
        self, sequences: Placing, protocol: str, parameters: Mapping[str, Parameter] | None = None
    ) -> None:
        """`parameters`: others of the request, which over HTTP stand in one place with the sequence's."""
        self._sequences = sequences
        self._encode = _encoder(protocol, parameters)

    def __call__(self, request_id: int) -> bytes:
        return self._encode(self._sequences.place(request_id))


class Places(NamedTuple):
    """What stands behind the id of a request in the middle of a sequence, its first, its last and one that is both; the
    sequence's own id stands at `id_at` in each, in decimal, or over gRPC as a varint."""

    texts: tuple[bytes, ...]
    id_at: int
    is_varint: bool


def places_of(protocol: str, parameters: Mapping[str, Parameter]) -> Places:
    """For any sequence: the ids have room, and are to be written."""
    encode, is_varint = _encoder(protocol, parameters), protocol == "grpc"
    marks = ((False, False), (True, False), (False, True), (True, True))
    texts = tuple(encode(Place(LEAST_ID, 0, *of_one)) for of_one in marks)
    id_at = texts[0].index(protobuf.varint(LEAST_ID) if is_varint else b"%d" % LEAST_ID)
    return Places(texts, id_at, is_varint)


def n_bytes_of(protocol: str, parameters: Mapping[str, Parameter]) -> int:
    """Bytes of what any request has behind its id."""
    return len(_encoder(protocol, parameters)(Place(LEAST_ID, 0, True, False)))


def _encoder(protocol: str, parameters: Mapping[str, Parameter] | None) -> Callable[[Place], bytes]:
    if protocol == "grpc":
        return grpc_bytes
    others = json.dumps(dict(parameters or {}), separators=(",", ":"))[1:-1].encode()
    return partial(http_bytes, others=b"," + others if others else b"")
