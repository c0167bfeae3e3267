"""The figures that runs are compared by, against runs whose figures are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.verdict.run_figures import CLIENT_CPU, METRICS, SERVER_CPU, THROUGHPUT, run_figures
from tests.overhead_runs import MS, N, write_run

FIGURES = {
    "p50_ns": 15.0 * MS, "p95_ns": 19.5 * MS, "p99_ns": 19.9 * MS, THROUGHPUT: N / 2,
    CLIENT_CPU: 2 * 2 * 100 * MS / N, SERVER_CPU: 2 * 400 * MS / N,
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, FIGURES),
        ({"phases": ("one", "two")}, FIGURES),
        ({"is_open": False}, {"p50_ns": 15.0 * MS}),
        # failures are infinitely slow and no throughput; where all failed there is none rather than 0
        (
            {"n_failed": 20},
            {"p95_ns": 19.5 * MS, "p99_ns": "20 of 1000 rows failed", THROUGHPUT: (N - 20) / 2},
        ),
        ({"n_failed": N}, {THROUGHPUT: "no request ended ok"}),
        ({"omit": ["worker_samples"]}, {CLIENT_CPU: "the run has no worker_samples"}),
        ({"omit": ["host_samples"]}, {SERVER_CPU: "the run has no host_samples"}),
    ],
    ids=str,
)
def test_figures_are_those_of_the_run_or_have_a_reason(
    tmp_path: Path, options: dict[str, Any], expected: dict[str, object]
) -> None:
    found = run_figures(write_run(tmp_path, **options))
    assert tuple(found) == METRICS
    for name, value in expected.items():
        own = found[name]
        assert own.is_infinite == (value == "20 of 1000 rows failed")
        if isinstance(value, str):
            assert (own.value, value in own.reason) == (None, True)
        else:
            assert own.value == pytest.approx(value)


def test_samples_that_leave_a_part_of_the_phase_out_are_no_figure(tmp_path: Path) -> None:
    # the phases lie 0-2 and 2-4 s; samples were written for one phase of 2 s only
    samples, phases = ("worker_samples", "host_samples"), ("one", "two")
    whole, short = write_run(tmp_path / "whole", phases=phases), write_run(tmp_path / "short")
    cut = write_run(tmp_path / "cut", phases=phases, omit=samples, status=None)
    for name in samples:
        table = short.read(name)
        cut.append(name, table.slice(0, len(table) // 2))
    cut.flush()
    cut.amend(replace(cut.manifest, phases=whole.manifest.phases))
    found = run_figures(cut)
    assert {found[metric].value for metric in (CLIENT_CPU, SERVER_CPU)} == {None}
    assert {found[metric].reason for metric in (CLIENT_CPU, SERVER_CPU)} == {
        "its samples do not cover the phase"
    }
