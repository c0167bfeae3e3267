"""The null server's HTTP/1.1: KServe v2 with Triton's binary tensors, without sockets.

What varies from request to request is the id. A head and the JSON around an id are parsed once and looked up from
then on. Source: KServe v2 protocol and Triton's extension_binary_data.md, extension_statistics.md.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from squall.actors.null.json import HttpAnswer, HttpAnswers
from squall.actors.null.model import QUEUE_FULL, BadRequest, NullModel, Peer, Submit, Tally

_MOST_CACHED = 4_096
_LARGEST_HEAD_BYTES = 65_536
_HEAD_END = b"\r\n\r\n"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    429: "Too Many Requests",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class _Head(NamedTuple):
    """A parsed request head. `n_front_bytes`: of the body, what must be held to judge it (its JSON)."""

    method: str
    path: str
    is_inference: bool
    n_body_bytes: int
    n_front_bytes: int
    closes: bool


class HttpService:
    """What all HTTP connections share: the model and the caches."""

    def __init__(self, model: NullModel, submit: Submit) -> None:
        self.submit = submit
        self._model = model
        self._heads: dict[bytes, _Head] = {}
        self.answers = HttpAnswers(model)
        self._infer_paths = {
            f"/v2/models/{model.name}{version}/infer" for version in ("", f"/versions/{model.version}")
        }
        self._documents = self._pages()

    def head_of(self, raw: bytes) -> _Head:
        """The parsed head of these bytes. Raises BadRequest."""
        head = self._heads.get(raw)
        if head is None:
            head = self._parse_head(raw)
            if len(self._heads) >= _MOST_CACHED:
                self._heads.clear()
            self._heads[raw] = head
        return head

    def _parse_head(self, raw: bytes) -> _Head:
        lines = raw.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise BadRequest("malformed request line")
        fields = {}
        for line in lines[1:-2]:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadRequest("malformed header")
            fields[name.lower()] = value.strip()
        if "transfer-encoding" in fields:
            raise BadRequest("transfer encodings are not supported")
        n_body = _length(fields.get("content-length", "0"))
        n_json = _length(fields.get("inference-header-content-length", str(n_body)))
        if n_json > n_body:
            raise BadRequest("Inference-Header-Content-Length is more than the body")
        method, path = words[0], words[1].partition("?")[0]
        is_inference = method == "POST" and path in self._infer_paths
        closes = fields.get("connection", "").lower() == "close" or words[2] == "HTTP/1.0"
        return _Head(method, path, is_inference, n_body, n_json, closes)

    def _pages(self) -> dict[str, Any]:
        """Paths of GET and what they answer: a document, a function that makes it, or None for an empty 200."""
        model = self._model
        pages: dict[str, Any] = {"/v2": model.server(), "/v2/health/live": None, "/v2/health/ready": None}
        pages["/v2/models/stats"] = model.stats
        for version in ("", f"/versions/{model.version}"):
            base = f"/v2/models/{model.name}{version}"
            pages[base] = model.metadata()
            pages[base + "/ready"] = None
            pages[base + "/config"] = model.config()
            pages[base + "/stats"] = model.stats
        return pages

    def page(self, head: _Head) -> bytes:
        """The reply to anything but an inference."""
        if head.path not in self._documents:
            if head.path in self._infer_paths:
                return error_reply(405, "Method Not Allowed")
            parts = head.path.split("/")
            if head.path.startswith("/v2/models/") and parts[3] != self._model.name:
                return error_reply(404, f"Request for unknown model: '{parts[3]}' is not found")
            return error_reply(404, f"Not Found: {head.path}")
        if head.method != "GET":
            return error_reply(405, "Method Not Allowed")
        content = self._documents[head.path]
        if content is None:
            return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"
        return _reply(200, content() if callable(content) else content)


class HttpPeer(Peer):
    """One HTTP/1.1 connection. Bytes that come before the last request's answer are refused: no client of ours sends
    them."""

    def __init__(self, service: HttpService) -> None:
        self.out: list[bytes] = []
        self.rows: list[int] = []
        self.is_over = False
        self._service = service
        self._rest = b""
        self._head: _Head | None = None
        self._front = b""
        self._n_missing = 0
        self._is_busy = False

    def feed(self, data: bytes, now_ns: int) -> None:
        try:
            if self._is_busy or 0 < self._n_missing < len(data):
                raise BadRequest("more bytes than the request has")
            if self._n_missing:
                self._n_missing -= len(data)
                if not self._n_missing:
                    self._handle(now_ns)
            else:
                self._begin(self._rest + data if self._rest else data, now_ns)
        except BadRequest as error:
            self.out.append(error_reply(400, str(error)))
            self.is_over = True

    def _begin(self, data: bytes, now_ns: int) -> None:
        """Takes the front of a request: its head, and of its body the JSON; tensors are only counted."""
        at = data.find(_HEAD_END) + len(_HEAD_END)
        if at < len(_HEAD_END):
            self._rest = data
            if len(data) > _LARGEST_HEAD_BYTES:
                raise BadRequest("the head is too long")
            return
        head = self._service.head_of(data[:at])
        front_end = at + head.n_front_bytes
        if len(data) < front_end:
            self._rest = data
            return
        self._n_missing = at + head.n_body_bytes - len(data)
        if self._n_missing < 0:
            raise BadRequest("more bytes than the request has")
        self._head, self._front, self._rest = head, data[at:front_end], b""
        if not self._n_missing:
            self._handle(now_ns)

    def _handle(self, now_ns: int) -> None:
        """The whole request has come."""
        head = self._head
        assert head is not None
        service = self._service
        if not head.is_inference:
            self._finish(service.page(head))
            return
        try:
            answer, wire_id = service.answers.answer_of(self._front, head.n_body_bytes - head.n_front_bytes)
        except BadRequest as error:
            self._finish(error_reply(400, str(error)))
            return
        self._is_busy = True
        service.submit(self, 0, answer, wire_id, now_ns)

    def reply(self, stream: int, answer: Tally, wire_id: bytes) -> bool:  # noqa: ARG002
        if not isinstance(answer, HttpAnswer) or self.is_over:
            return False
        n_id = len(wire_id)
        self._is_busy = False
        self.out += (answer.heads.get(n_id) or answer.head(n_id), wire_id, answer.after_id)
        if self._head is not None and self._head.closes:
            self.is_over = True
        return True

    def reject(self, stream: int, wire_id: bytes) -> None:  # noqa: ARG002
        self._is_busy = False
        self._finish(error_reply(503, f"[request id: {wire_id.decode(errors='replace')}] {QUEUE_FULL}"))

    def refuse(self, stream: int, status: int, text: str) -> None:  # noqa: ARG002
        self._is_busy = False
        self._finish(error_reply(status, text))

    def farewell(self) -> None:
        """HTTP/1.1 has no word for it: the connection is closed."""

    def _finish(self, reply: bytes) -> None:
        self.out.append(reply)
        if self._head is not None and self._head.closes:
            self.is_over = True


def error_reply(status: int, text: str) -> bytes:
    """A reply with Triton's error object."""
    return _reply(status, {"error": text})


def _reply(status: int, content: Any) -> bytes:
    body = json.dumps(content, separators=(",", ":")).encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _length(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise BadRequest(f"{text!r} is no length")
    return int(text)
