"""ONNX files of the zoo's models: written from the PyTorch module, and held to it before they are left anywhere.

By `torch.onnx.export` of the exported program (`dynamo=True`); the batch dimension is dynamic, all others are fixed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.models.export.module import Weights, in_half, needed, try_inputs, zoo_module
from squall.models.spec import ModelSpec
from squall.scenarios.errors import ScenarioError, StoreError, TargetError
from squall.scenarios.units import digits_text

DEFAULT_OPSET = 18
"""torch's exporter writes this one; a newer one is reached by conversion, an older one lacks what the models use."""
TRIED_ROWS = (1, 2, 7)
TOLERANCE = {"fp32": (1e-3, 1e-4), "fp16": (2e-2, 2e-2)}
"""rtol and atol of an exported file by its precision: |value - expected| <= rtol x |expected| + atol x rms, the root
mean square of what is expected, which is what the module answers in float32: an embedding of 1,024 dims and length 1
has elements of 0.03, a head's output of 1 to 2."""
EXTERNAL_BYTES = 1_900_000_000
"""Weights above this lie beside the file: protobuf holds no message of 2^31 bytes or more."""
_PRECISIONS = tuple(TOLERANCE)
_ROWS_NAME = "rows"
_ORT_TYPES = {"FP32": "tensor(float)", "INT64": "tensor(int64)"}


@dataclass(frozen=True)
class OnnxFile:
    """A file that was checked. `sha256`: over it and the weights beside it. `worst`: the largest difference to the
    module in parts of what `TOLERANCE` allows, over requests of `TRIED_ROWS` rows. `n_bytes`: with the weights."""

    path: Path
    opset: int
    precision: str
    n_bytes: int
    sha256: str
    worst: float

    @property
    def told(self) -> str:
        """One line on it."""
        return (
            f"ONNX opset {self.opset}, {self.precision}, {self.n_bytes / 1e6:.1f} MB: in ONNX Runtime on the CPU it "
            f"differs from the module by {digits_text(self.worst, 2)} of what {self.precision} is allowed, in batches "
            f"of {', '.join(map(str, TRIED_ROWS))} rows"
        )


def export_onnx(
    file: Path,
    spec: ModelSpec,
    sizes: dict[str, int],
    weights: Weights | None = None,
    precision: str = "fp32",
    opset: int = DEFAULT_OPSET,
    external_bytes: int = EXTERNAL_BYTES,
) -> OnnxFile:
    """Writes the model `spec.name` of the zoo to `file`, and its weights to `file`.data where these are above
    `external_bytes`.

    In half precision inputs and output stay float32 (and int64); the file rounds and widens them. Nothing is left at
    `file` unless onnx.checker takes it and ONNX Runtime on the CPU answers as the module does, within `TOLERANCE`.
    Raises ScenarioError for a precision or opset that cannot be, TargetError for a missing package and for a file that
    fails its check, StoreError where it cannot be written.
    """
    if precision not in _PRECISIONS:
        raise ScenarioError(f"precision: {precision!r} is not one of {', '.join(_PRECISIONS)}")
    for package in ("torch", "onnx", "onnxscript", "onnxruntime"):
        needed(package)
    _refuse_opset(opset)
    module = zoo_module(spec.name, sizes, weights)
    tried = [try_inputs(spec, sizes, rows) for rows in TRIED_ROWS]
    expected = [_answer(module, inputs) for inputs in tried]  # before its weights are rounded
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=file.parent) as folder:
            made = Path(folder) / file.name
            _write(
                made,
                module if precision == "fp32" else in_half(module),
                spec,
                tried[1],
                opset,
                external_bytes,
            )
            worst = _check(made, spec, precision, opset, tried, expected)
            parts = sorted(Path(folder).iterdir())
            n_bytes, sha256 = sum(part.stat().st_size for part in parts), _sha256(parts)
            for part in reversed(parts):  # the weights first
                part.replace(file.parent / part.name)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from error
    return OnnxFile(file, opset, precision, n_bytes, sha256, worst)


def _refuse_opset(opset: int) -> None:
    import onnx

    latest = onnx.defs.onnx_opset_version()
    if not DEFAULT_OPSET <= opset <= latest:
        raise ScenarioError(
            f"opset {opset}: the exporter writes {DEFAULT_OPSET} to {latest}, that of onnx {onnx.__version__}"
        )


def _answer(module: Any, inputs: list[NDArray[Any]]) -> NDArray[np.float32]:
    import torch

    with torch.inference_mode():
        found: NDArray[np.float32] = module(*(torch.from_numpy(one) for one in inputs)).numpy()
    return found


def _write(
    file: Path, module: Any, spec: ModelSpec, inputs: list[NDArray[Any]], opset: int, external_bytes: int
) -> None:
    import torch

    n_bytes = sum(one.numel() * one.element_size() for one in module.state_dict().values())
    rows = torch.export.Dim(_ROWS_NAME, min=1, max=max(spec.max_batch_size, TRIED_ROWS[-1]))
    shapes = tuple({0: rows} for _ in inputs)
    arguments = tuple(torch.from_numpy(one) for one in inputs)
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module, arguments, dynamo=True, opset_version=opset, verbose=False,
                input_names=[one.name for one in spec.inputs], output_names=[one.name for one in spec.outputs],
                dynamic_shapes=(shapes,) if _takes_any_number(module) else shapes,
            )  # fmt: skip
            assert program is not None
            program.save(str(file), external_data=n_bytes > external_bytes)
            _strip(file)
    except OSError:
        raise
    except Exception as error:  # the exporter has a tree of errors of its own, none of them public
        raise TargetError(
            f"{spec.name} cannot be exported to ONNX at opset {opset}: {_line(error)}"
        ) from error


def _strip(file: Path) -> None:
    """Takes the exporter's remarks out of it: traces of the calls that made each node, with paths of this machine. The
    same model then makes the same file wherever it is exported."""
    import onnx

    model = onnx.load(str(file), load_external_data=False)
    graph = model.graph
    for one in (
        model,
        graph,
        *graph.node,
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
    ):
        one.ClearField("metadata_props")
        one.ClearField("doc_string")
    onnx.save_model(model, str(file))


def _takes_any_number(module: Any) -> bool:
    """Whether its forward has `*inputs`, whose shapes torch wants as one tuple."""
    import inspect

    kinds = [one.kind for one in inspect.signature(module.forward).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on itself: operators of packages that are not there, its own deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


def _check(
    file: Path,
    spec: ModelSpec,
    precision: str,
    opset: int,
    tried: list[list[NDArray[Any]]],
    expected: list[NDArray[np.float32]],
) -> float:
    """The largest difference in parts of what is allowed. Raises TargetError for a file that is not to be kept."""
    import onnx
    import onnxruntime

    try:
        onnx.checker.check_model(str(file), full_check=True)
        imported = {
            one.domain: one.version for one in onnx.load(str(file), load_external_data=False).opset_import
        }
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of both packages, which have no common base
        raise TargetError(f"the ONNX file of {spec.name} is not valid: {_line(error)}") from error
    if imported.get("") != opset:
        raise TargetError(
            f"the ONNX file of {spec.name} has opset {imported.get('')} and not {opset}: leave --opset out"
        )
    _check_names(session, spec)
    worst = 0.0
    for inputs, right in zip(tried, expected, strict=True):
        fed = {one.name: array for one, array in zip(spec.inputs, inputs, strict=True)}
        (found,) = session.run([spec.outputs[0].name], fed)
        worst = max(worst, _difference(found, right, precision))
    if not worst <= 1:
        raise TargetError(
            f"the ONNX file of {spec.name} answers otherwise than the module: {digits_text(worst)} times the "
            f"difference that {precision} is allowed; nothing was kept"
        )
    return worst


def _check_names(session: Any, spec: ModelSpec) -> None:
    """Raises TargetError where names, types or dims are not those of the spec."""
    for kind, nodes, tensors in (
        ("input", session.get_inputs(), spec.inputs),
        ("output", session.get_outputs(), spec.outputs),
    ):
        found = [
            (one.name, one.type, [dim if isinstance(dim, int) else -1 for dim in one.shape]) for one in nodes
        ]
        wanted = [(one.name, _ORT_TYPES[one.datatype], [-1, *one.dims]) for one in tensors]
        if found != wanted:
            raise TargetError(f"the ONNX file of {spec.name} has {kind}s {found}, and the model has {wanted}")


def _difference(found: NDArray[Any], expected: NDArray[np.float32], precision: str) -> float:
    """Largest, in parts of what is allowed; infinite for another shape and for what is no number."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    rtol, atol = TOLERANCE[precision]
    wide = expected.astype(np.float64)
    allowed = rtol * np.abs(wide) + atol * np.sqrt(np.mean(wide**2))
    return float(np.max(np.abs(found - wide) / allowed))


def _sha256(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def _line(error: BaseException) -> str:
    """The first line of what its first cause says, without colours, or its kind where that says nothing."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = (line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines())
    return next(filter(None, lines), type(error).__name__)
