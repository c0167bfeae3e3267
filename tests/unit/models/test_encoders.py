"""The encoders: their sizes, their weights, numpy against the module of PyTorch, and what no encoder may be."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.models.backend import encoder_weights
from squall.models.encoders import encode, find_weights, n_weights, weights_of
from squall.models.made import make_inputs
from squall.models.reference import answers_to, made_requests, refuse_large
from squall.models.spec import ENCODERS, ModelSpec, drawn_parameters, head_spec
from squall.scenarios.errors import ScenarioError
from tests.unit.models.test_checkpoint import write_safetensors

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
SMALL = {
    "hidden": 32, "layers": 2, "heads": 4, "intermediate": 64, "vocabulary": 120, "positions": 20, "sequence": 12,
}  # fmt: skip
N_WEIGHTS = {"bert_tiny": 4_385_920, "multilingual_e5_large": 558_840_832}
"""The second without the pooler of its checkpoint, 1024 * 1024 + 1024, which no answer uses: 559,890,432 with it."""


def inputs_of(sizes: dict[str, int], rows: int = 6) -> tuple[Any, Any]:
    """Token ids, and masks of several lengths, one of a single token."""
    ids = np.random.default_rng(5).integers(5, sizes["vocabulary"], (rows, sizes["sequence"]))
    lengths = [sizes["sequence"], 1, *range(2, rows)]
    mask = (np.arange(sizes["sequence"]) < np.array(lengths)[:, None]).astype(np.int64)
    return ids, mask


def small_sizes(name: str, **settings: int) -> dict[str, int]:
    return ENCODERS[name].sizes({**SMALL, **settings})


def module_of(name: str, sizes: dict[str, int]) -> Any:
    """The network in PyTorch, with seeded weights: code of Triton's, and untyped."""
    import torch

    networks = importlib.import_module("squall.models.backend.networks_torch")
    weights = weights_of(name, sizes, None)
    return networks.Network(name, sizes, {key: torch.from_numpy(one) for key, one in weights.items()})


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_has_the_weights_of_its_architecture(name: str) -> None:
    assert n_weights(name, ENCODERS[name].sizes({})) == N_WEIGHTS[name]


@needs_torch
@pytest.mark.parametrize("name", ENCODERS)
def test_seeded_weights_are_the_same_in_numpy_and_in_torch_at_once_and_in_pieces(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    sizes = small_sizes(name)
    expected = weights_of(name, sizes, None)
    monkeypatch.setattr(encoder_weights, "_CHUNK", 100)
    for key, array in expected.items():
        found = encoder_weights.seeded(key, array.shape, 1, torch.empty, torch.arange)
        np.testing.assert_array_equal(found.numpy(), array, err_msg=key)
    others = weights_of(name, small_sizes(name, weights_seed=2), None)
    assert all((others[key] != array).mean() > 0.9 for key, array in expected.items())


def test_seeded_weights_have_the_spread_that_keeps_the_variance() -> None:
    weights = weights_of("bert_tiny", ENCODERS["bert_tiny"].sizes({}), None)
    expected = {
        "embeddings.word_embeddings.weight": (0.0, 0.02),
        "encoder.layer.1.output.dense.weight": (0.0, 512**-0.5),
        "encoder.layer.0.attention.self.key.weight": (0.0, 128**-0.5),
        "embeddings.LayerNorm.weight": (1.0, 0.1),
    }
    for key, (mean, deviation) in expected.items():
        array = weights[key].astype(np.float64)
        error = deviation / np.sqrt(
            array.size
        )  # of a mean of n draws; of a deviation of them 0.71 of it, if normal
        assert abs(array.mean() - mean) < 5 * error, key
        assert abs(array.std() - deviation) < 5 * error, key


@needs_torch
@pytest.mark.parametrize("name", ENCODERS)
def test_numpy_computes_what_the_module_computes(name: str) -> None:
    import torch

    sizes = small_sizes(name)
    ids, mask = inputs_of(sizes)
    with torch.inference_mode():
        found = module_of(name, sizes)(torch.from_numpy(ids), torch.from_numpy(mask))
    assert found.dtype == torch.float32
    expected = encode(name, sizes, weights_of(name, sizes, None), ids, mask)
    assert expected.dtype == np.float32
    assert expected.shape == (6, 32)
    np.testing.assert_allclose(
        found.numpy(), expected, rtol=1e-4, atol=2e-6
    )  # float32 rounds to 6e-8, 30 sums deep


@pytest.mark.parametrize("name", ENCODERS)
def test_answers_depend_on_every_token_and_on_none_that_is_masked(name: str) -> None:
    sizes = small_sizes(name)
    weights = weights_of(name, sizes, None)
    ids, mask = inputs_of(sizes, 2)
    mask[:] = 1
    mask[:, 8:] = 0
    answer = encode(name, sizes, weights, ids, mask)
    scale = np.sqrt(np.mean(answer**2))
    assert np.abs(answer[0] - answer[1]).max() > 0.5 * scale, "rows are told apart"
    for position in range(sizes["sequence"]):
        changed = ids.copy()
        changed[0, position] = 5 + (changed[0, position] + 31) % 100
        step = np.abs(encode(name, sizes, weights, changed, mask)[0] - answer[0]).max() / scale
        assert (step > 2e-2) == (position < 8), f"position {position}: {step}"


def test_the_large_encoder_gives_vectors_of_length_one() -> None:
    sizes = small_sizes("multilingual_e5_large")
    ids, mask = inputs_of(sizes)
    answer = encode(
        "multilingual_e5_large", sizes, weights_of("multilingual_e5_large", sizes, None), ids, mask
    )
    np.testing.assert_allclose(np.linalg.norm(answer, axis=1), 1, rtol=1e-5)


def test_a_running_server_tells_which_numbers_to_make() -> None:
    spec = head_spec("bert_tiny", "1", small_sizes("bert_tiny"), 8)
    parameters = drawn_parameters(spec)
    tensors = [{"name": one.name, "data_type": "TYPE_INT64", "dims": list(one.dims)} for one in spec.inputs]
    config = {
        "name": "bert_tiny", "max_batch_size": 8, "input": tensors, "output": [],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }  # fmt: skip
    assert [one.drawn for one in ModelSpec.from_config(config, "1").inputs] == [(5, 119), (1, 1)]
    ids, mask = (
        np.concatenate(one)
        for one in zip(*(make_inputs(spec, 8, i, 1).values() for i in range(20)), strict=True)
    )
    assert (ids.min(), ids.max(), mask.min(), mask.max()) == (5, 119, 1, 1)
    config["parameters"] = {"drawn.input_ids": {"string_value": "9 3"}, "drawn.attention_mask": {}}
    assert [one.drawn for one in ModelSpec.from_config(config, "1").inputs] == [None, None]


def test_right_answers_of_the_large_encoder_are_refused_in_one_line() -> None:
    sizes = ENCODERS["multilingual_e5_large"].sizes({})
    with pytest.raises(
        ScenarioError, match=r"^clients.check: multilingual_e5_large has 559 million weights, too many"
    ):
        refuse_large("multilingual_e5_large", sizes)
    refuse_large("bert_tiny", ENCODERS["bert_tiny"].sizes({}))
    refuse_large("multilingual_e5_large", small_sizes("multilingual_e5_large"))
    refuse_large("seqlen_head", {})


def test_weights_of_other_sizes_are_told_with_the_settings_to_change(tmp_path: Path) -> None:
    sizes = small_sizes("bert_tiny")
    weights = weights_of("bert_tiny", sizes, None)
    file = tmp_path / "model.safetensors"
    write_safetensors(file, {f"bert.{key}": array for key, array in weights.items()})
    assert find_weights(str(tmp_path), "bert_tiny", sizes) == file.resolve()
    others = {**sizes, "layers": 3, "vocabulary": 99, "intermediate": 8}
    with pytest.raises(
        ScenarioError, match=r"set model.settings to vocabulary: 120, intermediate: 64, layers: 2$"
    ):
        find_weights(str(file), "bert_tiny", others)
    del weights["pooler.dense.bias"]
    write_safetensors(file, weights)
    with pytest.raises(
        ScenarioError, match=r"models.x.weights: .*: pooler.dense.bias is missing, and \(32,\) in bert_tiny"
    ):
        find_weights(str(file), "bert_tiny", sizes, "models.x")
    weights["pooler.dense.bias"] = np.zeros(3, np.float32)
    write_safetensors(file, weights)
    with pytest.raises(
        ScenarioError, match=r"pooler.dense.bias is \(3,\), and \(32,\) in bert_tiny of these"
    ):
        find_weights(str(file), "bert_tiny", sizes)


@pytest.mark.parametrize("is_of_file", [True, False])
def test_right_answers_come_from_the_weights_that_are_served(tmp_path: Path, is_of_file: bool) -> None:
    sizes = small_sizes("bert_tiny")
    own = weights_of("bert_tiny", {**sizes, "weights_seed": 9 if is_of_file else 1}, None)
    write_safetensors(tmp_path / "model.safetensors", {f"bert.{key}": array for key, array in own.items()})
    spec = head_spec("bert_tiny", "1", sizes, 8)
    ((_, _, inputs),) = requests = list(made_requests(spec, [(2, 0)], 7))
    found = answers_to(spec, SMALL, requests, str(tmp_path) if is_of_file else None)[2, 0]["OUTPUT"]
    expected = encode("bert_tiny", sizes, own, inputs["input_ids"], inputs["attention_mask"])
    np.testing.assert_array_equal(found, expected)
