"""Bytes of gRPC inference requests and replies, without sockets.

Source: KServe v2 protocol (grpc_predict_v2.proto: ModelInferRequest, ModelInferResponse) and gRPC over HTTP/2
(grpc/grpc, doc/PROTOCOL-HTTP2.md: length-prefixed message, status in the trailers).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from actors import protobuf
from actors.protobuf import BrokenMessage
from actors.reply import NO_ID, REJECTIONS, Layout, Output, Template, fault_of, one_line
from models.payload import ID_DIGITS
from models.spec import ModelSpec

PATH = "/inference.GRPCInferenceService/ModelInfer"
_MESSAGE_HEAD = struct.Struct(">BL")
"""In front of each message: whether it is compressed, and its length."""
_OK, _RESOURCE_EXHAUSTED, _UNAVAILABLE = 0, 8, 14
_HTTP_OK = 200


class Reply(Protocol):
    """What came back: `http_status` -1 without headers, `grpc_status` -1 without one in the trailers; `body` is all
    DATA of the stream."""

    http_status: int
    grpc_status: int
    grpc_message: str
    body: bytes


class GrpcTemplate(Template):
    """A ModelInferRequest with its length prefix; the frames around it are the connection's."""

    def judge(self, reply: Reply, wire_id: bytes) -> tuple[str, str]:
        """(outcome, detail) of the reply to the request that carried `wire_id`."""
        body, known = reply.body, self._known
        if reply.grpc_status == _OK and reply.http_status == _HTTP_OK:
            if known:
                layout = known[0]
                if len(body) == layout.n_bytes and body.startswith(layout.prefix + wire_id + layout.suffix):
                    return "ok", ""
            return self._judge_message(body, wire_id)
        return _judge_error(reply, wire_id)

    def _judge_message(self, body: bytes, wire_id: bytes) -> tuple[str, str]:
        if len(body) < _MESSAGE_HEAD.size:
            return "bad_reply", "the reply has no message"
        is_compressed, n_bytes = _MESSAGE_HEAD.unpack_from(body)
        message = body[_MESSAGE_HEAD.size :]
        if is_compressed:
            return "bad_reply", "the reply is compressed, which was not asked for"
        if n_bytes != len(message):
            return "bad_reply", f"the reply's message says {n_bytes} bytes and has {len(message)}"
        try:
            reply_id, outputs, raw_at = _read_response(message)
        except BrokenMessage as error:
            return "bad_reply", str(error)
        if reply_id != wire_id:
            return "bad_reply", NO_ID
        why = fault_of(self.spec, self.rows, outputs)
        if why:
            return "bad_reply", why
        # up to the first raw tensor: with one output, all but its data
        prefix, _, suffix = body[: raw_at + _MESSAGE_HEAD.size].partition(wire_id)
        if len(outputs) == 1 and raw_at and wire_id not in suffix:
            self._known[:] = [Layout(prefix, suffix, len(body))]
        return "ok", ""


def _judge_error(reply: Reply, wire_id: bytes) -> tuple[str, str]:
    if reply.http_status != _HTTP_OK:
        status = f"HTTP status {reply.http_status}" if reply.http_status >= 0 else "no headers"
        return "server_error" if reply.http_status >= 0 else "bad_reply", f"the reply has {status}"
    if reply.grpc_status < 0:
        return "bad_reply", "the reply has no grpc-status"
    text = unquote(reply.grpc_message).replace(f"[request id: {wire_id.decode()}] ", "")
    detail = one_line(f"{reply.grpc_status} {text}")
    is_rejected = reply.grpc_status in (_UNAVAILABLE, _RESOURCE_EXHAUSTED)
    if is_rejected or any(rejection.decode() in text for rejection in REJECTIONS):
        return "rejected", detail
    return "server_error", detail


def _read_response(message: bytes) -> tuple[bytes, list[Output], int]:
    """Id, outputs and the offset of the first raw tensor's data (0: none) of a ModelInferResponse."""
    reply_id, raw_at = b"", 0
    described: list[tuple[str, str, tuple[int, ...]]] = []
    sizes: list[int] = []
    for number, value, end in protobuf.read_fields(message):
        if number == 3:
            reply_id = protobuf.as_bytes(value)
        elif number == 5:
            described.append(_read_output(protobuf.as_bytes(value)))
        elif number == 6:
            sizes.append(len(protobuf.as_bytes(value)))
            raw_at = raw_at or end - sizes[0]
    if sizes and len(sizes) != len(described):
        raise BrokenMessage(f"the reply has {len(described)} outputs and the data of {len(sizes)}")
    n_bytes: list[int | None] = [*sizes] if sizes else [None] * len(described)
    outputs = [Output(*one, size) for one, size in zip(described, n_bytes, strict=True)]
    return reply_id, outputs, raw_at


def _read_output(message: bytes) -> tuple[str, str, tuple[int, ...]]:
    name = datatype = b""
    shape: list[int] = []
    for number, value, _ in protobuf.read_fields(message):
        if number == 1:
            name = protobuf.as_bytes(value)
        elif number == 2:
            datatype = protobuf.as_bytes(value)
        elif number == 3:
            shape += protobuf.read_numbers(value)
    return name.decode(errors="replace"), datatype.decode(errors="replace"), tuple(shape)


def grpc_template(spec: ModelSpec, inputs: Mapping[str, NDArray[np.generic]], rows: int) -> GrpcTemplate:
    """The template of a ModelInferRequest that carries `inputs` as raw contents and asks for every output."""
    prefix = (
        protobuf.field(1, spec.name) + protobuf.field(2, spec.version) + protobuf.field_head(3, ID_DIGITS)
    )
    described, raw = [], []
    for tensor in spec.inputs:
        array = inputs[tensor.name]
        shape = protobuf.packed(3, array.shape)
        described.append(
            protobuf.field(5, protobuf.field(1, tensor.name) + protobuf.field(2, tensor.datatype) + shape)
        )
        raw.append(protobuf.field(7, np.ascontiguousarray(array).tobytes()))
    wanted = [protobuf.field(6, protobuf.field(1, tensor.name)) for tensor in spec.outputs]
    tail = b"".join((*described, *wanted, *raw))
    length = _MESSAGE_HEAD.pack(0, len(prefix) + ID_DIGITS + len(tail))
    return GrpcTemplate(length + prefix, tail, rows, spec)
