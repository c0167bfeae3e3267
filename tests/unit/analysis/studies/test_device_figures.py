"""Figures of the real captures on an H200, against what plain Python counted on the nsys export, and planted runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from squall.analysis.findings.finding import Finding, Scope
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.nsys.report import NsysReport
from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.published_figures import device_figures, metric_figures, regime_figures
from tests.h200_runs import write_h200_run

COUNTED = {
    "linear_head": {
        "gpu_compute_p50_ns": 887_588.0, "idle_gap_p50_ns": 3_303_058.0, "kernels_per_batch_count": 43.0,
        "gemms_per_batch_count": 21.0, "kernel_mean_ns": 2_879.5493776613166, "kernel_p50_ns": 1_408.0,
        "h2d_mean_bytes": 398_408.11267605633, "sync_share_ratio": 0.0154,
        "launch_share_ratio": 0.4193 + 0.3516 + 0.0203, "copy_share_ratio": 0.1208, "sem_wait_ns": 449_101_921.0,
    },
    "seqlen_head": {
        "gpu_compute_p50_ns": 2_049_380.0, "idle_gap_p50_ns": 3_513_951.0, "kernels_per_batch_count": 62.0,
        "gemms_per_batch_count": 20.0, "kernel_mean_ns": 25_853.290652417705, "kernel_p50_ns": 20_319.0,
        "layer_norm_share_ratio": 0.3596973748287577, "layer_norm_mean_ns": 30_345.28253148208,
        "h2d_mean_bytes": 391_574.24948875257, "sync_share_ratio": 0.0045,
        "launch_share_ratio": 0.2172 + 0.0894 + 0.0054, "copy_share_ratio": 0.6316, "sem_wait_ns": 335_470_323.0,
    },
}  # fmt: skip
"""By loops over the export itself: ranges, calls and kernels joined by process, thread and correlation id; shares of
single calls to four digits."""


@pytest.mark.parametrize("model", COUNTED)
def test_figures_of_a_capture_are_those_that_were_counted_on_its_export(
    two_heads: RunStore, model: str
) -> None:
    found = device_figures(two_heads, [model])
    assert found == pytest.approx(COUNTED[model], rel=1e-9, abs=1e-4)
    assert set(found) == set(COUNTED[model])  # the linear head has no LayerNorm: it is left out, not 0


def test_activity_is_the_union_of_kernels_and_nothing_is_said_where_nvml_was_not_asked(
    two_heads_metrics: RunMetrics,
) -> None:
    found = metric_figures(two_heads_metrics)
    assert set(found) == {"gpu_active_ratio"}
    shares = {"linear_head": 0.02336, "seqlen_head": 0.26123}  # docs/metrics.md, M1
    lengths = {name: two_heads_metrics.phases[name] for name in shares}
    total = sum(one.end_ns - one.start_ns for one in lengths.values())
    mean = (
        sum(share * (lengths[name].end_ns - lengths[name].start_ns) for name, share in shares.items()) / total
    )
    assert found["gpu_active_ratio"] == pytest.approx(mean, rel=1e-3)


def test_nodes_of_a_cuda_graph_are_kernels_of_its_batch(tmp_path: Path, cuda_graphs: NsysReport) -> None:
    store = write_h200_run(tmp_path, cuda_graphs)
    found = device_figures(store, [one.name for one in store.manifest.phases])
    assert found["kernels_per_batch_count"] == 21.0  # ten nodes of the graph, eleven launched by themselves
    assert found["gemms_per_batch_count"] == 10.0  # five of these, and five of those


def test_a_phase_without_a_report_gives_nothing(two_heads: RunStore) -> None:
    assert device_figures(two_heads, []) == {}
    assert device_figures(two_heads, ["no such phase"]) == {}


def _figures(folder: Path, table: str, told: list[dict[str, Any]]) -> dict[str, float]:
    """Of a run that has that table alone, one measured phase of 10 µs."""
    store = RunStore.create(folder, "planted", 0, read_manifest({
        "scenario": {"name": "k", "seed": 1}, "plan": {"load": "open"}, "nodes": {"node-0": {"clock_error_ns": 0}},
        "phases": [{"name": "measure", "kind": "measure", "start_ns": 0, "end_ns": 10_000}],
    }))  # fmt: skip
    schema = arrow_schema(table)
    plain: dict[str, Any] = {
        field.name: "" if pa.types.is_string(field.type) or pa.types.is_dictionary(field.type) else 0
        for field in schema
    }
    same = {"run": store.run, "phase": "measure", "node": "node-0", "server": "s", "instance": "m_0"}
    rows = [{**plain, **same, **one} for one in told]
    store.append(table, pa.Table.from_pylist(rows, schema=schema))
    store.seal(Verdict(status="VALID"))
    return device_figures(store, ["measure"])


def _kernel(
    batch_id: int | None, start_ns: int, end_ns: int, instance: str = "m_0", name: str = "k"
) -> dict[str, Any]:
    return {
        "batch_id": batch_id, "start_ns": start_ns, "end_ns": end_ns, "instance": instance, "name": name,
        "full_name": name,
    }  # fmt: skip


def test_idle_between_bursts_is_what_no_batch_of_any_instance_covers(tmp_path: Path) -> None:
    """Spans [0, 100), [60, 150) overlap; then 150 to 250 idle, [250, 300), 300 to 500 idle, [500, 510)."""
    kernels = [
        _kernel(1, 0, 10), _kernel(1, 90, 100), _kernel(1, 60, 150, instance="m_1"), _kernel(2, 250, 300),
        _kernel(None, 350, 400), _kernel(3, 500, 510),
    ]  # fmt: skip
    found = _figures(tmp_path, "kernels", kernels)
    assert found["idle_gap_p50_ns"] == 150.0
    assert found["gpu_compute_p50_ns"] == 70.0  # of 10, 50, 90, 100
    assert found["kernel_mean_ns"] == pytest.approx((10 + 10 + 90 + 50 + 50 + 10) / 6)


def test_a_graph_that_was_traced_as_one_tells_its_time_and_no_kernels(tmp_path: Path) -> None:
    kernels = [
        _kernel(1, 0, 100, name="CUDA graph"),
        _kernel(2, 300, 400, name="CUDA graph"),
        _kernel(2, 420, 430),
    ]
    found = _figures(tmp_path, "kernels", kernels)
    assert found == {"gpu_compute_p50_ns": 115.0, "idle_gap_p50_ns": 200.0}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_sm90_hsh_48x64_64x15_4x2_h_bz_bias_TNN", True),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align2>(T1::Params)",
            True,
        ),
        ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64", True),
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn", True),
        (
            "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::NumericArrayConverter<float, half>>>",
            True,
        ),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x32", False),
        ("void cublasLt::splitKreduce_kernel<(int)32, (int)16>", False),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, cutlass::half_t>>", False),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", False),
        ("void at::native::vectorized_elementwise_kernel<(int)8, launch_clamp_scalar>", False),
        ("void at::native::<unnamed>::vectorized_layer_norm_kernel<c10::Half, float, (bool)0>", False),
    ],
)
def test_matrix_products_are_told_by_their_names(tmp_path: Path, name: str, expected: bool) -> None:
    found = _figures(tmp_path, "kernels", [_kernel(1, 0, 10, name=name)])
    assert found["gemms_per_batch_count"] == int(expected)
    assert ("layer_norm_mean_ns" in found) is ("layer_norm" in name)


def test_a_copy_that_blocks_is_a_copy_and_a_graph_launch_a_launch(tmp_path: Path) -> None:
    ns = {
        "blocking sync": 50,
        "launch": 10,
        "graph launch": 5,
        "blocking copy": 20,
        "async copy": 10,
        "poll": 5,
    }
    calls = [{"call_class": name, "start_ns": 7, "end_ns": 7 + length} for name, length in ns.items()]
    shares = {"sync_share_ratio": 0.5, "launch_share_ratio": 0.15, "copy_share_ratio": 0.3}
    assert _figures(tmp_path, "cuda_api", calls) == shares
    assert (
        _figures(tmp_path / "idle", "cuda_api", [{"call_class": "launch", "start_ns": 7, "end_ns": 7}]) == {}
    )


def _finding(rule: str, level: str, requests: str = "all") -> Finding:
    return Finding(rule, level, Scope("measure", "server-0", requests=requests), "", "", "high")


def test_the_regime_is_what_most_instances_are_called_on_both_levels() -> None:
    found = [
        _finding("queue-bound", "window"), _finding("queue-bound", "window"), _finding("host-bound", "window"),
        _finding("not assessed", "body"), _finding("launch-bound", "body"), _finding("GPU-bound", "tail", "p99"),
    ]  # fmt: skip
    assert regime_figures(found) == {"regime": "queue-bound, launch-bound", "bound_by": "queue-bound"}
    assert regime_figures(found, is_client=True)["regime"] == "client-bound, queue-bound, launch-bound"
    assert regime_figures([_finding("none", "window"), _finding("none", "body")])["regime"] == "none"
    assert regime_figures([_finding("not assessed", "body")]) == {}
