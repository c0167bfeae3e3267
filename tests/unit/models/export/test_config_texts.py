"""config.pbtxt of every backend, read by the protobuf that Triton's clients have of its configuration."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from squall.models.export.repositories import graph_sizes
from squall.models.repository import ComputeConfig, Optimization, ServingConfig, config_pbtxt
from squall.models.spec import HEADS, ModelSpec, TensorSpec, head_spec
from squall.scenarios.errors import ScenarioError

HEAD = head_spec("linear_head", "1", HEADS["linear_head"].sizes({"width": 16}), 64)
TOKENS = tuple(TensorSpec(name, "INT64", (12,)) for name in ("input_ids", "attention_mask"))
ENCODER = ModelSpec("bert_tiny", "1", TOKENS, (TensorSpec("OUTPUT", "FP32", (32,)),), 64)
ON_GPU = ComputeConfig("torch", "gpu")


def parsed(spec: ModelSpec, **serving: Any) -> Any:
    """Raises where a field is not one of Triton's."""
    text = config_pbtxt(spec, ServingConfig(max_batch_size=spec.max_batch_size, **serving))
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize("spec", [HEAD, ENCODER], ids=lambda spec: spec.name)
@pytest.mark.parametrize("backend", ["python", "onnxruntime", "tensorrt"])
def test_each_backend_has_the_tensors_and_the_queue_that_were_asked_for(
    spec: ModelSpec, backend: str
) -> None:
    config = parsed(
        spec, backend=backend, compute=ON_GPU, instances=4, preferred_batch_sizes=(16, 64),
        queue_delay_ns=500_000, queue_size=20_480, queue_timeout_ns=120 * 10**9, on_timeout="delay",
        preserve_ordering=True, priority_levels=3, parameters=(("intra_op_thread_count", "1"),),
    )  # fmt: skip
    assert (config.backend, config.name, config.max_batch_size) == (backend, spec.name, 64)
    for told, wanted in ((config.input, spec.inputs), (config.output, spec.outputs)):
        found = [(one.name, model_config_pb2.DataType.Name(one.data_type), tuple(one.dims)) for one in told]
        assert found == [(one.name, f"TYPE_{one.datatype}", one.dims) for one in wanted]
    (group,) = config.instance_group
    assert (group.count, group.kind) == (4, model_config_pb2.ModelInstanceGroup.KIND_GPU)
    batching = config.dynamic_batching
    assert list(batching.preferred_batch_size) == [16, 64]
    assert (batching.max_queue_delay_microseconds, batching.preserve_ordering) == (500, True)
    assert (batching.priority_levels, batching.default_priority_level) == (3, 2)
    policy = batching.default_queue_policy
    assert policy.timeout_action == model_config_pb2.ModelQueuePolicy.DELAY
    assert (policy.default_timeout_microseconds, policy.max_queue_size) == (120_000_000, 20_480)
    assert config.parameters["intra_op_thread_count"].string_value == "1"
    assert not config.HasField("optimization")


def test_every_batch_has_one_cuda_graph_and_it_is_the_next_larger() -> None:
    sizes = graph_sizes(50, (12,))
    assert sizes == (1, 2, 4, 8, 12, 16, 32, 50)
    config = parsed(
        ENCODER, backend="tensorrt", compute=ON_GPU,
        optimization=Optimization(sizes, busy_wait_events=True, output_copy_stream=True),
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


@pytest.mark.parametrize(
    ("largest", "preferred"), [(1, ()), (2, (2,)), (64, (64, 3)), (2048, (512, 1024, 2000))]
)
def test_graph_sizes_ascend_from_1_to_the_largest_batch(largest: int, preferred: tuple[int, ...]) -> None:
    sizes = graph_sizes(largest, preferred)
    assert list(sizes) == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, largest)
    assert set(preferred) <= set(sizes)


def test_an_accelerator_of_onnx_runtime_has_its_parameters() -> None:
    own = Optimization(accelerator="tensorrt", accelerator_parameters=(("precision_mode", "FP16"),))
    config = parsed(HEAD, backend="onnxruntime", compute=ON_GPU, optimization=own)
    (one,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (one.name, dict(one.parameters)) == ("tensorrt", {"precision_mode": "FP16"})
    assert not config.optimization.HasField("cuda")


@pytest.mark.parametrize(
    ("serving", "why"),
    [
        (
            {"optimization": Optimization(graph_sizes=(1, 32))},
            "TensorRT backend alone: leave them out, or use it",
        ),
        (
            {"backend": "onnxruntime", "optimization": Optimization(busy_wait_events=True)},
            "instead of onnxruntime",
        ),
        (
            {"backend": "tensorrt", "optimization": Optimization(accelerator="tensorrt")},
            "use backend onnxruntime and",
        ),
        ({"backend": "onnxruntime", "optimization": Optimization(accelerator="tensorrt")}, "and device gpu"),
        ({"preferred_batch_sizes": (4, 33)}, "preferred batch size 33 is above the largest batch, 32 rows"),
    ],
)
def test_what_a_backend_does_not_take_is_refused(serving: dict[str, Any], why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        ServingConfig(**serving)
