"""Encoders in numpy: names and shapes of their weights, seeded weights, and a plain float32 forward pass to check
served answers against. The same definitions as modules of PyTorch: `backend/networks_torch.py`.

The layers: Devlin et al., 2019, arXiv:1810.04805 (BERT); Conneau et al., 2020, arXiv:1911.02116 (XLM-RoBERTa).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.models import checkpoint
from squall.scenarios.errors import ScenarioError

Array = NDArray[np.float32]
MOST_CHECKED_WEIGHTS = 60_000_000
"""Of an encoder whose answers numpy still computes on one core: 0.2 s for 50 rows of bert_tiny, some hundred times that
for the large one."""
_PARTS = {"bert_tiny": (1e-12, 2), "multilingual_e5_large": (1e-5, 1)}
"""Epsilon of LayerNorm, and token types, of which the first is used."""
_MASKED = np.float32(-3e4)
_SPREAD = (4 * (256**2 - 1) / 12) ** 0.5


def weight_shapes(name: str, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Of every weight by its name in Hugging Face's checkpoints; a matrix is (out, in)."""
    hidden, wide = sizes["hidden"], sizes["intermediate"]

    def norm(at: str) -> dict[str, tuple[int, ...]]:
        return {f"{at}.LayerNorm.weight": (hidden,), f"{at}.LayerNorm.bias": (hidden,)}

    def linear(at: str, n_in: int, n_out: int) -> dict[str, tuple[int, ...]]:
        return {f"{at}.weight": (n_out, n_in), f"{at}.bias": (n_out,)}

    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (sizes["vocabulary"], hidden),
        "embeddings.position_embeddings.weight": (sizes["positions"], hidden),
        "embeddings.token_type_embeddings.weight": (_PARTS[name][1], hidden),
        **norm("embeddings"),
    }
    for number in range(sizes["layers"]):
        at = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            found |= linear(f"{at}.attention.self.{part}", hidden, hidden)
        found |= linear(f"{at}.attention.output.dense", hidden, hidden) | norm(f"{at}.attention.output")
        found |= linear(f"{at}.intermediate.dense", hidden, wide)
        found |= linear(f"{at}.output.dense", wide, hidden) | norm(f"{at}.output")
    return found | (linear("pooler.dense", hidden, hidden) if name == "bert_tiny" else {})


def n_weights(name: str, sizes: Mapping[str, int]) -> int:
    """Of all of them."""
    return sum(map(prod, weight_shapes(name, sizes).values()))


def find_weights(text: str, name: str, sizes: Mapping[str, int], where: str = "model") -> Path:
    """The file with the weights that a scenario names (`squall.models.checkpoint.find`), held to the sizes.

    Raises ScenarioError where there is none, where it cannot be read, and where it has other sizes, with the setting
    that would make them fit; `where`: key path of the model.
    """
    try:
        path = checkpoint.find(text, os.environ)
        found = checkpoint.shapes(path)
    except ValueError as error:
        raise ScenarioError(f"{where}.weights: {error}") from error
    wanted = weight_shapes(name, sizes)
    others = [f"{key}: {size}" for key, size in _sizes_of(found).items() if size != sizes[key]]
    if others:
        raise ScenarioError(
            f"{where}.weights: {path} is of other sizes: set model.settings to {', '.join(others)}"
        )
    for key, shape in wanted.items():
        if key not in found:
            raise ScenarioError(f"{where}.weights: {path} has no weight {key}: it is no {name}")
        if found[key] != shape:
            raise ScenarioError(
                f"{where}.weights: {path}: {key} has the shape {list(found[key])}, and {name} of these model.settings"
                f" has {list(shape)}"
            )
    return path


def _sizes_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The settings that a file's tensors tell; what it does not tell is left out."""
    found: dict[str, int] = {}
    at = {
        "embeddings.word_embeddings.weight": ("vocabulary", "hidden"),
        "embeddings.position_embeddings.weight": ("positions", "hidden"),
        "encoder.layer.0.intermediate.dense.weight": ("intermediate", "hidden"),
    }
    for name, keys in at.items():
        found |= dict(zip(keys, shapes.get(name, ()), strict=False))
    numbers = [int(name.split(".")[2]) for name in shapes if name.startswith("encoder.layer.")]
    return found | ({"layers": max(numbers) + 1} if numbers else {})


def weights_of(
    name: str, sizes: Mapping[str, int], text: str | None, where: str = "model"
) -> dict[str, Array]:
    """Those of the file that `text` names, else seeded ones, in float32. Raises ScenarioError as `find_weights`."""
    shapes = weight_shapes(name, sizes)
    if text is None:
        return {key: _seeded(key, shape, sizes["weights_seed"]) for key, shape in shapes.items()}
    path = find_weights(text, name, sizes, where)
    try:
        found = checkpoint.read(path)
    except ValueError as error:
        raise ScenarioError(f"{where}.weights: {error}") from error
    return {key: found[key].astype(np.float32) for key in shapes}


def _scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation, as `backend/networks_torch.py` has them."""
    if name.endswith("LayerNorm.weight"):
        return 1.0, 0.1
    if "embeddings" in name and len(shape) == 2:
        return 0.0, 0.02
    return 0.0, 0.02 if len(shape) == 1 else shape[1] ** -0.5


def _mixed(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A permutation of 32-bit numbers (C. Wellons, "hash-prospector", 2018: 16 21f0aaad 15 735a2d97 15)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
    return x ^ (x >> np.uint32(15))


def _seeded(name: str, shape: tuple[int, ...], seed: int) -> Array:
    """Element i is a function of seed, name and i alone: the sum of the four bytes of a mixed number, which is
    approximately normal, to mean and deviation."""
    key = np.uint32(zlib.crc32(f"{seed}/{name}".encode()))
    x = _mixed(_mixed(np.arange(prod(shape), dtype=np.uint32)) ^ key)
    total = x.view(np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.int32) - np.int32(510)
    mean, deviation = _scale(name, shape)
    found = total.astype(np.float32) * np.float32(deviation / _SPREAD)
    return np.asarray(found + np.float32(mean) if mean else found, np.float32).reshape(shape)


def encode(
    name: str,
    sizes: Mapping[str, int],
    weights: Mapping[str, Array],
    input_ids: NDArray[Any],
    attention_mask: NDArray[Any],
) -> Array:
    """Answer of an encoder: both int64 (rows, sequence) to (rows, hidden)."""
    epsilon = np.float32(_PARTS[name][0])
    is_bert = name == "bert_tiny"

    def linear(x: Array, at: str) -> Array:
        return np.asarray(x @ weights[f"{at}.weight"].T + weights[f"{at}.bias"], np.float32)

    def norm(x: Array, at: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        scaled = centred / np.sqrt(variance + epsilon)
        return np.asarray(
            scaled * weights[f"{at}.LayerNorm.weight"] + weights[f"{at}.LayerNorm.bias"], np.float32
        )

    def split(x: Array) -> Array:
        return x.reshape(*x.shape[:2], sizes["heads"], -1).transpose(0, 2, 1, 3)

    n_positions = input_ids.shape[1]
    counted = np.cumsum(attention_mask, axis=1) * attention_mask + 1
    positions = np.arange(n_positions)[None] if is_bert else counted
    x = weights["embeddings.word_embeddings.weight"][input_ids]
    x = x + weights["embeddings.position_embeddings.weight"][positions]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings")
    bias = (np.float32(1) - attention_mask.astype(np.float32))[:, None, None, :] * _MASKED
    scale = np.float32(1 / sqrt(sizes["hidden"] / sizes["heads"]))
    for number in range(sizes["layers"]):
        at = f"encoder.layer.{number}"
        query, key, value = (
            split(linear(x, f"{at}.attention.self.{part}")) for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) * scale + bias
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = (shares @ value).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(linear(mixed, f"{at}.attention.output.dense") + x, f"{at}.attention.output")
        wide = _gelu(linear(x, f"{at}.intermediate.dense"))
        x = norm(linear(wide, f"{at}.output.dense") + x, f"{at}.output")
    if is_bert:
        return np.asarray(np.tanh(linear(x[:, 0], "pooler.dense")), np.float32)
    mask = attention_mask[:, :, None].astype(np.float32)
    mean: NDArray[Any] = (x * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), np.float32(1))
    return np.asarray(
        mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), np.float32(1e-12)), np.float32
    )


def _gelu(x: Array) -> Array:
    """x * (1 + erf(x / sqrt 2)) / 2, erf within 1.5e-7 (Abramowitz and Stegun, 1964, formula 7.1.26)."""
    z = np.abs(x) * np.float32(sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = np.zeros_like(t)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + np.float32(factor)) * t
    return np.asarray(x * (1 + np.sign(x) * (1 - series * np.exp(-z * z))) / 2, np.float32)
