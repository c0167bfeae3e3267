"""Figures of how operations follow one another within the batches of an instance."""

from __future__ import annotations

from typing import Any

from squall.analysis.metrics.measures import Measures, ratio
from squall.analysis.metrics.sweeps.batch_sweep import CAUSES, Issue
from squall.analysis.metrics.sweeps.tally import Distribution


def issue_measures(issue: Issue) -> Measures:
    """The measures that follow from launches and starts; None each where there are none."""
    interval, op = Distribution.of(issue.interval).median, Distribution.of(issue.op).median
    idle_ns = int(issue.idle_by_cause_ns.sum())
    return {
        "issue_interval_ns": interval,
        "op_median_ns": op,
        "issue_to_op_ratio": ratio(interval, op),
        "host_wait_of_idle_ratio": ratio(int(issue.idle_by_cause_ns[CAUSES.index("host_wait")]), idle_ns),
        "launch_depth_nonempty_mean": ratio(issue.depth.waiting_ns, issue.depth.nonempty_ns),
    }


def issue_figures(issue: Issue) -> dict[str, Any]:
    """What docs/metrics.md lists under "Launches"."""
    to_start = Distribution.of(issue.to_start)
    total_ns = int(issue.idle_by_cause_ns.sum())
    causes = {
        cause: {"n": int(n), "ns": int(ns), "time_ratio": ratio(int(ns), total_ns)}
        for cause, n, ns in zip(CAUSES, issue.n_by_cause, issue.idle_by_cause_ns, strict=True)
    }
    depth = issue.depth
    return {
        "issue_interval_p50_ns": Distribution.of(issue.interval).median,
        "host_gap_p50_ns": Distribution.of(issue.host_gap).median,
        "call_p50_ns": Distribution.of(issue.call).median,
        "op_p50_ns": Distribution.of(issue.op).median,
        "launch_to_start": {
            "n": to_start.n,
            "p50_ns": to_start.quantile(500),
            "p95_ns": to_start.quantile(950),
            "p99_ns": to_start.quantile(990),
            "max_ns": to_start.most,
            "queued_ratio": ratio(issue.n_queued, to_start.n),
            "n_before_launch": issue.n_before_launch,
        },
        "launch_depth": {
            "max": depth.most,
            "mean": ratio(depth.waiting_ns, depth.span_ns),
            "nonempty_ratio": ratio(depth.nonempty_ns, depth.span_ns),
            "nonempty_mean": ratio(depth.waiting_ns, depth.nonempty_ns),
        },
        "body_idle_by_cause": causes,
    }
