"""How the operations of a batch follow one another: launch to launch, launch to start, idle between them.

thread   ├L1┤  ├L2┤      ├L3┤             L: a call that launches; issue interval: from L1 to L2, start to start
GPU        ├─op1─┤├─op2─┤   ├─op3─┤       launch to start: from L to its kernel
                  idle  ├──┤              its cause: what the thread did when the GPU fell idle

What one call launches, the nodes of a CUDA graph, counts as one operation from launch to launch, from launch to start
and in the launch queue: it takes the union of its nodes. Within a batch these are the operations of one launch instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from squall.analysis.metrics.measures import Measures, ratio
from squall.analysis.metrics.operations import BEFORE, Row, by_group, distributions

if TYPE_CHECKING:
    import duckdb

BACK_TO_BACK_NS = 1_500
"""Idle below this between operations already launched is what the GPU takes from one to the next: kernels in one stream
of an H200 followed each other 1.17 us apart (nsys 2025.3.2); the 30 ns that HTA takes for it marks nothing there."""

CAUSES = ("host_wait", "launch_in_flight", "back_to_back", "other", "not_recorded")

# A launch with what it began, and the one before it in its batch. `kernel_…`: of its first kernel.
_LAUNCHES = f"""
CREATE TEMP TABLE launches AS
WITH nodes AS (
    SELECT *, max(end_ns) OVER (PARTITION BY batch, launch_start_ns ORDER BY start_ns, end_ns {BEFORE}) AS reached_ns
    FROM tied WHERE launch_start_ns IS NOT NULL),
launched AS (
    SELECT grp, batch, launch_start_ns, arg_min(launch_end_ns, start_ns) AS launch_end_ns,
        sum(greatest(0, end_ns - greatest(start_ns, reached_ns)))::BIGINT AS op_ns,
        min(start_ns) FILTER (kind = 'kernel') AS kernel_ns,
        arg_min(launch_end_ns, start_ns) FILTER (kind = 'kernel') AS kernel_launch_end_ns
    FROM nodes GROUP BY ALL)
SELECT *, lag(launch_start_ns) OVER in_batch AS before_start_ns, lag(launch_end_ns) OVER in_batch AS before_end_ns
FROM launched WINDOW in_batch AS (PARTITION BY batch ORDER BY launch_start_ns)
"""
_VALUES = {
    "issue_interval": "launch_start_ns - before_start_ns",
    "host_gap": "greatest(launch_start_ns - before_end_ns, 0)",
    "launch_call": "greatest(launch_end_ns - launch_start_ns, 0)",
    "op": "op_ns",
    "to_start": "greatest(kernel_ns - launch_start_ns, 0)",
}
"""What is counted of a launch: of all but the first of a batch, of launches of kernels `to_start`."""
_COUNTED = " UNION ALL ".join(
    f"SELECT grp, '{what}' AS what, {value} AS value, count(*) AS times FROM launches "
    f"WHERE {'kernel_ns' if what == 'to_start' else 'before_start_ns'} IS NOT NULL GROUP BY ALL "
    f"UNION ALL SELECT grp, '{what}', NULL, 0 FROM instances"
    for what, value in _VALUES.items()
)
_CAUSE = """'{cause}': {{
    'n': count(*) FILTER (cause = '{cause}'), 'ns': coalesce(sum(ns) FILTER (cause = '{cause}'), 0),
    'time_ratio': coalesce(sum(ns) FILTER (cause = '{cause}'), 0) / nullif(sum(ns), 0)}}"""
_MEDIANS = {
    "issue_interval_p50_ns": "issue_interval", "host_gap_p50_ns": "host_gap", "call_p50_ns": "launch_call",
    "op_p50_ns": "op",
}  # fmt: skip
_FIGURES = f"""
WITH figures AS MATERIALIZED ({distributions(_COUNTED, "grp, what")}),
starts AS (
    SELECT grp, count(*) FILTER (kernel_ns > kernel_launch_end_ns) AS n_queued,
        count(*) FILTER (kernel_ns < launch_start_ns) AS n_before_launch
    FROM launches GROUP BY grp),
-- launches of kernels not begun: a launch counts from its start to that of its first kernel
steps AS (
    SELECT grp, launch_start_ns AS t_ns, 1 AS step FROM launches WHERE kernel_ns IS NOT NULL
    UNION ALL
    SELECT grp, greatest(kernel_ns, launch_start_ns), -1 FROM launches WHERE kernel_ns IS NOT NULL),
depths AS (
    SELECT grp, t_ns, sum(step) OVER in_time AS depth, lead(t_ns) OVER in_time - t_ns AS ns
    FROM steps WINDOW in_time AS (PARTITION BY grp ORDER BY t_ns, step ROWS UNBOUNDED PRECEDING)),
waiting AS (
    SELECT grp, greatest(0, max(depth)) AS most, coalesce(sum(depth * ns), 0) AS waiting_ns,
        coalesce(sum(ns) FILTER (depth > 0), 0) AS nonempty_ns, max(t_ns) - min(t_ns) AS span_ns
    FROM depths GROUP BY grp),
-- idle between the operations of a batch, by what the thread did when the GPU fell idle
gaps AS (
    SELECT grp, start_ns, launch_start_ns, launch_end_ns,
        max(end_ns) OVER (
            PARTITION BY batch ORDER BY start_ns, end_ns, launch_start_ns, launch_end_ns {BEFORE}) AS from_ns
    FROM tied),
idle AS (
    SELECT grp, start_ns - from_ns AS ns,
        CASE WHEN launch_start_ns IS NULL THEN 'not_recorded' WHEN launch_start_ns > from_ns THEN 'host_wait'
            WHEN launch_end_ns > from_ns THEN 'launch_in_flight' WHEN ns < {BACK_TO_BACK_NS} THEN 'back_to_back'
            ELSE 'other' END AS cause
    FROM gaps WHERE start_ns > from_ns
    UNION ALL
    SELECT grp, 0, NULL FROM instances),
causes AS (
    SELECT grp, {{{", ".join(_CAUSE.format(cause=cause) for cause in CAUSES)}}} AS body_idle_by_cause
    FROM idle GROUP BY grp)
SELECT i.grp, {", ".join(f"{what}.median_ns AS {name}" for name, what in _MEDIANS.items())},
    {{'n': to_start.n, 'p50_ns': to_start.p50_ns, 'p95_ns': to_start.p95_ns, 'p99_ns': to_start.p99_ns,
        'max_ns': to_start.max_ns, 'queued_ratio': n_queued / nullif(to_start.n, 0),
        'n_before_launch': coalesce(n_before_launch, 0)}} AS launch_to_start,
    {{'max': coalesce(most, 0), 'mean': waiting_ns / nullif(span_ns, 0),
        'nonempty_ratio': nonempty_ns / nullif(span_ns, 0),
        'nonempty_mean': waiting_ns / nullif(nonempty_ns, 0)}} AS launch_depth,
    body_idle_by_cause
FROM instances i LEFT JOIN starts USING (grp) LEFT JOIN waiting USING (grp) JOIN causes USING (grp)
{" ".join(f"JOIN (FROM figures WHERE what = '{what}') {what} USING (grp)" for what in _VALUES)}
"""


def launch_figures(connection: duckdb.DuckDBPyConnection) -> dict[int, Row]:
    """What docs/metrics.md lists under "Launches", of each group: how its `tied` operations follow one another."""
    connection.execute(_LAUNCHES)
    return by_group(connection, _FIGURES)


def launch_measures(launches: Row) -> Measures:
    """The measures that follow from launches and starts; None each where there are none."""
    interval_ns, op_ns = launches["issue_interval_p50_ns"], launches["op_p50_ns"]
    return {
        "issue_interval_ns": interval_ns,
        "op_median_ns": op_ns,
        "issue_to_op_ratio": ratio(interval_ns, op_ns),
        "host_wait_of_idle_ratio": launches["body_idle_by_cause"]["host_wait"]["time_ratio"],
        "launch_depth_nonempty_mean": launches["launch_depth"]["nonempty_mean"],
    }
