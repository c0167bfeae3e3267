"""Bytes of gRPC requests that are answered response by response (ModelStreamInfer), without sockets.

Each request is a call of its own, which ends when its last response has come. Source: KServe v2 protocol
(grpc_predict_v2.proto of Triton: ModelStreamInferResponse) and Triton's decoupled_models.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from squall.actors.messages.grpc_wire import GrpcTemplate, Reply, judge_error, read_response, without_id
from squall.actors.messages.template import NO_ID, REJECTIONS, Output, Response, arrays_of, fault_of, one_line
from squall.actors.messages.value_check import StreamCheck
from squall.actors.net import protobuf
from squall.actors.net.protobuf import BrokenMessage

_OK, _HTTP_OK = 0, 200
_MOST_TOKENS = 1 << 32  # more is a shape that no response has


@dataclass(frozen=True)
class GrpcStreamTemplate(GrpcTemplate):
    """A ModelInferRequest whose responses come one by one. `tokens`: the output whose elements are tokens, if any."""

    tokens: str | None = None

    def judge(self, reply: Reply, wire_id: bytes) -> tuple[str, str]:
        """(outcome, detail) of the call's end; its responses are judged as they come."""
        is_over = reply.grpc_status == _OK and reply.http_status == _HTTP_OK
        if is_over and reply.body:
            return "bad_reply", "the stream ended within a response"
        return ("ok", "") if is_over else judge_error(reply, wire_id)

    def judge_response(self, message: bytes, wire_id: bytes, index: int = 0) -> Response:
        """A ModelStreamInferResponse to the request that carried `wire_id`, at that place among its responses."""
        try:
            error, inner = "", b""
            for number, value, _ in protobuf.read_fields(message):
                if number == 1:
                    error = protobuf.as_bytes(value).decode(errors="replace")
                elif number == 2:
                    inner = protobuf.as_bytes(value)
            if error:
                is_rejected = any(rejection.decode() in error for rejection in REJECTIONS)
                return Response(
                    "rejected" if is_rejected else "server_error", one_line(without_id(error, wire_id))
                )
            reply_id, outputs, raw, _ = read_response(inner)
        except BrokenMessage as broken:
            return Response("bad_reply", str(broken))
        if reply_id != wire_id:
            return Response("bad_reply", NO_ID)
        why = fault_of(self.spec, -1, outputs)
        if why:
            return Response("bad_reply", one_line(why))
        wrong = ""
        if self._is_checked(wire_id):
            wrong = self._wrong(index, outputs, raw or [None] * len(outputs))
        n_tokens = tokens_of(outputs, self.tokens)
        return Response("bad_reply", wrong, n_tokens, True) if wrong else Response("ok", "", n_tokens)

    def _wrong(self, index: int, outputs: Sequence[Output], data: Sequence[bytes | None]) -> str:
        """What is wrong with the values of the response at that place."""
        assert isinstance(self.check, StreamCheck)
        try:
            return one_line(self.check.fault_of(index, lambda check: arrays_of(check, outputs, data)))
        except ValueError as error:
            return one_line(str(error))


def streamed(unary: GrpcTemplate, tokens: str | None) -> GrpcStreamTemplate:
    """The same request, whose responses come one by one."""
    return GrpcStreamTemplate(
        unary.head, unary.tail, unary.rows, unary.spec, n_between_bytes=unary.n_between_bytes, tokens=tokens
    )


def tokens_of(outputs: list[Output], name: str | None) -> int:
    """Elements of the output of that name; -1 where none is named, or its shape is none."""
    if name is None:
        return -1
    n_tokens = sum(prod(one.shape) for one in outputs if one.name == name)
    return n_tokens if 0 <= n_tokens <= _MOST_TOKENS else -1
