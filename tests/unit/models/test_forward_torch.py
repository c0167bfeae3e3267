"""What serves a model in PyTorch: the check before load, batches of several inputs, and what a GPU has no room for."""

from __future__ import annotations

import importlib
import importlib.util
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.models.encoders import encode, weights_of
from squall.models.heads import make_weights
from squall.models.spec import ENCODERS, ZOO
from tests.unit.models.test_encoders import N_WEIGHTS, SMALL, inputs_of, module_of, small_sizes

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
HEAD_SIZES = {"width": 16, "layers": 3}
BUCKETS = [1, 2, 4, 8, 12]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "models" / "backend")  # of the files beside it
    return importlib.import_module("squall.models.backend.forward_torch")  # code of Triton's, and untyped


def made(served: Any, name: str, precision: str = "fp32", **options: Any) -> Any:
    is_encoder = ZOO[name].is_encoder
    sizes = ZOO[name].sizes(SMALL if is_encoder else HEAD_SIZES)
    weights = None if is_encoder else make_weights(name, sizes)
    options |= {"precision": precision, "cuda_graphs": False, "batch_sizes": BUCKETS}
    return served.Forward(name, sizes, weights, None, **options)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ENCODERS)
def test_requests_of_several_inputs_are_answered_in_their_order(
    served: Any, name: str, precision: str
) -> None:
    network = made(served, name, precision)
    sizes = small_sizes(name)
    ids, mask = inputs_of(sizes)
    cuts = [slice(0, 1), slice(1, 4), slice(4, 6)]
    found = network([[ids[cut] for cut in cuts], [mask[cut] for cut in cuts]])
    expected = encode(name, sizes, weights_of(name, sizes, None), ids, mask)
    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    assert served.networks.difference(found, expected, *served._TOLERANCE[precision]) < 1


@pytest.mark.parametrize("ids", [[-1, 5], [5, 120]])
def test_tokens_beyond_the_vocabulary_are_refused_and_the_next_batch_is_served(
    served: Any, ids: list[int]
) -> None:
    network = made(served, "bert_tiny")
    wrong = np.resize(np.array(ids), (2, 12))
    with pytest.raises(ValueError, match=r"input_ids has -?\d+ to \d+, and the vocabulary is 0 to 119"):
        network([[wrong], [np.ones_like(wrong)]])
    right = np.full((2, 12), 119)
    assert np.isfinite(network([[right], [np.ones_like(right)]])).all()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ZOO)
def test_a_model_whose_served_weights_are_wrong_does_not_load(
    served: Any, monkeypatch: pytest.MonkeyPatch, name: str, precision: str
) -> None:
    made(served, name, precision)  # else it loads

    def one_off(module: Any) -> Any:
        """One matrix of an encoder's many is lost, one class of a head."""
        if ZOO[name].is_encoder:
            module.get_parameter("encoder/layer/0/output/dense/weight").data.zero_()
        else:
            module.get_parameter("w_out").data[..., 0].zero_()
        return module.prepared()

    monkeypatch.setattr(served.Forward, "_served", staticmethod(one_off))
    with pytest.raises(
        RuntimeError, match=rf"{name}: what is to be served in {precision} differs .* by \d.* times"
    ):
        made(served, name, precision)


def test_a_difference_is_in_parts_of_what_is_allowed(served: Any) -> None:
    expected = np.array([[3.0, 0.0, -4.0]], np.float32)
    rms = np.sqrt(25 / 3)
    for place, step, parts in (
        (1, 0.99e-4 * rms, 0.99),
        (2, 2 * (4e-3 + 1e-4 * rms), 2),
        (0, np.nan, np.nan),
    ):
        found = expected.copy()
        found[0, place] += step
        share = served.networks.difference(found, expected, 1e-3, 1e-4)
        assert share == pytest.approx(parts, rel=1e-3, nan_ok=True)
    assert served.networks.difference(expected, expected, 1e-3, 1e-4) == 0
    assert served.networks.difference(expected * 1e-3, expected * 0, 0, 1e-3, 4.0) == pytest.approx(1)
    wrong: list[Any] = [expected[:, :1], expected.astype(np.int64), expected + np.float32(np.inf)]
    assert [served.networks.difference(one, expected, 1e-3, 1e-4) for one in wrong] == [np.inf] * 3


def test_batches_through_the_buffers_of_a_gpu_are_gathered_and_given_back_in_their_order(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffers lie in the memory of the host here: all of it but the copies' asynchrony."""
    import torch

    stream = types.SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: stream)
    sizes = small_sizes("bert_tiny")
    network = module_of("bert_tiny", sizes).prepared()
    examples = served.networks.examples(sizes, 12)
    batch = served._GpuBatch(network, torch.device("cpu"), 12, examples, (32,), False)
    ids, mask = inputs_of(sizes)
    seen: list[int] = []
    with torch.inference_mode():
        found = batch([[ids[:4], ids[4:]], [mask[:4], mask[4:]]], lambda own: seen.append(len(own)))
        again = batch([[ids[:2]], [mask[:2]]], None)
    expected = encode("bert_tiny", sizes, weights_of("bert_tiny", sizes, None), ids, mask)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(again, expected[:2], rtol=1e-4, atol=2e-6)
    assert seen == [6]


@pytest.mark.parametrize(
    "error",
    ["CUDA out of memory. Tried", "CUDA error: out of memory\nCUDA kernel", "x CUBLAS_STATUS_ALLOC_FAILED"],
)
def test_a_gpu_without_room_is_one_line_with_the_mend(
    served: Any, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    import torch

    def used_up(*_: Any, **__: Any) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(served, "_device_of", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr(served.Forward, "_load", used_up)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2 << 30, 80 << 30))
    with pytest.raises(RuntimeError) as caught:
        made(served, "bert_tiny")
    assert str(caught.value) == (
        "bert_tiny: the memory of the GPU is used up, and 2.0 of 80.0 GiB of GPU 0 are free: use fewer model.instances,"
        " a smaller model.max_batch_size, or model.precision: fp16"
    )


def test_too_large_a_model_is_refused_before_it_takes_memory(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    sizes = ENCODERS["multilingual_e5_large"].sizes({})
    device, examples = torch.device("cuda", 1), served.networks.examples(sizes, 8)
    n_weights = N_WEIGHTS["multilingual_e5_large"]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2 << 30, 80 << 30))
    with pytest.raises(
        RuntimeError, match=r"an instance takes about 2\.1 GiB for batches of 8 rows, and 2\.0 of 80\.0"
    ):
        served._refuse_little("multilingual_e5_large", sizes, n_weights, device, 8, examples, "fp16")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 << 30, 80 << 30))
    served._refuse_little("multilingual_e5_large", sizes, n_weights, device, 8, examples, "fp16")
