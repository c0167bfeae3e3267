"""The null server's protobuf: the few fields of Triton's messages that it reads and writes, by hand.

A request is parsed once for all that differ from it in the id and in the bytes of the tensors:

    1 model_name  2 model_version | 3 id | 5 inputs  6 outputs … | 7 raw_input_contents …
    front, the key                | cut  | tail, compared        | only its length counts

Source: protobuf's encoding.md; Triton's grpc_service.proto and model_config.proto for the field numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from actors.null_model import DATATYPE, DATATYPE_BYTES, OUTPUT, BadRequest, NullModel, Tally
from models.spec import DATATYPE_BYTES as SIZES

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""
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
        return self._parse(message, front, id_end)

    def _parse(self, message: bytes, front: int, id_end: int) -> tuple[GrpcAnswer, bytes]:
        name = version = wire_id = b""
        shapes: list[tuple[str, list[int]]] = []
        wanted: list[str] = []
        raw_sizes: list[int] = []
        tail_end, id_ends_at = id_end, front
        for number, value, end in fields(message):
            if number == _RAW:
                raw_sizes.append(len(_bytes(value)))
                continue
            tail_end = len(message) + 1 if raw_sizes else end
            if number == _NAME:
                name = _bytes(value)
            elif number == _VERSION:
                version = _bytes(value)
            elif number == _ID:
                wire_id, id_ends_at = _bytes(value), end
            elif number == _INPUT:
                shapes.append(_shape(_bytes(value)))
            elif number == _OUTPUT:
                wanted += [
                    _text(_bytes(part)) for number, part, _ in fields(_bytes(value)) if number == _NAME
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
            shape = packed(rows) + packed(model.classes)
            described = [
                as_field(1, name.encode()) + as_field(2, DATATYPE.encode()) + as_field(3, shape)
                for name in names
            ]
            raw = as_field(6, bytes(rows * model.classes * DATATYPE_BYTES))
            self._kinds[kind] = GrpcAnswer(
                rows,
                before_id=as_field(1, model.name.encode()) + as_field(2, model.version.encode()),
                after_id=b"".join(as_field(5, output) for output in described) + raw * len(names),
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
            texts = [as_field(3, text.encode()) for text in server["extensions"]]
            return (
                as_field(1, server["name"].encode())
                + as_field(2, server["version"].encode())
                + b"".join(texts)
            )
        if method not in ("ModelReady", "ModelMetadata", "ModelConfig"):
            return None
        asked = {number: _text(_bytes(value)) for number, value, _ in fields(message) if number in (1, 2)}
        if not model.is_called(asked.get(1, ""), asked.get(2, "")):
            if method == "ModelReady":
                return b""
            raise UnknownModel(f"Request for unknown model: '{asked.get(1, '')}' is not found")
        return {"ModelReady": b"\x08\x01", "ModelMetadata": _metadata(model), "ModelConfig": _config(model)}[
            method
        ]


def rows_of(shapes: list[tuple[str, list[int]]], raw_sizes: list[int]) -> int:
    """First size of the first input's shape. Raises BadRequest where the raw tensors do not fit the shapes."""
    if not shapes or not shapes[0][1] or shapes[0][1][0] < 0:
        raise BadRequest("the request has no input with rows")
    if raw_sizes:
        wanted = [prod(shape) * SIZES.get(datatype, 0) for datatype, shape in shapes]
        if wanted != raw_sizes:
            raise BadRequest(f"raw_input_contents have {raw_sizes} bytes, the shapes need {wanted}")
    return shapes[0][1][0]


def fields(message: bytes) -> Iterator[tuple[int, bytes | int, int]]:
    """(number, value, offset of its end) of each field in turn. Raises BadRequest where the message is cut short."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        value: bytes | int
        kind = tag & 7
        if kind == _VARINT:
            value, at = read_varint(message, at)
        else:
            if kind == _BYTES:
                n_bytes, at = read_varint(message, at)
            elif kind in (_FIXED64, _FIXED32):
                n_bytes = 8 if kind == _FIXED64 else 4
            else:
                raise BadRequest(f"a protobuf field of wire type {kind}")
            value = message[at : at + n_bytes]
            at += n_bytes
            if at > len(message):
                raise BadRequest("the protobuf message is cut short")
        yield tag >> 3, value, at


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and the offset behind it. Raises BadRequest."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
    raise BadRequest("the protobuf message is cut short")


def packed(value: int) -> bytes:
    """A varint; a negative int64 takes ten bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def as_field(number: int, value: bytes) -> bytes:
    """A field of wire type 2: bytes, text, message or packed numbers."""
    return packed(number << 3 | _BYTES) + packed(len(value)) + value


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
    """Datatype and shape of an InferInputTensor; the shape packed or not."""
    datatype, shape = "", []
    for number, value, _ in fields(message):
        if number == 2:
            datatype = _text(_bytes(value))
        elif number == 3 and isinstance(value, bytes):
            at = 0
            while at < len(value):
                size, at = read_varint(value, at)
                shape.append(size)
        elif number == 3 and isinstance(value, int):
            shape.append(value)
    return datatype, shape


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise BadRequest("a protobuf field has another wire type than its message says")
    return value


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _metadata(model: NullModel) -> bytes:
    page = model.metadata()
    out = as_field(1, page["name"].encode()) + as_field(2, model.version.encode()) + as_field(3, b"null")
    for number, tensors in ((4, page["inputs"]), (5, page["outputs"])):
        for tensor in tensors:
            shape = b"".join(packed(size) for size in tensor["shape"])
            text = as_field(1, tensor["name"].encode()) + as_field(2, tensor["datatype"].encode())
            out += as_field(number, text + as_field(3, shape))
    return out


def _config(model: NullModel) -> bytes:
    page = model.config()
    out = as_field(1, page["name"].encode()) + b"\x20" + packed(page["max_batch_size"])
    for number, dims_field, tensors in ((5, 4, page["input"]), (6, 3, page["output"])):
        for tensor in tensors:
            dims = b"".join(packed(size) for size in tensor["dims"])
            out += as_field(
                number,
                as_field(1, tensor["name"].encode())
                + b"\x10"
                + packed(_TYPE_FP32)
                + as_field(dims_field, dims),
            )
    return as_field(1, out + as_field(17, page["backend"].encode()))
