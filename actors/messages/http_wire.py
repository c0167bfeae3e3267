"""Bytes of inference requests and replies over HTTP/1.1, without sockets.

Source: KServe v2 protocol and Triton's extension_binary_data.md (header `Inference-Header-Content-Length`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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
from squall.models.payload import GZIP, PREFIX, RequestBody, read_json_data, read_tensor
from squall.models.spec import ModelSpec

_UNAVAILABLE = 503
_MOST_LENGTH_DIGITS = 18
_OK = 200


class Reply(Protocol):
    """A whole reply; `n_json_bytes` 0 where it had no binary part, -1 where its head made no sense."""

    status: int
    n_json_bytes: int
    body: bytes


class HttpTemplate(Template):
    """A whole HTTP request, head included."""

    def judge(self, reply: Reply, wire_id: bytes) -> tuple[str, str]:
        """(outcome, detail) of the reply to the request that carried `wire_id`."""
        body, known, every = reply.body, self.known, self.check_every
        if known and reply.status == _OK and (not every or int(wire_id) % every):
            layout = known[0]
            start = layout.prefix + wire_id + layout.suffix
            is_as_long = len(body) == layout.n_bytes and reply.n_json_bytes == layout.n_json_bytes
            if is_as_long and body.startswith(start):
                return "ok", ""
        is_elsewhere = self.slots is not None or self.is_json
        reply_bytes = (
            None if is_elsewhere else self.spec.reply_bytes(self.rows if self.spec.is_batched else 1)
        )
        outcome, why = judge_reply(reply.status, reply.n_json_bytes, body, wire_id, reply_bytes)
        return (outcome, why) if outcome != "ok" else self._judge_outputs(reply, wire_id)

    def _judge_outputs(self, reply: Reply, wire_id: bytes) -> tuple[str, str]:
        """A reply of the right size: does it describe the tensors that the spec promises?"""
        n_json = reply.n_json_bytes
        described = reply.body[:n_json] if n_json else reply.body
        try:
            content = json.loads(described)
            reply_id = content["id"]
            outputs = [_output_of(item) for item in content["outputs"]]
            is_carried = len(described) != len(reply.body) or any("data" in one for one in content["outputs"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return "bad_reply", "the reply's JSON is not that of an inference"
        if reply_id != wire_id.decode():
            return "bad_reply", NO_ID
        why = fault_of(self.spec, self.rows, outputs)
        if why:
            return "bad_reply", one_line(why)
        if self.slots and is_carried:
            return "bad_reply", NOT_IN_SLOT
        if self.is_json and not self.slots:
            return self._judge_json(outputs, content["outputs"], self._is_checked(wire_id))
        prefix, _, suffix = described.partition(wire_id)
        if (n_json or self.slots) and wire_id not in suffix:
            self._remember(Layout(prefix, suffix, len(reply.body), n_json))
        if self._is_checked(wire_id):
            return self._judge_values(outputs, _split(reply.body[n_json:] if n_json else b"", outputs))
        return "ok", ""

    def _judge_json(
        self, outputs: Sequence[Output], items: Sequence[Mapping[str, Any]], is_checked: bool
    ) -> tuple[str, str]:
        """Outputs that are as the spec says: do their numbers and texts stand in the JSON, as many as they must be?"""
        data = []
        for output, item in zip(outputs, items, strict=True):
            if "data" not in item:
                return "bad_reply", one_line(
                    f"output {output.name} is not in the JSON, where it was asked for"
                )
            try:
                data.append(read_json_data(output.datatype, item["data"]))
                read_tensor(output.datatype, output.shape, data[-1])
            except (ValueError, TypeError, OverflowError, RecursionError):
                what = f"{output.datatype} {list(output.shape)}"
                return "bad_reply", one_line(f"output {output.name} has not the data of {what} in the JSON")
        return self._judge_values(outputs, data) if is_checked else ("ok", "")


def _split(tensors: bytes, outputs: Sequence[Output]) -> list[bytes | None]:
    """The binary part by output: its tensors follow each other in the order of the JSON."""
    parts: list[bytes | None] = []
    at = 0
    for output in outputs:
        size = output.n_bytes or 0
        parts.append(None if output.n_bytes is None else tensors[at : at + size])
        at += size
    return parts


def _output_of(item: Mapping[str, Any]) -> Output:
    """Raises KeyError, TypeError, ValueError, AttributeError or OverflowError for what describes no tensor."""
    n_bytes = item.get("parameters", {}).get("binary_data_size")
    shape = tuple(int(size) for size in item["shape"])
    return Output(str(item["name"]), str(item["datatype"]), shape, None if n_bytes is None else int(n_bytes))


def json_length(value: str) -> int:
    """Of a reply, as its `Inference-Header-Content-Length` says; -1 where that makes no sense."""
    return int(value) if value.isascii() and value.isdigit() and len(value) <= _MOST_LENGTH_DIGITS else -1


def read_outputs(n_json_bytes: int, body: bytes) -> dict[str, NDArray[np.generic]]:
    """The outputs of a reply that was judged ok, by name; `n_json_bytes` 0: its data is in the JSON.

    Each array has shape and datatype as the reply says them (BF16: FP32), and may not be written to.
    """
    content = json.loads(body[:n_json_bytes] if n_json_bytes else body)
    items = content["outputs"]
    outputs = [_output_of(item) for item in items]
    parts = _split(body[n_json_bytes:] if n_json_bytes else b"", outputs)
    arrays = {}
    for output, item, part in zip(outputs, items, parts, strict=True):
        data = read_json_data(output.datatype, item["data"]) if part is None else part
        arrays[output.name] = read_tensor(output.datatype, output.shape, data)
    return arrays


def http_template(
    host: str, spec: ModelSpec, body: RequestBody, rows: int, headers: Mapping[str, str] | None = None
) -> HttpTemplate:
    """The template of a POST to `/v2/models/MODEL/versions/VERSION/infer`; `headers` are sent with it."""
    head = http_head(host, spec, body.n_json_bytes, body.n_bytes, headers, body.is_binary, body.front)
    is_json, n_between = not body.is_binary, body.n_between_bytes
    return HttpTemplate(head, body.suffix, rows, spec, is_json=is_json, n_between_bytes=n_between)


def http_head(
    host: str,
    spec: ModelSpec,
    n_json_bytes: int,
    n_body_bytes: int,
    headers: Mapping[str, str] | None = None,
    is_binary: bool = True,
    front: bytes = PREFIX,
) -> bytes:
    """What stands before the id of a request whose body has so many bytes, so many of them JSON, and behind these
    tensors if `is_binary`. `front`: what is before the id in the body; another than that of JSON: it is gzip's."""
    framed = (
        f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {n_json_bytes}\r\n"
        if is_binary
        else "Content-Type: application/json\r\n"
    )
    packed = "" if front == PREFIX else f"Content-Encoding: {GZIP}\r\n"
    head = (
        f"POST /v2/models/{spec.name}/versions/{spec.version}/infer HTTP/1.1\r\n"
        f"{host_lines(host, headers or {})}"
        f"{framed}"
        f"{packed}"
        f"Content-Length: {n_body_bytes}\r\n\r\n"
    )
    return head.encode() + front


def host_lines(host: str, headers: Mapping[str, str]) -> str:
    """The host and the headers of the scenario; a Host of these stands in its place: a request has one."""
    named = {name.lower(): value for name, value in headers.items()}
    own = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name.lower() != "host")
    return f"Host: {named.get('host', host)}\r\n{own}"


def judge_reply(
    status: int, n_json_bytes: int, body: bytes, wire_id: bytes, reply_bytes: int | None
) -> tuple[str, str]:
    """(outcome, detail) of a whole reply. `n_json_bytes` 0: the reply had no binary part.

    ok needs status 200, our own id in the JSON and tensors of just the size that the model's spec gives.
    """
    if status != _OK:
        return judge_error(status, body, wire_id)
    said = _error_said(body)
    if said is not None:
        return "bad_reply", f"status 200 with an error: {said}"
    if not 0 <= n_json_bytes <= len(body):
        return "bad_reply", "the reply's Inference-Header-Content-Length is not within its body"
    json_part = body[:n_json_bytes] if n_json_bytes else body
    if wire_id not in json_part:
        return "bad_reply", NO_ID
    if reply_bytes is not None:
        n_tensor_bytes = len(body) - n_json_bytes if n_json_bytes else 0
        if n_tensor_bytes != reply_bytes:
            return (
                "bad_reply",
                f"the reply has {n_tensor_bytes} tensor bytes, the model's spec says {reply_bytes}",
            )
    return "ok", ""


def judge_error(status: int, body: bytes, wire_id: bytes) -> tuple[str, str]:
    """(outcome, detail) of a reply of another status than 200: rejections of the queue policy stand apart.

    Triton puts "[request id: ID] " before most messages; without it equal failures have equal details.
    """
    detail = f"{status} {error_text(body.replace(b'[request id: ' + wire_id + b'] ', b''))}"
    if status == _UNAVAILABLE or any(text in body for text in REJECTIONS):
        return "rejected", detail
    return "server_error", detail


def _error_said(body: bytes) -> str | None:
    """The message of a body that is Triton's `{"error": …}`; None for any other."""
    if not body.startswith(b"{") or b'"error"' not in body:
        return None
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return error_text(body) if "error" in content and "outputs" not in content else None


def error_text(body: bytes) -> str:
    """The message in Triton's `{"error": …}`, else the first of the body itself; one line, at most 200 characters."""
    try:
        content = json.loads(body)
        text = str(content["error"]) if isinstance(content, dict) and "error" in content else str(content)
    except (ValueError, RecursionError):
        text = body.decode(errors="replace")
    return one_line(text)
