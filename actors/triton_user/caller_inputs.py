"""Inputs that the code of a user brings, held to the model's spec before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from squall.models.payload import NUMPY, objects
from squall.models.spec import ModelSpec, TensorSpec, hint

Arrays = Mapping[str, NDArray[np.generic]]


def held_to(spec: ModelSpec, inputs: Arrays, rows: int = 1) -> tuple[dict[str, NDArray[np.generic]], int]:
    """The inputs as they are sent, and their rows (1 of a model without a batch dimension).

    `rows`: what else the caller said of them; 1 may be nothing. Arrays have the datatype of their input exactly; of
    BYTES they hold bytes or str, of BF16 the upper halves of FP32 as uint16. Raises ValueError that names the input,
    its shape and its datatype, and what the model takes.
    """
    names = [tensor.name for tensor in spec.inputs]
    for name in inputs:
        if name not in names:
            raise ValueError(f"model {spec.name} has no input {name!r}, {hint(name, names)}")
    if not inputs:
        raise ValueError(f"model {spec.name}: no inputs, a request carries one at least")
    held: dict[str, NDArray[np.generic]] = {}
    for tensor in spec.inputs:
        if tensor.name in inputs:
            held[tensor.name] = _held(spec, tensor, inputs[tensor.name])
        elif not tensor.is_optional:
            raise ValueError(
                f"input {tensor.name} is missing, model {spec.name} takes {_taken(spec, tensor)}"
            )
    if not spec.is_batched:
        return held, 1
    found = {name: len(array) for name, array in held.items()}
    own = next(iter(found.values()))
    if set(found.values()) != {own}:
        told = ", ".join(f"{name} {n}" for name, n in found.items())
        raise ValueError(f"the inputs of a request to model {spec.name} have as many rows each, not {told}")
    if rows not in (1, own):
        raise ValueError(f"rows={rows}, but the inputs have {own} rows")
    return held, own


def _held(spec: ModelSpec, tensor: TensorSpec, array: object) -> NDArray[np.generic]:
    if not isinstance(array, np.ndarray):
        raise ValueError(
            f"input {tensor.name} is a {type(array).__name__}, not an array; model {spec.name} takes"
            f" {_taken(spec, tensor)}"
        )
    given = f"input {tensor.name} is {array.dtype} {list(array.shape)}"
    dims = (-1, *tensor.dims) if spec.is_batched else tensor.dims
    fits = len(dims) == array.ndim and all(
        dim in (-1, size) for dim, size in zip(dims, array.shape, strict=True)
    )
    elements = _elements(tensor.datatype, array)
    if not fits or elements is None:
        raise ValueError(f"{given}, model {spec.name} takes {_taken(spec, tensor)}")
    if spec.is_batched and not 1 <= len(array) <= spec.max_batch_size:
        raise ValueError(f"{given}, model {spec.name} takes 1 to {spec.max_batch_size} rows")
    return elements


def _elements(datatype: str, array: NDArray[np.generic]) -> NDArray[np.generic] | None:
    """As `write_tensor` takes them; None for those of another datatype."""
    if datatype == "BYTES":
        if array.dtype.kind not in "OSU":
            return None
        elements = array.ravel().tolist()
        if not all(isinstance(one, bytes | str) for one in elements):
            return None
        told = [one.encode() if isinstance(one, str) else one for one in elements]
        return objects(told).reshape(array.shape)
    wanted = np.dtype(np.uint16 if datatype == "BF16" else NUMPY[datatype])
    if array.dtype.newbyteorder("=") != wanted:
        return None
    return array.astype(wanted.newbyteorder("<"), copy=False)


def _taken(spec: ModelSpec, tensor: TensorSpec) -> str:
    """In words: `FP32 [rows, 64] (float32)`."""
    dims = [*(["rows"] if spec.is_batched else []), *("any" if dim < 0 else str(dim) for dim in tensor.dims)]
    if tensor.datatype == "BYTES":
        held = "bytes or str"
    elif tensor.datatype == "BF16":
        held = "the upper halves of float32, as uint16"
    else:
        held = np.dtype(NUMPY[tensor.datatype]).name
    return f"{tensor.datatype} [{', '.join(dims)}] ({held})"
