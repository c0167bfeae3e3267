"""Writes a Triton model repository: config.pbtxt, the backend's code and the weights."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from squall.models.encoders import find_weights
from squall.models.heads import make_weights
from squall.models.spec import ModelSpec, TensorSpec, drawn_parameters, head_of, head_spec
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import ScenarioError, StoreError

_NS_PER_US = 1_000


@dataclass(frozen=True)
class Serving:
    """What config.pbtxt says beside what a scenario says of a model.

    `graph_sizes`: ascending batch sizes for each of which the TensorRT backend captures a CUDA graph; a batch takes the
    graph of the next of them (its `graph_lower_bound` is one row more than the size before), as rows do not depend on
    one another. Without these bounds the backend would take a graph for a batch of its very size only.
    """

    backend: str = "python"  # Triton's name of what executes the model
    parameters: tuple[tuple[str, str], ...] = ()
    priority_levels: int = 0  # of the queue, 0: none; requests that name none are of the middle one
    graph_sizes: tuple[int, ...] = ()
    busy_wait_events: bool = False  # TensorRT polls for the end of a batch, at the price of a busy core
    output_copy_stream: bool = (
        False  # TensorRT copies outputs in a stream of their own, with twice the buffers
    )
    is_accelerated: bool = False  # ONNX Runtime builds a TensorRT plan as it loads


def device_of(model: ModelConfig) -> str:
    """`cpu` or `gpu`; of a model that names neither, the CPU for numpy and a GPU for torch."""
    return model.device or ("gpu" if model.framework == "torch" else "cpu")


def graph_sizes(max_batch_size: int, preferred: Collection[int]) -> tuple[int, ...]:
    """Batch sizes of CUDA graphs, ascending: powers of two below the largest batch, the preferred sizes, itself."""
    powers = {1 << exponent for exponent in range((max_batch_size - 1).bit_length())}
    return tuple(sorted(powers | set(preferred) | {max_batch_size}))


def _quoted(text: str) -> str:
    return json.dumps(text)


def _tensors(kind: str, tensors: Sequence[TensorSpec]) -> str:
    items = ",\n".join(
        f"  {{ name: {_quoted(t.name)}, data_type: TYPE_{t.datatype}, dims: {list(t.dims)} }}"
        for t in tensors
    )
    return f"{kind} [\n{items}\n]\n"


def _dynamic_batching(model: ModelConfig, priority_levels: int) -> str:
    policy = [f"timeout_action: {model.queue.on_timeout.upper()}"]
    if model.queue.timeout_ns:
        policy.append(f"default_timeout_microseconds: {model.queue.timeout_ns // _NS_PER_US}")
    if model.queue.max_size:
        policy.append(f"max_queue_size: {model.queue.max_size}")
    lines = []
    if model.preferred_batch_sizes:
        lines.append(f"preferred_batch_size: {list(model.preferred_batch_sizes)}")
    lines.append(f"max_queue_delay_microseconds: {model.queue_delay_ns // _NS_PER_US}")
    if model.preserve_ordering:
        lines.append("preserve_ordering: true")
    if priority_levels:
        lines.append(f"priority_levels: {priority_levels}")
        lines.append(f"default_priority_level: {(priority_levels + 1) // 2}")
    lines.append(f"default_queue_policy {{ {', '.join(policy)} }}")
    return "dynamic_batching {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def _graph_spec(spec: ModelSpec, rows: int, least_rows: int) -> str:
    inputs = " ".join(
        f"input {{ key: {_quoted(one.name)} value: {{ dim: {list(one.dims)} }} }}" for one in spec.inputs
    )
    return (
        f"    graph_spec {{ batch_size: {rows} {inputs}\n"
        f"      graph_lower_bound {{ batch_size: {least_rows} {inputs} }} }}\n"
    )


def _optimization(spec: ModelSpec, precision: str, serving: Serving) -> str:
    text = ""
    if serving.graph_sizes:
        least = [1, *(size + 1 for size in serving.graph_sizes)]
        text += "    graphs: true\n"
        text += "".join(_graph_spec(spec, *sizes) for sizes in zip(serving.graph_sizes, least, strict=False))
    for name in ("busy_wait_events", "output_copy_stream"):
        text += f"    {name}: true\n" if getattr(serving, name) else ""
    text = f"  cuda {{\n{text}  }}\n" if text else ""
    if serving.is_accelerated:
        text += (
            '  execution_accelerators { gpu_execution_accelerator [ { name: "tensorrt" parameters { '
            f'key: "precision_mode" value: {_quoted(precision.upper())} }} }} ] }}\n'
        )
    return f"optimization {{\n{text}}}\n" if text else ""


def config_pbtxt(spec: ModelSpec, model: ModelConfig, serving: Serving) -> str:
    """The text of config.pbtxt; KIND_GPU puts the instances on every GPU that Triton sees.

    Fields as in triton-inference-server/common, protobuf/model_config.proto; times there are whole microseconds.
    """
    parameters = "".join(
        f"parameters {{ key: {_quoted(key)} value: {{ string_value: {_quoted(value)} }} }}\n"
        for key, value in serving.parameters
    )
    return (
        f"name: {_quoted(spec.name)}\n"
        f"backend: {_quoted(serving.backend)}\n"
        f"max_batch_size: {spec.max_batch_size}\n"
        + _tensors("input", spec.inputs)
        + _tensors("output", spec.outputs)
        + f"instance_group [ {{ count: {model.instances}, kind: KIND_{device_of(model).upper()} }} ]\n"
        + _dynamic_batching(model, serving.priority_levels)
        + _optimization(spec, model.precision, serving)
        + parameters
    )


def refuse_unsuited(name: str, framework: str, weights: str | None, where: str = "model") -> None:
    """Raises ScenarioError where a model of the zoo has no such framework, or is given weights that it cannot have;
    `where`: key path of the model."""
    is_encoder = head_of(name, where).is_encoder
    if is_encoder and framework != "torch":
        raise ScenarioError(f"{where}.framework: {name} is computed by torch alone: set framework: torch")
    if weights is not None and not is_encoder:
        raise ScenarioError(
            f"{where}.weights: those of {name} are seeded (settings.weights_seed), of no file"
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
    """Spec and sizes of a model of the zoo. Raises ScenarioError for an unknown model or size."""
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
    refuse_unsuited(model.name, model.framework, model.weights)
    said: dict[str, object] = {
        "head": model.name,
        **sizes,
        "framework": model.framework,
        "precision": model.precision,
        "cuda_graphs": str(model.cuda_graphs).lower(),
        "pinned": str(model.pinned is not False).lower(),
        "compile": str(model.is_compiled is True).lower(),
    }
    code = ["backend/model.py", f"backend/forward_{model.framework}.py"]
    if model.framework == "torch":
        code.append("backend/networks_torch.py")
    if model.weights is not None:
        said["weights"] = find_weights(model.weights, model.name, sizes)
        code.append("checkpoint.py")
    said |= drawn_parameters(spec)
    if record_dir is not None:
        said["record_dir"] = record_dir
    parameters = tuple((key, str(value)) for key, value in said.items())
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
