"""What is written beside a TensorRT plan: what it was built from, by and for. A plan runs where it was built."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from squall.scenarios.errors import StoreError

PLAN_FILE = "model.plan"
RECORD_FILE = "model.plan.json"
"""Beside `PLAN_FILE` in the version folder, where Triton reads no other file than the plan."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML tells of it: product name, compute capability such as (9, 0), bytes of its memory."""

    name: str
    compute_capability: tuple[int, ...]
    total_bytes: int
    free_bytes: int

    @property
    def kind(self) -> str:
        """What a plan is bound to: `NVIDIA H100 80GB HBM3 (compute capability 9.0)`."""
        return f"{self.name} (compute capability {'.'.join(map(str, self.compute_capability))})"


@dataclass(frozen=True)
class RowProfile:
    """Rows of a batch that a plan takes, `min_rows` to `max_rows`, and those that its kernels are chosen for."""

    min_rows: int
    opt_rows: int
    max_rows: int


@dataclass(frozen=True)
class PlanRecord:
    """A plan's origin. `gpu`: `Gpu.kind`; `onnx_sha256` stands for model, weights, precision and opset;
    `workspace_bytes` is 0 where TensorRT was left the whole GPU; `plan_sha256` is of the plan itself."""

    tensorrt: str
    gpu: str
    precision: str
    rows: RowProfile
    workspace_bytes: int
    onnx_sha256: str
    plan_sha256: str

    def is_made_as(self, other: PlanRecord) -> bool:
        """Whether a build as the other's would make it again."""
        return {**asdict(self), "plan_sha256": ""} == {**asdict(other), "plan_sha256": ""}

    def write(self, folder: Path) -> None:
        (folder / RECORD_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> PlanRecord | None:
        """None where the folder has none. Raises StoreError for one that cannot be read."""
        file = folder / RECORD_FILE
        if not file.is_file():
            return None
        try:
            found = json.loads(file.read_text())
            return cls(**{**found, "rows": RowProfile(**found["rows"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StoreError(
                f"{file} is no record of a plan: build the plan again, or remove both files"
            ) from error


def records_of(repository: Path, model: str) -> list[tuple[Path, PlanRecord]]:
    """Version folders of a model that hold a plan which squall built, with its record, in order of their names."""
    config = repository / model / "config.pbtxt"
    if not config.is_file() or 'backend: "tensorrt"' not in config.read_text():
        return []  # a plan that was there before the model got another backend
    found = [(folder, PlanRecord.read(folder)) for folder in sorted((repository / model).glob("*/"))]
    return [(folder, record) for folder, record in found if record is not None]


def misfit(plan: Path, record: PlanRecord, gpus: Sequence[Gpu]) -> str | None:
    """Why none of these GPUs can run the plan, with the mend; None where one can."""
    if not gpus:
        return f"{plan} runs on {record.gpu}, and no GPU is seen here: `squall doctor` says why"
    fitting = [one for one in gpus if one.kind == record.gpu]
    if not fitting:
        here = ", ".join(sorted({one.kind for one in gpus}))
        return (
            f"{plan} was built for {record.gpu}, and here is {here}: build it again here, "
            "`squall models build NAME --backend tensorrt`"
        )
    n_bytes = plan.stat().st_size if plan.is_file() else 0
    most = max(one.total_bytes for one in fitting)
    if n_bytes > most:
        return f"{plan} has {_gb(n_bytes)} of weights, and {record.gpu} has {_gb(most)} of memory: use a larger GPU"
    return None


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"


def shortage(gpu: Gpu, weights_bytes: int, workspace_bytes: int) -> str | None:
    """Why a plan cannot be built on that GPU now for want of memory; None where it may. A lower bound: the weights, and
    the workspace that was asked for; what kernels need while they are tried is TensorRT's own."""
    needed = weights_bytes + workspace_bytes
    if needed <= gpu.free_bytes:
        return None
    return (
        f"{gpu.name} has {_gb(gpu.free_bytes)} free of {_gb(gpu.total_bytes)}, and the plan needs {_gb(needed)} while "
        f"it is built ({_gb(weights_bytes)} of weights, {_gb(workspace_bytes)} of workspace): end what else uses the "
        "GPU, lower --workspace, or use --precision fp16"
    )
