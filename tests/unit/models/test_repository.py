"""The model repository that is written: config.pbtxt of every backend, read by the protobuf that Triton's clients have
of its configuration, and the files of a version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from squall.models.repository import Serving, config_pbtxt, graph_sizes, write_repository, zoo_spec
from squall.scenarios.config.models import ModelConfig

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
HEAD = {"name": "linear_head", "settings": {"width": 16, "layers": 3, "classes": 2}}
ENCODER = {
    "name": "bert_tiny",
    "framework": "torch",
    "settings": {"hidden": 32, "layers": 1, "vocabulary": 40, "positions": 20, "sequence": 12},
}
ON_GPU = {"framework": "torch", "device": "gpu"}


def text_of(keys: dict[str, Any], **serving: Any) -> str:
    model = ModelConfig.model_validate(keys)
    return config_pbtxt(zoo_spec(model)[0], model, Serving(**serving))


def parsed(keys: dict[str, Any], **serving: Any) -> Any:
    """Raises where a field is not one of Triton's."""
    return text_format.Parse(text_of(keys, **serving), model_config_pb2.ModelConfig())


def test_config_pbtxt_is_this_text() -> None:
    queue = {"max_size": 64, "timeout": "100ms", "on_timeout": "delay"}
    keys = {"instances": 2, "preferred_batch_sizes": [4, 8], "queue_delay": "2ms", "queue": queue}
    assert text_of({**HEAD, **keys}, parameters=(("head", 'a "quoted" one'),)) == CONFIG


@pytest.mark.parametrize("keys", [HEAD, ENCODER], ids=["head", "encoder"])
@pytest.mark.parametrize("backend", ["python", "onnxruntime", "tensorrt"])
def test_each_backend_has_the_tensors_and_the_queue_that_were_asked_for(
    keys: dict[str, Any], backend: str
) -> None:
    queue = {"max_size": 20_480, "timeout": "120s", "on_timeout": "delay"}
    asked = {
        **keys, **ON_GPU, "instances": 4, "max_batch_size": 64, "preferred_batch_sizes": [16, 64],
        "queue_delay": "500us", "queue": queue, "preserve_ordering": True,
    }  # fmt: skip
    config = parsed(asked, backend=backend, priority_levels=3, parameters=(("threads", "1"),))
    spec, _ = zoo_spec(ModelConfig.model_validate(asked))
    assert (config.backend, config.name, config.max_batch_size) == (backend, keys["name"], 64)
    for told, tensors in ((config.input, spec.inputs), (config.output, spec.outputs)):
        found = [(one.name, model_config_pb2.DataType.Name(one.data_type), tuple(one.dims)) for one in told]
        assert found == [(one.name, f"TYPE_{one.datatype}", one.dims) for one in tensors]
    (group,) = config.instance_group
    assert (group.count, group.kind) == (4, model_config_pb2.ModelInstanceGroup.KIND_GPU)
    batching = config.dynamic_batching
    assert list(batching.preferred_batch_size) == [16, 64]
    assert (batching.max_queue_delay_microseconds, batching.preserve_ordering) == (500, True)
    assert (batching.priority_levels, batching.default_priority_level) == (3, 2)
    policy = batching.default_queue_policy
    assert policy.timeout_action == model_config_pb2.ModelQueuePolicy.DELAY
    assert (policy.default_timeout_microseconds, policy.max_queue_size) == (120_000_000, 20_480)
    assert config.parameters["threads"].string_value == "1"
    assert not config.HasField("optimization")


def test_every_batch_has_one_cuda_graph_and_it_is_the_next_larger() -> None:
    sizes = graph_sizes(50, (12,))
    assert sizes == (1, 2, 4, 8, 12, 16, 32, 50)
    config = parsed(
        {**ENCODER, **ON_GPU}, backend="tensorrt", graph_sizes=sizes, busy_wait_events=True, output_copy_stream=True
    )  # fmt: skip
    cuda = config.optimization.cuda
    assert (cuda.graphs, cuda.busy_wait_events, cuda.output_copy_stream) == (True, True, True)
    ranges = [(one.graph_lower_bound.batch_size, one.batch_size) for one in cuda.graph_spec]
    for rows in range(1, 51):
        assert [high for low, high in ranges if low <= rows <= high] == [
            min(size for size in sizes if size >= rows)
        ]
    for one in cuda.graph_spec:  # the backend wants the dims of both ends, without the batch
        assert {key: list(value.dim) for key, value in one.input.items()} == {
            "input_ids": [12], "attention_mask": [12]
        }  # fmt: skip
        assert one.graph_lower_bound.input == one.input


def test_an_accelerator_of_onnx_runtime_has_its_precision() -> None:
    config = parsed({**HEAD, **ON_GPU, "precision": "fp16"}, backend="onnxruntime", is_accelerated=True)
    (one,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (one.name, dict(one.parameters)) == ("tensorrt", {"precision_mode": "FP16"})
    assert not config.optimization.HasField("cuda")


@pytest.mark.parametrize(
    ("keys", "parameters"),
    [
        ({}, "numpy fp32 false true false"),
        (
            {"framework": "torch", "precision": "fp16", "cuda_graphs": True},
            "torch fp16 true true false",
        ),
        ({"framework": "torch", "pinned": False, "compile": True}, "torch fp32 false false true"),
    ],
)
def test_what_computes_a_head_is_what_the_scenario_says(
    tmp_path: Path, keys: dict[str, object], parameters: str
) -> None:
    model = ModelConfig.model_validate({**HEAD, **keys})
    write_repository(tmp_path, model, None)
    assert {path.name for path in (tmp_path / "linear_head" / "1").iterdir()} == {
        "model.py", "weights.npz", f"forward_{model.framework}.py",
        *(["networks_torch.py"] if model.framework == "torch" else []),
    }  # fmt: skip
    text = (tmp_path / "linear_head" / "config.pbtxt").read_text()
    found = dict(re.findall(r'key: "(\w+)" value: { string_value: "(.*)" }', text))
    names = ("framework", "precision", "cuda_graphs", "pinned", "compile")
    assert [found[name] for name in names] == parameters.split()
    assert ("KIND_GPU" in text) == (model.framework == "torch")
