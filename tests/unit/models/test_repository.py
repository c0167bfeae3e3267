"""The model repository that is written: config.pbtxt and the files of a version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from squall.models.repository import ComputeConfig, ServingConfig, config_pbtxt, write_repository
from squall.models.spec import HEADS, head_spec
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import ScenarioError

SIZES = {"width": 16, "layers": 3, "classes": 2}
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


def test_instances_are_on_every_gpu_where_the_head_is_computed_on_gpus() -> None:
    spec = head_spec("linear_head", "1", HEADS["linear_head"].sizes(SIZES), 32)
    serving = ServingConfig(instances=3, compute=ComputeConfig("torch", "gpu"))
    assert "instance_group [ { count: 3, kind: KIND_GPU } ]\n" in config_pbtxt(spec, serving)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ComputeConfig("numpy", "cpu", "fp32", False)),
        ({"framework": "torch"}, ComputeConfig("torch", "gpu", "fp32", False)),
        (
            {"framework": "torch", "precision": "fp16", "cuda_graphs": True},
            ComputeConfig("torch", "gpu", "fp16", True),
        ),
        (
            {"framework": "torch", "device": "cpu", "precision": "fp16"},
            ComputeConfig("torch", "cpu", "fp16", False),
        ),
        (
            {"framework": "torch", "pinned": False, "compile": True},
            ComputeConfig("torch", "gpu", is_pinned=False, is_compiled=True),
        ),
    ],
)
def test_what_computes_a_head_is_what_the_scenario_says(
    tmp_path: Path, keys: dict[str, object], expected: ComputeConfig
) -> None:
    compute = ComputeConfig.of(ModelConfig.model_validate({"name": "linear_head", **keys}))
    assert compute == expected
    write_repository(tmp_path, "linear_head", "1", SIZES, ServingConfig(compute=compute), None)
    assert {path.name for path in (tmp_path / "linear_head" / "1").iterdir()} == {
        "model.py", "weights.npz", f"forward_{compute.framework}.py",
        *(["networks_torch.py"] if compute.framework == "torch" else []),
    }  # fmt: skip
    text = (tmp_path / "linear_head" / "config.pbtxt").read_text()
    parameters = dict(re.findall(r'key: "(\w+)" value: { string_value: "(.*)" }', text))
    assert (parameters["framework"], parameters["precision"]) == (compute.framework, compute.precision)
    assert parameters["cuda_graphs"] == ("true" if compute.cuda_graphs else "false")
    assert parameters["pinned"] == ("true" if compute.is_pinned else "false")
    assert parameters["compile"] == ("true" if compute.is_compiled else "false")


@pytest.mark.parametrize(
    ("compute", "why"),
    [
        (("jax", "cpu"), "framework: 'jax' is not one of numpy, torch"),
        (("torch", "tpu"), "device: 'tpu' is not one of cpu, gpu"),
        (("torch", "gpu", "bf16"), "precision: 'bf16' is not one of fp32, fp16"),
        (("numpy", "gpu"), "framework numpy computes in fp32 on the CPU: use framework torch"),
        (("numpy", "cpu", "fp16"), "framework numpy computes in fp32 on the CPU: use framework torch"),
        (("numpy", "cpu", "fp32", True), "cuda_graphs needs framework torch on a GPU"),
        (("torch", "cpu", "fp32", True), "cuda_graphs needs framework torch on a GPU"),
        (("torch", "cpu", "fp32", False, False), "pinned: false needs framework torch on a GPU"),
        (("numpy", "cpu", "fp32", False, True, True), "compile needs framework torch"),
    ],
)
def test_what_does_not_fit_is_refused(compute: tuple[str, ...], why: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        ComputeConfig(*compute)  # type: ignore[arg-type]
    assert str(caught.value) == why
