"""Bytes of gRPC inference requests and replies, without sockets.

Source: KServe v2 protocol (grpc_predict_v2.proto: ModelInferRequest, ModelInferResponse) and gRPC over HTTP/2
(grpc/grpc, doc/PROTOCOL-HTTP2.md: length-prefixed message, status in the trailers).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Protocol, assert_never
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from squall.actors.messages.template import (
    NO_ID,
    NOT_IN_SLOT,
    REJECTIONS,
    Layout,
    Output,
    Template,
    fault_of,
    one_line,
)
from squall.actors.net import protobuf
from squall.actors.net.protobuf import BrokenMessage
from squall.models.payload import ID_DIGITS, Parameter, Place, read_tensor, write_tensor
from squall.models.spec import ModelSpec

PATH = "/inference.GRPCInferenceService/ModelInfer"
STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
MESSAGE_HEAD = struct.Struct(">BL")
"""In front of each message: whether it is compressed, and its length."""
_OK, _RESOURCE_EXHAUSTED, _UNAVAILABLE = 0, 8, 14
_HTTP_OK = 200
_MOST_DIMS = 64  # of numpy's arrays


class Reply(Protocol):
    """What came back: `http_status` -1 without headers, `grpc_status` -1 without one in the trailers; `body` is all
    DATA of the stream."""

    http_status: int
    grpc_status: int
    grpc_message: str
    body: bytes


def message_end(body: bytes | bytearray, at: int) -> int | None:
    """The offset behind the message whose prefix is at `at`; None where it is not whole."""
    if len(body) < at + MESSAGE_HEAD.size:
        return None
    end: int = at + MESSAGE_HEAD.size + MESSAGE_HEAD.unpack_from(body, at)[1]
    return end if end <= len(body) else None


class GrpcTemplate(Template):
    """A ModelInferRequest with its length prefix; the frames around it are the connection's."""

    def judge(self, reply: Reply, wire_id: bytes) -> tuple[str, str]:
        """(outcome, detail) of the reply to the request that carried `wire_id`."""
        body, known, every = reply.body, self.known, self.check_every
        if reply.grpc_status == _OK and reply.http_status == _HTTP_OK:
            if known and (not every or int(wire_id) % every):
                layout = known[0]
                if len(body) == layout.n_bytes and body.startswith(layout.prefix + wire_id + layout.suffix):
                    return "ok", ""
            return self._judge_message(body, wire_id)
        return judge_error(reply, wire_id)

    def _judge_message(self, body: bytes, wire_id: bytes) -> tuple[str, str]:
        if len(body) < MESSAGE_HEAD.size:
            return "bad_reply", "the reply has no message"
        is_compressed, n_bytes = MESSAGE_HEAD.unpack_from(body)
        message = body[MESSAGE_HEAD.size :]
        if is_compressed:
            return "bad_reply", "the reply is compressed, which was not asked for"
        if n_bytes != len(message):
            return "bad_reply", f"the reply's message says {n_bytes} bytes and has {len(message)}"
        try:
            reply_id, outputs, raw, raw_at = read_response(message)
        except BrokenMessage as error:
            return "bad_reply", str(error)
        if reply_id != wire_id:
            return "bad_reply", NO_ID
        if self.slots:
            if any(raw):
                return "bad_reply", NOT_IN_SLOT
            outputs = [output._replace(n_bytes=None) for output in outputs]
        why = fault_of(self.spec, self.rows, outputs)
        if why:
            return "bad_reply", one_line(why)
        # up to the first raw tensor: with one output, all but its data
        prefix, _, suffix = body[: None if self.slots else raw_at + MESSAGE_HEAD.size].partition(wire_id)
        if (self.slots or (len(outputs) == 1 and raw_at)) and wire_id not in suffix:
            self._remember(Layout(prefix, suffix, len(body)))
        if self._is_checked(wire_id):
            return self._judge_values(outputs, raw or [None] * len(outputs))
        return "ok", ""


def judge_error(reply: Reply, wire_id: bytes) -> tuple[str, str]:
    """(outcome, detail) of a call that did not end with status OK."""
    if reply.http_status != _HTTP_OK:
        status = f"HTTP status {reply.http_status}" if reply.http_status >= 0 else "no headers"
        return "server_error" if reply.http_status >= 0 else "bad_reply", f"the reply has {status}"
    if reply.grpc_status < 0:
        return "bad_reply", "the reply has no grpc-status"
    text = without_id(unquote(reply.grpc_message), wire_id)
    detail = one_line(f"{reply.grpc_status} {text}")
    is_rejected = reply.grpc_status in (_UNAVAILABLE, _RESOURCE_EXHAUSTED)
    if is_rejected or any(rejection.decode() in text for rejection in REJECTIONS):
        return "rejected", detail
    return "server_error", detail


def without_id(text: str, wire_id: bytes) -> str:
    """What Triton says of a request, without the id that is before most of it: equal failures have equal details."""
    return text.replace(f"[request id: {wire_id.decode()}] ", "")


def read_response(message: bytes) -> tuple[bytes, list[Output], list[bytes], int]:
    """Id, outputs, their raw data and the offset of the first of it (0: none) of a ModelInferResponse."""
    reply_id, raw_at = b"", 0
    described: list[tuple[str, str, tuple[int, ...]]] = []
    raw: list[bytes] = []
    for number, value, end in protobuf.read_fields(message):
        if number == 3:
            reply_id = protobuf.as_bytes(value)
        elif number == 5:
            described.append(_read_output(protobuf.as_bytes(value)))
        elif number == 6:
            raw.append(protobuf.as_bytes(value))
            raw_at = raw_at or end - len(raw[0])
    if raw and len(raw) != len(described):
        raise BrokenMessage(f"the reply has {len(described)} outputs and the data of {len(raw)}")
    n_bytes: list[int | None] = [len(data) for data in raw] if raw else [None] * len(described)
    outputs = [Output(*one, size) for one, size in zip(described, n_bytes, strict=True)]
    return reply_id, outputs, raw, raw_at


def read_outputs(body: bytes) -> dict[str, NDArray[np.generic]]:
    """The outputs of a reply that was judged ok, by name; `body`: its message with the length prefix.

    Each array has shape and datatype as the reply says them (BF16: FP32), and may not be written to.
    """
    _, outputs, raw, _ = read_response(body[MESSAGE_HEAD.size :])
    return {
        output.name: read_tensor(output.datatype, output.shape, data)
        for output, data in zip(outputs, raw, strict=True)
    }


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
            if len(shape) > _MOST_DIMS:
                raise BrokenMessage(f"an output has more than {_MOST_DIMS} dimensions")
    return name.decode(errors="replace"), datatype.decode(errors="replace"), tuple(shape)


def grpc_template(
    spec: ModelSpec,
    inputs: Mapping[str, NDArray[np.generic]],
    rows: int,
    input_places: Mapping[str, Place] | None = None,
    output_places: Mapping[str, Place] | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    n_between_bytes: int = 0,
) -> GrpcTemplate:
    """The template of a ModelInferRequest that carries `inputs` as raw contents and asks for every output; tensors with
    a place lie there instead. `n_between_bytes`: of the fields that each request has of its own behind its id."""
    input_places, output_places = input_places or {}, output_places or {}
    described, raw = [], []
    for tensor in spec.carried(inputs):
        array = inputs[tensor.name]
        shape = protobuf.packed(3, array.shape)
        head = protobuf.field(1, tensor.name) + protobuf.field(2, tensor.datatype) + shape
        place = input_places.get(tensor.name)
        described.append(protobuf.field(5, head + _of_place(4, place)))
        if place is None:
            raw.append(protobuf.field(7, write_tensor(array)))
    wanted = [
        protobuf.field(6, protobuf.field(1, tensor.name) + _of_place(2, output_places.get(tensor.name)))
        for tensor in spec.outputs
    ]
    tail = b"".join((parameters_field(4, parameters or {}), *described, *wanted, *raw))
    head = grpc_head(spec, n_between_bytes + len(tail))
    return GrpcTemplate(head, tail, rows, spec, n_between_bytes=n_between_bytes)


def grpc_head(spec: ModelSpec, n_bytes: int) -> bytes:
    """What stands before the id of a message with so many bytes behind it."""
    prefix = (
        protobuf.field(1, spec.name) + protobuf.field(2, spec.version) + protobuf.field_head(3, ID_DIGITS)
    )
    return MESSAGE_HEAD.pack(0, len(prefix) + ID_DIGITS + n_bytes) + prefix


def _of_place(number: int, place: Place | None) -> bytes:
    return b"" if place is None else parameters_field(number, place.parameters())


def parameters_field(number: int, values: Mapping[str, Parameter]) -> bytes:
    """Field `number` as map<string, InferParameter>."""
    return b"".join(
        protobuf.field(number, protobuf.field(1, key) + protobuf.field(2, _parameter(value)))
        for key, value in values.items()
    )


def _parameter(value: Parameter) -> bytes:
    """An InferParameter: bool_param is its field 1, int64_param 2, string_param 3, double_param 4."""
    match value:
        case bool():
            return protobuf.number(1, value)
        case int():
            return protobuf.number(2, value)
        case str():
            return protobuf.field(3, value)
        case float():
            return protobuf.double(4, value)
        case _:
            assert_never(value)
