"""Weights from a file in Hugging Face's names: where it is, what it holds, its arrays. Copied beside model.py as it is,
so it imports nothing of ours, and torch only for a file of torch's own.

A .safetensors file: 8 bytes with the length of a JSON header (little-endian), the header (by tensor: dtype, shape,
first byte of its data and the one behind), the data (github.com/huggingface/safetensors, "Format"). A .bin file is
what torch.save wrote, of which only tensors are read. Names lose the prefix of the model around the encoder (`bert.`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of the file in a folder, the first that is there counts."""
_PREFIXES = ("bert.", "roberta.", "model.")
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MOST_HEADER_BYTES = 100_000_000  # safetensors' own limit
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def find(text: str, environment: Mapping[str, str]) -> Path:
    """The file that `text` names: itself, one in that folder, or of the model of that name (`prajjwal1/bert-tiny`) in
    the local cache of the hub, below HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub of `environment`.

    Nothing is downloaded. Raises ValueError where there is none.
    """
    path = Path(text).expanduser()
    if path.is_file():
        return path.resolve()
    if path.is_dir():
        return _in_folder(path)
    if not _REPOSITORY.fullmatch(text):
        raise ValueError(f"{text}: no such file or folder")
    home = Path(environment.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser()
    cache = Path(environment.get("HF_HUB_CACHE") or home / "hub").expanduser()
    model = cache / f"models--{text.replace('/', '--')}"
    main = model / "refs" / "main"
    snapshots = sorted(model.glob("snapshots/*"))
    if main.is_file():
        snapshots = [model / "snapshots" / main.read_text().strip()]
    if not snapshots or not snapshots[0].is_dir():
        raise ValueError(
            f"{text}: no such file or folder, and no model of that name in the hub's local cache {cache}; squall"
            " downloads nothing: fetch it there, or give its folder"
        )
    return _in_folder(snapshots[0])


def _in_folder(folder: Path) -> Path:
    for name in FILES:
        if (folder / name).is_file():
            return (folder / name).resolve()
    if any(folder.glob("*.index.json")):
        raise ValueError(f"{folder}: its weights are in several files: save them as one model.safetensors")
    raise ValueError(f"{folder}: has neither {' nor '.join(FILES)}")


def shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Of each tensor by name, without reading more than is needed. Raises ValueError as `read`."""
    if _is_safetensors(path):
        return {_named(name): tuple(one["shape"]) for name, one in _header(path)[0].items()}
    return {_named(name): tuple(one.shape) for name, one in _torch_tensors(path).items()}


def read(path: str | Path) -> dict[str, NDArray[Any]]:
    """Every tensor of floats by name, in their type (BF16 as float32), mapped where that can be.

    Raises ValueError, with the file, where it cannot be read or is no such file, and for a file of torch's where torch
    is not there.
    """
    if not _is_safetensors(path):
        tensors = _torch_tensors(path)
        return {_named(name): one.float().numpy() for name, one in tensors.items() if one.is_floating_point()}
    header, start = _header(path)
    data = np.memmap(path, np.uint8, "c", start)
    found = {}
    for name, one in header.items():
        if one["dtype"] not in _TYPES:
            continue
        first, last = one["data_offsets"]
        array: NDArray[Any] = data[first:last].view(_TYPES[one["dtype"]])
        if one["dtype"] == "BF16":
            array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
        found[_named(name)] = array.reshape(one["shape"])
    return found


def _named(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name


def _is_safetensors(path: str | Path) -> bool:
    """By what it holds: a file in the hub's cache has no suffix."""
    try:
        with Path(path).open("rb") as stream:
            return stream.read(9)[8:] == b"{"
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error


def _header(path: str | Path) -> tuple[dict[str, dict[str, Any]], int]:
    """And the first byte of the data. Raises ValueError where the file does not have what its header says."""
    n_bytes = Path(path).stat().st_size
    with Path(path).open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        text = stream.read(length) if length <= min(n_bytes, _MOST_HEADER_BYTES) else b""
    start = 8 + length
    try:
        header: dict[str, dict[str, Any]] = json.loads(text)
        header.pop("__metadata__", None)
        for one in header.values():
            first, last = one["data_offsets"]
            size = (
                int(np.prod(one["shape"], dtype=np.int64)) * np.dtype(_TYPES.get(one["dtype"], "u1")).itemsize
            )
            is_whole = 0 <= first <= last <= n_bytes - start
            if not is_whole or (one["dtype"] in _TYPES and last - first != size):
                raise ValueError("its header says more than it has")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: is no whole .safetensors file: {error}") from error
    return header, start


def _torch_tensors(path: str | Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"{path}: only torch reads it, which is not installed: install it, or save the weights as model.safetensors"
        ) from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        return {name: one for name, one in found.items() if isinstance(one, torch.Tensor)}
    except Exception as error:  # of pickle, zip and torch, whatever the file holds
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        words = words.partition(". ")[0]  # what follows tells how to read it unsafely
        raise ValueError(f"{path}: is no file of tensors that torch reads: {words}") from error
