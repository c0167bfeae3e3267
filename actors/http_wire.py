"""Bytes of inference requests and replies over HTTP/1.1, without sockets.

Source: KServe v2 protocol and Triton's extension_binary_data.md (header `Inference-Header-Content-Length`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from models.payload import ID_DIGITS, PREFIX, RequestBody

_ID_AT = len(PREFIX)
_DETAIL_CHARACTERS = 200

REJECTIONS = (b"Exceeds maximum queue size", b"Request timeout expired")
"""What Triton answers when its queue policy refuses a request: full queue, queue timeout."""

_UNAVAILABLE = 503
_OK = 200


class Reply(Protocol):
    """A whole reply; `n_json_bytes` 0 where it had no binary part, -1 where its head made no sense."""

    status: int
    n_json_bytes: int
    body: bytes


@dataclass(frozen=True)
class RequestTemplate:
    """A request but for its id, as it goes to the socket: head + id + tail; and what its reply must be.

    `reply_bytes`: size of all output tensors; None where the model's spec does not fix it.
    """

    head: bytes
    tail: bytes
    rows: int
    reply_bytes: int | None

    @property
    def n_bytes(self) -> int:
        """Bytes on the wire, HTTP head included."""
        return len(self.head) + ID_DIGITS + len(self.tail)

    def judge(self, reply: Reply, wire_id: bytes) -> tuple[str, str]:
        """(outcome, detail) of the reply to the request that carried `wire_id`."""
        return judge_reply(reply.status, reply.n_json_bytes, reply.body, wire_id, self.reply_bytes)


def request_template(
    host: str, model: str, version: str, body: RequestBody, rows: int, reply_bytes: int | None
) -> RequestTemplate:
    """The template of a POST to `/v2/models/MODEL/versions/VERSION/infer`."""
    head = (
        f"POST /v2/models/{model}/versions/{version}/infer HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {body.n_json_bytes}\r\n"
        f"Content-Length: {body.n_bytes}\r\n\r\n"
    )
    return RequestTemplate(head.encode() + PREFIX, body.suffix, rows, reply_bytes)


def judge_reply(
    status: int, n_json_bytes: int, body: bytes, wire_id: bytes, reply_bytes: int | None
) -> tuple[str, str]:
    """(outcome, detail) of a whole reply. `n_json_bytes` 0: the reply had no binary part.

    ok needs status 200, our own id in the JSON and tensors of just the size that the model's spec gives.
    """
    if status != _OK:
        return _judge_error(status, body, wire_id)
    if not 0 <= n_json_bytes <= len(body):
        return "bad_reply", "the reply's Inference-Header-Content-Length is not within its body"
    json_part = body[:n_json_bytes] if n_json_bytes else body
    if wire_id not in json_part:
        return "bad_reply", "the reply does not carry the request's id"
    if reply_bytes is not None:
        n_tensor_bytes = len(body) - n_json_bytes if n_json_bytes else 0
        if n_tensor_bytes != reply_bytes:
            return (
                "bad_reply",
                f"the reply has {n_tensor_bytes} tensor bytes, the model's spec says {reply_bytes}",
            )
    return "ok", ""


def _judge_error(status: int, body: bytes, wire_id: bytes) -> tuple[str, str]:
    """Rejections of the queue policy stand apart from errors of the server.

    Triton puts "[request id: ID] " before most messages; without it equal failures have equal details.
    """
    detail = f"{status} {error_text(body.replace(b'[request id: ' + wire_id + b'] ', b''))}"
    if status == _UNAVAILABLE or any(text in body for text in REJECTIONS):
        return "rejected", detail
    return "server_error", detail


def error_text(body: bytes) -> str:
    """The message in Triton's `{"error": …}`, else the first of the body itself; one line, at most 200 characters."""
    try:
        content = json.loads(body)
        text = str(content["error"]) if isinstance(content, dict) and "error" in content else str(content)
    except (ValueError, RecursionError):
        text = body.decode(errors="replace")
    return " ".join(text.split())[:_DETAIL_CHARACTERS]
