"""Figures of how operations follow one another within the batches of an instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from squall.analysis.metrics.figures.gap_figures import GapShare
from squall.analysis.metrics.measures import Measures, ratio
from squall.analysis.metrics.sweeps.batch_sweep import CAUSES, Depth, Issue
from squall.analysis.metrics.sweeps.tally import Distribution


@dataclass(frozen=True)
class LaunchToStart:
    """From launch to start of kernels. `queued_ratio`: those that start after their call ended."""

    n: int
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    queued_ratio: float | None
    n_before_launch: int


@dataclass(frozen=True)
class LaunchDepth:
    """Launches of kernels not begun, over the time from the first launch to the last start."""

    max: int
    mean: float | None
    nonempty_ratio: float | None
    nonempty_mean: float | None


@dataclass(frozen=True)
class LaunchFigures:
    """How the operations of an instance's batches follow one another. `body_idle_by_cause`: a key for each of
    `squall.analysis.metrics.sweeps.batch_sweep.CAUSES`."""

    issue_interval_p50_ns: float | None
    host_gap_p50_ns: float | None
    call_p50_ns: float | None
    op_p50_ns: float | None
    launch_to_start: LaunchToStart
    launch_depth: LaunchDepth
    body_idle_by_cause: Mapping[str, GapShare]


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


def issue_figures(issue: Issue) -> LaunchFigures:
    """What docs/metrics.md lists under "Launches"."""
    total_ns = int(issue.idle_by_cause_ns.sum())
    causes = {
        cause: GapShare(int(n), int(ns), ratio(int(ns), total_ns))
        for cause, n, ns in zip(CAUSES, issue.n_by_cause, issue.idle_by_cause_ns, strict=True)
    }
    return LaunchFigures(
        issue_interval_p50_ns=Distribution.of(issue.interval).median,
        host_gap_p50_ns=Distribution.of(issue.host_gap).median,
        call_p50_ns=Distribution.of(issue.call).median,
        op_p50_ns=Distribution.of(issue.op).median,
        launch_to_start=_launch_to_start(issue),
        launch_depth=_launch_depth(issue.depth),
        body_idle_by_cause=causes,
    )


def _launch_to_start(issue: Issue) -> LaunchToStart:
    to_start = Distribution.of(issue.to_start)
    return LaunchToStart(
        n=to_start.n,
        p50_ns=to_start.quantile(500),
        p95_ns=to_start.quantile(950),
        p99_ns=to_start.quantile(990),
        max_ns=to_start.most,
        queued_ratio=ratio(issue.n_queued, to_start.n),
        n_before_launch=issue.n_before_launch,
    )


def _launch_depth(depth: Depth) -> LaunchDepth:
    return LaunchDepth(
        max=depth.most,
        mean=ratio(depth.waiting_ns, depth.span_ns),
        nonempty_ratio=ratio(depth.nonempty_ns, depth.span_ns),
        nonempty_mean=ratio(depth.waiting_ns, depth.nonempty_ns),
    )
