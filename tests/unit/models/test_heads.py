"""The reference heads against other formulations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from squall.models.heads import forward, make_weights
from squall.models.spec import HEADS

SIZES = {"width": 16, "layers": 3, "classes": 2}


def weights_of(head: str) -> tuple[dict[str, int], dict[str, Any]]:
    extra = {"linear_head": {}, "linear_head_stacked": {"heads": 3}, "seqlen_head": {"sequence": 5}}[head]
    sizes = HEADS[head].sizes({**SIZES, **extra})
    return sizes, make_weights(head, sizes)


def x_of(rows: int = 4) -> Any:
    return np.random.default_rng(2).standard_normal((rows, SIZES["width"])).astype(np.float32)


def test_linear_head_is_its_formula_in_double_precision() -> None:
    _, w = weights_of("linear_head")
    y = x_of().astype(float)
    for layer in range(SIZES["layers"]):
        y = np.clip(np.einsum("ri,io->ro", y, w["w"][layer]) + w["b"][layer], 0, None)
    expected = np.einsum("ri,io->ro", y, w["w_out"]) + w["b_out"]
    np.testing.assert_allclose(forward(w, x_of()), expected, rtol=1e-4, atol=1e-5)


def test_stacked_heads_are_each_head_alone() -> None:
    _, w = weights_of("linear_head_stacked")
    out = forward(w, x_of())
    assert out.shape == (4, 3, 2)
    for k in range(3):
        alone = {"w": w["w"][:, k], "b": w["b"][:, k], "w_out": w["w_out"][k], "b_out": w["b_out"][k]}
        np.testing.assert_array_equal(out[:, k], forward(alone, x_of()))


def test_sequence_head_is_its_formula_position_by_position() -> None:
    _, w = weights_of("seqlen_head")
    expected = []
    for row in x_of().astype(float):
        at = row + w["position"][0]  # no layer mixes positions, and only the first is read
        for layer in range(SIZES["layers"]):
            at = np.einsum("i,io->o", at, w["w"][layer]) + w["b"][layer]
            at = (at - at.mean()) / np.sqrt(at.var() + 1e-5)
            at = np.clip(at * w["gain"][layer] + w["bias"][layer], 0, None)
        expected.append(np.einsum("i,io->o", at, w["w_out"]) + w["b_out"])
    np.testing.assert_allclose(forward(w, x_of()), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_weights_are_those_of_their_seed(head: str) -> None:
    sizes, w = weights_of(head)
    again, other = make_weights(head, sizes), make_weights(head, {**sizes, "weights_seed": 2})
    assert all(np.array_equal(w[name], again[name]) for name in w)
    assert not np.array_equal(w["w"], other["w"])
    # N(0, 2 / width): the variance of n draws has a standard error of var sqrt(2 / n)
    variance = 2 / SIZES["width"]
    assert abs(w["w"].var() - variance) < 4 * variance * np.sqrt(2 / w["w"].size)
