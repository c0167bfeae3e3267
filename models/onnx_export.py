"""ONNX files of the zoo's models, and repositories of them for Triton's ONNX Runtime backend: written from the PyTorch
module, and compared with it before they are left anywhere.

By `torch.onnx.export` of the exported program (`dynamo=True`); the batch dimension is dynamic, all others are fixed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import re
import tempfile
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.models.encoders import weights_of
from squall.models.heads import make_weights
from squall.models.repository import Serving, config_pbtxt, zoo_spec
from squall.models.spec import HEADS, ModelSpec, Sizes, drawn_parameters
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import ScenarioError, StoreError, TargetError
from squall.scenarios.units import digits_text

DEFAULT_OPSET = 18
"""torch's exporter writes this one; a newer one is reached by conversion, an older one lacks what the models use."""
TRIED_ROWS = (1, 2, 7)
TOLERANCE = {"fp32": (1e-3, 1e-4), "fp16": (2e-2, 2e-2)}
"""rtol and atol of an exported file by its precision: |value - expected| <= rtol x |expected| + atol x rms, the root
mean square of what is expected, which is what the module answers in float32: an embedding of 1,024 dims and length 1
has elements of 0.03, a head's output of 1 to 2."""
ONNX_FILE = "model.onnx"
_WRITTEN = (
    "model.py",
    "checkpoint.py",
    "heads.py",
    "*_torch.py",
    "encoder_weights.py",
    "weights.npz",
    "model.onnx",
    "model.onnx.data",
    "model.plan*",
)
"""Files in a version folder that squall writes for one backend or another."""
_EXPORT = "pip install 'squall[export]'"
_MENDS = {
    "tensorrt": "pip install 'squall[tensorrt]' on a host with an NVIDIA GPU, at the version of the server's TensorRT"
}


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
    def description(self) -> str:
        """One line on it."""
        return (
            f"ONNX opset {self.opset}, {self.precision}, {self.n_bytes / 1e6:.1f} MB: in ONNX Runtime on the CPU it "
            f"differs from the module by {digits_text(self.worst, 2)} of what {self.precision} is allowed, in batches "
            f"of {', '.join(map(str, TRIED_ROWS))} rows"
        )


def needed(name: str) -> ModuleType:
    """The package of that name, imported. Raises TargetError with the mend where it is missing or cannot be loaded."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # a package without its libraries raises either
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
        what = "is not installed" if is_missing else f"cannot be loaded ({error})"
        mend = _MENDS.get(name, _EXPORT)
        raise TargetError(f"{name} {what}, which this export needs: {mend}") from error


def write_onnx_repository(
    folder: Path, model: ModelConfig, serving: Serving, opset: int
) -> tuple[ModelSpec, OnnxFile]:
    """Writes `folder/NAME/config.pbtxt` and `folder/NAME/1/model.onnx` for Triton's backend `onnxruntime`.

    Raises what `export_onnx` does.
    """
    spec, sizes = zoo_spec(model)
    file = folder / spec.name / spec.version / ONNX_FILE
    onnx = export_onnx(file, spec, sizes, model.weights, model.precision, opset)
    finish_repository(folder, spec, model, serving, (ONNX_FILE, f"{ONNX_FILE}.data"))
    return spec, onnx


def finish_repository(
    folder: Path, spec: ModelSpec, model: ModelConfig, serving: Serving, kept: Collection[str]
) -> None:
    """Writes config.pbtxt beside a version folder with the files `kept`, and removes from that one what squall wrote
    for another backend; files of others stay. Raises StoreError where the folder cannot be written."""
    serving = replace(serving, parameters={**serving.parameters, **drawn_parameters(spec)})
    try:
        for pattern in _WRITTEN:
            for file in (folder / spec.name / spec.version).glob(pattern):
                if file.name not in kept:
                    file.unlink()
        (folder / spec.name / "config.pbtxt").write_text(config_pbtxt(spec, model, serving))
    except OSError as error:
        raise StoreError(f"cannot write the model repository {folder}: {error.strerror}") from error


def export_onnx(
    file: Path,
    spec: ModelSpec,
    sizes: Sizes,
    checkpoint: str | None = None,
    precision: str = "fp32",
    opset: int = DEFAULT_OPSET,
) -> OnnxFile:
    """Writes the model `spec.name` of the zoo to `file`, and its weights to `file`.data where they are so large
    (1.6 GB) that torch writes them there. `checkpoint`: what names an encoder's weights; None: seeded ones.

    In half precision inputs and output stay float32 (and int64); the file rounds and widens them. Nothing is left at
    `file` unless onnx.checker takes it and ONNX Runtime on the CPU answers as the module does, within `TOLERANCE`.
    Raises ScenarioError for an opset or weights that cannot be, TargetError for a missing package and for a file that
    fails its check, StoreError where it cannot be written.
    """
    torch, onnx, _, _ = map(needed, ("torch", "onnx", "onnxscript", "onnxruntime"))
    latest = onnx.defs.onnx_opset_version()
    if not DEFAULT_OPSET <= opset <= latest:
        raise ScenarioError(
            f"opset {opset}: the exporter writes {DEFAULT_OPSET} to {latest}, that of onnx {onnx.__version__}"
        )
    networks = needed("squall.models.backend.networks_torch")
    is_head = spec.name in HEADS
    weights = make_weights(spec.name, sizes) if is_head else weights_of(spec.name, sizes, checkpoint)
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    module = networks.Network(spec.name, sizes, tensors).eval()
    tried = [networks.examples(sizes, rows) for rows in TRIED_ROWS]
    with torch.inference_mode():  # before its weights are rounded
        expected = [module(*map(torch.from_numpy, inputs)).numpy() for inputs in tried]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=file.parent) as folder:
            made = Path(folder) / file.name
            _write(made, module.half() if precision == "fp16" else module, spec, tried[1], opset)
            answers = _answers(made, spec, opset, tried)
            pairs = zip(answers, expected, strict=True)
            differences = [networks.difference(*pair, *TOLERANCE[precision]) for pair in pairs]
            worst = float(np.max(differences))  # that one is not a number comes through
            if not worst <= 1:
                raise TargetError(
                    f"the ONNX file of {spec.name} answers otherwise than the module: {digits_text(worst)} times the "
                    f"difference that {precision} is allowed; nothing was kept"
                )
            parts = sorted(Path(folder).iterdir())
            n_bytes, sha256 = sum(part.stat().st_size for part in parts), sha256_of(parts)
            for part in reversed(parts):  # the weights first
                part.replace(file.parent / part.name)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from error
    return OnnxFile(file, opset, precision, n_bytes, sha256, worst)


def _write(
    file: Path,
    module: Any,
    spec: ModelSpec,
    inputs: list[NDArray[Any]],
    opset: int,
) -> None:
    import torch

    rows = torch.export.Dim("rows", min=1, max=max(spec.max_batch_size, TRIED_ROWS[-1]))
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module, tuple(map(torch.from_numpy, inputs)), dynamo=True, opset_version=opset, verbose=False,
                input_names=[one.name for one in spec.inputs], output_names=[one.name for one in spec.outputs],
                dynamic_shapes=(tuple({0: rows} for _ in inputs),),  # of its `*inputs` torch wants them as one tuple
            )  # fmt: skip
            assert program is not None
            program.save(str(file))
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
    parts = (graph.node, graph.input, graph.output, graph.value_info, graph.initializer)
    for part in (model, graph, *(one for group in parts for one in group)):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    onnx.save_model(model, str(file))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on itself: operators of packages that are not there, its own deprecations."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)


def _answers(file: Path, spec: ModelSpec, opset: int, tried: list[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Those of ONNX Runtime on the CPU. Raises TargetError for a file that is not valid, or of another opset."""
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
        names = [one.name for one in spec.inputs]
        answers = [  # of other names or types it takes none, and of fixed rows not all
            session.run([spec.outputs[0].name], dict(zip(names, inputs, strict=True)))[0] for inputs in tried
        ]
    except Exception as error:  # of both packages, which have no common base
        raise TargetError(f"the ONNX file of {spec.name} is not valid: {_line(error)}") from error
    if imported.get("") != opset:
        raise TargetError(
            f"the ONNX file of {spec.name} has opset {imported.get('')} and not {opset}: leave --opset out"
        )
    return answers


def sha256_of(files: Iterable[Path]) -> str:
    """Of all that they hold, one after another, in hex."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def _line(error: BaseException) -> str:
    """The first line of what its first cause says, without colours, or its kind where that says nothing."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = (line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines())
    return next(filter(None, lines), type(error).__name__)
