"""TensorRT plans: order of the builder's calls, timing cache, what is said where TensorRT refuses; the record beside a
plan, and which GPU it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.models import plan_export
from squall.models.onnx_export import OnnxFile
from squall.models.plan_export import (
    PlanOptions,
    PlanRecord,
    RowProfile,
    build_plan,
    gpu_kind,
    misfit,
    records_of,
    write_plan_repository,
)
from squall.models.repository import Serving
from squall.models.spec import HEADS, head_spec
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import ScenarioError, SquallError, StoreError, TargetError
from tests.unit.models.cases import cases
from tests.unit.models.fake_tensorrt import FakeTensorRT

SPEC = head_spec("linear_head", "1", HEADS["linear_head"].sizes({"width": 16}), 64)


def rows(low: int, best: int, most: int) -> RowProfile:
    return RowProfile(min_rows=low, opt_rows=best, max_rows=most)


ROWS = rows(1, 32, 64)
H100, H200 = gpu_kind("NVIDIA H100 80GB HBM3", (9, 0)), gpu_kind("NVIDIA H200", (9, 0))


def test_a_plan_is_strongly_typed_with_rows_from_least_to_most(tmp_path: Path) -> None:
    trt, cache = FakeTensorRT(), tmp_path / "own" / "times.bin"
    options = PlanOptions(workspace_bytes=1 << 30, timing_cache=cache)
    assert build_plan(trt, Path("model.onnx"), SPEC, ROWS, options) == b"plan"
    assert trt.calls == [
        ("Builder",),
        ("create_network", 1 << 1),
        ("OnnxParser",),
        ("parse_from_file", "model.onnx"),
        ("create_builder_config",),
        ("clear_flag", "TF32"),
        ("set_memory_pool_limit", "WORKSPACE", 1 << 30),
        ("create_optimization_profile",),
        ("set_shape", "INPUT", (1, 16), (32, 16), (64, 16)),
        ("add_optimization_profile",),
        ("create_timing_cache", b""),
        ("set_timing_cache", False),
        ("build_serialized_network",),
        ("get_timing_cache",),
        ("serialize",),
    ]
    assert cache.read_bytes() == b"times"
    build_plan(trt, Path("model.onnx"), SPEC, ROWS, options)
    assert ("create_timing_cache", b"times") in trt.calls
    assert list(cache.parent.iterdir()) == [cache]


def test_without_cache_and_workspace_tensorrt_is_left_its_own() -> None:
    trt = FakeTensorRT()
    build_plan(trt, Path("model.onnx"), SPEC, ROWS, PlanOptions())
    assert {call[0] for call in trt.calls} & {"create_timing_cache", "set_memory_pool_limit"} == set()


@pytest.mark.parametrize(
    ("call", "says", "why"), cases("test_a_refusal_is_one_line_with_tensorrts_own_words")
)
def test_a_refusal_is_one_line_with_tensorrts_own_words(
    call: str, says: str, why: str, tmp_path: Path
) -> None:
    cache = tmp_path / "times.bin"
    with pytest.raises(TargetError, match=why) as caught:
        build_plan(
            FakeTensorRT(refuses=call, says=says), Path("m"), SPEC, ROWS, PlanOptions(timing_cache=cache)
        )
    assert "\n" not in str(caught.value)
    assert not cache.exists()


def test_a_timing_cache_of_another_gpu_is_left_as_it_is(tmp_path: Path) -> None:
    cache = tmp_path / "times.bin"
    cache.write_bytes(b"of another")
    trt = FakeTensorRT(refuses="set_timing_cache", says="header")
    with pytest.raises(
        ScenarioError, match=r"times\.bin is of another GPU or another TensorRT: name another file"
    ):
        build_plan(trt, Path("m"), SPEC, ROWS, PlanOptions(timing_cache=cache))
    assert cache.read_bytes() == b"of another"


@pytest.mark.parametrize(("options", "fits"), [
    (PlanOptions(), rows(1, 64, 64)),
    (PlanOptions(opt_rows=8), rows(1, 8, 64)),
    (PlanOptions(min_rows=4, opt_rows=4), rows(4, 4, 64)),
    (PlanOptions(min_rows=9, opt_rows=8), None),
    (PlanOptions(opt_rows=65), None),
])  # fmt: skip
def test_rows_are_in_order(options: PlanOptions, fits: RowProfile | None) -> None:
    if fits is not None:
        assert options.rows(64) == fits
        return
    with pytest.raises(
        SquallError, match="are not in order; --min-rows and --opt-rows are at most --max-batch-size"
    ):
        options.rows(64)


def written(folder: Path, backend: str = "tensorrt") -> tuple[Path, PlanRecord]:
    version = folder / "bert_tiny" / "1"
    version.mkdir(parents=True)
    (folder / "bert_tiny" / "config.pbtxt").write_text(f'name: "bert_tiny"\nbackend: "{backend}"\n')
    record = PlanRecord(
        tensorrt="11.4.0", gpu=H100, precision="fp16", rows=rows(1, 512, 2048), workspace_bytes=0,
        onnx_sha256="ab", plan_sha256="cd",
    )  # fmt: skip
    record.write(version)
    return version, record


def test_a_record_is_read_as_it_was_written_while_the_model_has_the_backend(tmp_path: Path) -> None:
    assert records_of(tmp_path, "bert_tiny") == []
    assert records_of(tmp_path / "own", "bert_tiny") == []
    assert [written(tmp_path)] == records_of(tmp_path, "bert_tiny")
    written(tmp_path / "other", "python")
    assert records_of(tmp_path / "other", "bert_tiny") == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"rows": {"rows": 1}}'])
def test_a_record_that_is_none_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.plan.json").write_text(text)
    with pytest.raises(StoreError, match=r"model\.plan\.json is no record of a plan: build the plan again"):
        PlanRecord.read(tmp_path)


def test_a_plan_runs_on_the_kind_of_gpu_that_it_was_built_for(tmp_path: Path) -> None:
    version, record = written(tmp_path)
    assert misfit(version, record, [H200, H100]) is None
    assert misfit(version, record, [H200, H200]) == (
        f"{version}/model.plan was built for NVIDIA H100 80GB HBM3 (compute capability 9.0), and here is NVIDIA H200 "
        "(compute capability 9.0): build it again here, `squall models build NAME --backend tensorrt`"
    )
    assert "no GPU is seen here: `squall doctor` says why" in (misfit(version, record, []) or "")


def test_a_plan_is_made_again_for_anything_that_it_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(file: Path, *_: object) -> OnnxFile:
        file.write_bytes(b"onnx")
        return OnnxFile(file, 18, precision, 4, onnx, 0.1)

    def is_new(gpu: str = H100, **options: Any) -> bool:
        return write_plan_repository(
            tmp_path, model, Serving("tensorrt"), PlanOptions(**options), gpu, FakeTensorRT(version), 18
        )[2]

    monkeypatch.setattr(plan_export, "export_onnx", export)
    model = ModelConfig.model_validate(
        {"name": "linear_head", "framework": "torch", "settings": {"width": 8}}
    )
    precision, onnx, version = "fp32", "ab", "11.4.0"
    folder = tmp_path / "linear_head" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("of the Python backend")
    (folder / "own.txt").write_text("not squall's")
    assert is_new()
    assert {path.name for path in folder.iterdir()} == {"model.plan", "model.plan.json", "own.txt"}
    assert not is_new()
    assert is_new(H200)
    assert is_new(opt_rows=2)
    assert is_new(workspace_bytes=1)
    assert not is_new(workspace_bytes=1)
    (folder / "model.plan").write_bytes(b"damaged")
    assert is_new(workspace_bytes=1)
    precision = "fp16"
    assert is_new(workspace_bytes=1)
    onnx = "ef"
    assert is_new(workspace_bytes=1)
    version = "10.16.1"
    assert is_new(workspace_bytes=1)
