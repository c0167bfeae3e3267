"""The figures of a run that has ended, for its row."""

from __future__ import annotations

from collections.abc import Callable

from squall.analysis.compare.run_figures import LATENCIES, THROUGHPUT, run_figures
from squall.analysis.experiments.rows import Figures
from squall.analysis.storage.store import RunStore
from squall.cluster.driver.run import RunResult
from squall.scenarios.errors import MissingTable

ReadRun = Callable[[RunResult], tuple[Figures, str]]
"""`read_run`, or what stands for it in a test."""


def read_run(result: RunResult) -> tuple[Figures, str]:
    """Figures over all measured phases, and the first reason of a verdict that is not VALID, else why figures are
    missing.

    A run without requests has none.
    """
    summary = result.summary
    if summary is None:
        return Figures(), "the run has no requests"
    reason = "" if result.status == "VALID" else next(iter(summary.verdict.reasons), result.status)
    measure = summary.measure
    intended = measure.load.intended or measure.load.delivered
    n = measure.outcomes.n
    told = {
        "n": n,
        "n_failed": n - measure.outcomes.n_ok,
        "offered_hz": intended.rate_hz,
        "promises": {one.promise: one.verdict for one in summary.promises or ()},
    }
    try:
        found = run_figures(RunStore.open(result.run_dir)).pooled
    except MissingTable as error:
        return Figures(**told), reason or str(error)  # type: ignore[arg-type]
    infinite = tuple(name for name in LATENCIES if found[name].is_infinite)
    latencies = {name: found[name].value for name in LATENCIES}
    figures = Figures(**told, **latencies, throughput_hz=found[THROUGHPUT].value, infinite=infinite)  # type: ignore[arg-type]
    missing = next(
        (found[name].reason for name in LATENCIES if found[name].value is None and name not in infinite), ""
    )
    return figures, reason or missing
