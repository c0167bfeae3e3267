"""The model repository that is written: config.pbtxt of every backend, read by the protobuf that Triton's clients have
of its configuration, and the files of a version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from squall.models.encoders import weights_of
from squall.models.repository import Serving, config_pbtxt, graph_sizes, write_repository, zoo_spec
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import ScenarioError
from tests.unit.models.test_checkpoint import write_safetensors
from tests.unit.models.test_encoders import SMALL, small_sizes

HEAD = {"name": "linear_head", "settings": {"width": 16, "layers": 3, "classes": 2}}
ENCODER = {"name": "bert_tiny", "framework": "torch", "settings": SMALL}
ON_GPU = {"framework": "torch", "device": "gpu"}


def parsed(text: str) -> Any:
    """Raises where a field is not one of Triton's."""
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def config_of(keys: dict[str, Any], **serving: Any) -> Any:
    model = ModelConfig.model_validate(keys)
    return parsed(config_pbtxt(zoo_spec(model)[0], model, Serving(**serving)))


def parameters_of(folder: Path) -> dict[str, str]:
    """Those of the configuration that was written to the folder of a model."""
    config = parsed((folder / "config.pbtxt").read_text())
    return {key: value.string_value for key, value in config.parameters.items()}


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
    config = config_of(asked, backend=backend, priority_levels=3, parameters={"threads": 'a "quoted" one'})
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
    assert config.parameters["threads"].string_value == 'a "quoted" one'
    assert not config.HasField("optimization")


def test_what_is_not_asked_for_is_tritons_default() -> None:
    config = config_of(HEAD)
    assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_CPU
    policy = model_config_pb2.ModelQueuePolicy()
    assert config.dynamic_batching == model_config_pb2.ModelDynamicBatching(default_queue_policy=policy)


def test_every_batch_has_one_cuda_graph_and_it_is_the_next_larger() -> None:
    sizes = graph_sizes(50, (12,))
    assert sizes == (1, 2, 4, 8, 12, 16, 32, 50)
    assert (graph_sizes(1, ()), graph_sizes(2, ())) == ((1,), (1, 2))
    config = config_of(
        {**ENCODER, **ON_GPU}, backend="tensorrt", graph_sizes=sizes, busy_wait_events=True, output_copy_stream=True
    )  # fmt: skip
    cuda = config.optimization.cuda
    assert (cuda.graphs, cuda.busy_wait_events, cuda.output_copy_stream) == (True, True, True)
    ranges = [(one.graph_lower_bound.batch_size, one.batch_size) for one in cuda.graph_spec]
    for rows in range(1, 51):
        fits = [high for low, high in ranges if low <= rows <= high]
        assert fits == [min(size for size in sizes if size >= rows)]
    for one in cuda.graph_spec:  # the backend wants the dims of both ends, without the batch
        dims = {key: list(value.dim) for key, value in one.input.items()}
        assert dims == {"input_ids": [12], "attention_mask": [12]}
        assert one.graph_lower_bound.input == one.input


def test_an_accelerator_of_onnx_runtime_has_its_precision() -> None:
    config = config_of({**HEAD, **ON_GPU, "precision": "fp16"}, backend="onnxruntime", is_accelerated=True)
    (one,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (one.name, dict(one.parameters)) == ("tensorrt", {"precision_mode": "FP16"})
    assert not config.optimization.HasField("cuda")


TORCH = {"forward_torch.py", "networks_torch.py"}
HALF = {"framework": "torch", "precision": "fp16", "cuda_graphs": True, "preferred_batch_sizes": [5]}
PAGED = {"framework": "torch", "pinned": False, "compile": True}


@pytest.mark.parametrize(
    ("keys", "code", "computed"),
    [
        (HEAD, {"heads.py", "weights.npz"}, ["fp32", False, [1, 2, 4, 8, 16, 32], True, False]),
        (HEAD | HALF, TORCH | {"weights.npz"}, ["fp16", True, [1, 2, 4, 5, 8, 16, 32], True, False]),
        (HEAD | PAGED, TORCH | {"weights.npz"}, ["fp32", False, [1, 2, 4, 8, 16, 32], False, True]),
        (ENCODER, TORCH, ["fp32", False, [1, 2, 4, 8, 16, 32], True, False]),
    ],
)
def test_what_computes_a_model_is_what_the_scenario_says(
    tmp_path: Path, keys: dict[str, Any], code: set[str], computed: list[Any]
) -> None:
    model = ModelConfig.model_validate(keys)
    write_repository(tmp_path, model, None)
    folder = tmp_path / model.name
    assert {path.name for path in (folder / "1").iterdir()} == {"model.py", *code}
    parameters = parameters_of(folder)
    assert json.loads(parameters.pop("forward")) == {
        "head": model.name, "sizes": zoo_spec(model)[1],
        **dict(zip(("precision", "cuda_graphs", "batch_sizes", "is_pinned", "is_compiled"), computed, strict=True)),
    }  # fmt: skip
    drawn = {"drawn.input_ids": "5 119", "drawn.attention_mask": "1 1"} if keys is ENCODER else {}
    assert parameters == {"framework": model.framework, **drawn}


def test_the_weights_of_an_encoder_are_read_where_they_are(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    write_safetensors(file, weights_of("bert_tiny", small_sizes("bert_tiny"), None))
    model = ModelConfig.model_validate({**ENCODER, "version": "2", "weights": str(tmp_path)})
    write_repository(tmp_path, model, tmp_path / "rec")
    files = {path.name for path in (tmp_path / "bert_tiny" / "2").iterdir()}
    assert files == {"model.py", "checkpoint.py", *TORCH}
    parameters = parameters_of(tmp_path / "bert_tiny")
    assert (parameters["weights"], parameters["record_dir"]) == (str(file), str(tmp_path / "rec"))


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"framework": "numpy"}, "model.framework: bert_tiny is computed by torch alone: set framework: torch"),
        ({"name": "linear_head", "settings": {}, "weights": "x"}, "model.weights: those of linear_head are seeded"),
        ({"weights": "/nowhere/at/all"}, "model.weights: /nowhere/at/all: no such file or folder"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_have_is_refused(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        write_repository(tmp_path, ModelConfig.model_validate({**ENCODER, **keys}), None)
