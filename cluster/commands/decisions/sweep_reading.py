"""The figures of a run that has ended, for its row."""

from __future__ import annotations

from collections.abc import Callable

from squall.analysis.compare.run_row import run_row
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.sweep_rows import Figures
from squall.analysis.verdict.run_figures import LATENCIES, THROUGHPUT
from squall.cluster.driver.run import RunResult

ReadRun = Callable[[RunResult], tuple[Figures, str]]
"""`read_run`, or what stands for it in a test."""


def read_run(result: RunResult) -> tuple[Figures, str]:
    """Figures over all measured phases, and the first reason of a verdict that is not VALID, else why figures are
    missing.

    A run without requests has none.
    """
    row = run_row(RunStore.open(result.run_dir))
    if not row.figures:
        return Figures(), "the run has no requests"
    latencies = {name: row.figures[name] for name in LATENCIES}
    figures = Figures(
        n=row.n,
        n_failed=row.n_failed,
        **{name: one.value for name, one in latencies.items()},
        throughput_hz=row.figures[THROUGHPUT].value,
        offered_hz=row.offered_hz,
        infinite=tuple(name for name, one in latencies.items() if one.is_infinite),
        promises=row.promises,
    )
    missing = [one.reason for one in latencies.values() if one.value is None and not one.is_infinite]
    reasons = missing if row.status == "VALID" else [*row.reasons, row.status]
    return figures, next(iter(reasons), "")
