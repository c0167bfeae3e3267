"""Bytes of HTTP requests that are answered response by response (`generate_stream`), without sockets.

Each response is an event (text/event-stream) of JSON. Source: Triton's extension_generate.md; the id of a request and
what comes back of it as Triton 2.51 does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.actors.messages.http_wire import HttpTemplate, Reply, error_text, host_lines, judge_error
from squall.actors.messages.template import NO_ID, REJECTIONS, Response, one_line
from squall.actors.messages.value_check import StreamCheck, ValueCheck
from squall.models.payload import ID_DIGITS, PREFIX, Parameter, objects, read_tensor, write_tensor
from squall.models.spec import ModelSpec
from squall.scenarios.errors import ScenarioError

EVENT_END = b"\n\n"
_DATA = b"data:"
_OK = 200
_NO_JSON = "a response's JSON is not that of an inference"


@dataclass(frozen=True)
class HttpStreamTemplate(HttpTemplate):
    """A whole HTTP request whose responses come one by one. `tokens`: the output whose elements are tokens, if any."""

    tokens: str | None = None

    def judge(self, reply: Reply, wire_id: bytes) -> tuple[str, str]:
        """(outcome, detail) of the reply's end; its events are judged as they come."""
        if reply.status != _OK:
            return judge_error(reply.status, _first_data(reply.body), wire_id)
        return ("bad_reply", "the stream ended within a response") if reply.body else ("ok", "")

    def judge_response(self, message: bytes, wire_id: bytes, index: int = 0) -> Response:
        """An event of the reply to the request that carried `wire_id`, at that place among its responses."""
        data = message.strip()
        if not data.startswith(_DATA):
            return Response("bad_reply", "an event without data")
        data = data.removeprefix(_DATA).strip()
        try:
            said: dict[str, Any] = json.loads(data)
            if "error" in said:
                is_rejected = any(rejection in data for rejection in REJECTIONS)
                return Response("rejected" if is_rejected else "server_error", error_text(data))
            if said["id"] != wire_id.decode():
                return Response("bad_reply", NO_ID)
        except (ValueError, KeyError, TypeError, RecursionError):
            return Response("bad_reply", _NO_JSON)
        for tensor in self.spec.outputs:
            if tensor.name not in said:
                return Response("bad_reply", f"the response has no output {tensor.name}")
            values = said[tensor.name] if isinstance(said[tensor.name], list) else [said[tensor.name]]
            if any(isinstance(value, str) != (tensor.datatype == "BYTES") for value in values):
                return Response("bad_reply", f"output {tensor.name} is not {tensor.datatype}")
        n_tokens = -1
        if self.tokens is not None:
            tokens = said[self.tokens]
            n_tokens = len(tokens) if isinstance(tokens, list) else 1
        wrong = self._wrong(index, said) if self._is_checked(wire_id) else ""
        return Response("bad_reply", wrong, n_tokens, True) if wrong else Response("ok", "", n_tokens)

    def _wrong(self, index: int, said: Mapping[str, Any]) -> str:
        """What is wrong with the values of the response at that place, which has every output."""
        check = self.check
        assert isinstance(check, StreamCheck)

        def arrays(check: ValueCheck) -> Mapping[str, NDArray[Any]]:
            covered = [one for one in self.spec.outputs if check.covers(one.name)]
            return {one.name: _array(said[one.name], check.shape_of(one.name)) for one in covered}

        try:
            return one_line(check.fault_of(index, arrays))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:  # of what is no tensor's data
            return one_line(f"response {index + 1} cannot be compared: {error}")


def http_stream_template(
    host: str,
    spec: ModelSpec,
    inputs: Mapping[str, NDArray[np.generic]],
    rows: int,
    headers: Mapping[str, str],
    tokens: str | None,
    parameters: Mapping[str, Parameter] | None = None,
) -> HttpStreamTemplate:
    """The template of a POST to `/v2/models/MODEL/versions/VERSION/generate_stream`; `headers` are sent with it, and
    `parameters` in it.

    Raises ScenarioError for what such a request cannot carry: more than a row, inputs of several dimensions, and text
    that is not UTF-8.
    """
    if rows != 1:
        raise ScenarioError(f"clients.rows: {rows} rows, and generate_stream carries one; use protocol: grpc")
    fields = {
        tensor.name: _values(tensor.name, tensor.datatype, inputs[tensor.name])
        for tensor in spec.carried(inputs)
    }
    if parameters:
        fields["parameters"] = dict(parameters)
    rest = b'",' + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()[1:]
    head = http_stream_head(host, spec, len(rest), headers)
    return HttpStreamTemplate(head, rest, rows, spec, tokens=tokens)


def http_stream_head(host: str, spec: ModelSpec, n_tail_bytes: int, headers: Mapping[str, str]) -> bytes:
    """What stands before the id of such a request with so many bytes behind it."""
    head = (
        f"POST /v2/models/{spec.name}/versions/{spec.version}/generate_stream HTTP/1.1\r\n"
        f"{host_lines(host, headers)}"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(PREFIX) + ID_DIGITS + n_tail_bytes}\r\n\r\n"
    )
    return head.encode() + PREFIX


def _first_data(body: bytes) -> bytes:
    """What the first event of a refusal says: Triton repeats it for each response that it does not send."""
    first = body.strip().partition(EVENT_END)[0]
    return first.removeprefix(_DATA).strip() if first.startswith(_DATA) else body


def _values(name: str, datatype: str, array: NDArray[np.generic]) -> Any:
    """The input as JSON has it: a value, or a list of them."""
    if sum(size != 1 for size in array.shape) > 1:
        shape = list(array.shape)
        raise ScenarioError(
            f"input {name} is {shape}, and generate_stream carries one dimension; use protocol: grpc"
        )
    values = read_tensor(datatype, array.shape, write_tensor(array)).ravel().tolist()  # BF16 as numbers
    try:
        values = [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError as error:
        raise ScenarioError(
            f"input {name} is not UTF-8, as generate_stream needs it: {error.reason}"
        ) from error
    return values[0] if len(values) == 1 else values


def _array(value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """An output as JSON has it, a value or a flat list of them, in that shape where it has as many elements.
    Raises ValueError for what is neither numbers nor texts."""
    values = value if isinstance(value, list) else [value]
    is_text = bool(values) and isinstance(values[0], str)
    if not is_text and not set(map(type, values)) <= {bool, int, float}:
        raise ValueError("it has not only numbers")
    array = objects([one.encode() for one in values]) if is_text else np.array(values)
    return array.reshape(shape) if array.size == prod(shape) else array
