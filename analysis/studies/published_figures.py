"""The figures of one run of ours under the names that published experiments use: `squall.scenarios.published.figures`.

Latencies and throughput are those that `squall compare` takes, over all measured phases pooled; users are accounted for
by Little's law as in `squall.analysis.requests.closed_loop`, think time counted as outside of any request. A figure of
nothing is left out. A quantile that fell on failed requests is the text `INFINITE`.

What nsys saw in the measured phases are queries, a column each (`QUERIES`):

    kernels of batches    ▐█ ██ █▌      ▐██ █ █▌        ▐█ █▌
                          └ span ┘ idle └ span ┘
    another instance             ▐█ ██▌

The span of a batch is the GPU's compute of one execution: from its first kernel to the end of its last. Idle between
bursts is what no span of any batch on the device covers, between the first and the last of a phase. What nsys traced as
whole CUDA graphs tells neither its kernels nor their number: then figures of single kernels are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from squall.analysis.findings.finding import UNASSESSED, Finding
from squall.analysis.metrics.records import GpuMetrics, RunMetrics
from squall.analysis.report.summary_file import Summary
from squall.analysis.requests.closed_loop import UserFigures
from squall.analysis.storage.intact import require_intact
from squall.analysis.storage.query import connect
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.published_result import INFINITE
from squall.analysis.verdict.checks import LATE_CHECK, USERS_CHECK
from squall.analysis.verdict.run_figures import LATENCIES, THROUGHPUT, run_figures
from squall.scenarios.errors import MissingTable
from squall.scenarios.units import NS_PER_S

CLIENT_BOUND, NO_REGIME = "client-bound", "none"
Figures = dict[str, float | str]

_BATCH = "phase, node, server, instance, instance_device, batch_id"
QUERIES = {
    "memcpys": """
        SELECT avg(bytes) AS h2d_mean_bytes FROM memcpys SEMI JOIN measured USING (phase) WHERE copy_kind = 'HtoD'""",
    "osrt": """
        SELECT sum(end_ns - start_ns)::DOUBLE AS sem_wait_ns
        FROM osrt SEMI JOIN measured USING (phase) WHERE name = 'sem_wait'""",
    # of the time in CUDA calls; a copy that blocks, as one of pageable memory does, is a copy
    "cuda_api": """
        SELECT coalesce(sum(ns) FILTER (class = 'blocking sync'), 0) / sum(ns) AS sync_share_ratio,
            coalesce(sum(ns) FILTER (class IN ('launch', 'graph launch')), 0) / sum(ns) AS launch_share_ratio,
            coalesce(sum(ns) FILTER (class IN ('blocking copy', 'async copy')), 0) / sum(ns) AS copy_share_ratio
        FROM (
            SELECT call_class::VARCHAR AS class, sum(end_ns - start_ns)::DOUBLE AS ns
            FROM cuda_api SEMI JOIN measured USING (phase) GROUP BY ALL)
        HAVING sum(ns) > 0""",
    "kernels": f"""
        , names AS (
            SELECT DISTINCT full_name::VARCHAR AS full_name FROM kernels SEMI JOIN measured USING (phase))
        -- matrix products: cuBLAS (nvjet_… on Hopper and later), CUTLASS, TensorRT (…xmma…), Inductor's templates; of
        -- the same libraries what is none by itself
        , kinds AS (
            SELECT full_name, regexp_matches(full_name, '(?i)layer_?norm') AS is_norm,
                regexp_matches(
                    full_name, '(?i)gemm|gemv|nvjet|xmma|wgmma|cutlass|cublas|triton_tem_\\w{{0,200}}mm'
                ) AND NOT regexp_matches(
                    regexp_replace(full_name, 'convert', ' ', 'gi'),
                    '(?i)splitk_?reduce|flash|fmha|softmax|layer_?norm|conv|fprop|dgrad|wgrad'
                ) AS is_gemm
            FROM names)
        , whole AS (SELECT coalesce(bool_or(full_name = 'CUDA graph'), false) AS has_graphs FROM names)
        , seen AS (
            SELECT {_BATCH}, start_ns, end_ns, is_gemm, is_norm,
                concat_ws('/', node,
                    CASE WHEN gpu_uuid = '' THEN server || '/' || process || '/' || device ELSE gpu_uuid END) AS gpu
            FROM kernels SEMI JOIN measured USING (phase) JOIN kinds ON kinds.full_name = kernels.full_name::VARCHAR)
        -- the span of a batch on a device, with its kernels
        , bursts AS (
            SELECT phase, gpu, min(start_ns) AS start_ns, max(end_ns) AS end_ns, count(*) AS n,
                count(*) FILTER (is_gemm) AS n_gemms
            FROM seen WHERE batch_id IS NOT NULL GROUP BY {_BATCH}, gpu)
        , gaps AS (
            SELECT start_ns - max(end_ns) OVER (
                PARTITION BY phase, gpu ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS gap_ns FROM bursts)
        , of_bursts AS (
            SELECT median(end_ns - start_ns) AS gpu_compute_p50_ns,
                (SELECT median(gap_ns) FROM gaps WHERE gap_ns > 0) AS idle_gap_p50_ns,
                median(n) FILTER (NOT has_graphs) AS kernels_per_batch_count,
                median(n_gemms) FILTER (NOT has_graphs) AS gemms_per_batch_count
            FROM bursts, whole)
        , of_kernels AS (
            SELECT avg(end_ns - start_ns) AS kernel_mean_ns, median(end_ns - start_ns) AS kernel_p50_ns,
                sum(end_ns - start_ns) FILTER (is_norm)::DOUBLE / nullif(sum(end_ns - start_ns), 0)::DOUBLE
                    AS layer_norm_share_ratio,
                avg(end_ns - start_ns) FILTER (is_norm) AS layer_norm_mean_ns
            FROM seen, whole WHERE NOT has_graphs)
        SELECT * FROM of_bursts, of_kernels""",
}
"""By table, behind `measured`, the phases that count; a column a figure."""


def figures_of_run(run_dir: Path) -> Figures:
    """Figures of a sealed run, by name. Raises StoreError where the run is not what squall writes, or has no summary of
    this version of it."""
    store = RunStore.open(run_dir)
    require_intact(store, derived_too=True)
    summary = Summary.read(store)
    measure = summary.measure
    batches, triton = measure.batches, measure.triton
    leading = measure.latency.spreads.get(summary.latency_name)
    found: dict[str, float | str | None] = {
        **_latencies(store),
        "mean_ns": None if leading is None else leading.mean_of_finite_ns,
        **(user_figures(measure.users) if measure.users is not None else {}),
        "execution_count": (batches.n or None) if batches is not None else None,
        "batch_rows_mean": None,
    }
    if triton is not None and triton.execution_count:
        found["execution_count"] = triton.execution_count
        found["batch_rows_mean"] = triton.inference_count / triton.execution_count
    if batches is not None and batches.rows_mean_count is not None:
        found["batch_rows_mean"] = batches.rows_mean_count
    return {
        **{
            name: value if isinstance(value, str) else float(value)
            for name, value in found.items()
            if value is not None
        },
        **(metric_figures(summary.metrics) if summary.metrics is not None else {}),
        **device_figures(store, measure.phases),
        **regime_figures(summary.findings, is_client_bound(summary.verdict)),
    }


def _latencies(store: RunStore) -> dict[str, float | str | None]:
    try:
        pooled = run_figures(store)
    except MissingTable:
        return {}
    found = {name: pooled[name] for name in (*LATENCIES, THROUGHPUT)}
    return {name: INFINITE if one.is_infinite else one.value for name, one in found.items()}


def user_figures(users: UserFigures) -> dict[str, float]:
    """Users, and which share of their time lies in no request: 1 - throughput · mean / users (Little's law)."""
    present = users.users_mean_count
    if present <= 0:
        return {}
    in_requests = users.throughput_hz * users.service_mean_ns / NS_PER_S
    return {"users_count": present, "outside_ratio": 1.0 - in_requests / present}


def metric_figures(metrics: RunMetrics) -> dict[str, float]:
    """NVML's figures over the measured time, and the share of the recorded time in which any kernel ran.

    Of the GPU that the instances ran on, of several the busiest. Where nobody knows which that was, of the only one; of
    several nothing, since others may use them.
    """
    phases = list(metrics.phases.values())
    names = {name for phase in phases for name in phase.gpus}
    used = {one.gpu_uuid for phase in phases for one in phase.instances.values()} & names
    known = used or (names if len(names) == 1 else set())
    rows = [
        [(phase.end_ns - phase.start_ns, phase.gpus[name]) for phase in phases if name in phase.gpus]
        for name in sorted(known)
    ]
    if not rows:
        return {}
    gpu = max(rows, key=lambda own: _mean(own, lambda one: one.util) or 0.0)
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


def device_figures(store: RunStore, phases: Sequence[str]) -> dict[str, float]:
    """Figures over `phases`, by name; empty where nsys recorded nothing of them."""
    there = [table for table in QUERIES if store.has(table)]
    found: dict[str, float] = {}
    if not there or not phases:
        return found
    with connect(store, there) as connection:
        for table in there:
            query = f"WITH measured AS (SELECT unnest($names) AS phase) {QUERIES[table]}"
            for row in connection.sql(query, params={"names": [*phases]}).to_arrow_table().to_pylist():
                found |= {name: float(value) for name, value in row.items() if value is not None}
    return found


def is_client_bound(verdict: Verdict) -> bool:
    """Whether the run's own verdict says that its load generator was the limit: it names a bottleneck of the client, or
    users were not accounted for, or were late."""
    unmet = {check.name for check in verdict.checks if check.reason}
    return verdict.client_bottleneck is not None or bool(unmet & {USERS_CHECK.name, LATE_CHECK.name})


def regime_figures(findings: Sequence[Finding], is_client: bool = False) -> dict[str, str]:
    """What the classifier calls most instances and phases: the name of the window, then that of the body, as in
    `queue-bound, launch-bound`; `none` where all rules were tried and no one holds. Nothing where none could be.

    `bound_by` is the first of them. What the verdict says of the client comes before both.
    """
    names = [CLIENT_BOUND] if is_client else []
    for level in ("window", "body"):
        rules = [one.rule for one in findings if (one.scope.requests, one.level) == ("all", level)]
        counted = Counter(rule for rule in rules if rule != UNASSESSED)
        names += [name for name, _ in counted.most_common(1) if name not in names]
    if not names:
        return {}
    known = [name for name in names if name != NO_REGIME] or [NO_REGIME]
    return {"regime": ", ".join(known), "bound_by": known[0]}
