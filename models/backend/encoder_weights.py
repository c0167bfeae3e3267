"""Names and shapes of the weights of encoders, and seeded ones, for NumPy and PyTorch alike. Copied beside
forward_torch.py into the version folder, which loads it from there.

Names are those of Hugging Face's checkpoints (`encoder.layer.0.attention.self.query.weight`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

_SPREAD = (4 * (256**2 - 1) / 12) ** 0.5
"""Standard deviation of the sum of four uniform bytes, whose mean is 510: approximately normal, within 3.5 of these."""
_CHUNK = 1 << 24  # weights made at a time, for the memory of the integers in between


Shapes = dict[str, tuple[int, ...]]


def weight_shapes(name: str, sizes: Mapping[str, int]) -> Shapes:
    """The shape of every weight of an encoder by its name; a matrix is (out, in)."""
    hidden, wide = sizes["hidden"], sizes["intermediate"]
    is_bert = name == "bert_tiny"  # which has two token types, and a pooler

    def norm(at: str) -> Shapes:
        return {f"{at}.LayerNorm.weight": (hidden,), f"{at}.LayerNorm.bias": (hidden,)}

    def linear(at: str, n_in: int, n_out: int) -> Shapes:
        return {f"{at}.weight": (n_out, n_in), f"{at}.bias": (n_out,)}

    found: Shapes = {
        "embeddings.word_embeddings.weight": (sizes["vocabulary"], hidden),
        "embeddings.position_embeddings.weight": (sizes["positions"], hidden),
        "embeddings.token_type_embeddings.weight": (2 if is_bert else 1, hidden),
        **norm("embeddings"),
    }
    for number in range(sizes["layers"]):
        at = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            found |= linear(f"{at}.attention.self.{part}", hidden, hidden)
        found |= linear(f"{at}.attention.output.dense", hidden, hidden) | norm(f"{at}.attention.output")
        found |= linear(f"{at}.intermediate.dense", hidden, wide)
        found |= linear(f"{at}.output.dense", wide, hidden) | norm(f"{at}.output")
    return found | (linear("pooler.dense", hidden, hidden) if is_bert else {})


def seeded(
    name: str,
    shape: tuple[int, ...],
    seed: int,
    empty: Callable[[int], Any],
    arange: Callable[[int, int], Any],
) -> Any:
    """A seeded weight in float32. Element i is a function of seed, name and i alone: the same in NumPy and PyTorch, on
    every device, in any order. `empty`: makes an array of so many float32, `arange`: one of int64 from the first number
    to below the last."""
    mean, deviation = _mean_and_deviation(name, shape)
    key = zlib.crc32(f"{seed}/{name}".encode())
    found = empty(prod(shape))
    for first in range(0, len(found), _CHUNK):
        part = found[first : first + _CHUNK]
        x = _mixed(_mixed(arange(first, first + len(part))) ^ key)
        part[:] = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24) - 510
    found *= deviation / _SPREAD
    found += mean
    return found.reshape(shape)


def _mean_and_deviation(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Products keep the variance of what goes in, whatever the width; gains and biases are no ones and zeros, or an
    answer without them would be right."""
    if name.endswith("LayerNorm.weight"):
        return 1.0, 0.1
    is_matrix = len(shape) == 2 and "embeddings" not in name
    return 0.0, shape[1] ** -0.5 if is_matrix else 0.02


def _mixed(x: Any) -> Any:
    """A permutation of 32-bit numbers without visible order (C. Wellons, "hash-prospector", 2018: 16 21f0aaad 15
    735a2d97 15), in int64: no product exceeds 63 bits."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)
