"""TensorRT plans of the zoo's models, and repositories of them for Triton's TensorRT backend: built by the Python
package `tensorrt` 10 or 11 from an ONNX file, and compared with the GPUs of a server.

Never run with TensorRT itself so far: no host with it was at hand. The calls are those of its Python API
(docs.nvidia.com, "Python API Documentation" of 10.16 and 11.4, "Migrating from TensorRT 10.x to 11.x") and have been
made with the builder of TensorRT-RTX 1.7, which has the same API, but for the timing cache, which does nothing there.

Networks are strongly typed: 11 knows no others, and has no `BuilderFlag.FP16` any more. So the precision is that of the
ONNX file, in which `squall.models.onnx_export` writes it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from squall.models.onnx_export import (
    ONNX_FILE,
    OnnxFile,
    export_onnx,
    finish_repository,
    needed,
    sha256_of,
)
from squall.models.repository import Serving, zoo_spec
from squall.models.spec import Dims, ModelSpec
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import ScenarioError, SquallError, StoreError, TargetError

OLDEST_TENSORRT = 10
PLAN_FILE = "model.plan"
RECORD_FILE = "model.plan.json"
"""Beside `PLAN_FILE` in the version folder, where Triton reads no other file than the plan."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RowProfile(_Record):
    """Rows of a batch that a plan takes, `min_rows` to `max_rows`, and those that its kernels are chosen for."""

    min_rows: int
    opt_rows: int
    max_rows: int


class PlanRecord(_Record):
    """What is written beside a plan: what it was built from, by and for. A plan runs where it was built."""

    tensorrt: str
    gpu: str  # as `gpu_kind` has it
    precision: str
    rows: RowProfile
    workspace_bytes: int  # 0 where TensorRT was left the whole GPU
    onnx_sha256: str  # stands for model, weights, precision and opset
    plan_sha256: str  # of the plan itself

    def write(self, folder: Path) -> None:
        (folder / RECORD_FILE).write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> PlanRecord | None:
        """None where the folder has none. Raises StoreError for one that cannot be read."""
        file = folder / RECORD_FILE
        if not file.is_file():
            return None
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            raise StoreError(
                f"{file} is no record of a plan: build the plan again, or remove both files"
            ) from error


@dataclass(frozen=True)
class PlanOptions:
    """How a plan is built. `opt_rows` None: the largest batch. `workspace_bytes`: most memory of the GPU that a kernel
    may use beside its tensors, 0: all. `timing_cache`: file with the times of kernels on this kind of GPU, read where
    it is there, and written; None: none."""

    min_rows: int = 1
    opt_rows: int | None = None
    workspace_bytes: int = 0
    timing_cache: Path | None = None

    def rows(self, max_batch_size: int) -> RowProfile:
        """Raises ScenarioError where the rows are not in order."""
        opt_rows = self.opt_rows or max_batch_size
        if not 1 <= self.min_rows <= opt_rows <= max_batch_size:
            raise ScenarioError(
                f"rows of a plan: at least {self.min_rows}, best {opt_rows}, at most {max_batch_size} are not in"
                " order; --min-rows and --opt-rows are at most --max-batch-size"
            )
        return RowProfile(min_rows=self.min_rows, opt_rows=opt_rows, max_rows=max_batch_size)


def gpu_kind(name: str, compute_capability: Dims) -> str:
    """What a plan is bound to: `NVIDIA H100 80GB HBM3 (compute capability 9.0)`."""
    return f"{name} (compute capability {'.'.join(map(str, compute_capability))})"


def records_of(repository: Path, model: str) -> list[tuple[Path, PlanRecord]]:
    """Version folders of a model that hold a plan which squall built, with its record, in order of their names."""
    config = repository / model / "config.pbtxt"
    if not config.is_file() or 'backend: "tensorrt"' not in config.read_text():
        return []  # a plan that was there before the model got another backend
    found = [(folder, PlanRecord.read(folder)) for folder in sorted((repository / model).glob("*/"))]
    return [(folder, record) for folder, record in found if record is not None]


def misfit(folder: Path, record: PlanRecord, gpus: Collection[str]) -> str | None:
    """Why no GPU of these kinds can run the plan in that version folder, with the mend; None where one can."""
    plan = folder / PLAN_FILE
    if record.gpu in gpus:
        return None
    if not gpus:
        return f"{plan} runs on {record.gpu}, and no GPU is seen here: `squall doctor` says why"
    return (
        f"{plan} was built for {record.gpu}, and here is {', '.join(sorted(set(gpus)))}: build it again here, "
        "`squall models build NAME --backend tensorrt`"
    )


def tensorrt() -> ModuleType:
    """The package. Raises TargetError where it is missing or too old."""
    trt = needed("tensorrt")
    if int(trt.__version__.split(".")[0]) < OLDEST_TENSORRT:
        raise TargetError(
            f"tensorrt {trt.__version__} is too old: networks have their own types from {OLDEST_TENSORRT} on; install "
            "the version that the server has"
        )
    return trt


def write_plan_repository(
    folder: Path,
    model: ModelConfig,
    serving: Serving,
    options: PlanOptions,
    gpu: str,
    trt: Any,
    opset: int,
) -> tuple[ModelSpec, OnnxFile, bool]:
    """Writes `folder/NAME/config.pbtxt`, and to `folder/NAME/1` model.plan with its record, for Triton's backend
    `tensorrt`. Returns beside the spec the ONNX file that was checked, and whether the plan is new.

    `gpu`: the kind that it is built on, and for; `trt`: the package. A plan that is there is kept where its record says
    that a build would make it again. Raises what `export_onnx` and `build_plan` do.
    """
    rows = options.rows(model.max_batch_size)
    spec, sizes = zoo_spec(model)
    version = folder / spec.name / spec.version
    try:
        version.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".plan-", dir=folder / spec.name) as aside:
            onnx = export_onnx(Path(aside) / ONNX_FILE, spec, sizes, model.weights, model.precision, opset)
            record = PlanRecord(
                tensorrt=trt.__version__,
                gpu=gpu,
                precision=onnx.precision,
                rows=rows,
                workspace_bytes=options.workspace_bytes,
                onnx_sha256=onnx.sha256,
                plan_sha256=sha256_of(version.glob(PLAN_FILE)),
            )
            is_new = PlanRecord.read(version) != record
            if is_new:
                made = Path(aside) / PLAN_FILE
                made.write_bytes(build_plan(trt, onnx.path, spec, rows, options))
                made.replace(version / PLAN_FILE)
                record = record.model_copy(update={"plan_sha256": sha256_of(version.glob(PLAN_FILE))})
                record.write(version)
    except OSError as error:
        raise StoreError(f"cannot write the model repository {folder}: {error.strerror}") from error
    finish_repository(folder, spec, model, serving, (PLAN_FILE, RECORD_FILE))
    return spec, onnx, is_new


def build_plan(trt: Any, onnx_file: Path, spec: ModelSpec, rows: RowProfile, options: PlanOptions) -> bytes:
    """The serialized plan, built on the current CUDA device; `trt`: the package.

    Raises TargetError with TensorRT's own words where it refuses, ScenarioError for a timing cache of another GPU,
    StoreError where that file cannot be read or written.
    """
    log = _log(trt)
    try:
        builder = trt.Builder(log)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, log)
        if not parser.parse_from_file(str(onnx_file)):
            why = "; ".join(parser.get_error(index).desc() for index in range(parser.num_errors))
            raise TargetError(
                f"TensorRT {trt.__version__} does not take the ONNX file of {spec.name}: {why or log.last}"
            )
        config = builder.create_builder_config()
        config.clear_flag(trt.BuilderFlag.TF32)  # fp32 is full float32, as everywhere in squall
        if options.workspace_bytes:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
        profile = builder.create_optimization_profile()
        for one in spec.inputs:
            profile.set_shape(
                one.name, *((n, *one.dims) for n in (rows.min_rows, rows.opt_rows, rows.max_rows))
            )
        if config.add_optimization_profile(profile) < 0:
            raise TargetError(f"TensorRT refuses the rows {rows} of {spec.name}: {log.last}")
        if options.timing_cache is not None:
            _attach_cache(config, options.timing_cache)
        plan = builder.build_serialized_network(network, config)
        if plan is not None and options.timing_cache is not None:
            _save_cache(config, options.timing_cache)
        return bytes(plan)
    except SquallError:
        raise
    except OSError as error:
        file = options.timing_cache
        raise StoreError(f"cannot read or write the timing cache {file}: {error.strerror}") from error
    except Exception as error:  # TypeError of a builder without a GPU and of no plan, else RuntimeError
        raise TargetError(
            f"TensorRT cannot build {spec.name}: {log.last or error}{_mend(log.last)}"
        ) from error


def _log(trt: Any) -> Any:
    """A logger of TensorRT's that says nothing and keeps the last error: its own writes to stdout."""

    class Log(trt.ILogger):  # type: ignore[misc]  # a class of a library that is found at run time
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.last = message

    return Log()


def _mend(said: str) -> str:
    if "memory" in said.lower():
        return "; end what else uses the GPU, lower --workspace, or use --precision fp16"
    if "cuda" in said.lower():
        return "; `squall doctor` says which GPU and driver are here"
    return ""


def _attach_cache(config: Any, file: Path) -> None:
    cache = config.create_timing_cache(file.read_bytes() if file.exists() else b"")
    if cache is None or not config.set_timing_cache(cache, False):
        raise ScenarioError(
            f"--timing-cache {file} is of another GPU or another TensorRT: name another file, or remove it"
        )


def _save_cache(config: Any, file: Path) -> None:
    """By a file beside it, so that a build that is cut short leaves the old one."""
    beside = file.with_name(f"{file.name}.part")
    file.parent.mkdir(parents=True, exist_ok=True)
    beside.write_bytes(bytes(config.get_timing_cache().serialize()))
    beside.replace(file)
