"""Figures of probes from planted tables with known answers, and each check of a probe's verdict, met and unmet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.gpu_probe import judge_probe, operator_figures, pipeline_figures, probe_figures
from squall.scenarios.errors import AnalysisError
from squall.scenarios.published.figures import FIGURES
from tests.unit.analysis.studies.test_published_result import assert_like

CASES = yaml.safe_load((Path(__file__).parent / "probes.yaml").read_text())
LABELS = {"run": "r", "phase": "probe", "node": "node-0", "start_ns": 0}


def calls(spans: dict[int, tuple[int, int | None]]) -> pa.Table:
    """By size: the host's time of a call, and the kernels'. Calls that do not count take ten times as long."""
    rows: list[dict[str, Any]] = []
    for size, (host_ns, kernel_ns) in spans.items():
        base: dict[str, Any] = {**LABELS, "size": size, "repeat": 0, "step": 0, "call": 0}
        first = {"under": "nothing", "part": "first", "host_ns": 40 * host_ns, "synced_ns": 41 * host_ns}
        rows.append({**base, **first})
        for under, slower in (("nothing", 1), ("profiler", 2)):
            for part, factor in (("wait", 10), ("warmup", 10), ("active", 1), ("active", 1), ("active", 7)):
                row = {**base, "under": under, "part": part, "host_ns": slower * factor * host_ns}
                row["synced_ns"] = row["host_ns"] + 5
                if (under, part) == ("profiler", "active"):
                    row |= {"op_cpu_ns": factor * host_ns * 3 // 2, "kernel_ns": kernel_ns}
                    row["n_kernels"] = None if kernel_ns is None else 2
                rows.append(row)
    return pa.Table.from_pylist(rows, schema=arrow_schema("probe_calls"))


@pytest.mark.parametrize("case", CASES["operators"], ids=lambda case: case["why"])
def test_figures_of_an_operator(case: dict[str, Any]) -> None:
    spans = case["spans"]
    table = calls({size: span for size, span in spans.items() if span})
    figures = operator_figures(table, [*spans], case.get("left_out", {}), case.get("no_kernels", ""))
    for row, expected in case["expect"].items():
        assert_like(figures[row], expected)
        assert not set(case.get("no", {}).get(row, ())) & set(figures[row])
        assert set(figures[row]) <= {*FIGURES, "not_measured"}
    assert case["why"] != CASES["operators"][0]["why"] or set(figures["64"]) == set(case["expect"]["64"])


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
    assert figures == {
        BASE: {
            "stage_prep_ns": 5_000, "stage_h2d_ns": 20_000, "stage_preprocess_ns": 10_000,
            "stage_inference_ns": 50_000, "stage_d2h_ns": 5_000, "stage_postprocess_ns": 5_000, "device_ns": 85_000,
            "pipeline_ns": 100_000, "throughput_hz": 10_000, "gain_ratio": 0,
        },
        FUSED: {
            "stage_prep_ns": 5_000, "stage_h2d_ns": 10_000, "stage_fused_ns": 55_000, "stage_d2h_ns": 2_000,
            "device_ns": 67_000, "pipeline_ns": 80_000, "throughput_hz": 12_500, "gain_ratio": 0.25,
        },
        "pinned, one compiled stage": {"not_measured": "no compiler"},
    }  # fmt: skip
    left_out = pipeline_figures(stages(), {FUSED: "its outputs differ: batch 0"})
    assert left_out[FUSED] == {"not_measured": "its outputs differ: batch 0"}


@pytest.mark.parametrize(
    ("status", "probe", "told"),
    [
        ("VALID", {"kind": "operator", "sizes": [64]}, ""),
        ("ABORTED", {"kind": "operator", "sizes": [64]}, "was broken off"),
        ("VALID", None, "is not the run of a probe"),
    ],
)
def test_figures_are_those_of_a_sealed_run_of_a_probe(
    tmp_path: Path, status: str, probe: dict[str, Any] | None, told: str
) -> None:
    scenario = {"name": "p"} | ({"probe": probe} if probe else {})
    store = RunStore.create(tmp_path, "p", 0, Manifest(scenario=scenario))
    store.append("probe_calls", calls({64: (5_000, 100)}))
    store.write_text("probe.json", json.dumps({"facts": {"left_out": {}, "no_kernels": ""}}))
    store.seal(Verdict(status=status))
    if not told:
        assert probe_figures(store.run_dir)["64"]["warm_call_ns"] == 5_000
        return
    with pytest.raises(AnalysisError, match=told):
        probe_figures(store.run_dir)


def repeats(medians: list[int]) -> pa.Table:
    """Active calls of one size, a repeat each."""
    same = {**LABELS, "size": 64, "under": "nothing", "step": 0}
    found = [
        {**same, "part": part, "call": call, "repeat": repeat, "host_ns": host, "synced_ns": host}
        for repeat, median in enumerate(medians)
        for call, (part, host) in enumerate([("warmup", 9_999_999), ("active", median), ("active", median)])
    ]
    return pa.Table.from_pylist(found, schema=arrow_schema("probe_calls"))


@pytest.mark.parametrize("case", CASES["verdicts"], ids=str)
def test_a_probe_is_held_to_what_was_seen_beside_it(case: dict[str, Any]) -> None:
    kind = case.get("kind", "operator")
    rows = repeats(case.get("repeats", [100, 110, 105]))
    verdict = judge_probe(
        kind, case.get("device", "gpu"), rows if kind == "operator" else arrow_schema("probe_stages").empty_table(),
        {"host_share": case.get("host_share", {"queued_ns": 1, "cpu_ns": 99, "n_put_aside": 1}),
         "differing": case.get("differing", {})},
        case.get("samples", [{"throttle_reasons": 0x04}]), case.get("before", {"util": 0.0, "n_processes": 0}),
    )  # fmt: skip
    assert verdict.status == ("INVALID" if "reason" in case else "VALID")
    assert [case["reason"] in reason for reason in verdict.reasons] == [True] * ("reason" in case)
    if "checks" in case:
        assert {one.name: one.value for one in verdict.checks} == pytest.approx(case["checks"], rel=1e-5)
        assert all(one.is_met for one in verdict.checks)
    assert all(one.not_assessed for one in verdict.checks) is not case.get("is_assessed", True)
