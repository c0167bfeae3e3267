from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from squall.models.made import make_inputs
from squall.models.payload import NUMPY, n_written, read_tensor, write_tensor
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.inputs import InputConfig
from squall.scenarios.errors import ScenarioError
from tests.unit.models.cases import cases

IDS = TensorSpec("input_ids", "INT64", (-1,))
MASK = TensorSpec("attention_mask", "INT64", (-1,))
TEXT = TensorSpec("TEXT", "BYTES", (1,))
LAW = {"kind": "uniform", "low": 3, "high": 40}


def spec_of(*inputs: TensorSpec, max_batch_size: int = 8) -> ModelSpec:
    return ModelSpec("m", "1", inputs, (TensorSpec("OUT", "FP32", (2,)),), max_batch_size)


def made_of(**how: dict[str, Any]) -> dict[str, InputConfig]:
    return TypeAdapter(dict[str, InputConfig]).validate_python(how)


def made_one(datatype: str, dims: tuple[int, ...], how: dict[str, Any], rows: int = 1) -> Any:
    return make_inputs(spec_of(TensorSpec("A", datatype, dims)), rows, 0, 7, made=made_of(A=how))["A"]


def test_open_sizes_follow_their_law_and_inputs_that_share_them_have_the_same() -> None:
    made = made_of(
        input_ids={"sizes": LAW, "low": 0, "high": 30_521},
        attention_mask={"like": "input_ids", "low": 1, "high": 1},
    )
    inputs = [make_inputs(spec_of(IDS, MASK), 2, variant, 7, made=made) for variant in range(2_000)]
    lengths = np.array([one["input_ids"].shape[1] for one in inputs])
    assert all(one["attention_mask"].shape == one["input_ids"].shape for one in inputs)
    assert all((one["attention_mask"] == 1).all() for one in inputs)
    counts = np.bincount(lengths, minlength=41)[3:]
    # 38 values, 2,000 draws: chi-square above 80 has a probability of 5e-5 with 37 degrees of freedom
    assert ((counts - 2_000 / 38) ** 2 / (2_000 / 38)).sum() < 80
    tokens = np.concatenate([one["input_ids"].ravel() for one in inputs])
    assert (tokens.min(), tokens.dtype) >= (0, np.dtype(np.int64))
    assert 30_400 < tokens.max() <= 30_521


def test_a_variants_sizes_do_not_depend_on_its_rows_nor_on_other_inputs() -> None:
    made = made_of(input_ids={"sizes": LAW})
    sizes = {make_inputs(spec_of(IDS), rows, 5, 7, made=made)["input_ids"].shape[1] for rows in (1, 2, 8)}
    beside = make_inputs(spec_of(TEXT, IDS), 1, 5, 7, made=made)["input_ids"].shape[1]
    assert sizes == {beside}
    assert make_inputs(spec_of(IDS), 3, 5, 7, made=made)["input_ids"].shape[0] == 3


def test_text_has_the_length_asked_for_and_travels_with_it_in_front() -> None:
    array = made_one("BYTES", (2,), {"length": LAW}, rows=3)
    assert array.shape == (3, 2)
    text: list[bytes] = array.ravel().tolist()
    assert all(3 <= len(one) <= 40 for one in text)
    assert set(b"".join(text)) <= set(b"abcdefghijklmnopqrstuvwxyz ")
    assert len({len(one) for one in text}) > 1
    assert write_tensor(array)[: 4 + len(text[0])] == len(text[0]).to_bytes(4, "little") + text[0]
    assert {len(one) for one in made_one("BYTES", (2,), {}).ravel().tolist()} == {16}


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_any_bytes_come_back(elements: list[bytes]) -> None:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    data = write_tensor(array)
    assert read_tensor("BYTES", (len(elements),), data).tolist() == elements
    assert n_written(array) == len(data)


@pytest.mark.parametrize("data", [b"\x01", b"\x05\x00\x00\x00abc", b"\x00\x00\x00\x00x"])
def test_bytes_that_are_cut_off_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="cut off"):
        read_tensor("BYTES", (1,), data)


@pytest.mark.parametrize(("datatype", "low", "high"), [
    ("FP32", -2.5, 2.5), ("FP16", 0, 1), ("INT8", -128, 127), ("UINT8", 0, 255), ("INT32", 7, 7),
])  # fmt: skip
def test_numbers_keep_their_range(datatype: str, low: float, high: float) -> None:
    values = made_one(datatype, (400,), {"low": low, "high": high}, rows=4)
    assert low <= values.min()
    assert values.max() <= high
    # of 1,600 draws the least and the largest are within 1 % of the ends but for a probability of 2e-7
    assert float(values.max()) - float(values.min()) >= 0.98 * (high - low) - 1


@pytest.mark.parametrize("datatype", ["INT8", "INT32", "UINT64"])
def test_integers_follow_their_law(datatype: str) -> None:
    """Zipf over 100 words of a vocabulary: the first comes as often as it should within 4 standard errors."""
    values = made_one(datatype, (10_000,), {"values": {"kind": "zipf", "exponent": 1, "max": 100}})
    assert values.dtype == NUMPY[datatype]
    assert values.min() == 1
    assert values.max() <= 100
    share = 1 / sum(1 / k for k in range(1, 101))
    assert abs(np.mean(values == 1) - share) < 4 * np.sqrt(share * (1 - share) / values.size)
    assert set(made_one(datatype, (100,), {"values": 7}).ravel()) == {7}


def test_text_is_drawn_from_its_words() -> None:
    words = ["red", "grün", "a b"]
    values = made_one("BYTES", (2, 300), {"words": words}, rows=4)
    assert values.shape == (4, 2, 300)
    counts = Counter(values.ravel().tolist())
    assert set(counts) == {word.encode() for word in words}
    assert all(abs(n - 800) < 4 * np.sqrt(2_400 / 3 * 2 / 3) for n in counts.values())


def test_without_how_inputs_are_what_they_were() -> None:
    spec = spec_of(TensorSpec("A", "FP32", (4,)), TensorSpec("B", "INT32", (2,)))
    plain = make_inputs(spec, 2, 1, 5)
    rng = np.random.default_rng(np.random.SeedSequence([5, 2, 1]))
    assert np.array_equal(plain["A"], rng.standard_normal((2, 4), np.float32))
    assert np.array_equal(plain["B"], rng.integers(0, 100, (2, 2)))


HINT = TensorSpec("hint", "INT32", (-1,), is_optional=True)


def test_an_optional_input_is_in_its_share_of_the_variants_whatever_the_rows() -> None:
    made = made_of(input_ids={"sizes": LAW}, hint={"like": "input_ids", "present": 0.3})
    spec, n = spec_of(IDS, HINT), 2_000
    carriers = {
        rows: [v for v in range(n) if "hint" in make_inputs(spec, rows, v, 7, made=made)] for rows in (1, 3)
    }
    assert carriers[1] == carriers[3]
    # a binomial share of 2,000: 4 standard errors are 4 sqrt(0.3 * 0.7 / 2,000)
    assert abs(len(carriers[1]) / n - 0.3) < 4 * np.sqrt(0.3 * 0.7 / n)
    one = make_inputs(spec, 2, carriers[1][0], 7, made=made)
    assert one["hint"].shape == one["input_ids"].shape
    others = [v for v in range(n) if "hint" in make_inputs(spec, 1, v, 8, made=made)]
    assert others != carriers[1]


def test_an_optional_input_is_there_where_it_is_asked_for() -> None:
    spec = spec_of(TEXT, HINT)
    assert set(make_inputs(spec, 1, 0, 7, {"hint": (2,)})) == {"TEXT"}
    assert set(make_inputs(spec, 1, 0, 7, made=made_of(hint={"sizes": 2}))) == {"TEXT", "hint"}
    alone = spec_of(replace(HINT, dims=(2,)))
    assert set(make_inputs(alone, 1, 0, 7)) == {"hint"}, "a request carries one input at least"
    for variant in range(50):
        assert set(make_inputs(spec, 1, variant, 7, made=made_of(hint={"present": 0}))) == {"TEXT"}
        always = made_of(hint={"sizes": 3, "present": 1})
        assert set(make_inputs(spec, 1, variant, 7, made=always)) == {"TEXT", "hint"}


def test_a_variant_without_an_input_still_needs_its_size() -> None:
    for variant in range(20):
        with pytest.raises(ScenarioError, match=r"model\.shapes\.hint: model m leaves the size open"):
            make_inputs(spec_of(TEXT, HINT), 1, variant, 7, made=made_of(hint={"present": 0.1}))


B = TensorSpec("B", "FP32", (-1, 5))


@pytest.mark.parametrize(("tensor", "how", "text"), cases("test_what_does_not_suit_the_model_is_one_line"))
def test_what_does_not_suit_the_model_is_one_line(tensor: list[Any], how: dict[str, Any], text: str) -> None:
    name, datatype, *dims = tensor
    given = TensorSpec(name, datatype, tuple(dims), is_optional=name == "hint")
    with pytest.raises(ScenarioError) as caught:
        make_inputs(spec_of(given), 1, 0, 1, made=made_of(**how))
    assert str(caught.value).startswith(f"clients.inputs{text if text[0] == ':' else f'.{text}'}")


@pytest.mark.parametrize(
    ("shapes", "expected"), cases("test_a_size_that_is_left_open_is_stated_as_the_model_takes_it")
)
def test_a_size_that_is_left_open_is_stated_as_the_model_takes_it(
    shapes: dict[str, list[int]], expected: Any
) -> None:
    def made() -> list[list[int]]:
        given = {name: tuple(dims) for name, dims in shapes.items()}
        return [list(array.shape) for array in make_inputs(spec_of(IDS, B), 2, 0, 1, given).values()]

    if not isinstance(expected, str):
        assert made() == expected
        return
    with pytest.raises(ScenarioError) as caught:
        made()
    assert str(caught.value).startswith(f"model.shapes.{expected}")
