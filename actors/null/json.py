"""The null server's JSON: inference requests to answers, looked up where only the id differs.

    {"id":" | 000000000042 | ","inputs":[…],"outputs":[…]} | tensors …
    PREFIX  | the id       | the key                       | only their length counts

Source: KServe v2 protocol and Triton's extension_binary_data.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from squall.actors.null.model import (
    DATATYPE,
    DATATYPE_BYTES,
    OUTPUT,
    BadRequest,
    NullModel,
    Tally,
    wanted_bytes,
)
from squall.models.payload import PREFIX

_MOST_CACHED = 4_096
_LARGEST_CACHED_BYTES = 16_384


@dataclass(eq=False)
class HttpAnswer(Tally):
    """The answer to requests that differ in their ids only. `n_tensor_bytes`: what such a request carries."""

    n_tensor_bytes: int = 0
    before_id: bytes = b""
    after_id: bytes = b""
    n_reply_tensor_bytes: int = 0
    heads: dict[int, bytes] = field(default_factory=dict)

    def head(self, n_id_bytes: int) -> bytes:
        """The reply up to an id of that length."""
        n_json = len(self.before_id) + n_id_bytes + len(self.after_id) - self.n_reply_tensor_bytes
        text = (
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            f"Inference-Header-Content-Length: {n_json}\r\n"
            f"Content-Length: {n_json + self.n_reply_tensor_bytes}\r\n\r\n"
        )
        return self.heads.setdefault(n_id_bytes, text.encode() + self.before_id)


class HttpAnswers:
    """Requests to answers."""

    def __init__(self, model: NullModel) -> None:
        self._model = model
        self._answers: dict[bytes, HttpAnswer] = {}
        self._kinds: dict[tuple[int, tuple[str, ...], int], HttpAnswer] = {}

    def answer_of(self, front: bytes, n_tensor_bytes: int) -> tuple[HttpAnswer, bytes]:
        """The answer to a request of this JSON, and its id. Raises BadRequest."""
        if front.startswith(PREFIX):
            end = front.find(b'"', len(PREFIX))
            wire_id, rest = front[len(PREFIX) : end], front[end:]
        else:
            wire_id, rest = b"", front
        answer = self._answers.get(rest)
        if answer is None or b"\\" in wire_id or answer.n_tensor_bytes != n_tensor_bytes:
            return self._parse_front(front, wire_id, rest, n_tensor_bytes)
        return answer, wire_id

    def _parse_front(
        self, front: bytes, wire_id: bytes, rest: bytes, n_tensor_bytes: int
    ) -> tuple[HttpAnswer, bytes]:
        try:
            request = json.loads(front)
            found_id = json.dumps(request.get("id", ""))[1:-1].encode()
            rows = rows_of(request["inputs"], n_tensor_bytes)
            names = tuple(str(item["name"]) for item in request.get("outputs", ())) or (OUTPUT,)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise BadRequest(f"failed to parse the request JSON buffer: {error!r}") from error
        self._model.check_rows(rows)
        kind = (rows, names, n_tensor_bytes)
        if kind not in self._kinds:
            self._kinds[kind] = self._make_answer(*kind)
            self._model.tallies.append(self._kinds[kind])
        answer = self._kinds[kind]
        if found_id == wire_id and len(rest) <= _LARGEST_CACHED_BYTES and len(self._answers) < _MOST_CACHED:
            self._answers[rest] = answer
        return answer, found_id

    def _make_answer(self, rows: int, names: tuple[str, ...], n_tensor_bytes: int) -> HttpAnswer:
        n_bytes = rows * self._model.classes * DATATYPE_BYTES
        outputs = [
            {
                "name": name,
                "datatype": DATATYPE,
                "shape": [rows, self._model.classes],
                "parameters": {"binary_data_size": n_bytes},
            }
            for name in names
        ]
        described = {"model_name": self._model.name, "model_version": self._model.version, "id": "\0"}
        text = json.dumps({**described, "outputs": outputs}, separators=(",", ":")).encode()
        before_id, _, after_id = text.partition(b"\\u0000")
        n_reply = n_bytes * len(outputs)
        return HttpAnswer(
            rows,
            n_tensor_bytes=n_tensor_bytes,
            before_id=before_id,
            after_id=after_id + bytes(n_reply),
            n_reply_tensor_bytes=n_reply,
        )


def rows_of(inputs: list[dict[str, Any]], n_tensor_bytes: int) -> int:
    """First size of the first input's shape. Raises BadRequest where the tensors' bytes do not fit the shapes."""
    n_due = 0
    for tensor in inputs:
        n_bytes = tensor.get("parameters", {}).get("binary_data_size")
        if n_bytes is not None:
            n_due += n_bytes
            n_wanted = wanted_bytes(tensor["datatype"], tensor["shape"])
            if n_wanted not in (None, n_bytes):
                raise BadRequest(f"input {tensor['name']} has {n_bytes} bytes, its shape needs {n_wanted}")
    if n_due != n_tensor_bytes:
        raise BadRequest(f"the inputs say {n_due} tensor bytes, the body has {n_tensor_bytes}")
    rows = int(inputs[0]["shape"][0]) if inputs else -1
    if rows < 0:
        raise BadRequest("the request has no input with rows")
    return rows
