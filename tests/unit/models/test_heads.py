"""The reference heads against other formulations, and the code that Triton runs against the reference."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.heads import forward, make_weights
from models.repository import ServingConfig, config_pbtxt, write_repository
from models.spec import HEADS, head_spec

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
    np.testing.assert_allclose(forward("linear_head", w, x_of()), expected, rtol=1e-4, atol=1e-5)


def test_stacked_heads_are_each_head_alone() -> None:
    _, w = weights_of("linear_head_stacked")
    out = forward("linear_head_stacked", w, x_of())
    assert out.shape == (4, 3, 2)
    for k in range(3):
        alone = {"w": w["w"][:, k], "b": w["b"][:, k], "w_out": w["w_out"][k], "b_out": w["b_out"][k]}
        np.testing.assert_array_equal(out[:, k], forward("linear_head", alone, x_of()))


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
    np.testing.assert_allclose(forward("seqlen_head", w, x_of()), expected, rtol=1e-4, atol=1e-4)


def test_layer_norm_gives_mean_zero_and_variance_one() -> None:
    width = 64
    sizes = HEADS["seqlen_head"].sizes({"width": width, "layers": 1, "classes": width, "sequence": 2})
    w = make_weights("seqlen_head", sizes)
    # gain 1, bias 100: nothing is below 0, so that ReLU lets the normalised values through; the output is they
    w |= {"gain": np.ones((1, width), np.float32), "bias": np.full((1, width), 100, np.float32)}
    w |= {"w_out": np.eye(width, dtype=np.float32), "b_out": np.full(width, -100, np.float32)}
    x = np.random.default_rng(1).standard_normal((6, width)).astype(np.float32)
    y = forward("seqlen_head", w, x).astype(float)
    np.testing.assert_allclose(y.mean(axis=1), 0, atol=1e-4)
    np.testing.assert_allclose(y.var(axis=1), 1, atol=1e-3)


@pytest.mark.parametrize("head", HEADS)
def test_weights_are_those_of_their_seed(head: str) -> None:
    sizes, w = weights_of(head)
    again, other = make_weights(head, sizes), make_weights(head, {**sizes, "weights_seed": 2})
    assert all(np.array_equal(w[name], again[name]) for name in w)
    assert not np.array_equal(w["w"], other["w"])
    # N(0, 2 / width): the variance of n draws has a standard error of var sqrt(2 / n)
    variance = 2 / SIZES["width"]
    assert abs(w["w"].var() - variance) < 4 * variance * np.sqrt(2 / w["w"].size)


class Tensor:
    """As much of pb_utils.Tensor as the model uses, on numpy's own DLPack."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, array

    @classmethod
    def from_dlpack(cls, name: str, capsule: Any) -> Tensor:
        return cls(name, np.from_dlpack(_Capsule(capsule)).copy())

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class _Capsule:
    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Request:
    def __init__(self, request_id: str, x: Any) -> None:
        self._id, self.x = request_id, x

    def request_id(self) -> str:
        return self._id


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    utils = types.ModuleType("triton_python_backend_utils")
    utils.Tensor = Tensor  # type: ignore[attr-defined]
    utils.get_input_tensor_by_name = lambda request, name: Tensor(name, request.x)  # type: ignore[attr-defined]
    utils.InferenceResponse = lambda tensors: tensors[0].array  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.setenv("PYTHONPATH", "")
    path = Path(__file__).parents[3] / "models" / "backend" / "model.py"
    spec = importlib.util.spec_from_file_location("served_model", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def served(backend: Any, folder: Path, head: str) -> Any:
    sizes, _ = weights_of(head)
    (folder / "rec").mkdir()
    write_repository(folder, head, "1", sizes, ServingConfig(), folder / "rec")
    parameters = {key: {"string_value": str(value)} for key, value in sizes.items()}
    parameters |= {"head": {"string_value": head}, "record_dir": {"string_value": str(folder / "rec")}}
    model = backend.TritonPythonModel()
    model.initialize(
        {
            "model_config": json.dumps({"parameters": parameters}),
            "model_repository": str(folder / head),
            "model_version": "1",
            "model_instance_name": f"{head}_0",
        }
    )
    return model


@pytest.mark.parametrize("head", HEADS)
def test_the_served_code_gives_the_reference_answer_and_records_the_batch(
    backend: Any, tmp_path: Path, head: str
) -> None:
    model = served(backend, tmp_path, head)
    x = x_of(7)
    parts = (x[:1], x[1:4], x[4:])
    answers = model.execute([Request(f"{i:012d}", part) for i, part in enumerate(parts)])
    model.execute([Request("solo", x[:2])])
    model.finalize()
    assert [len(answer) for answer in answers] == [1, 3, 3]
    _, weights = weights_of(head)
    np.testing.assert_allclose(np.concatenate(answers), forward(head, weights, x), rtol=1e-4, atol=1e-4)
    lines = [json.loads(line) for line in (tmp_path / "rec" / f"{head}_0.jsonl").read_text().splitlines()]
    assert lines[0] == {"instance": f"{head}_0", "pid": os.getpid()}
    assert [(line["b"], line["r"], line["i"]) for line in lines[1:]] == [
        (0, 7, ["000000000000", "000000000001", "000000000002"]), (1, 2, ["solo"])
    ]  # fmt: skip
    assert all(line["s"] < line["e"] for line in lines[1:])


def test_a_full_disk_loses_records_and_no_answer(backend: Any, tmp_path: Path) -> None:
    model = served(backend, tmp_path, "linear_head")
    record = model._record
    whole, record._fd = record._fd, os.open("/dev/full", os.O_WRONLY)
    assert len(model.execute([Request("a", x_of(1))])) == 1
    os.close(record._fd)
    record._fd = whole
    model.execute([Request("b", x_of(1))])
    model.finalize()
    last = json.loads((tmp_path / "rec" / "linear_head_0.jsonl").read_text().splitlines()[-1])
    assert (last["b"], last["i"], last["lost"]) == (1, ["b"], 1)


def test_after_a_line_that_was_cut_the_next_stands_on_its_own(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = backend._Record(str(tmp_path), "i")
    write = os.write
    monkeypatch.setattr(backend.os, "write", lambda fd, data: write(fd, data[:9]))
    record.add(0, 1, 2, 3, ["a"])
    monkeypatch.setattr(backend.os, "write", write)
    record.add(1, 3, 4, 1, ["b"])
    record.add(2, 3, 4, 1, ["c"])
    record.close()
    lines = (tmp_path / "i.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert [json.loads(line)["b"] for line in lines[2:]] == [1, 2]
    assert json.loads(lines[2])["lost"] == 1


CONFIG = """name: "linear_head"
backend: "python"
max_batch_size: 32
input [
  { name: "INPUT", data_type: TYPE_FP32, dims: [16] }
]
output [
  { name: "OUTPUT", data_type: TYPE_FP32, dims: [2] }
]
instance_group [ { count: 2, kind: KIND_CPU } ]
dynamic_batching {
  preferred_batch_size: [4, 8]
  max_queue_delay_microseconds: 2000
  default_queue_policy { timeout_action: DELAY, default_timeout_microseconds: 100000, max_queue_size: 64 }
}
parameters { key: "head" value: { string_value: "a \\"quoted\\" one" } }
"""


def test_config_pbtxt_is_this_text() -> None:
    serving = ServingConfig(2, 32, (4, 8), 2_000_000, 64, 100_000_000, "delay", (("head", 'a "quoted" one'),))
    assert (
        config_pbtxt(head_spec("linear_head", "1", HEADS["linear_head"].sizes(SIZES), 32), serving) == CONFIG
    )


@pytest.mark.parametrize("queue_size", [0, 1, 7])
@pytest.mark.parametrize("delay_ns", [0, 999, 1_000, 5_000_000])
def test_config_pbtxt_states_the_settings_in_tritons_units(queue_size: int, delay_ns: int) -> None:
    spec = head_spec("linear_head", "1", HEADS["linear_head"].sizes(SIZES), 32)
    text = config_pbtxt(spec, ServingConfig(queue_size=queue_size, queue_delay_ns=delay_ns))
    found = {key: int(value) for key, value in re.findall(r"(\w+): (\d+)\b", text)}
    assert found["max_queue_delay_microseconds"] == delay_ns // 1_000
    assert found.get("max_queue_size", 0) == queue_size
    assert "default_timeout_microseconds" not in found
    assert text.count("{") == text.count("}")
