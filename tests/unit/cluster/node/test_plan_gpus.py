"""Plans of a repository held to the GPUs of the node, by what NVML tells of these."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from squall.cluster.node.plan_gpus import building_gpu, refuse_other_gpus
from squall.models.plan_export import PlanRecord, RowProfile, gpu_kind
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import TargetError
from tests.unit.actors.fake_nvml import FakeGpu, FakeNvml

Gpu = tuple[str, tuple[int, int]]
A100: Gpu = ("NVIDIA A100", (8, 0))
H100: Gpu = ("NVIDIA H100", (9, 0))


def seen(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu) -> FakeNvml:
    fakes = [FakeGpu(f"GPU-{i}", name, {"capability": one}) for i, (name, one) in enumerate(gpus)]
    nvml = FakeNvml(*fakes)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def built(folder: Path, version: str = "1") -> ModelConfig:
    """A model of a repository with a plan for an H100."""
    where = folder / "bert_tiny" / version
    where.mkdir(parents=True)
    (folder / "bert_tiny" / "config.pbtxt").write_text('name: "bert_tiny"\nbackend: "tensorrt"\n')
    (where / "model.plan").write_bytes(b"plan")
    PlanRecord(
        tensorrt="11.4.0", gpu=gpu_kind(*H100), precision="fp16", workspace_bytes=0, onnx_sha256="", plan_sha256="",
        rows=RowProfile(min_rows=1, opt_rows=8, max_rows=8),
    ).write(where)  # fmt: skip
    return ModelConfig.model_validate({"name": "bert_tiny", "repository": str(folder)})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, A100),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, H100),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,0"}, H100),
    ],
)
def test_a_plan_is_built_for_the_first_gpu_that_cuda_has(
    environment: dict[str, str], expected: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(monkeypatch, A100, H100)
    assert building_gpu(environment) == gpu_kind(*expected)


def test_a_gpu_that_cannot_be_told_and_none_at_all_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = seen(monkeypatch, A100, H100)
    with pytest.raises(TargetError, match="cannot be told: set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        building_gpu({})
    nvml.is_driver_missing = True
    with pytest.raises(TargetError, match="is built on the GPU that it is for, and here is none"):
        building_gpu({})


@pytest.mark.parametrize(
    ("gpus", "environment", "why"),
    [
        ((H100,), {}, None),
        ((A100, H100), {}, None),  # CUDA's order is not known: one of them runs it
        (
            (A100, H100),
            {"CUDA_VISIBLE_DEVICES": "GPU-0"},
            "was built for NVIDIA H100 .*, and here is NVIDIA A100",
        ),
        ((A100,), {}, "model.repository: .*model.plan was built for NVIDIA H100"),
        ((), {}, "no GPU is seen here"),
    ],
)
def test_a_server_is_not_started_with_a_plan_of_another_gpu(
    gpus: tuple[Gpu, ...], environment: dict[str, str], why: str | None, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    seen(monkeypatch, *gpus)
    model = built(tmp_path)
    if why is None:
        refuse_other_gpus([model], environment)
        return
    with pytest.raises(TargetError, match=why):
        refuse_other_gpus([model], environment)


def test_other_versions_and_repositories_without_a_record_are_not_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen(monkeypatch, A100)
    model = built(tmp_path, "2")
    refuse_other_gpus([model.model_copy(update={"version": "1"})], {})
    (tmp_path / "bert_tiny" / "2" / "model.plan.json").unlink()
    refuse_other_gpus([model], {})
