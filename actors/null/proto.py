"""The null server's protobuf: the few fields of Triton's messages that it reads and writes, by hand.

A request is parsed once for all that differ from it in the id and in the bytes of the tensors:

    1 model_name  2 model_version | 3 id | 5 inputs  6 outputs … | 7 raw_input_contents …
    front, the key                | cut  | tail, compared        | only its length counts

Source: protobuf's encoding.md; Triton's grpc_service.proto and model_config.proto for the field numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from squall.actors.net import protobuf
from squall.actors.null.model import (
    DATATYPE,
    DATATYPE_BYTES,
    OUTPUT,
    BadRequest,
    NullModel,
    Tally,
    wanted_bytes,
)

_NAME, _VERSION, _ID, _INPUT, _OUTPUT, _RAW = 1, 2, 3, 5, 6, 7
"""Fields of ModelInferRequest."""
_TYPE_FP32 = 11
_MOST_CACHED = 256
_LARGEST_TAIL_BYTES = 16_384


class UnknownModel(BadRequest):
    """The request names a model that is not served."""


@dataclass(eq=False)
class GrpcAnswer(Tally):
    """The ModelInferResponse to requests that differ in their ids only: `before_id`, field 3, `after_id`."""

    before_id: bytes = b""
    after_id: bytes = b""
    layouts: dict[int, tuple[int, bytes, bytes, bytes]] = field(default_factory=dict)
    """For the owner of the frames, by length of the id."""


class GrpcAnswers:
    """Requests to answers, looked up where only the id differs."""

    def __init__(self, model: NullModel) -> None:
        self._model = model
        self._known: dict[bytes, list[tuple[bytes, int, GrpcAnswer]]] = {}
        self._kinds: dict[tuple[int, tuple[str, ...]], GrpcAnswer] = {}

    def answer_of(self, message: bytes) -> tuple[GrpcAnswer, bytes]:
        """The answer to a ModelInferRequest, and its id. Raises BadRequest."""
        front, id_end = _edges(message)
        n_after = len(message) - id_end
        for tail, n_bytes, answer in self._known.get(message[:front], ()):
            if n_bytes == n_after and message.startswith(tail, id_end):
                return answer, message[front + 2 : id_end]
        with _broken_is_bad():
            return self._parse(message, front, id_end)

    def _parse(self, message: bytes, front: int, id_end: int) -> tuple[GrpcAnswer, bytes]:
        name = version = wire_id = b""
        shapes: list[tuple[str, list[int]]] = []
        wanted: list[str] = []
        raw_sizes: list[int] = []
        tail_end, id_ends_at = id_end, front
        for number, value, end in protobuf.read_fields(message):
            if number == _RAW:
                raw_sizes.append(len(protobuf.as_bytes(value)))
                continue
            tail_end = len(message) + 1 if raw_sizes else end
            if number == _NAME:
                name = protobuf.as_bytes(value)
            elif number == _VERSION:
                version = protobuf.as_bytes(value)
            elif number == _ID:
                wire_id, id_ends_at = protobuf.as_bytes(value), end
            elif number == _INPUT:
                shapes.append(_shape(protobuf.as_bytes(value)))
            elif number == _OUTPUT:
                parts = protobuf.read_fields(protobuf.as_bytes(value))
                wanted += [
                    _text(protobuf.as_bytes(part)) for part_number, part, _ in parts if part_number == _NAME
                ]
        if not self._model.is_called(_text(name), _text(version)):
            raise UnknownModel(f"Request for unknown model: '{_text(name)}' is not found")
        rows = rows_of(shapes, raw_sizes)
        self._model.check_rows(rows)
        answer = self._answer(rows, tuple(wanted) or (OUTPUT,))
        known = self._known.setdefault(message[:front], [])
        is_plain = (
            id_ends_at == id_end and tail_end <= len(message) and tail_end - id_end <= _LARGEST_TAIL_BYTES
        )
        if is_plain and len(known) < _MOST_CACHED:
            known.append((message[id_end:tail_end], len(message) - id_end, answer))
        return answer, wire_id

    def _answer(self, rows: int, names: tuple[str, ...]) -> GrpcAnswer:
        kind = (rows, names)
        if kind not in self._kinds:
            model = self._model
            shape = protobuf.packed(3, (rows, model.classes))
            described = [protobuf.field(1, name) + protobuf.field(2, DATATYPE) + shape for name in names]
            raw = protobuf.field(6, bytes(rows * model.classes * DATATYPE_BYTES))
            self._kinds[kind] = GrpcAnswer(
                rows,
                before_id=protobuf.field(1, model.name) + protobuf.field(2, model.version),
                after_id=b"".join(protobuf.field(5, output) for output in described) + raw * len(names),
            )
            model.tallies.append(self._kinds[kind])
        return self._kinds[kind]

    def page(self, method: str, message: bytes) -> bytes | None:
        """The response to a method other than ModelInfer; None: there is no such method. Raises BadRequest."""
        model = self._model
        if method in ("ServerLive", "ServerReady"):
            return b"\x08\x01"
        if method == "ServerMetadata":
            server = model.server()
            texts = [protobuf.field(3, text) for text in server["extensions"]]
            return protobuf.field(1, server["name"]) + protobuf.field(2, server["version"]) + b"".join(texts)
        if method not in ("ModelReady", "ModelMetadata", "ModelConfig"):
            return None
        with _broken_is_bad():
            fields = protobuf.read_fields(message)
            asked = {
                number: _text(protobuf.as_bytes(value)) for number, value, _ in fields if number in (1, 2)
            }
        if not model.is_called(asked.get(1, ""), asked.get(2, "")):
            if method == "ModelReady":
                return b""
            raise UnknownModel(f"Request for unknown model: '{asked.get(1, '')}' is not found")
        return {"ModelReady": b"\x08\x01", "ModelMetadata": _metadata(model), "ModelConfig": _config(model)}[
            method
        ]


@contextmanager
def _broken_is_bad() -> Iterator[None]:
    """Bytes that are no protobuf message are a bad request."""
    try:
        yield
    except protobuf.BrokenMessage as error:
        raise BadRequest(str(error)) from error


def rows_of(shapes: list[tuple[str, list[int]]], raw_sizes: list[int]) -> int:
    """First size of the first input's shape. Raises BadRequest where the raw tensors do not fit the shapes."""
    if not shapes or not shapes[0][1] or shapes[0][1][0] < 0:
        raise BadRequest("the request has no input with rows")
    if raw_sizes:
        wanted = [wanted_bytes(datatype, shape) for datatype, shape in shapes]
        if len(wanted) != len(raw_sizes) or any(
            one not in (None, size) for one, size in zip(wanted, raw_sizes, strict=True)
        ):
            raise BadRequest(f"raw_input_contents have {raw_sizes} bytes, the shapes need {wanted}")
    return shapes[0][1][0]


def _edges(message: bytes) -> tuple[int, int]:
    """Where the id's field begins and ends where names and ids are shorter than 128 bytes; equal: there is none.

    A guess for the look-up: whatever it gives, only a front that `_parse` found to be as guessed is in the cache.
    """
    at, end = 0, len(message)
    for tag in (0x0A, 0x12):
        if at + 1 < end and message[at] == tag:
            at += 2 + message[at + 1]
    if at + 1 < end and message[at] == 0x1A and message[at + 1] < 0x80:
        return at, at + 2 + message[at + 1]
    return at, at


def _shape(message: bytes) -> tuple[str, list[int]]:
    """Datatype and shape of an InferInputTensor."""
    datatype, shape = "", []
    for number, value, _ in protobuf.read_fields(message):
        if number == 2:
            datatype = _text(protobuf.as_bytes(value))
        elif number == 3:
            shape += protobuf.read_numbers(value)
    return datatype, shape


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _metadata(model: NullModel) -> bytes:
    page = model.metadata()
    out = protobuf.field(1, page["name"]) + protobuf.field(2, model.version) + protobuf.field(3, b"null")
    for number, tensors in ((4, page["inputs"]), (5, page["outputs"])):
        for tensor in tensors:
            text = protobuf.field(1, tensor["name"]) + protobuf.field(2, tensor["datatype"])
            out += protobuf.field(number, text + protobuf.packed(3, tensor["shape"]))
    return out


def _config(model: NullModel) -> bytes:
    page = model.config()
    out = protobuf.field(1, page["name"]) + b"\x20" + protobuf.varint(page["max_batch_size"])
    for number, dims_field, tensors in ((5, 4, page["input"]), (6, 3, page["output"])):
        for tensor in tensors:
            out += protobuf.field(
                number,
                protobuf.field(1, tensor["name"])
                + b"\x10"
                + protobuf.varint(_TYPE_FP32)
                + protobuf.packed(dims_field, tensor["dims"]),
            )
    return protobuf.field(1, out + protobuf.field(17, page["backend"]))
