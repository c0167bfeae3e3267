"""The figures that runs are compared by, against runs whose figures are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from squall.analysis.compare.run_figures import CLIENT_CPU, METRICS, SERVER_CPU, THROUGHPUT, run_figures
from tests.overhead_runs import MS, N, write_run


def test_quantiles_throughput_and_cpu_are_those_of_the_run(tmp_path: Path) -> None:
    found = run_figures(write_run(tmp_path))
    values = {name: reading.value for name, reading in found.pooled.items()}
    assert values == {
        "p50_ns": 15.0 * MS, "p95_ns": 19.5 * MS, "p99_ns": 19.9 * MS, THROUGHPUT: N / 2,
        CLIENT_CPU: 2 * 2 * 100 * MS / N, SERVER_CPU: 2 * 400 * MS / N,
    }  # fmt: skip
    assert tuple(found.pooled) == METRICS
    assert found.by_phase == {"burst": found.pooled}
    assert found.latency_name == "response"


def test_pooled_quantiles_are_of_merged_rows_and_counts_of_all_phases(tmp_path: Path) -> None:
    found = run_figures(write_run(tmp_path, phases=("one", "two")))
    assert found.pooled["p95_ns"].value == 19.5 * MS
    assert found.pooled[THROUGHPUT].value == N / 2
    assert found.pooled[SERVER_CPU].value == pytest.approx(2 * 400 * MS / N)
    assert list(found.by_phase) == ["one", "two"]


def test_failures_count_as_infinitely_slow_and_not_as_throughput(tmp_path: Path) -> None:
    found = run_figures(write_run(tmp_path, n_failed=20)).pooled
    assert found["p95_ns"].value == 19.5 * MS
    assert found["p99_ns"].value is None
    assert found["p99_ns"].is_infinite
    assert "20 of 1000 rows failed" in found["p99_ns"].reason
    assert found[THROUGHPUT].value == (N - 20) / 2


def test_a_run_in_which_all_failed_has_no_throughput_rather_than_zero(tmp_path: Path) -> None:
    found = run_figures(write_run(tmp_path, n_failed=N)).pooled
    assert found[THROUGHPUT].value is None
    assert found[THROUGHPUT].reason == "no request ended ok"


def test_a_closed_loop_has_service_time(tmp_path: Path) -> None:
    found = run_figures(write_run(tmp_path, is_open=False))
    assert found.latency_name == "service"
    assert found.pooled["p50_ns"].value == 15.0 * MS


@pytest.mark.parametrize(("table", "metric"), [("worker_samples", CLIENT_CPU), ("host_samples", SERVER_CPU)])
def test_absent_samples_are_a_reason_and_no_zero(tmp_path: Path, table: str, metric: str) -> None:
    found = run_figures(write_run(tmp_path, omit=[table])).pooled[metric]
    assert found.value is None
    assert found.reason == f"the run has no {table}"


def test_samples_that_leave_a_part_of_the_phase_out_are_no_figure(tmp_path: Path) -> None:
    # the phases lie 0-2 and 2-4 s; samples were written for one phase of 2 s only
    store = write_run(tmp_path / "whole", phases=("one", "two"))
    short = write_run(tmp_path / "short", phases=("one",))
    cut = write_run(
        tmp_path / "cut", phases=("one", "two"), omit=["worker_samples", "host_samples"], status=None
    )
    for name in ("worker_samples", "host_samples"):
        table = short.read(name)
        cut.append(name, table.slice(0, len(table) // 2))
    cut.flush()
    cut.amend(replace(cut.manifest, phases=store.manifest.phases))
    for metric in (CLIENT_CPU, SERVER_CPU):
        reading = run_figures(cut).pooled[metric]
        assert reading.value is None
        assert reading.reason == "its samples do not cover the phase"
