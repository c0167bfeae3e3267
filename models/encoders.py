"""Encoders in numpy: weights from a file or from a seed, and a plain float32 forward pass to check served answers
against. The same networks in PyTorch: `backend/networks_torch.py`.

The layers: Devlin et al., 2019, arXiv:1810.04805 (BERT); Conneau et al., 2020, arXiv:1911.02116 (XLM-RoBERTa).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.models import checkpoint
from squall.models.backend.encoder_weights import seeded, weight_shapes
from squall.models.spec import Dims, Sizes
from squall.scenarios.errors import ScenarioError, placed

Array = NDArray[np.float32]
MOST_CHECKED_WEIGHTS = 60_000_000
"""Of an encoder whose answers numpy still computes on one core: 0.2 s for 50 rows of bert_tiny, some hundred times that
for the large one."""
_EPSILON = {"bert_tiny": np.float32(1e-12), "multilingual_e5_large": np.float32(1e-5)}
"""Of LayerNorm."""
_MASKED = np.float32(-3e4)


def n_weights(name: str, sizes: Sizes) -> int:
    """Of all of them."""
    return sum(map(prod, weight_shapes(name, sizes).values()))


def find_weights(text: str, name: str, sizes: Sizes, where: str = "model") -> Path:
    """The file with the weights that a scenario names (`squall.models.checkpoint.find`), held to the sizes.

    Raises ScenarioError where there is none, where it cannot be read, and where it has other sizes, with the setting
    that would make them fit; `where`: key path of the model.
    """
    with placed(f"{where}.weights", ScenarioError):
        path = checkpoint.find(text, os.environ)
        found = checkpoint.shapes(path)
    others = [f"{key}: {size}" for key, size in _sizes_of(found).items() if size != sizes[key]]
    if others:
        raise ScenarioError(
            f"{where}.weights: {path} is of other sizes: set model.settings to {', '.join(others)}"
        )
    for key, shape in weight_shapes(name, sizes).items():
        if found.get(key) != shape:
            raise ScenarioError(
                f"{where}.weights: {path}: {key} is {found.get(key, 'missing')}, and {shape} in {name} of these"
                " model.settings"
            )
    return path


def _sizes_of(shapes: Mapping[str, Dims]) -> dict[str, int]:
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


def weights_of(name: str, sizes: Sizes, text: str | None) -> dict[str, Array]:
    """Those of the file that `text` names, else seeded ones, in float32. Raises ScenarioError as `find_weights`."""
    shapes = weight_shapes(name, sizes)
    if text is None:
        empty = partial(np.empty, dtype=np.float32)
        return {
            key: seeded(key, shape, sizes["weights_seed"], empty, np.arange) for key, shape in shapes.items()
        }
    path = find_weights(text, name, sizes)
    with placed("model.weights", ScenarioError):
        found = checkpoint.read(path)
    return {key: found[key].astype(np.float32) for key in shapes}


def encode(
    name: str,
    sizes: Sizes,
    weights: Mapping[str, Array],
    input_ids: NDArray[Any],
    attention_mask: NDArray[Any],
) -> Array:
    """Answer of an encoder: both int64 (rows, sequence) to (rows, hidden)."""
    is_bert = name == "bert_tiny"

    def linear(x: Array, at: str) -> Array:
        return np.asarray(x @ weights[f"{at}.weight"].T + weights[f"{at}.bias"], np.float32)

    def norm(x: Array, at: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        scaled = centred / np.sqrt(variance + _EPSILON[name])
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
