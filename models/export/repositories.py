"""Triton model repositories for the ONNX Runtime and the TensorRT backend, of models of the zoo."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from squall.models.export.module import Weights
from squall.models.export.onnx_file import DEFAULT_OPSET, OnnxFile, export_onnx
from squall.models.export.plan import PlanOptions, build_plan
from squall.models.export.plan_record import PLAN_FILE, RECORD_FILE, Gpu, PlanRecord, shortage
from squall.models.repository import ServingConfig, config_pbtxt
from squall.models.spec import ModelSpec, drawn_parameters, head_of, head_spec
from squall.scenarios.errors import StoreError, TargetError

ONNX_FILE = "model.onnx"
VERSION = "1"
_WRITTEN = (
    "model.py",
    "checkpoint.py",
    "*_numpy.py",
    "*_torch.py",
    "weights.npz",
    "model.onnx",
    "model.onnx.data",
    "model.plan*",
)


@dataclass(frozen=True)
class Exported:
    """A repository that was written: the model's spec, the ONNX file that was checked, and of a plan whether one that
    was there is kept, since a build would make it again."""

    spec: ModelSpec
    onnx: OnnxFile
    is_kept: bool = False


def graph_sizes(max_batch_size: int, preferred: tuple[int, ...]) -> tuple[int, ...]:
    """Batch sizes of CUDA graphs, ascending: powers of two below the largest batch, the preferred sizes, itself."""
    powers = {
        1 << exponent for exponent in range(max_batch_size.bit_length()) if 1 << exponent < max_batch_size
    }
    return tuple(sorted(powers | set(preferred) | {max_batch_size}))


def write_onnx_repository(
    folder: Path,
    name: str,
    settings: dict[str, int],
    serving: ServingConfig,
    opset: int = DEFAULT_OPSET,
    n_threads: int = 1,
    weights: Weights | None = None,
) -> Exported:
    """Writes `folder/name/config.pbtxt` and `folder/name/1/model.onnx` for Triton's backend `onnxruntime`.

    `n_threads`: of an instance on the CPU, 0: as many as cores. Raises what `export_onnx` does.
    """
    own = serving.optimization
    if own.accelerator == "tensorrt":
        parameters = (("precision_mode", serving.compute.precision.upper()), *own.accelerator_parameters)
        own = replace(own, accelerator_parameters=parameters)
    serving = replace(
        serving,
        backend="onnxruntime",
        parameters=(("intra_op_thread_count", str(n_threads)),) if serving.compute.device == "cpu" else (),
        optimization=own,
    )
    spec, sizes = _spec(name, settings, serving)
    version = folder / name / VERSION
    onnx = export_onnx(version / ONNX_FILE, spec, sizes, weights, serving.compute.precision, opset)
    _clear(version, (ONNX_FILE, f"{ONNX_FILE}.data"))
    _write_config(folder / name, spec, serving)
    return Exported(spec, onnx)


def write_plan_repository(
    folder: Path,
    name: str,
    settings: dict[str, int],
    serving: ServingConfig,
    options: PlanOptions,
    gpu: Gpu,
    trt: Any,
    opset: int = DEFAULT_OPSET,
    weights: Weights | None = None,
) -> Exported:
    """Writes `folder/name/config.pbtxt`, and to `folder/name/1` model.plan with its record, for Triton's backend
    `tensorrt`.

    `gpu`: the one it is built on, and for; `trt`: the package. A plan that is there is kept where its record says that
    a build would make it again. Raises what `export_onnx` and `build_plan` do, and TargetError for too little memory.
    """
    rows = options.rows(serving.max_batch_size)
    if serving.compute.cuda_graphs:
        sizes_of_graphs = graph_sizes(serving.max_batch_size, serving.preferred_batch_sizes)
        serving = replace(serving, optimization=replace(serving.optimization, graph_sizes=sizes_of_graphs))
    serving = replace(serving, backend="tensorrt")
    spec, sizes = _spec(name, settings, serving)
    version = folder / name / VERSION
    try:
        version.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".plan-", dir=folder / name) as aside:
            onnx = export_onnx(
                Path(aside) / ONNX_FILE, spec, sizes, weights, serving.compute.precision, opset
            )
            wanted = PlanRecord(
                trt.__version__, gpu.kind, onnx.precision, rows, options.workspace_bytes, onnx.sha256, ""
            )
            is_kept = _is_current(version, wanted)
            if not is_kept:
                lack = shortage(gpu, onnx.n_bytes, options.workspace_bytes)
                if lack is not None:
                    raise TargetError(lack)
                plan = build_plan(trt, onnx.path, spec, rows, options)
                made = Path(aside) / PLAN_FILE
                made.write_bytes(plan)
                made.replace(version / PLAN_FILE)
                replace(wanted, plan_sha256=hashlib.sha256(plan).hexdigest()).write(version)
    except OSError as error:
        raise StoreError(f"cannot write the model repository {folder}: {error.strerror}") from error
    _clear(version, (PLAN_FILE, RECORD_FILE))
    _write_config(folder / name, spec, serving)
    return Exported(spec, onnx, is_kept)


def _clear(version: Path, kept: tuple[str, ...]) -> None:
    """Removes what squall wrote there for another backend; files of others stay."""
    for pattern in _WRITTEN:
        for file in version.glob(pattern):
            if file.name not in kept:
                file.unlink()


def _is_current(version: Path, wanted: PlanRecord) -> bool:
    record, plan = PlanRecord.read(version), version / PLAN_FILE
    if record is None or not record.is_made_as(wanted) or not plan.is_file():
        return False
    return hashlib.sha256(plan.read_bytes()).hexdigest() == record.plan_sha256


def _spec(name: str, settings: dict[str, int], serving: ServingConfig) -> tuple[ModelSpec, dict[str, int]]:
    sizes = head_of(name).sizes(settings)
    return head_spec(name, VERSION, sizes, serving.max_batch_size), sizes


def _write_config(folder: Path, spec: ModelSpec, serving: ServingConfig) -> None:
    serving = replace(serving, parameters=(*serving.parameters, *drawn_parameters(spec)))
    try:
        (folder / "config.pbtxt").write_text(config_pbtxt(spec, serving))
    except OSError as error:
        raise StoreError(f"cannot write {folder / 'config.pbtxt'}: {error.strerror}") from error
