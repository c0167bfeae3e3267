"""Seeded inputs and the encoded bodies of inference requests (KServe v2 with Triton's binary tensor extension).

A body is made once and sent many times; only the request id, of fixed width, differs:

    {"id":"             <- prefix
    000000000042        <- id, ID_DIGITS decimal digits
    ","inputs":[…]}…    <- suffix: rest of the JSON, then the tensors' bytes

Source: KServe v2 inference protocol, and Triton's extension_binary_data.md (sizes in `binary_data_size`, length of
the JSON in the header `Inference-Header-Content-Length`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.errors import ScenarioError

ID_DIGITS = 12
PREFIX = b'{"id":"'

_NUMPY = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
_INTEGER_LIMIT = 100


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
    """An encoded request but for its id: PREFIX + id + suffix; `n_json_bytes` of it are JSON."""

    suffix: bytes
    n_json_bytes: int

    @property
    def n_bytes(self) -> int:
        """Length of the whole body."""
        return len(PREFIX) + ID_DIGITS + len(self.suffix)


def encode_id(request_id: int) -> bytes:
    """`request_id` as it travels: ID_DIGITS decimal digits."""
    return b"%0*d" % (ID_DIGITS, request_id)


def read_tensor(datatype: str, shape: tuple[int, ...], data: bytes) -> NDArray[np.generic]:
    """The array that raw little-endian `data` holds; BF16 becomes FP32.

    Raises ValueError for a datatype without a fixed size, and where shape and length disagree.
    """
    if datatype == "BF16":
        upper = np.frombuffer(data, "<u2").astype(np.uint32)
        return (upper << np.uint32(16)).view(np.float32).reshape(shape)
    if datatype not in _NUMPY:
        raise ValueError(f"{datatype} has no fixed size")
    return np.frombuffer(data, np.dtype(_NUMPY[datatype]).newbyteorder("<")).reshape(shape)


def make_input(tensor: TensorSpec, rows: int | None, rng: np.random.Generator) -> NDArray[np.generic]:
    """A random tensor of `rows` rows (None: no batch dimension).

    Floats are standard normal, integers uniform in 0..99, booleans fair. BF16 is the upper half of FP32.
    """
    shape = tensor.dims if rows is None else (rows, *tensor.dims)
    if tensor.datatype == "BF16":
        upper = rng.standard_normal(shape, np.float32).view(np.uint32) >> np.uint32(16)
        return upper.astype(np.uint16)
    dtype = np.dtype(_NUMPY[tensor.datatype])
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if dtype.kind == "b" else _INTEGER_LIMIT, shape).astype(dtype)


def make_inputs(
    spec: ModelSpec, rows: int, variant: int, seed: int, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, NDArray[np.generic]]:
    """The inputs of one payload variant, by tensor name; the same for the same arguments on any machine.

    `shapes` gives the dims of inputs that the model leaves open (-1). Raises ScenarioError where one is missing or
    where `rows` is more than the model takes.
    """
    most = spec.max_batch_size if spec.is_batched else 1
    if rows > most:
        raise ScenarioError(
            f"clients.rows: {rows} rows, but model {spec.name} takes at most {most} a request"
        )
    rng = np.random.default_rng(np.random.SeedSequence([seed, rows, variant]))
    shapes = shapes or {}
    inputs = {}
    for tensor in spec.inputs:
        dims = tuple(shapes.get(tensor.name, tensor.dims))
        if -1 in dims:
            raise ScenarioError(
                f"model.shapes.{tensor.name}: model {spec.name} leaves the size open ({list(tensor.dims)}), state it"
            )
        fixed = TensorSpec(tensor.name, tensor.datatype, dims)
        inputs[tensor.name] = make_input(fixed, rows if spec.is_batched else None, rng)
    return inputs


def encode_body(
    spec: ModelSpec,
    inputs: Mapping[str, NDArray[np.generic]],
    input_places: Mapping[str, Place] | None = None,
    output_places: Mapping[str, Place] | None = None,
) -> RequestBody:
    """The body that carries `inputs` and asks for every output as binary; tensors with a place lie there instead."""
    input_places, output_places = input_places or {}, output_places or {}
    described, blobs = [], []
    for tensor in spec.inputs:
        array = inputs[tensor.name]
        place = input_places.get(tensor.name)
        blob = np.ascontiguousarray(array).tobytes() if place is None else b""
        blobs.append(blob)
        described.append(
            {
                "name": tensor.name,
                "shape": list(array.shape),
                "datatype": tensor.datatype,
                "parameters": {"binary_data_size": len(blob)} if place is None else place.parameters(),
            }
        )
    in_message = {"binary_data": True}
    outputs = [
        {
            "name": tensor.name,
            "parameters": output_places[tensor.name].parameters()
            if tensor.name in output_places
            else in_message,
        }
        for tensor in spec.outputs
    ]
    rest = json.dumps({"inputs": described, "outputs": outputs}, separators=(",", ":")).encode()
    suffix_json = b'",' + rest[1:]
    return RequestBody(suffix_json + b"".join(blobs), len(PREFIX) + ID_DIGITS + len(suffix_json))
