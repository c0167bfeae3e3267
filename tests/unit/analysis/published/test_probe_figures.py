"""Figures of probes from planted tables with known answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from squall.analysis.probes import operator_figures, pipeline_figures, probe_figures
from squall.analysis.schema import arrow_schema
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.sealed import Verdict
from squall.scenarios.errors import AnalysisError
from squall.scenarios.published.figures import FIGURES

LABELS = {"run": "r", "phase": "probe", "node": "node-0", "start_ns": 0}


def calls(spans: dict[int, tuple[int, int | None]]) -> pa.Table:
    """By size: the host's time of a call, and the kernels'. Calls that do not count take ten times as long."""
    rows: list[dict[str, Any]] = []
    for size, (host_ns, kernel_ns) in spans.items():
        base: dict[str, Any] = {**LABELS, "size": size, "repeat": 0, "step": 0, "call": 0}
        rows.append(
            {**base, "under": "nothing", "part": "first", "host_ns": 40 * host_ns, "synced_ns": 41 * host_ns}
        )
        for under in ("nothing", "profiler"):
            for part, factor in (("wait", 10), ("warmup", 10), ("active", 1), ("active", 1), ("active", 7)):
                slower = 2 if under == "profiler" else 1
                row = {**base, "under": under, "part": part, "host_ns": slower * factor * host_ns}
                row["synced_ns"] = row["host_ns"] + 5
                if under == "profiler" and part == "active":
                    row |= {"op_cpu_ns": factor * host_ns * 3 // 2, "kernel_ns": kernel_ns}
                    row["n_kernels"] = None if kernel_ns is None else 2
                rows.append(row)
    return pa.Table.from_pylist(rows, schema=arrow_schema("probe_calls"))


def test_figures_of_a_size_are_medians_of_its_active_calls() -> None:
    figures = operator_figures(calls({64: (20_000, 3_000)}), [64], {}, "")["64"]
    assert figures == {
        "first_call_ns": 800_000, "first_synced_ns": 820_000, "first_of_warm_ratio": 40, "warm_call_ns": 20_000,
        "warm_synced_ns": 20_005, "profiled_call_ns": 40_000, "op_cpu_ns": 30_000, "call_kernel_ns": 3_000,
        "call_kernels_count": 2, "kernel_of_cpu_ratio": 0.1, "kernel_of_first_ratio": 3_000 / 800_000,
        "compute_tflops": pytest.approx((2 * 64**3 + 64**2) / 3e-6 / 1e12), "bound": "overhead",
    }  # fmt: skip
    assert set(figures) <= set(FIGURES)


def test_the_crossover_is_where_the_line_between_two_sizes_meets_the_hosts_time() -> None:
    # kernels / host: 1/4 at 256, 4 at 1024: in logarithms the zero lies half-way, at 512
    spans: dict[int, tuple[int, int | None]] = {128: (8_000, 100), 256: (8_000, 2_000), 1024: (8_000, 32_000)}
    figures = operator_figures(calls(spans), [128, 256, 1024], {}, "")
    assert figures["all sizes"]["crossover_size_count"] == pytest.approx(512)
    assert [figures[str(size)]["bound"] for size in spans] == ["overhead", "overhead", "compute"]


def test_the_crossover_of_a_power_law_is_found_whatever_the_sizes_beside_it() -> None:
    # kernels take n^3 / 1000 ns, the host 30 us: they meet at n = (3e7)^(1/3)
    sizes = [64, 128, 256, 512]
    spans: dict[int, tuple[int, int | None]] = {size: (30_000, size**3 // 1000) for size in sizes}
    found = operator_figures(calls(spans), sizes, {}, "")["all sizes"]["crossover_size_count"]
    assert found == pytest.approx(math.cbrt(3e7), rel=1e-3)


@pytest.mark.parametrize(
    ("kernel_ns", "told"), [(9_000, "compute at every size from 64"), (9, "overhead at every size")]
)
def test_without_a_crossover_none_is_stated(kernel_ns: int, told: str) -> None:
    figures = operator_figures(calls({64: (5_000, kernel_ns), 128: (5_000, kernel_ns)}), [64, 128], {}, "")
    assert "crossover_size_count" not in figures["all sizes"]
    assert str(figures["all sizes"]["bound"]).startswith(told)


def test_sizes_without_kernels_have_the_hosts_figures_and_the_reason() -> None:
    figures = operator_figures(calls({64: (5_000, None)}), [64, 128], {"128": "no memory"}, "no CUPTI")
    assert figures["64"]["warm_call_ns"] == 5_000
    assert not {"call_kernel_ns", "kernel_of_cpu_ratio", "compute_tflops", "bound"} & set(figures["64"])
    assert figures["128"] == {"not_measured": "no memory"}
    assert figures["all sizes"] == {"not_measured": "no CUPTI"}


BASE = "pageable, separate kernels"
FUSED = "pinned, one CUDA graph"


def stages() -> pa.Table:
    by_variant = {
        BASE: {
            "prep": 5,
            "h2d": 20,
            "preprocess": 10,
            "inference": 50,
            "d2h": 5,
            "postprocess": 5,
            "total": 100,
        },
        FUSED: {"prep": 5, "h2d": 10, "fused": 55, "d2h": 2, "total": 80},
    }
    rows = []
    for variant, spans in by_variant.items():
        for call in range(4):
            part, factor = ("warmup", 100) if call == 0 else ("active", 1_000)
            place = {**LABELS, "variant": variant, "repeat": 0, "call": call, "part": part}
            rows += [{**place, "stage": stage, "span_ns": factor * span} for stage, span in spans.items()]
    return pa.Table.from_pylist(rows, schema=arrow_schema("probe_stages"))


def test_a_variants_gain_is_its_throughput_over_that_of_the_base() -> None:
    figures = pipeline_figures(stages(), {"pinned, one compiled stage": "no compiler"})
    assert figures[BASE] == {
        "stage_prep_ns": 5_000, "stage_h2d_ns": 20_000, "stage_preprocess_ns": 10_000, "stage_inference_ns": 50_000,
        "stage_d2h_ns": 5_000, "stage_postprocess_ns": 5_000, "device_ns": 85_000, "pipeline_ns": 100_000,
        "throughput_hz": 10_000, "gain_ratio": 0,
    }  # fmt: skip
    assert figures[FUSED]["gain_ratio"] == pytest.approx(0.25)
    assert figures[FUSED]["stage_fused_ns"] == 55_000
    assert figures[FUSED]["device_ns"] == 67_000
    assert "stage_inference_ns" not in figures[FUSED]
    assert figures["pinned, one compiled stage"] == {"not_measured": "no compiler"}
    assert all(set(one) <= set(FIGURES) for one in figures.values())


def test_figures_of_a_variant_that_is_left_out_behind_its_rounds_do_not_count() -> None:
    figures = pipeline_figures(stages(), {FUSED: "its outputs differ: batch 0"})
    assert figures[FUSED] == {"not_measured": "its outputs differ: batch 0"}


def planted(tmp_path: Path, status: str, probe: dict[str, Any] | None) -> Path:
    store = RunStore.create(
        tmp_path, "p", 0, Manifest(scenario={"name": "p"} | ({"probe": probe} if probe else {}))
    )
    store.append("probe_calls", calls({64: (5_000, 100)}))
    facts = {"left_out": {}, "no_kernels": ""}
    store.write_text("probe.json", json.dumps({"facts": facts}))
    store.seal(Verdict(status=status))
    return store.run_dir


def test_figures_of_a_sealed_run_are_read_from_its_tables(tmp_path: Path) -> None:
    run = planted(tmp_path, "VALID", {"kind": "operator", "sizes": [64]})
    assert probe_figures(run)["64"]["warm_call_ns"] == 5_000


@pytest.mark.parametrize(
    ("status", "probe", "told"),
    [
        ("ABORTED", {"kind": "operator", "sizes": [64]}, "was broken off"),
        ("VALID", None, "is not the run of a probe"),
    ],
)
def test_a_run_without_a_probes_figures_is_refused(
    tmp_path: Path, status: str, probe: dict[str, Any] | None, told: str
) -> None:
    with pytest.raises(AnalysisError, match=told):
        probe_figures(planted(tmp_path, status, probe))
