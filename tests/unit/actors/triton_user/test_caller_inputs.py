"""Inputs of a caller's: what is sent of them, and what is refused in words that name it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from squall.actors.triton_user.caller_inputs import held_to
from squall.models.spec import ModelSpec, TensorSpec

X, TEXT, HALF, MASK = (
    TensorSpec("X", "FP32", (4,)),
    TensorSpec("TEXT", "BYTES", (-1,)),
    TensorSpec("HALF", "BF16", (2,)),
    TensorSpec("MASK", "BOOL", (1,), is_optional=True),
)


def spec(*inputs: TensorSpec, most: int = 8) -> ModelSpec:
    return ModelSpec("m", "1", inputs, (TensorSpec("Y", "FP32", (2,)),), most)


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


def test_rows_are_those_of_the_arrays_and_an_optional_input_may_be_missing() -> None:
    x = zeros(3, 4)
    held, rows = held_to(spec(X, MASK), {"X": x})
    assert (list(held), rows) == (["X"], 3)
    assert held["X"] is x, "not copied"
    assert held_to(spec(X, MASK), {"MASK": zeros(2, 1, dtype=bool), "X": zeros(2, 4)}, 2)[1] == 2


def test_a_model_without_batches_has_one_row() -> None:
    assert held_to(spec(X, most=0), {"X": zeros(4)})[1] == 1


def test_texts_are_bytes_of_utf_8_whatever_array_holds_them() -> None:
    for array in (np.array([["é", b"\xff"]], object), np.array([["é", "ab"]]), np.array([[b"ab", b""]])):
        held, _ = held_to(spec(TEXT), {"TEXT": array})
        assert held["TEXT"].dtype == object
        assert held["TEXT"].shape == array.shape
        assert all(isinstance(one, bytes) for one in held["TEXT"].ravel())
    held, _ = held_to(spec(TEXT), {"TEXT": np.array([["é", b"\xff"]], object)})
    assert held["TEXT"].tolist() == [["é".encode(), b"\xff"]]


def test_numbers_of_the_other_byte_order_are_turned() -> None:
    held, _ = held_to(spec(X), {"X": np.arange(4, dtype=">f4").reshape(1, 4)})
    assert held["X"].tobytes() == np.arange(4, dtype="<f4").tobytes()


def test_bf16_is_given_as_upper_halves() -> None:
    halves = np.array([[1, 2]], np.uint16)
    assert_array_equal(held_to(spec(HALF), {"HALF": halves})[0]["HALF"], halves)


@pytest.mark.parametrize(
    ("given", "rows", "why"),
    [
        ({"X": zeros(1, 5)}, 1, "input X is float32 [1, 5], model m takes FP32 [rows, 4] (float32)"),
        ({"X": zeros(4)}, 1, "input X is float32 [4], model m takes FP32 [rows, 4] (float32)"),
        ({"X": zeros(1, 4, dtype=float)}, 1, "input X is float64 [1, 4], model m takes FP32 [rows, 4] (float32)"),
        ({"X": zeros(9, 4)}, 1, "input X is float32 [9, 4], model m takes 1 to 8 rows"),
        ({"X": zeros(0, 4)}, 1, "input X is float32 [0, 4], model m takes 1 to 8 rows"),
        ({"X": [[0.0] * 4]}, 1, "input X is a list, not an array; model m takes FP32 [rows, 4] (float32)"),
        ({"x": zeros(1, 4)}, 1, "model m has no input 'x', it has X, MASK"),
        ({"MASKS": zeros(1, 4)}, 1, "model m has no input 'MASKS', did you mean 'MASK'?"),
        ({"MASK": zeros(1, 1, dtype=bool)}, 1, "input X is missing, model m takes FP32 [rows, 4] (float32)"),
        ({}, 1, "model m: no inputs, a request carries one at least"),
        (
            {"X": zeros(2, 4), "MASK": zeros(1, 1, dtype=bool)}, 1,
            "the inputs of a request to model m have as many rows each, not X 2, MASK 1",
        ),
        ({"X": zeros(2, 4)}, 3, "rows=3, but the inputs have 2 rows"),
    ],
)  # fmt: skip
def test_what_does_not_suit_is_refused_by_name_shape_and_datatype(
    given: dict[str, Any], rows: int, why: str
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        held_to(spec(X, MASK), given, rows)
    assert str(refused.value) == why


@pytest.mark.parametrize(
    ("tensor", "array", "why"),
    [
        (TEXT, zeros(1, 2), "input TEXT is float32 [1, 2], model m takes BYTES [rows, any] (bytes or str)"),
        (
            TEXT, np.array([[1, "a"]], object),
            "input TEXT is object [1, 2], model m takes BYTES [rows, any] (bytes or str)",
        ),
        (
            HALF, zeros(1, 2),
            "input HALF is float32 [1, 2], model m takes BF16 [rows, 2] (the upper halves of float32, as uint16)",
        ),
    ],
)  # fmt: skip
def test_elements_of_another_kind_are_refused(tensor: TensorSpec, array: Any, why: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        held_to(spec(tensor), {tensor.name: array})
    assert str(refused.value) == why
