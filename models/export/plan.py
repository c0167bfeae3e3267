"""A TensorRT plan from an ONNX file, by the Python package `tensorrt` 10 or 11.

Never run with TensorRT itself so far: no host with it was at hand. The calls are those of its Python API
(docs.nvidia.com, "Python API Documentation" of 10.16 and 11.4, "Migrating from TensorRT 10.x to 11.x") and have been
made with the builder of TensorRT-RTX 1.7, which has the same API, but for the timing cache, which does nothing there.

Networks are strongly typed: 11 knows no others, and has no `BuilderFlag.FP16` any more. So the precision is that of the
ONNX file, in which `squall.models.export.onnx_file` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from squall.models.export.module import needed
from squall.models.export.plan_record import RowProfile
from squall.models.spec import ModelSpec
from squall.scenarios.errors import ScenarioError, SquallError, StoreError, TargetError

OLDEST_TENSORRT = 10


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
        found = RowProfile(self.min_rows, self.opt_rows or max_batch_size, max_batch_size)
        if not 1 <= found.min_rows <= found.opt_rows <= found.max_rows:
            raise ScenarioError(
                f"rows of a plan: at least {found.min_rows}, best {found.opt_rows}, at most {found.max_rows} are not in"
                " order; --min-rows and --opt-rows are at most --max-batch-size"
            )
        return found


def tensorrt() -> ModuleType:
    """The package. Raises TargetError where it is missing or too old."""
    trt = needed("tensorrt")
    if int(trt.__version__.split(".")[0]) < OLDEST_TENSORRT:
        raise TargetError(
            f"tensorrt {trt.__version__} is too old: networks have their own types from {OLDEST_TENSORRT} on; install "
            "the version that the server has"
        )
    return trt


def build_plan(trt: Any, onnx_file: Path, spec: ModelSpec, rows: RowProfile, options: PlanOptions) -> bytes:
    """The serialized plan, built on the current CUDA device; `trt`: the package.

    Raises TargetError with TensorRT's own words where it refuses, ScenarioError for a timing cache of another GPU,
    StoreError where that file cannot be read or written.
    """
    log = _log(trt)
    try:
        return _build(trt, log, onnx_file, spec, rows, options)
    except SquallError:
        raise
    except Exception as error:  # a builder that finds no GPU raises TypeError; others are RuntimeError
        raise TargetError(
            f"TensorRT cannot build {spec.name}: {log.last or error}{_mend(log.last)}"
        ) from error


def _build(
    trt: Any, log: Any, onnx_file: Path, spec: ModelSpec, rows: RowProfile, options: PlanOptions
) -> bytes:
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
        profile.set_shape(one.name, *((n, *one.dims) for n in (rows.min_rows, rows.opt_rows, rows.max_rows)))
    if config.add_optimization_profile(profile) < 0:
        raise TargetError(f"TensorRT refuses the rows {rows} of {spec.name}: {log.last}")
    if options.timing_cache is not None:
        _attach_cache(config, options.timing_cache)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise TargetError(f"TensorRT cannot build {spec.name}: {log.last}{_mend(log.last)}")
    if options.timing_cache is not None:
        _save_cache(config, options.timing_cache)
    return bytes(plan)


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
    try:
        held = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise StoreError(f"cannot read the timing cache {file}: {error.strerror}") from error
    cache = config.create_timing_cache(held)
    if cache is None or not config.set_timing_cache(cache, False):
        raise ScenarioError(
            f"--timing-cache {file} is of another GPU or another TensorRT: name another file, or remove it"
        )


def _save_cache(config: Any, file: Path) -> None:
    """By a file beside it, so that a build that is cut short leaves the old one."""
    beside = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(bytes(config.get_timing_cache().serialize()))
        beside.replace(file)
    except OSError as error:
        raise StoreError(f"cannot write the timing cache {file}: {error.strerror}") from error
