"""Writes a Triton model repository: config.pbtxt, the backend's code and the weights."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np

from squall.models.encoders import find_weights
from squall.models.heads import make_weights
from squall.models.spec import Dims, ModelSpec, TensorSpec, drawn_parameters, head_of, head_spec
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import ScenarioError, StoreError

_NS_PER_US = 1_000
_FORWARD = {
    "numpy": ["heads.py"],
    "torch": ["backend/forward_torch.py", "backend/networks_torch.py", "backend/encoder_weights.py"],
}
"""Files with the forward pass, by framework; model.py loads the first."""


@dataclass(frozen=True)
class Serving:
    """What config.pbtxt says beside what a scenario says of a model.

    `graph_sizes`: ascending batch sizes for each of which the TensorRT backend captures a CUDA graph; a batch takes the
    graph of the next of them (its `graph_lower_bound` is one row more than the size before), as rows do not depend on
    one another. Without these bounds the backend would take a graph for a batch of its very size only.
    """

    backend: str = "python"  # Triton's name of what executes the model
    parameters: Mapping[str, str] = field(default_factory=dict)
    priority_levels: int = 0  # of the queue, 0: none; requests that name none are of the middle one
    graph_sizes: Dims = ()
    busy_wait_events: bool = False  # TensorRT polls for the end of a batch, at the price of a busy core
    output_copy_stream: bool = (
        False  # TensorRT copies outputs in a stream of their own, with twice the buffers
    )
    is_accelerated: bool = False  # ONNX Runtime builds a TensorRT plan as it loads


def device_of(model: ModelConfig) -> str:
    """`cpu` or `gpu`; of a model that names neither, the CPU for numpy and a GPU for torch."""
    return model.device or ("gpu" if model.framework == "torch" else "cpu")


def graph_sizes(max_batch_size: int, preferred: Collection[int]) -> Dims:
    """Batch sizes of CUDA graphs, ascending: powers of two below the largest batch, the preferred sizes, itself."""
    powers = {1 << exponent for exponent in range((max_batch_size - 1).bit_length())}
    return tuple(sorted(powers | set(preferred) | {max_batch_size}))


def _tensors(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(
        f'{{ name: "{t.name}", data_type: TYPE_{t.datatype}, dims: {list(t.dims)} }}' for t in tensors
    )


def _optimization(spec: ModelSpec, precision: str, serving: Serving) -> str:
    inputs = " ".join(f'input {{ key: "{t.name}" value: {{ dim: {list(t.dims)} }} }}' for t in spec.inputs)
    cuda = [
        f"graph_spec {{ batch_size: {rows} {inputs} graph_lower_bound {{ batch_size: {less + 1} {inputs} }} }}"
        for less, rows in pairwise((0, *serving.graph_sizes))
    ]
    cuda += ["graphs: true"] if cuda else []
    cuda += ["busy_wait_events: true"] if serving.busy_wait_events else []
    cuda += ["output_copy_stream: true"] if serving.output_copy_stream else []
    lines = ["cuda {", *cuda, "}"] if cuda else []
    if serving.is_accelerated:
        parameters = f'parameters {{ key: "precision_mode" value: "{precision.upper()}" }}'
        lines.append(
            f'execution_accelerators {{ gpu_execution_accelerator {{ name: "tensorrt" {parameters} }} }}'
        )
    return "\n".join(["optimization {", *lines, "}\n"] if lines else [])


def config_pbtxt(spec: ModelSpec, model: ModelConfig, serving: Serving) -> str:
    """The text of config.pbtxt; KIND_GPU puts the instances on every GPU that Triton sees.

    Fields as in triton-inference-server/common, protobuf/model_config.proto; times there are whole microseconds, and 0
    stands for what is not set.
    """
    queue, levels = model.queue, serving.priority_levels
    parameters = "".join(
        f"parameters {{ key: {json.dumps(key)} value: {{ string_value: {json.dumps(value)} }} }}\n"
        for key, value in serving.parameters.items()
    )
    return f"""name: "{spec.name}"
backend: "{serving.backend}"
max_batch_size: {spec.max_batch_size}
input [ {_tensors(spec.inputs)} ]
output [ {_tensors(spec.outputs)} ]
instance_group [ {{ count: {model.instances}, kind: KIND_{device_of(model).upper()} }} ]
dynamic_batching {{
  preferred_batch_size: {list(model.preferred_batch_sizes)}
  max_queue_delay_microseconds: {model.queue_delay_ns // _NS_PER_US}
  preserve_ordering: {str(model.preserve_ordering is True).lower()}
  priority_levels: {levels}
  default_priority_level: {(levels + 1) // 2}
  default_queue_policy {{
    timeout_action: {queue.on_timeout.upper()}
    default_timeout_microseconds: {queue.timeout_ns // _NS_PER_US}
    max_queue_size: {queue.max_size}
  }}
}}
{_optimization(spec, model.precision, serving)}{parameters}"""


def refuse_unsuited(model: ModelConfig, where: str = "model") -> None:
    """Raises ScenarioError where a model of the zoo has no such framework, or is given weights that it cannot have;
    `where`: key path of the model."""
    is_encoder = head_of(model.name, where).is_encoder
    if is_encoder and model.framework != "torch":
        raise ScenarioError(
            f"{where}.framework: {model.name} is computed by torch alone: set framework: torch"
        )
    if model.weights is not None and not is_encoder:
        raise ScenarioError(
            f"{where}.weights: those of {model.name} are seeded (settings.weights_seed), of no file"
        )


HOOK_FILE = "squall_batches.py"
"""The file that records the batches of a Python model beside whose model.py it is."""
_NO_FOLDER = 'FOLDER = ""\n'


def hook_source(folder: Path) -> str:
    """The text of HOOK_FILE with `folder` in it, which needs no variable in the server's environment then."""
    text = resources.files("squall.models.backend").joinpath(HOOK_FILE).read_text(encoding="utf-8")
    assert text.count(_NO_FOLDER) == 1
    return text.replace(_NO_FOLDER, f"FOLDER = {json.dumps(str(folder))}\n")


def zoo_spec(model: ModelConfig) -> tuple[ModelSpec, dict[str, int]]:
    """Spec and sizes of a model of the zoo. Raises ScenarioError for an unknown model or size, and for a framework or
    weights that the model cannot have."""
    refuse_unsuited(model)
    sizes = head_of(model.name).sizes(model.settings)
    return head_spec(model.name, model.version or "1", sizes, model.max_batch_size), sizes


def write_repository(
    folder: Path, model: ModelConfig, record_dir: Path | None, priority_levels: int = 0
) -> ModelSpec:
    """Writes `folder/NAME/config.pbtxt` and, to `folder/NAME/VERSION`, model.py and the forward pass of the framework,
    for a model of the zoo; of a head its weights.npz. An encoder's weights are read by each instance from the file that
    `model.weights` names (`squall.models.checkpoint.find`), or made by it: there may be gigabytes of them.

    `record_dir`: where each instance appends its batch records; None records nothing. Raises ScenarioError for an
    unknown model or size, for a framework or weights that the model cannot have, StoreError where the folder cannot be
    written.
    """
    spec, sizes = zoo_spec(model)
    forward = {
        "head": model.name,
        "sizes": sizes,
        "precision": model.precision,
        "cuda_graphs": model.cuda_graphs,
        "batch_sizes": graph_sizes(model.max_batch_size, model.preferred_batch_sizes),
        "is_pinned": model.pinned is not False,
        "is_compiled": model.is_compiled is True,
    }
    parameters = {"framework": model.framework, "forward": json.dumps(forward), **drawn_parameters(spec)}
    code = ["backend/model.py", *_FORWARD[model.framework]]
    if model.weights is not None:
        parameters["weights"] = str(find_weights(model.weights, model.name, sizes))
        code.append("checkpoint.py")
    if record_dir is not None:
        parameters["record_dir"] = str(record_dir)
    version = folder / spec.name / spec.version
    try:
        version.mkdir(parents=True, exist_ok=True)
        config = config_pbtxt(spec, model, Serving(parameters=parameters, priority_levels=priority_levels))
        (folder / spec.name / "config.pbtxt").write_text(config)
        for file in map(resources.files("squall.models").joinpath, code):
            (version / file.name).write_bytes(file.read_bytes())
        if not head_of(model.name).is_encoder:
            with (version / "weights.npz").open("wb") as stream:
                np.savez(stream, allow_pickle=False, **make_weights(model.name, sizes))
    except OSError as error:
        raise StoreError(f"cannot write the model repository {folder}: {error.strerror}") from error
    return spec
