"""The build of a TensorRT plan: order of calls, timing cache, and what is said where TensorRT refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.models.export.plan import PlanOptions, build_plan
from squall.models.export.plan_record import RowProfile
from squall.models.spec import HEADS, head_spec
from squall.scenarios.errors import ScenarioError, SquallError, TargetError
from tests.unit.models.export.fake_tensorrt import FakeTensorRT

SPEC = head_spec("linear_head", "1", HEADS["linear_head"].sizes({"width": 16}), 64)
ROWS = RowProfile(1, 32, 64)


def test_a_plan_is_strongly_typed_with_rows_from_least_to_most(tmp_path: Path) -> None:
    trt, cache = FakeTensorRT(), tmp_path / "own" / "times.bin"
    options = PlanOptions(workspace_bytes=1 << 30, timing_cache=cache)
    assert build_plan(trt, Path("model.onnx"), SPEC, ROWS, options) == b"plan"
    assert trt.calls == [
        ("Builder",),
        ("create_network", 1 << 1),
        ("parse_from_file", "model.onnx"),
        ("create_builder_config",),
        ("clear_flag", "TF32"),
        ("set_memory_pool_limit", "WORKSPACE", 1 << 30),
        ("set_shape", "INPUT", (1, 16), (32, 16), (64, 16)),
        ("add_optimization_profile",),
        ("create_timing_cache", b""),
        ("set_timing_cache", "cache of b''", False),
        ("build_serialized_network",),
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
    ("call", "says", "why"),
    [
        ("Builder", "CUDA initialization failure with error: 35",
         "TensorRT cannot build linear_head: CUDA initialization failure with error: 35; `squall doctor` says which"),
        ("parse_from_file", "unsupported operator", "TensorRT 11.4.0 does not take the ONNX file of linear_head: uns"),
        ("add_optimization_profile", "bad rows", "TensorRT refuses the rows RowProfile.* of linear_head: bad rows"),
        ("build_serialized_network", "Cuda Runtime (out of memory)",
         "cannot build linear_head: .*out of memory.; end what else uses the GPU, lower --workspace, or use --prec"),
    ],
)  # fmt: skip
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
    (PlanOptions(), RowProfile(1, 64, 64)),
    (PlanOptions(opt_rows=8), RowProfile(1, 8, 64)),
    (PlanOptions(min_rows=4, opt_rows=4), RowProfile(4, 4, 64)),
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
