"""What `squall models build` does with its options: those that a backend does not take are refused, not left out.

An export runs in a process of its own, this module as `python -P -m`: PyTorch and TensorRT write to stdout as they
like, look for packages that squall's own processes leave out, and may need more memory than there is.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from squall.actors.process.own_python import own_command, own_environment
from squall.models.encoders import weights_of
from squall.models.export.module import Weights
from squall.models.repository import (
    ComputeConfig,
    Optimization,
    ServingConfig,
    device_of,
    refuse_unsuited,
    write_repository,
)
from squall.models.spec import ModelSpec, head_of
from squall.scenarios.errors import ScenarioError, SquallError, TargetError

BACKENDS = ("python", "onnxruntime", "tensorrt")
_ONLY_FOR = {
    "framework": ("python",),
    "opset": ("onnxruntime", "tensorrt"),
    "threads": ("onnxruntime",),
    "min_rows": ("tensorrt",),
    "opt_rows": ("tensorrt",),
    "workspace_bytes": ("tensorrt",),
    "timing_cache": ("tensorrt",),
}
_OPTIONS = {"workspace_bytes": "workspace"}


@dataclass(frozen=True)
class Build:
    """Options of the command; `serving`: fields of ServingConfig. None: not given."""

    name: str
    out: Path
    sizes: dict[str, int]
    backend: str = "python"
    framework: str | None = None
    device: str | None = None
    precision: str = "fp32"
    cuda_graphs: bool = False
    is_pinned: bool = True
    is_compiled: bool = False
    weights: str | None = None
    serving: dict[str, Any] = field(default_factory=dict)
    optimization: Optimization = field(default_factory=Optimization)
    opset: int | None = None
    threads: int | None = None
    min_rows: int | None = None
    opt_rows: int | None = None
    workspace_bytes: int | None = None
    timing_cache: Path | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ScenarioError(f"--backend: {self.backend!r} is not one of {', '.join(BACKENDS)}")
        for name, backends in _ONLY_FOR.items():
            if getattr(self, name) is not None and self.backend not in backends:
                option = _OPTIONS.get(name, name).replace("_", "-")
                raise ScenarioError(
                    f"--{option} is for --backend {' and '.join(backends)}, not {self.backend}"
                )
        if self.backend != "python" and (self.is_compiled or not self.is_pinned):
            raise ScenarioError(f"--compile and --pageable are for --backend python, not {self.backend}")
        if self.serving.get("on_timeout", "reject") not in ("reject", "delay"):
            raise ScenarioError(f"--on-timeout: {self.serving['on_timeout']!r} is not one of reject, delay")
        if self.optimization.accelerator not in ("", "tensorrt"):
            raise ScenarioError(f"--accelerator: {self.optimization.accelerator!r} is not tensorrt")
        if self.threads is not None and self.device == "gpu":
            raise ScenarioError(
                "--threads are those of an instance on the CPU: leave it out with --device gpu"
            )


def build_repository(build: Build) -> str:
    """Writes it; returns what to tell of it. Raises ScenarioError, TargetError and StoreError, as those that write."""
    if build.backend == "python":
        return _python(build)
    _serving(build)  # what does not fit needs no process to be told
    return _apart(build)


def _serving(build: Build) -> ServingConfig:
    """Of another backend than python. Raises ScenarioError for what does not fit."""
    device = build.device or ("gpu" if build.backend == "tensorrt" else "cpu")
    if build.backend == "tensorrt" and device != "gpu":
        raise ScenarioError("--backend tensorrt computes on GPUs alone: leave --device out")
    if build.backend == "onnxruntime" and build.cuda_graphs:
        raise ScenarioError(
            "--cuda-graphs: Triton's ONNX Runtime backend makes none; leave it out, or use --backend tensorrt or python"
        )
    compute = ComputeConfig("torch", device, build.precision, build.cuda_graphs)
    return ServingConfig(
        **build.serving, compute=compute, backend=build.backend, optimization=build.optimization
    )


def _apart(build: Build) -> str:
    """What `answer` says to it, in a process of its own."""
    with subprocess.Popen(
        own_command("squall.cluster.commands.model_build"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=own_environment(),
    ) as process:
        said, _ = process.communicate(pickle.dumps(build))
    if process.returncode == 0:
        found = pickle.loads(said)
        if isinstance(found, SquallError):
            raise found
        return str(found)
    by = signal.Signals(-process.returncode).name if process.returncode < 0 else f"code {process.returncode}"
    hint = ": most often the host has too little memory for it" if by == "SIGKILL" else ", see above"
    raise TargetError(f"the export of {build.name} ended with {by}{hint}")


def answer() -> None:
    """Builds what is asked for on stdin, and says on stdout how that ended: text, or the error. What libraries write to
    stdout meanwhile goes to stderr."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            out.write(pickle.dumps(export(pickle.load(sys.stdin.buffer))))
        except SquallError as error:
            out.write(pickle.dumps(type(error)(str(error))))


def export(build: Build) -> str:
    """The build for a backend other than python, in this process; see `build_repository`."""
    serving = _serving(build)
    return _onnxruntime(build, serving) if build.backend == "onnxruntime" else _tensorrt(build, serving)


def _python(build: Build) -> str:
    framework = build.framework or ("torch" if head_of(build.name).is_encoder else "numpy")
    compute = ComputeConfig(
        framework,
        device_of(framework, build.device),
        build.precision,
        build.cuda_graphs,
        build.is_pinned,
        build.is_compiled,
    )
    serving = ServingConfig(**build.serving, compute=compute, optimization=build.optimization)
    return _told(
        build, write_repository(build.out, build.name, "1", build.sizes, serving, None, build.weights)
    )


def _weights(build: Build) -> Weights | None:
    """Those of the file that is named; None: seeded ones. Raises ScenarioError for a model that takes none."""
    refuse_unsuited(build.name, "torch", build.weights)
    if build.weights is None:
        return None
    return weights_of(build.name, head_of(build.name).sizes(build.sizes), build.weights)


def _onnxruntime(build: Build, serving: ServingConfig) -> str:
    from squall.models.export.onnx_file import DEFAULT_OPSET
    from squall.models.export.repositories import write_onnx_repository

    n_threads = 1 if build.threads is None else build.threads
    opset = build.opset or DEFAULT_OPSET
    done = write_onnx_repository(
        build.out, build.name, build.sizes, serving, opset, n_threads, _weights(build)
    )
    return f"{_told(build, done.spec)}\n{done.onnx.told}"


def _tensorrt(build: Build, serving: ServingConfig) -> str:
    from squall.cluster.node.plan_gpus import building_gpu
    from squall.models.export.onnx_file import DEFAULT_OPSET
    from squall.models.export.plan import PlanOptions, tensorrt
    from squall.models.export.repositories import write_plan_repository

    options = PlanOptions(build.min_rows or 1, build.opt_rows, build.workspace_bytes or 0, build.timing_cache)
    trt, gpu = tensorrt(), building_gpu()
    opset = build.opset or DEFAULT_OPSET
    done = write_plan_repository(
        build.out, build.name, build.sizes, serving, options, gpu, trt, opset, _weights(build)
    )
    plan = "the plan that was there is what a build would make: kept" if done.is_kept else "the plan is new"
    return f"{_told(build, done.spec)}\n{done.onnx.told}\nTensorRT {trt.__version__}, {gpu.kind}: {plan}"


def _told(build: Build, spec: ModelSpec) -> str:
    inputs = ", ".join(f"{one.name} {one.datatype} {list(one.dims)}" for one in spec.inputs)
    of_chance = "; seeded random weights" if head_of(build.name).is_encoder and build.weights is None else ""
    return f"{build.out / spec.name}: {inputs} a row, at most {spec.max_batch_size} rows a batch{of_chance}"


if __name__ == "__main__":
    from squall.cluster.commands.model_build import (
        answer as answer_as_ours,
    )  # a pickle names its classes by module

    answer_as_ours()
