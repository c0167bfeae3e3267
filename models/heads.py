"""The heads in numpy: seeded weights and the float32 forward pass, which served answers are checked against. Copied
beside model.py as it is, which serves it where the framework is numpy, so it imports nothing of ours.

Linear layers draw from N(0, 2 / fan_in), so that ReLU keeps the variance of activations over any depth
(He et al., ICCV 2015, arXiv:1502.01852, section 2.2). LayerNorm: (x - mean) / sqrt(var + 1e-5) * gain + bias over
the last axis (Ba et al., 2016, arXiv:1607.06450).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
_EPSILON = np.float32(1e-5)


def make_weights(head: str, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Weights of a head, the same for the same sizes and `weights_seed`.

    `w` (layers, [heads,] width, width), `b` (layers, [heads,] width), `w_out` ([heads,] width, classes), `b_out`;
    seqlen_head also `gain`, `bias` (layers, width) and `position` (sequence, width).
    """
    rng = np.random.default_rng(sizes["weights_seed"])
    width, layers, classes = sizes["width"], sizes["layers"], sizes["classes"]
    lead = (sizes["heads"],) if "heads" in sizes else ()

    def normal(*shape: int, scale: float) -> Array:
        return (rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)).astype(np.float32)

    he = float(np.sqrt(2.0 / width))
    weights = {
        "w": normal(layers, *lead, width, width, scale=he),
        "b": normal(layers, *lead, width, scale=0.01),
        "w_out": normal(*lead, width, classes, scale=he),
        "b_out": normal(*lead, classes, scale=0.01),
    }
    if head == "seqlen_head":
        weights["gain"] = 1 + normal(layers, width, scale=0.1)
        weights["bias"] = normal(layers, width, scale=0.1)
        weights["position"] = normal(sizes["sequence"], width, scale=0.1)
    return weights


def forward(weights: Mapping[str, Array], x: Array) -> Array:
    """Answer of the head that has these weights: x (rows, width) to (rows, classes), of linear_head_stacked to
    (rows, heads, classes)."""
    is_sequence = "position" in weights
    if is_sequence:
        x = x[:, None, :] + weights["position"]
    for layer, (w, b) in enumerate(zip(weights["w"], weights["b"][..., None, :], strict=True)):
        x = x @ w + b
        if is_sequence:
            x -= x.mean(axis=-1, keepdims=True)
            x /= np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + _EPSILON)
            x = x * weights["gain"][layer] + weights["bias"][layer]
        np.maximum(x, 0.0, out=x)
    if is_sequence:
        x = x[:, 0, :]
    out = x @ weights["w_out"] + weights["b_out"][..., None, :]  # of several heads: (heads, rows, classes)
    return np.ascontiguousarray(out.swapaxes(0, -2))


class Forward:
    """Called with the inputs of a batch, here of INPUT alone the arrays of its requests, float32 (rows, width) each;
    returns float32 (all rows, ...), in their order. Takes what torch's does, of which it needs the weights alone."""

    def __init__(self, weights: Mapping[str, Array], **_: Any) -> None:
        self._weights = weights

    def __call__(self, columns: Sequence[Sequence[Array]]) -> Array:
        return forward(self._weights, np.concatenate(columns[0]))
