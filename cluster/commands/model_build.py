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
from functools import cached_property
from pathlib import Path
from typing import Any

from squall.actors.process.own_python import own_command, own_environment
from squall.models.onnx_export import DEFAULT_OPSET, OnnxFile, write_onnx_repository
from squall.models.repository import Serving, device_of, graph_sizes, write_repository
from squall.models.spec import ModelSpec, head_of
from squall.scenarios.config.loader import section_from_mapping
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import ScenarioError, SquallError, TargetError
from squall.scenarios.records import Frozen

BACKENDS = ("python", "onnxruntime", "tensorrt")
_ONLY_FOR = {
    "framework": ("python",),
    "pageable": ("python",),
    "compile": ("python",),
    "cuda_graphs": ("python", "tensorrt"),
    "opset": ("onnxruntime", "tensorrt"),
    "threads": ("onnxruntime",),
    "accelerator": ("onnxruntime",),
    "min_rows": ("tensorrt",),
    "opt_rows": ("tensorrt",),
    "workspace": ("tensorrt",),
    "timing_cache": ("tensorrt",),
    "busy_wait": ("tensorrt",),
    "output_copy_stream": ("tensorrt",),
}


class Build(Frozen):
    """Options of the command. `keys`: of `ModelConfig`, as in a scenario. None: not given, as false and an empty text
    are."""

    out: Path
    keys: dict[str, Any]
    backend: str = "python"
    framework: str | None = None
    device: str | None = None
    cuda_graphs: bool = False
    pageable: bool = False
    compile: bool = False
    priority_levels: int = 0
    opset: int | None = None
    threads: int | None = None
    accelerator: str | None = None
    min_rows: int | None = None
    opt_rows: int | None = None
    workspace: int | None = None  # bytes
    timing_cache: Path | None = None
    busy_wait: bool = False
    output_copy_stream: bool = False

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ScenarioError(f"--backend: {self.backend!r} is not one of {', '.join(BACKENDS)}")
        for name, backends in _ONLY_FOR.items():
            if getattr(self, name) not in (None, False) and self.backend not in backends:
                raise ScenarioError(
                    f"--{name.replace('_', '-')} is for --backend {' and '.join(backends)}, not {self.backend}"
                )
        if self.backend == "tensorrt" and self.device not in (None, "gpu"):
            raise ScenarioError("--backend tensorrt computes on GPUs alone: leave --device out")
        if self.accelerator not in (None, "tensorrt"):
            raise ScenarioError(f"--accelerator: {self.accelerator!r} is not tensorrt")
        if self.accelerator is not None and self.device != "gpu":
            raise ScenarioError("--accelerator is for --device gpu")
        if self.threads is not None and self.device == "gpu":
            raise ScenarioError(
                "--threads are those of an instance on the CPU: leave it out with --device gpu"
            )

    @cached_property
    def model(self) -> ModelConfig:
        """Raises ScenarioError where a scenario could not have it."""
        of_cpu = self.backend == "onnxruntime" and self.device is None
        is_torch = self.backend != "python" or head_of(self.keys["name"]).is_encoder
        keys = {
            **self.keys,
            "framework": self.framework or ("torch" if is_torch else "numpy"),
            "device": "cpu" if of_cpu else self.device,
            "cuda_graphs": self.cuda_graphs,
            "pinned": not self.pageable,
            "compile": self.compile,
        }
        return section_from_mapping(ModelConfig, keys, "squall models build")


def build_repository(build: Build) -> str:
    """Writes it; returns what to tell of it. Raises ScenarioError, TargetError and StoreError, as those that write."""
    model = build.model  # what does not fit needs no process to be told
    if build.backend != "python":
        return _apart(build)
    return _described(build, write_repository(build.out, model, None, build.priority_levels))


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
    raise TargetError(f"the export of {build.model.name} ended with {by}{hint}")


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
    model, opset = build.model, build.opset or DEFAULT_OPSET
    if build.backend == "onnxruntime":
        n_threads = 1 if build.threads is None else build.threads
        serving = Serving(
            build.backend,
            {"intra_op_thread_count": str(n_threads)} if device_of(model) == "cpu" else {},
            build.priority_levels,
            is_accelerated=build.accelerator is not None,
        )
        spec, onnx = write_onnx_repository(build.out, model, serving, opset)
        return _described(build, spec, onnx)

    from squall.cluster.node.plan_gpus import building_gpu
    from squall.models.plan_export import PlanOptions, tensorrt, write_plan_repository

    options = PlanOptions(build.min_rows or 1, build.opt_rows, build.workspace or 0, build.timing_cache)
    serving = Serving(
        build.backend,
        priority_levels=build.priority_levels,
        graph_sizes=graph_sizes(model.max_batch_size, model.preferred_batch_sizes)
        if model.cuda_graphs
        else (),
        busy_wait_events=build.busy_wait,
        output_copy_stream=build.output_copy_stream,
    )
    trt, gpu = tensorrt(), building_gpu()
    spec, onnx, is_new = write_plan_repository(build.out, model, serving, options, gpu, trt, opset)
    plan = "the plan is new" if is_new else "the plan that was there is what a build would make: kept"
    return f"{_described(build, spec, onnx)}\nTensorRT {trt.__version__}, {gpu}: {plan}"


def _described(build: Build, spec: ModelSpec, onnx: OnnxFile | None = None) -> str:
    inputs = ", ".join(f"{one.name} {one.datatype} {list(one.dims)}" for one in spec.inputs)
    is_seeded = head_of(spec.name).is_encoder and build.model.weights is None
    of_chance = "; seeded random weights" if is_seeded else ""
    on_file = "" if onnx is None else f"\n{onnx.description}"
    return f"{build.out / spec.name}: {inputs} a row, at most {spec.max_batch_size} rows a batch{of_chance}{on_file}"


if __name__ == "__main__":
    from squall.cluster.commands.model_build import (
        answer as answer_as_ours,
    )  # a pickle names its classes by module

    answer_as_ours()
