"""What is printed and written of levels, held to lines, columns and keys of files that perf_analyzer 2.60 wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.studies.perf_level import GpuFigures, LevelFigures, ServerFigures
from squall.analysis.studies.perf_report import Experiment, ReportOptions, csv_text, export_json
from squall.analysis.studies.perf_words import number, told
from tests.unit.analysis.studies.rows import ended

CASES = yaml.safe_load((Path(__file__).parent / "told.yaml").read_text())
US = 1_000
OWN = ServerFigures(
    inference_count=2_020, execution_count=2_020, request_count=2_020, queue_ns=2_020 * 1_107 * US,
    compute_input_ns=2_020 * 23 * US, compute_infer_ns=2_020 * 372 * US, compute_output_ns=2_020 * 74 * US,
    success_ns=2_020 * 1_580 * US,
)  # fmt: skip
GPUS = (GpuFigures("GPU-a", 0.33, 55.25, 10_000), GpuFigures("GPU-b", 0.5, None, 11_000))
PLAIN = LevelFigures(
    level=1.0, throughput_hz=560.294, n_requests=2_020, n_failed=0, latency_mean_ns=1_776_900.0,
    latency_std_ns=1_087_000.0, percentile_ns={50: 1_694e3, 90: 1_970e3, 95: 2_131e3, 99: 2_605e3},
    receive_mean_ns=53_000.0, stable_in_ns=1_776_900.0, response_ns=None, send_lag_p99_ns=None, server={"m": OWN},
    gpus=(), pass_hz=(550.0, 560.0, 570.0, 400.0), pass_latency_ns=(1e6, 2e6, 3e6, 4e6), first_counted=0,
)  # fmt: skip
"""One user, with times of a run of perf_analyzer."""


def level(changes: dict[str, Any]) -> LevelFigures:
    """`gpus`: `GPUS`; `server`: what differs from no time at all, or `OWN`."""
    if "server" in changes:
        changes["server"] = {
            model: OWN if sums is None else ServerFigures(**sums) for model, sums in changes["server"].items()
        }
    return replace(PLAIN, **changes | ({"gpus": GPUS} if "gpus" in changes else {}))


@pytest.mark.parametrize("name", CASES)
def test_levels_are_told_as_perf_analyzer_does(name: str) -> None:
    case = CASES[name]
    options: dict[str, Any] = {
        "mode": "concurrency",
        "percentile": None,
        "is_verbose": False,
        "has_metrics": False,
        "is_grpc": False,
    }
    mode, percentile, is_verbose, has_metrics, is_grpc = (options | case.get("options", {})).values()
    levels = [level(dict(changes)) for changes in case["levels"]]
    lines = list[str]()
    for figures in levels:
        lines += told("heading", mode, figures.level) or [""]
        lines += told("level", figures, percentile, is_grpc, is_verbose)
        lines += told("metrics", figures.gpus) if has_metrics else []
    assert [*lines, *told("summary", mode, levels, percentile)] == case["lines"]
    assert csv_text(levels, ReportOptions(mode, percentile, is_verbose, has_metrics)) == case["csv"]


def test_without_a_level_there_is_no_summary() -> None:
    assert told("summary", "concurrency", [], None) == []


def test_numbers_are_those_of_a_c_stream() -> None:
    assert [*map(number, (1_038.1234, 50.0, 1e7, 0.1))] == ["1038.12", "50", "1e+07", "0.1"]


def test_the_export_has_the_keys_of_perf_analyzer_and_every_request_that_succeeded() -> None:
    requests = ended([100, 200, 300], [7, 9, 5], failed=(1,))
    levels = [Experiment(mode, 2.0, [0, 400], requests) for mode in ("concurrency", "request rate")]
    rows = [
        {"timestamp": sent, "request_inputs": {}, "response_timestamps": [done], "response_outputs": [{}]}
        for sent, done in ((100, 107), (300, 305))
    ]
    assert json.dumps(export_json(levels, "squall 1")) == json.dumps(
        {
            "experiments": [
                {
                    "experiment": {"mode": mode, "value": value},
                    "requests": rows,
                    "window_boundaries": [0, 400],
                }
                for mode, value in (("concurrency", 2), ("request_rate", 2.0))
            ],
            "version": "squall 1",
            "service_kind": "triton",
            "endpoint": "",
        }
    )
