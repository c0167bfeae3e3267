"""Records beside TensorRT plans: which GPU a plan is for, and when it would be made again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from squall.models.export.plan_record import Gpu, PlanRecord, RowProfile, misfit, records_of, shortage
from squall.scenarios.errors import StoreError

H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0), 80 * 10**9, 70 * 10**9)
H200 = Gpu("NVIDIA H200", (9, 0), 141 * 10**9, 140 * 10**9)
RECORD = PlanRecord("11.4.0", H100.kind, "fp16", RowProfile(1, 512, 2048), 0, "ab", "cd")


def kept(folder: Path, backend: str = "tensorrt") -> Path:
    version = folder / "bert_tiny" / "1"
    version.mkdir(parents=True)
    (folder / "bert_tiny" / "config.pbtxt").write_text(f'name: "bert_tiny"\nbackend: "{backend}"\n')
    (version / "model.plan").write_bytes(bytes(1000))
    RECORD.write(version)
    return version


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    version = kept(tmp_path)
    assert records_of(tmp_path, "bert_tiny") == [(version, RECORD)]
    assert PlanRecord.read(tmp_path) is None


def test_a_plan_of_an_earlier_backend_is_not_looked_at(tmp_path: Path) -> None:
    kept(tmp_path, "python")
    assert records_of(tmp_path, "bert_tiny") == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"rows": {"rows": 1}}'])
def test_a_record_that_is_none_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.plan.json").write_text(text)
    with pytest.raises(StoreError, match=r"model\.plan\.json is no record of a plan: build the plan again"):
        PlanRecord.read(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"tensorrt": "10.16.1"}, {"gpu": H200.kind}, {"precision": "fp32"}, {"rows": RowProfile(1, 1024, 2048)},
        {"workspace_bytes": 1}, {"onnx_sha256": "ef"},
    ],
)  # fmt: skip
def test_a_plan_is_made_again_for_anything_that_it_depends_on(changed: dict[str, object]) -> None:
    assert RECORD.is_made_as(replace(RECORD, plan_sha256=""))
    assert not RECORD.is_made_as(replace(RECORD, **changed))  # type: ignore[arg-type]


def test_a_plan_runs_on_the_kind_of_gpu_that_it_was_built_for(tmp_path: Path) -> None:
    plan = kept(tmp_path) / "model.plan"
    assert misfit(plan, RECORD, [H200, H100]) is None
    assert misfit(plan, RECORD, [H200, H200]) == (
        f"{plan} was built for NVIDIA H100 80GB HBM3 (compute capability 9.0), and here is NVIDIA H200 (compute "
        "capability 9.0): build it again here, `squall models build NAME --backend tensorrt`"
    )
    said = misfit(plan, RECORD, [])
    assert said is not None
    assert "no GPU is seen here: `squall doctor` says why" in said
    said = misfit(plan, RECORD, [replace(H100, total_bytes=999)])
    assert said is not None
    assert "use a larger GPU" in said


def test_memory_that_is_not_free_is_told_before_the_build() -> None:
    assert shortage(H100, 60 * 10**9, 10 * 10**9) is None
    assert shortage(H100, 60 * 10**9, 10 * 10**9 + 1) == (
        "NVIDIA H100 80GB HBM3 has 70.0 GB free of 80.0 GB, and the plan needs 70.0 GB while it is built (60.0 GB of "
        "weights, 10.0 GB of workspace): end what else uses the GPU, lower --workspace, or use --precision fp16"
    )
