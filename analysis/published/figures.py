"""The figures of one run of ours under the names that published experiments use: `squall.scenarios.published.figures`.

Latencies and throughput are those that `squall compare` takes, over all measured phases pooled; users are accounted for
by Little's law as in `squall.analysis.requests.closed_loop`, think time counted as outside of any request. A figure of
nothing is left out. A quantile that fell on failed requests is the text `INFINITE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from squall.analysis.compare.run_figures import LATENCIES, THROUGHPUT, run_figures
from squall.analysis.findings.finding import UNASSESSED, Finding
from squall.analysis.metrics.records import GpuMetrics, RunMetrics
from squall.analysis.published.device_figures import device_figures
from squall.analysis.published.little import CLIENT_BOUND
from squall.analysis.requests.closed_loop import UserFigures
from squall.analysis.storage.intact import require_intact
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary_file import Summary
from squall.analysis.tables.sealed import Verdict
from squall.analysis.verdict.user_checks import LATE_CHECK, USERS_CHECK
from squall.scenarios.errors import MissingTable
from squall.scenarios.units import NS_PER_S

INFINITE = "infinite"
NO_REGIME = "none"
Figures = dict[str, float | str]


def figures_of_run(run_dir: Path) -> Figures:
    """Figures of a sealed run, by name. Raises StoreError where the run is not what squall writes, or has no summary of
    this version of it."""
    store = RunStore.open(run_dir)
    require_intact(store, derived_too=True)
    summary = Summary.read(store)
    measure = summary.measure
    return {
        **_latencies(store),
        **_load(summary),
        **(user_figures(measure.users) if measure.users is not None else {}),
        **_batches(summary),
        **(metric_figures(summary.metrics) if summary.metrics is not None else {}),
        **device_figures(store, measure.phases),
        **regime_figures(summary.findings, is_client_bound(summary.verdict)),
    }


def _latencies(store: RunStore) -> Figures:
    try:
        found = run_figures(store).pooled
    except MissingTable:
        return {}
    figures: Figures = {}
    for name in (*LATENCIES, THROUGHPUT):
        one = found[name]
        if one.is_infinite:
            figures[name] = INFINITE
        elif one.value is not None:
            figures[name] = one.value
    return figures


def _load(summary: Summary) -> Figures:
    spreads = summary.measure.latency.spreads
    leading = spreads.get(summary.latency_name)
    mean_ns = None if leading is None else leading.mean_of_finite_ns
    return {} if mean_ns is None else {"mean_ns": float(mean_ns)}


def user_figures(users: UserFigures) -> Figures:
    """Users, and which share of their time lies in no request: 1 - throughput · mean / users (Little's law)."""
    present = users.users_mean_count
    if present <= 0:
        return {}
    in_requests = users.throughput_hz * users.service_mean_ns / NS_PER_S
    return {"users_count": present, "outside_ratio": 1.0 - in_requests / present}


def _batches(summary: Summary) -> Figures:
    measure = summary.measure
    batches, triton = measure.batches, measure.triton
    found: Figures = {}
    if triton is not None and triton.execution_count:
        found["execution_count"] = float(triton.execution_count)
        found["batch_rows_mean"] = triton.inference_count / triton.execution_count
    elif batches is not None and batches.n:
        found["execution_count"] = float(batches.n)
    if batches is not None and batches.rows_mean_count is not None:
        found["batch_rows_mean"] = batches.rows_mean_count
    return found


def metric_figures(metrics: RunMetrics) -> Figures:
    """NVML's figures over the measured time, and the share of the recorded time in which any kernel ran.

    Of the GPU that the instances ran on, of several the busiest. Where nobody knows which that was, of the only one; of
    several nothing, since others may use them.
    """
    phases = list(metrics.phases.values())
    names = {name for phase in phases for name in phase.gpus}
    used = {one.gpu_uuid for phase in phases for one in phase.instances.values()} & names
    known = used or (names if len(names) == 1 else set())
    rows = {
        name: [(phase.end_ns - phase.start_ns, phase.gpus[name]) for phase in phases if name in phase.gpus]
        for name in sorted(known)
    }
    if not rows:
        return {}
    gpu = max(rows.values(), key=lambda own: _mean(own, lambda one: one.util) or 0.0)
    recorded = [(one.profiled_ns or 0, one) for _, one in gpu]
    figures = {
        "sm_util_ratio": _mean(gpu, lambda one: one.sm_util),
        "gpu_util_ratio": _mean(gpu, lambda one: one.util),
        "gpu_active_ratio": _mean(recorded, lambda one: one.kernel_ratio),
    }
    return {name: value for name, value in figures.items() if value is not None}


def _mean(
    rows: Sequence[tuple[int, GpuMetrics]], figure: Callable[[GpuMetrics], float | None]
) -> float | None:
    """Over the rows that have the figure, each by its length."""
    known = [(length, value) for length, one in rows if (value := figure(one)) is not None and length > 0]
    total = sum(length for length, _ in known)
    return sum(length * value for length, value in known) / total if total else None


def is_client_bound(verdict: Verdict) -> bool:
    """Whether the run's own verdict says that its load generator was the limit: it names a bottleneck of the client, or
    users were not accounted for, or were late."""
    unmet = {check.name for check in verdict.checks if check.reason}
    return verdict.client_bottleneck is not None or bool(unmet & {USERS_CHECK.name, LATE_CHECK.name})


def regime_figures(findings: Sequence[Finding], is_client: bool = False) -> Figures:
    """What the classifier calls most instances and phases: the name of the window, then that of the body, as in
    `queue-bound, launch-bound`; `none` where all rules were tried and no one holds. Nothing where none could be.

    `bound_by` is the first of them. What the verdict says of the client comes before both.
    """
    of_all = [one for one in findings if one.scope.requests == "all"]
    names = [CLIENT_BOUND] if is_client else []
    for level in ("window", "body"):
        counted = Counter(one.rule for one in of_all if one.level == level and one.rule != UNASSESSED)
        names += [name for name, _ in counted.most_common(1) if name not in names]
    if not names:
        return {}
    known = [name for name in names if name != NO_REGIME] or [NO_REGIME]
    return {"regime": ", ".join(known), "bound_by": known[0]}
