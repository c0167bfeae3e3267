"""Reference networks: seeded weights and a plain float32 forward pass, to check served answers against.

Linear layers draw from N(0, 2 / fan_in), so that ReLU keeps the variance of activations over any depth
(He et al., ICCV 2015, arXiv:1502.01852, section 2.2). LayerNorm: (x - mean) / sqrt(var + 1e-5) * gain + bias over
the last axis (Ba et al., 2016, arXiv:1607.06450).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
LAYER_NORM_EPSILON = 1e-5


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


def forward(head: str, weights: Mapping[str, Array], x: Array) -> Array:
    """Answer of a head: x (rows, width) to (rows, classes), for linear_head_stacked (rows, heads, classes)."""
    if head == "seqlen_head":
        return _forward_sequence(weights, x)
    if head == "linear_head_stacked":
        n_heads = weights["w"].shape[1]
        return np.stack([_forward_linear(_pick_head(weights, k), x) for k in range(n_heads)], axis=1)
    return _forward_linear(weights, x)


def _pick_head(weights: Mapping[str, Array], k: int) -> dict[str, Array]:
    return {
        "w": weights["w"][:, k], "b": weights["b"][:, k], "w_out": weights["w_out"][k], "b_out": weights["b_out"][k]
    }  # fmt: skip


def _forward_linear(weights: Mapping[str, Array], x: Array) -> Array:
    for w, b in zip(weights["w"], weights["b"], strict=True):
        x = np.maximum(x @ w + b, 0)
    return x @ weights["w_out"] + weights["b_out"]


def _forward_sequence(weights: Mapping[str, Array], x: Array) -> Array:
    y = np.repeat(x[:, None, :], len(weights["position"]), axis=1) + weights["position"]
    for w, b, gain, bias in zip(weights["w"], weights["b"], weights["gain"], weights["bias"], strict=True):
        y = y @ w + b
        centred = y - y.mean(axis=-1, keepdims=True)
        variance = np.mean(centred**2, axis=-1, keepdims=True)
        y = np.maximum(centred / np.sqrt(variance + np.float32(LAYER_NORM_EPSILON)) * gain + bias, 0)
    return np.asarray(y[:, 0, :] @ weights["w_out"] + weights["b_out"], np.float32)
