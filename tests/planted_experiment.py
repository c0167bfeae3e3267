"""Published experiments with planted runs: rows whose true figures are chosen, and the noise of seeds and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from squall.analysis.studies.published_result import Reproduction, RunFigures, evaluate
from squall.scenarios.published.file import PublishedFile

MS = 1_000_000
HOST = "NVIDIA H100, driver 580.1, 16 cores, squall 0.1"
ARTICLE = {
    "title": "Three heads on Triton",
    "hardware": "NVIDIA RTX Pro 6000",
    "software": "Triton with TensorRT",
    "load": "1,000 users of Locust",
}
E2_ROWS: tuple[dict[str, Any], ...] = (
    {"name": "linear_head", "published": {
        "throughput_hz": 1151, "p50_ns": "410ms", "mean_ns": "441ms", "users_count": 1000, "sm_util_ratio": 0.06,
        "sync_share_ratio": 0.339}},
    {"name": "linear_head_stacked", "published": {
        "throughput_hz": 1196, "p50_ns": "390ms", "mean_ns": "419ms", "users_count": 1000,
        "sm_util_ratio": [0.08, 0.12], "sync_share_ratio": 0.562}},
    {"name": "seqlen_head", "published": {
        "throughput_hz": 1005, "p50_ns": "660ms", "p95_ns": "1100ms", "mean_ns": "684ms", "users_count": 1000,
        "sm_util_ratio": [0.96, 1.0], "sync_share_ratio": 0.969}},
)  # fmt: skip
"""The rows of E2 as its article has them."""
LATENCY, DEPTH = "latency", "depth"
PARTS: dict[str, dict[str, Any]] = {
    LATENCY: {
        "about": "20 s, three seeds", "repeats": 3,
        "gives": ["throughput_hz", "mean_ns", "p50_ns", "p95_ns", "p99_ns", "users_count", "outside_ratio",
                  "sm_util_ratio"],
    },
    DEPTH: {"about": "5 s under nsys", "gives": ["sync_share_ratio", "launch_share_ratio", "copy_share_ratio",
                                                 "gemms_per_batch_count", "regime"]},
}  # fmt: skip
CLAIMS: tuple[dict[str, Any], ...] = (
    {"says": "seqlen uses ten times the SMs", "figure": "sm_util_ratio", "of": "seqlen_head", "to": "linear_head",
     "at_least": 10},
    {"says": "20 layers and an output", "figure": "gemms_per_batch_count", "of": "linear_head", "equals": "21"},
    {"says": "launches are the limit", "figure": "regime", "of": "linear_head", "equals": "launch-bound"},
)  # fmt: skip


def published(
    rows: Sequence[Mapping[str, Any]] = E2_ROWS,
    parts: Mapping[str, Any] = PARTS,
    claims: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> PublishedFile:
    """A file of these rows, whose scenario is a closed loop of 1,000 users."""
    phases = [
        {
            "name": "measure",
            "kind": "measure",
            "duration": "20s",
            "arrivals": {"kind": "closed", "users": 1000},
        }
    ]
    said: dict[str, Any] = {
        "name": "heads", "title": "Three heads", "article": ARTICLE, "rows": list(rows), "parts": dict(parts),
        "claims": list(claims), "scenario": {"model": {"name": "linear_head", "precision": "fp16"}, "phases": phases},
    }  # fmt: skip
    return PublishedFile.model_validate(said | more)


def probed(
    name: str,
    kind: str = "operator",
    rows: Sequence[Mapping[str, Any]] = (),
    claims: Sequence[Mapping[str, Any]] = (),
) -> PublishedFile:
    """A file of a probe of that kind, without parts."""
    said = {"name": name, "title": name, "article": ARTICLE, "rows": list(rows), "claims": list(claims)}
    return PublishedFile.model_validate({**said, "probe": {"kind": kind}})


def run(
    row: str,
    seed: int,
    figures: Mapping[str, float | str],
    part: str = LATENCY,
    status: str = "VALID",
    attempt: int = 1,
    reason: str = "",
) -> RunFigures:
    """One run of ours."""
    under = "nsys" if part == DEPTH else "no profiler"
    return RunFigures(
        part, row, seed, attempt, status, reason, under, f"{part}-{row}-{seed}-{attempt}", figures
    )


def noisy_runs(
    truth: Mapping[str, Mapping[str, float]],
    n_seeds: int,
    rng: np.random.Generator,
    of_seed: float = 0.05,
    of_run: float = 0.01,
) -> list[RunFigures]:
    """Runs of a latency part: the figures of `truth` by row, times what a seed does to all rows alike, and what a run
    does to itself; standard deviations of logarithms."""
    found = []
    for seed in range(1, n_seeds + 1):
        shared = rng.normal(0.0, of_seed)
        for row, figures in truth.items():
            own = {
                name: value * float(np.exp(shared + rng.normal(0.0, of_run)))
                for name, value in figures.items()
            }
            found.append(run(row, seed, own))
    return found


def judged(file: PublishedFile, runs: Sequence[RunFigures], is_small: bool = False) -> Reproduction:
    """The runs evaluated as if they had run on `HOST`."""
    return evaluate(file, runs, HOST, "2026-11-26", f"squall reproduce {file.name}", is_small)
