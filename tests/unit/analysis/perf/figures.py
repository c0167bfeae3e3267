"""Figures of levels made for the tests of what is printed and written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from squall.analysis.perf.level import GpuFigures, LevelFigures, ServerFigures

US = 1_000
OWN = ServerFigures(
    inference_count=2_020, execution_count=2_020, request_count=2_020, queue_ns=2_020 * 1_107 * US,
    compute_input_ns=2_020 * 23 * US, compute_infer_ns=2_020 * 372 * US, compute_output_ns=2_020 * 74 * US,
    success_ns=2_020 * 1_580 * US,
)  # fmt: skip
GPUS = (GpuFigures("GPU-a", 0.33, 55.25, 10_000), GpuFigures("GPU-b", 0.5, None, 11_000))


def figures(**changes: Any) -> LevelFigures:
    """A level of one user, with times of a run of perf_analyzer."""
    plain = LevelFigures(
        level=1.0, throughput_hz=560.294, n_requests=2_020, n_failed=0, latency_mean_ns=1_776_900.0,
        latency_std_ns=1_087_000.0, percentile_ns={50: 1_694e3, 90: 1_970e3, 95: 2_131e3, 99: 2_605e3},
        receive_mean_ns=53_000.0, stable_in_ns=1_776_900.0, response_ns=None, send_lag_p99_ns=None, server={"m": OWN},
        gpus=(), pass_hz=(550.0, 560.0, 570.0, 400.0), pass_latency_ns=(1e6, 2e6, 3e6, 4e6), first_counted=0,
    )  # fmt: skip
    return replace(plain, **changes)
