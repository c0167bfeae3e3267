"""Tensors as bytes, and the encoded bodies of inference requests (KServe v2 with Triton's binary tensor extension).

A body is made once and sent many times; only the request id, of fixed width, differs:

    {"id":"             <- prefix
    000000000042        <- id, ID_DIGITS decimal digits
    ","inputs":[…]}…    <- suffix: rest of the JSON, then the tensors' bytes

Source: KServe v2 inference protocol, and Triton's extension_binary_data.md (sizes in `binary_data_size`, length of
the JSON in the header `Inference-Header-Content-Length`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.models.spec import DATATYPE_BYTES, Dims, ModelSpec
from squall.scenarios.errors import ScenarioError

ID_DIGITS = 12
LEAST_TRIAL_ID = 10**ID_DIGITS - 1_000
"""Ids from here on are of requests that are tried before the load: no plan has as many arrivals."""
PREFIX = b'{"id":"'
GZIP = "gzip"
"""As the headers Content-Encoding and grpc-encoding name it (RFC 9110, 8.4.1.3)."""

NUMPY = {
    name: np.dtype(name.lower().replace("fp", "float")).type for name in DATATYPE_BYTES if name != "BF16"
}
"""What holds each datatype of a fixed size but BF16."""
KIND = {name: np.dtype(held).kind for name, held in NUMPY.items()} | {"BF16": "f", "BYTES": "O"}
"""Numpy's kind of the elements of each datatype."""
TAKEN_AS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "O": "O"}
"""Numpy's kinds of what may be said of each of these kinds: 3 is a number of FP32 too, 1.5 none of INT32."""
_PREFIX = struct.Struct("<I")
"""In front of each element of a BYTES tensor: its length (Triton's extension_binary_data.md)."""


Tensor = NDArray[np.generic]
Parameter = bool | int | float | str
"""Of a request, as the KServe v2 protocol has them; whole numbers have 64 bits."""


@dataclass(frozen=True)
class RequestOptions:
    """What each request says beside its tensors. `is_binary`: over HTTP these travel as bytes behind the JSON, else as
    numbers and texts in it. `is_gzip`: the request is compressed."""

    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    is_binary: bool = True
    is_gzip: bool = False


PLAIN = RequestOptions()
"""Nothing beside the tensors."""
_NOT_IN_JSON = ("FP16", "BF16")


LARGEST_OPEN_REPLY_BYTES = 64 << 20
"""Of a reply whose outputs have no fixed size, where a scenario says nothing."""
_LEAST_LARGEST_BYTES = 16 << 20
_MOST_LARGEST_BYTES = 1 << 30  # whatever a server says of its own outputs
_MIB = 1 << 20


def largest_reply_bytes(spec: ModelSpec, is_binary: bool) -> int:
    """What a reply of the model can have, with room, in whole MiB; as text, in JSON, a number takes up to 6 times its
    bytes."""
    n_bytes = spec.reply_bytes(max(1, spec.max_batch_size))
    if n_bytes is None:
        return LARGEST_OPEN_REPLY_BYTES
    with_room = _LEAST_LARGEST_BYTES + (2 if is_binary else 8) * n_bytes
    return min(-(-with_room // _MIB) * _MIB, _MOST_LARGEST_BYTES)


class Place(NamedTuple):
    """The bytes of a tensor in a shared memory region, instead of in the message."""

    region: str
    offset: int
    n_bytes: int

    def parameters(self) -> dict[str, str | int]:
        """As a request says it of a tensor (Triton's extension_shared_memory.md)."""
        return {
            "shared_memory_region": self.region,
            "shared_memory_offset": self.offset,
            "shared_memory_byte_size": self.n_bytes,
        }


@dataclass(frozen=True)
class RequestBody:
    """An encoded request but for its id: `front` + id + suffix; `n_json_bytes` of it are JSON. `is_binary`: tensors in
    the message are bytes behind it, and are to be so in the reply. `n_between_bytes`: of JSON that each request has of
    its own between id and suffix. Of a compressed one (`squall.actors.messages.gzip_wire`) front and suffix are so, and
    `n_json_bytes` are those of what it was.
    """

    suffix: bytes
    n_json_bytes: int
    is_binary: bool = True
    n_between_bytes: int = 0
    front: bytes = PREFIX

    @property
    def n_bytes(self) -> int:
        """Length of the whole body."""
        return len(self.front) + ID_DIGITS + self.n_between_bytes + len(self.suffix)

    def with_between(self, n_bytes: int) -> RequestBody:
        """The same body with so many bytes between, which end the id's text."""
        own = self.suffix.removeprefix(b'"')
        return RequestBody(own, self.n_json_bytes - 1 + n_bytes, self.is_binary, n_bytes)


def encode_id(request_id: int) -> bytes:
    """`request_id` as it travels: ID_DIGITS decimal digits."""
    return b"%0*d" % (ID_DIGITS, request_id)


def read_tensor(datatype: str, shape: Dims, data: bytes) -> Tensor:
    """The array that raw little-endian `data` holds; BF16 becomes FP32, BYTES an array of bytes objects.

    Raises ValueError for an unknown datatype, and where shape and length disagree.
    """
    if datatype == "BYTES":
        return objects(_elements_of(data)).reshape(shape)
    if datatype == "BF16":
        upper = np.frombuffer(data, "<u2").astype(np.uint32)
        return (upper << np.uint32(16)).view(np.float32).reshape(shape)
    if datatype not in NUMPY:
        raise ValueError(f"{datatype} is no datatype of the protocol")
    return np.frombuffer(data, np.dtype(NUMPY[datatype]).newbyteorder("<")).reshape(shape)


def n_written(array: Tensor) -> int:
    """Bytes of `write_tensor(array)`."""
    if array.dtype.kind == "O":
        return sum(_PREFIX.size + len(one) for one in array.ravel().tolist())
    return array.nbytes


def write_tensor(array: Tensor) -> bytes:
    """The array as it travels: its numbers; of bytes objects each with its length in front, in C order."""
    if array.dtype.kind == "O":
        elements: list[bytes] = array.ravel().tolist()
        return b"".join(part for one in elements for part in (_PREFIX.pack(len(one)), one))
    return np.ascontiguousarray(array).tobytes()


def _elements_of(data: bytes) -> list[bytes]:
    """Raises ValueError where lengths and bytes disagree."""
    elements, end = [], 0
    while end < len(data):
        start = end + _PREFIX.size
        length = int.from_bytes(data[end:start], "little")
        end = start + length
        if end > len(data):
            raise ValueError(f"an element of {length} bytes is cut off")
        elements.append(data[start:end])
    return elements


def objects(elements: list[bytes]) -> NDArray[np.object_]:
    """An array of them, whatever their lengths."""
    found = np.empty(len(elements), np.object_)
    found[:] = elements
    return found


def encode_body(
    spec: ModelSpec,
    inputs: Mapping[str, Tensor],
    input_places: Mapping[str, Place] | None = None,
    output_places: Mapping[str, Place] | None = None,
    options: RequestOptions = PLAIN,
) -> RequestBody:
    """The body that carries `inputs` and asks for every output; tensors with a place lie there instead.

    Raises ScenarioError for bytes that JSON does not carry.
    """
    input_places, output_places = input_places or {}, output_places or {}
    described, blobs = [], []
    for tensor in spec.carried(inputs):
        array = inputs[tensor.name]
        place = input_places.get(tensor.name)
        if place is not None:
            carried: dict[str, Any] = {"parameters": place.parameters()}
        elif options.is_binary:
            blobs.append(write_tensor(array))
            carried = {"parameters": {"binary_data_size": len(blobs[-1])}}
        else:
            carried = {"data": _json_data(tensor.name, array)}
        described.append(
            {"name": tensor.name, "shape": list(array.shape), "datatype": tensor.datatype, **carried}
        )
    outputs = [
        {
            "name": tensor.name,
            "parameters": output_places[tensor.name].parameters()
            if tensor.name in output_places
            else {"binary_data": options.is_binary},
        }
        for tensor in spec.outputs
    ]
    content = {"parameters": dict(options.parameters)} if options.parameters else {}
    rest = json.dumps({**content, "inputs": described, "outputs": outputs}, separators=(",", ":")).encode()
    suffix_json = b'",' + rest[1:]
    n_json_bytes = len(PREFIX) + ID_DIGITS + len(suffix_json)
    return RequestBody(suffix_json + b"".join(blobs), n_json_bytes, options.is_binary)


def refuse_json(spec: ModelSpec) -> None:
    """Raises ScenarioError for a tensor whose numbers Triton neither takes nor gives as JSON."""
    for what, tensors in (("input", spec.inputs), ("output", spec.outputs)):
        for tensor in tensors:
            if tensor.datatype in _NOT_IN_JSON:
                raise ScenarioError(
                    f"clients.request.binary: false: {what} {tensor.name} of model {spec.name} is {tensor.datatype},"
                    " which Triton has as bytes only"
                )


def read_json_data(datatype: str, data: Sequence[Any]) -> bytes:
    """A tensor's numbers or texts in a JSON reply as the bytes that would have carried them.

    Raises ValueError, TypeError or OverflowError for what no tensor of that datatype holds.
    """
    if datatype == "BYTES":
        return write_tensor(objects([str(one).encode() for one in data]))
    if datatype not in NUMPY:
        raise ValueError(f"{datatype} is no datatype of JSON")
    dtype = np.dtype(NUMPY[datatype])
    flat = (
        np.array(data, object).ravel().tolist()
    )  # else one long text among numbers makes each of them as long
    if not {type(one) for one in flat} <= {bool, int, float}:
        raise ValueError(f"not only numbers are said of {datatype}")
    found = np.array(flat)
    if found.size and found.dtype.kind not in TAKEN_AS[dtype.kind]:
        raise ValueError(f"{found.dtype} is not said of {datatype}")
    return write_tensor(np.array(flat, dtype))


def _json_data(name: str, array: Tensor) -> list[Any]:
    """In C order; bytes are of UTF-8, else ScenarioError."""
    flat: list[Any] = array.ravel().tolist()
    try:
        return [one.decode() for one in flat] if array.dtype.kind == "O" else flat
    except UnicodeDecodeError as error:
        raise ScenarioError(
            f"clients.request.binary: false: input {name} is not UTF-8, as JSON needs it: {error.reason}"
        ) from error
