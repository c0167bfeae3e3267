"""Writes a Triton model repository: config.pbtxt from typed settings, the backend's code and the weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

import numpy as np

from squall.models.encoders import find_weights
from squall.models.heads import make_weights
from squall.models.spec import ModelSpec, TensorSpec, drawn_parameters, head_of, head_spec
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import ScenarioError, StoreError

_NS_PER_US = 1_000
_CHOICES = {"framework": ("numpy", "torch"), "device": ("cpu", "gpu"), "precision": ("fp32", "fp16")}


@dataclass(frozen=True)
class ComputeConfig:
    """What computes a model of the zoo: framework numpy or torch, on device cpu or gpu, in precision fp32 or fp16.

    `cuda_graphs`: torch on a GPU replays one CUDA graph per batch size. `is_pinned`: its buffers on the host are
    page-locked. `is_compiled`: by torch.compile. Raises ScenarioError for what does not fit.
    """

    framework: str = "numpy"
    device: str = "cpu"
    precision: str = "fp32"
    cuda_graphs: bool = False
    is_pinned: bool = True
    is_compiled: bool = False

    def __post_init__(self) -> None:
        for key, allowed in _CHOICES.items():
            if getattr(self, key) not in allowed:
                raise ScenarioError(f"{key}: {getattr(self, key)!r} is not one of {', '.join(allowed)}")
        if self.framework == "numpy" and (self.device, self.precision) != ("cpu", "fp32"):
            raise ScenarioError("framework numpy computes in fp32 on the CPU: use framework torch")
        if self.cuda_graphs and (self.framework, self.device) != ("torch", "gpu"):
            raise ScenarioError("cuda_graphs needs framework torch on a GPU")
        if not self.is_pinned and (self.framework, self.device) != ("torch", "gpu"):
            raise ScenarioError("pinned: false needs framework torch on a GPU")
        if self.is_compiled and self.framework != "torch":
            raise ScenarioError("compile needs framework torch")

    @classmethod
    def of(cls, model: ModelConfig) -> ComputeConfig:
        """As the scenario says."""
        device = device_of(model.framework, model.device)
        return cls(
            model.framework, device, model.precision, model.cuda_graphs,
            is_pinned=model.pinned is not False, is_compiled=model.is_compiled is True,
        )  # fmt: skip


def device_of(framework: str, device: str | None) -> str:
    """`device`; where that names none, the CPU for numpy and a GPU for torch."""
    return device or ("gpu" if framework == "torch" else "cpu")


@dataclass(frozen=True)
class Optimization:
    """Section `optimization` of config.pbtxt.

    `graph_sizes`: ascending batch sizes for each of which the TensorRT backend captures a CUDA graph; a batch takes the
    graph of the next of them (its `graph_lower_bound` is one row more than the size before), as rows do not depend on
    one another. Without these bounds the backend would take a graph for a batch of its very size only.
    `busy_wait_events`: the backend polls for the end of a batch, at the price of a busy core. `output_copy_stream`:
    outputs are copied in a stream of their own, with twice the buffers. `accelerator`: of the ONNX Runtime backend on a
    GPU, `cuda` or `tensorrt`, with `accelerator_parameters`.
    """

    graph_sizes: tuple[int, ...] = ()
    busy_wait_events: bool = False
    output_copy_stream: bool = False
    accelerator: str = ""
    accelerator_parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ServingConfig:
    """How Triton serves a model. Times in ns (config.pbtxt has whole microseconds), 0 queue size means unbounded.

    `on_timeout`: what the scheduler does with a request that waited longer than `queue_timeout_ns` (0: no limit):
    "reject" answers it with an error, "delay" lets it wait until others are served. `instances`: on GPUs, of each GPU.
    `preserve_ordering`: answers leave in the order in which requests came. `priority_levels`: of the queue, 0: none;
    requests that name none are of the middle one. `backend`: Triton's name of what executes it. Raises ScenarioError
    for what the backend does not take.
    """

    instances: int = 1
    max_batch_size: int = 32
    preferred_batch_sizes: tuple[int, ...] = ()
    queue_delay_ns: int = 0
    queue_size: int = 0
    queue_timeout_ns: int = 0
    on_timeout: str = "reject"
    parameters: tuple[tuple[str, str], ...] = field(default=())
    compute: ComputeConfig = ComputeConfig()
    preserve_ordering: bool = False
    priority_levels: int = 0
    backend: str = "python"
    optimization: Optimization = Optimization()

    def __post_init__(self) -> None:
        too_large = [size for size in self.preferred_batch_sizes if size > self.max_batch_size]
        if too_large:
            raise ScenarioError(
                f"preferred batch size {too_large[0]} is above the largest batch, {self.max_batch_size} rows"
            )
        own = self.optimization
        if self.backend != "tensorrt" and (own.graph_sizes or own.busy_wait_events or own.output_copy_stream):
            raise ScenarioError(
                "CUDA graphs, busy_wait_events and output_copy_stream of config.pbtxt are read by Triton's TensorRT "
                f"backend alone: leave them out, or use it instead of {self.backend}"
            )
        if own.accelerator and (self.backend, self.compute.device) != ("onnxruntime", "gpu"):
            raise ScenarioError(
                f"accelerator {own.accelerator} is one of Triton's ONNX Runtime backend on a GPU: use backend "
                "onnxruntime and device gpu"
            )


def _quoted(text: str) -> str:
    return json.dumps(text)


def _tensors(kind: str, tensors: Sequence[TensorSpec]) -> str:
    items = ",\n".join(
        f"  {{ name: {_quoted(t.name)}, data_type: TYPE_{t.datatype}, dims: {list(t.dims)} }}"
        for t in tensors
    )
    return f"{kind} [\n{items}\n]\n"


def _dynamic_batching(serving: ServingConfig) -> str:
    policy = [f"timeout_action: {serving.on_timeout.upper()}"]
    if serving.queue_timeout_ns:
        policy.append(f"default_timeout_microseconds: {serving.queue_timeout_ns // _NS_PER_US}")
    if serving.queue_size:
        policy.append(f"max_queue_size: {serving.queue_size}")
    lines = []
    if serving.preferred_batch_sizes:
        lines.append(f"preferred_batch_size: {list(serving.preferred_batch_sizes)}")
    lines.append(f"max_queue_delay_microseconds: {serving.queue_delay_ns // _NS_PER_US}")
    if serving.preserve_ordering:
        lines.append("preserve_ordering: true")
    if serving.priority_levels:
        lines.append(f"priority_levels: {serving.priority_levels}")
        lines.append(f"default_priority_level: {(serving.priority_levels + 1) // 2}")
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


def _optimization(spec: ModelSpec, own: Optimization) -> str:
    text = ""
    if own.graph_sizes or own.busy_wait_events or own.output_copy_stream:
        text += "  cuda {\n"
        if own.graph_sizes:
            text += "    graphs: true\n"
            least = [1, *(size + 1 for size in own.graph_sizes)]
            text += "".join(_graph_spec(spec, *sizes) for sizes in zip(own.graph_sizes, least, strict=False))
        for name in ("busy_wait_events", "output_copy_stream"):
            text += f"    {name}: true\n" if getattr(own, name) else ""
        text += "  }\n"
    if own.accelerator:
        parameters = "".join(
            f" parameters {{ key: {_quoted(key)} value: {_quoted(value)} }}"
            for key, value in own.accelerator_parameters
        )
        text += (
            "  execution_accelerators { gpu_execution_accelerator "
            f"[ {{ name: {_quoted(own.accelerator)}{parameters} }} ] }}\n"
        )
    return f"optimization {{\n{text}}}\n" if text else ""


def config_pbtxt(spec: ModelSpec, serving: ServingConfig) -> str:
    """The text of config.pbtxt; KIND_GPU puts the instances on every GPU that Triton sees.

    Fields as in triton-inference-server/common, protobuf/model_config.proto.
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
        + f"instance_group [ {{ count: {serving.instances}, kind: KIND_{serving.compute.device.upper()} }} ]\n"
        + _dynamic_batching(serving)
        + _optimization(spec, serving.optimization)
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


def _code_of(framework: str, weights: str | None) -> list[tuple[str, str]]:
    """Package and name of each file that goes beside config.pbtxt."""
    files = ["model.py", f"forward_{framework}.py", *(["networks_torch.py"] if framework == "torch" else [])]
    own = [("squall.models.backend", file) for file in files]
    return own if weights is None else [*own, ("squall.models", "checkpoint.py")]


HOOK_FILE = "squall_batches.py"
"""The file that records the batches of a Python model beside whose model.py it is."""
_NO_FOLDER = 'FOLDER = ""\n'


def hook_source(folder: Path) -> str:
    """The text of HOOK_FILE with `folder` in it, which needs no variable in the server's environment then."""
    text = resources.files("squall.models.backend").joinpath(HOOK_FILE).read_text(encoding="utf-8")
    assert text.count(_NO_FOLDER) == 1
    return text.replace(_NO_FOLDER, f"FOLDER = {json.dumps(str(folder))}\n")


def write_repository(
    folder: Path,
    name: str,
    version: str,
    settings: dict[str, int],
    serving: ServingConfig,
    record_dir: Path | None,
    weights: str | None = None,
) -> ModelSpec:
    """Writes `folder/name/config.pbtxt` and, to `folder/name/version`, model.py and the forward pass of the framework,
    for a model of the zoo; of a head its weights.npz. An encoder's weights are read by each instance from the file that
    `weights` names (`squall.models.checkpoint.find`), or made by it: there may be gigabytes of them.

    `record_dir`: where each instance appends its batch records; None records nothing. Raises ScenarioError for an
    unknown model or size, for a framework or weights that the model cannot have, StoreError where the folder cannot be
    written.
    """
    head = head_of(name)
    sizes = head.sizes(settings)
    spec = head_spec(name, version, sizes, serving.max_batch_size)
    compute = serving.compute
    refuse_unsuited(name, compute.framework, weights)
    parameters = [("head", name), *((key, str(value)) for key, value in sizes.items())]
    parameters += [("framework", compute.framework), ("precision", compute.precision)]
    parameters += [
        (key, str(value).lower())
        for key, value in (
            ("cuda_graphs", compute.cuda_graphs), ("pinned", compute.is_pinned), ("compile", compute.is_compiled)
        )
    ]  # fmt: skip
    if weights is not None:
        parameters.append(("weights", str(find_weights(weights, name, sizes))))
    parameters += drawn_parameters(spec)
    if record_dir is not None:
        parameters.append(("record_dir", str(record_dir)))
    serving = replace(serving, parameters=tuple(parameters))
    version_dir = folder / name / version
    try:
        version_dir.mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(config_pbtxt(spec, serving))
        for package, file in _code_of(compute.framework, weights):
            code = resources.files(package).joinpath(file).read_bytes()
            (version_dir / file).write_bytes(code)
        if not head.is_encoder:
            with (version_dir / "weights.npz").open("wb") as stream:
                np.savez(stream, allow_pickle=False, **make_weights(name, sizes))
    except OSError as error:
        raise StoreError(f"cannot write the model repository {folder}: {error.strerror}") from error
    return spec
