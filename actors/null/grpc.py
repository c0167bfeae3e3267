"""The null server's gRPC answers: status, header blocks, and what stands around a message.

Header blocks are made once, of literals that touch no dynamic table (RFC 7541, 6.2.2), so that any connection can
send them at any time. Source: gRPC over HTTP2 (PROTOCOL-HTTP2.md).
"""

from __future__ import annotations

import struct
from urllib.parse import quote

from squall.actors.net import http2, protobuf
from squall.actors.null.model import BadRequest, NullModel, Submit
from squall.actors.null.proto import GrpcAnswer, GrpcAnswers, UnknownModel

INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, UNAVAILABLE = 3, 5, 12, 14
"""gRPC status codes."""
SERVICE = "/inference.GRPCInferenceService/"
INFER = SERVICE + "ModelInfer"
PREFIX = struct.Struct(">BL")
"""In front of a gRPC message: compressed flag, length."""


def literal(name: str, value: str) -> bytes:
    """A header as a literal without indexing (RFC 7541, 6.2.2) and without Huffman coding."""
    parts = b""
    for text in (name.encode(), value.encode()):
        n_bytes = len(text)
        parts += (bytes([n_bytes]) if n_bytes < 0x7F else b"\x7f" + protobuf.varint(n_bytes - 0x7F)) + text
    return b"\x00" + parts


HEAD_BLOCK = b"\x88" + literal("content-type", "application/grpc")
HEAD = http2.head_of(http2.HEADERS, http2.END_HEADERS, 0, len(HEAD_BLOCK))[:5]
TRAILER_BLOCK = literal("grpc-status", "0") + literal("grpc-message", "")
TRAILER = http2.head_of(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 0, len(TRAILER_BLOCK))[:5]


def refusal(status: int, text: str) -> bytes:
    """The header block of an answer that is only a status (Trailers-Only)."""
    message = quote(text, safe=" !\"#$&'()*+,/:;<=>?@[]")
    return HEAD_BLOCK + literal("grpc-status", str(status)) + literal("grpc-message", message)


def message_of(payload: bytes) -> bytes:
    """The one message of a unary request. Raises BadRequest."""
    if len(payload) < PREFIX.size:
        raise BadRequest("the request has no message")
    is_compressed, n_bytes = PREFIX.unpack_from(payload)
    if is_compressed:
        raise BadRequest("compressed messages are not supported")
    if n_bytes != len(payload) - PREFIX.size:
        raise BadRequest(f"a message of {n_bytes} bytes in {len(payload) - PREFIX.size}")
    return payload[PREFIX.size :]


class GrpcService:
    """What all gRPC connections share."""

    def __init__(self, model: NullModel, submit: Submit) -> None:
        self.submit = submit
        self.answers = GrpcAnswers(model)

    def page(self, path: str, payload: bytes) -> tuple[int, bytes]:
        """(status, message or, where the status is not 0, the text) of a method other than ModelInfer."""
        try:
            response = None
            if path.startswith(SERVICE):
                response = self.answers.page(path.removeprefix(SERVICE), message_of(payload))
        except BadRequest as error:
            return status_of(error), str(error).encode()
        return (0, response) if response is not None else (UNIMPLEMENTED, b"unknown method")


def status_of(error: BadRequest) -> int:
    """The gRPC status for it."""
    return NOT_FOUND if isinstance(error, UnknownModel) else INVALID_ARGUMENT


def layout_of(answer: GrpcAnswer, n_id_bytes: int) -> tuple[int, bytes, bytes, bytes]:
    """An answer in one DATA frame, but for stream and id: (bytes of its payload, what stands between the stream of
    HEADERS and that of DATA, what between the latter and the id, what between the id and the trailers' stream)."""
    lead = answer.before_id
    if n_id_bytes:
        lead += protobuf.field(3, bytes(n_id_bytes))[:-n_id_bytes]
    n_message = len(lead) + n_id_bytes + len(answer.after_id)
    n_bytes = PREFIX.size + n_message
    data_head = http2.head_of(http2.DATA, 0, 0, n_bytes)[:5]
    layout = n_bytes, HEAD_BLOCK + data_head, PREFIX.pack(0, n_message) + lead, answer.after_id + TRAILER
    answer.layouts[n_id_bytes] = layout
    return layout
