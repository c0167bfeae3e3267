"""Figures of whole runs that were summarised: latencies, users, batches, and what is left out."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.metrics.records import GpuMetrics, PhaseMetrics, RunMetrics
from squall.analysis.report.summary_file import Summary
from squall.analysis.requests.closed_loop import UserFigures
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.published_figures import (
    figures_of_run,
    is_client_bound,
    metric_figures,
    user_figures,
)
from squall.analysis.verdict.run_figures import run_figures
from squall.scenarios.errors import StoreError
from squall.scenarios.published.figures import FIGURES


def _with_summary(folder: Path, store: RunStore, summary: Summary) -> Path:
    """A copy of the run that has its summary."""
    run_dir = folder / store.run_dir.name
    shutil.copytree(store.run_dir, run_dir)
    (run_dir / "summary.json").write_text(json.dumps(summary.to_json()))
    return run_dir


def test_latencies_and_throughput_are_those_of_squall_compare(
    whole_run: RunStore, whole_summary: Summary, tmp_path: Path
) -> None:
    found = figures_of_run(_with_summary(tmp_path, whole_run, whole_summary))
    readings = run_figures(whole_run)
    for name in ("throughput_hz", "p50_ns", "p95_ns"):
        assert readings[name].value is not None
        assert found[name] == readings[name].value
    assert set(found) <= set(FIGURES)
    assert "users_count" not in found  # an open loop has none


def test_users_of_a_closed_loop_are_accounted_for(
    closed_run: RunStore, closed_summary: Summary, tmp_path: Path
) -> None:
    found = figures_of_run(_with_summary(tmp_path, closed_run, closed_summary))
    users = closed_summary.measure.users
    assert users is not None
    assert found["users_count"] == users.users_mean_count
    thinking = users.throughput_hz * users.think_mean_ns / 1e9 + users.inside_client_mean_count
    assert found["outside_ratio"] == pytest.approx(thinking / users.users_mean_count, abs=1e-3)
    is_said = str(found.get("regime", "")).startswith("client-bound")
    assert is_said or not is_client_bound(closed_summary.verdict)


def test_time_outside_requests_is_littles_law() -> None:
    figures = user_figures(UserFigures(1000.0, 1151.0, 441_000_000, 0, 492.0, 0.492, 0.0))
    assert figures["outside_ratio"] == pytest.approx(1.0 - 1151.0 * 0.441 / 1000.0)
    assert user_figures(UserFigures(0.0, 0.0, 0, 0, 0.0, 0.0, 0.0)) == {}


def test_a_run_without_a_summary_is_refused_in_one_line(whole_run: RunStore) -> None:
    with pytest.raises(StoreError) as caught:
        figures_of_run(whole_run.run_dir)
    assert "\n" not in str(caught.value)


def gpu(util: float, sm_util: float) -> GpuMetrics:
    known: dict[str, Any] = {"util": util, "sm_util": sm_util}
    return GpuMetrics(**{one.name: known.get(one.name) for one in fields(GpuMetrics)})


def test_of_several_gpus_of_which_nobody_knows_who_had_them_no_figure_is_taken() -> None:
    ours, others = gpu(0.2, 0.1), gpu(1.0, 0.9)  # the busiest is not ours
    one = PhaseMetrics(0, 10, (), {}, {}, {"GPU-1": ours})
    two = replace(one, gpus={"GPU-1": ours, "GPU-2": others})
    assert metric_figures(RunMetrics({"burst": one})) == {"sm_util_ratio": 0.1, "gpu_util_ratio": 0.2}
    assert metric_figures(RunMetrics({"burst": two})) == {}
