"""How the operations of a batch follow one another: launch to launch, launch to start, idle between them.

thread   ├L1┤  ├L2┤      ├L3┤             L: a call that launches; issue interval: from L1 to L2, start to start
GPU        ├─op1─┤├─op2─┤   ├─op3─┤       launch to start: from L to its kernel
                  idle  ├──┤              its cause: what the thread did when the GPU fell idle

What one call launches, the nodes of a CUDA graph, counts as one operation from launch to launch, from launch to start
and in the launch queue: it takes the union of its nodes. Within a batch these are the operations of one launch instant.
How long a batch was idle, by sync wait and launch idle: `squall.analysis.join.batch_costs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.intervals import Covered, earlier_ends
from squall.analysis.metrics.measures import Measures, ratio
from squall.analysis.metrics.operations import NONE_NS, Row, groups_of_rows, median
from squall.analysis.statistics.order_statistics import rank_value

if TYPE_CHECKING:
    import duckdb

BACK_TO_BACK_NS = 1_500
"""Idle below this between operations already launched is what the GPU takes from one to the next: kernels in one stream
of an H200 followed each other 1.17 us apart (nsys 2025.3.2); the 30 ns that HTA takes for it marks nothing there."""

CAUSES = ("host_wait", "launch_in_flight", "back_to_back", "other", "not_recorded")

_ORDERED = f"""
SELECT grp, batch, is_kernel, start_ns, end_ns, coalesce(launch_start_ns, {NONE_NS}),
    coalesce(launch_end_ns, launch_start_ns, {NONE_NS})
FROM operations WHERE is_whole ORDER BY batch, start_ns, end_ns, launch_start_ns, launch_end_ns
"""


def launch_figures(connection: duckdb.DuckDBPyConnection) -> dict[int, Row]:
    """What docs/metrics.md lists under "Launches", of each group: how its `operations` follow one another.

    The operations of a group are in memory at a time, with what is made of them about 200 bytes each: DuckDB orders
    them, and a pass of numpy over them takes a fifth of the time that windows and counts of its own take.
    """
    groups = connection.execute("SELECT grp FROM instances ORDER BY grp").fetchall()
    nothing: list[Any] = [np.empty(0, np.int64)] * 6
    found = {grp: _figures(_Operations(*nothing)) for (grp,) in groups}
    for grp, columns in groups_of_rows(connection, _ORDERED):
        found[grp] = _figures(_Operations(*columns))
    return found


class _Operations(NamedTuple):
    """Of one group, in the order of their batches and starts."""

    batch: Int64s
    is_kernel: Bools
    start_ns: Int64s
    end_ns: Int64s
    launch_start_ns: Int64s
    launch_end_ns: Int64s

    def of(self, rows: Int64s | Bools) -> _Operations:
        """Some of them."""
        columns: list[Any] = [column[rows] for column in self]
        return _Operations(*columns)


def _figures(operations: _Operations) -> Row:
    known = operations.of(operations.launch_start_ns != NONE_NS)
    known = known.of(np.lexsort((known.end_ns, known.start_ns, known.launch_start_ns, known.batch)))
    # a launch with what it began: the first of the rows that share its batch and instant, and the rows after it
    is_first = _changes(known.batch, known.launch_start_ns)
    firsts, launch = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    launched = known.of(firsts)
    op_ns = np.zeros(len(firsts), np.int64)
    reached_ns = earlier_ends(known.start_ns, known.end_ns, is_first)
    np.add.at(op_ns, launch, np.maximum(known.end_ns - np.maximum(known.start_ns, reached_ns), 0))
    # all launches but the first of their batch
    after = np.flatnonzero(~_changes(launched.batch))
    start_ns, end_ns = launched.launch_start_ns, launched.launch_end_ns
    return {
        "issue_interval_p50_ns": median(start_ns[after] - start_ns[after - 1]),
        "host_gap_p50_ns": median(np.maximum(start_ns[after] - end_ns[after - 1], 0)),
        "call_p50_ns": median(np.maximum(end_ns[after] - start_ns[after], 0)),
        "op_p50_ns": median(op_ns[after]),
        **_until_start(known.of(known.is_kernel)),
        "body_idle_by_cause": _idle(operations),
    }


def _until_start(kernels: _Operations) -> Row:
    """From launches to the starts of the first kernel of each, `kernels` in order of batch, launch and start."""
    first = kernels.of(_changes(kernels.batch, kernels.launch_start_ns))
    to_start_ns = np.maximum(first.start_ns - first.launch_start_ns, 0)
    n = len(to_start_ns)
    # launches of kernels not begun: a launch counts from its start to that of its first kernel
    begun_ns, started_ns = np.sort(first.launch_start_ns), np.sort(first.launch_start_ns + to_start_ns)
    depth = np.arange(1, n + 1) - np.searchsorted(started_ns, begun_ns, side="right")
    waiting_ns = int(to_start_ns.sum())
    order = np.argsort(first.launch_start_ns, kind="stable")
    in_order = first.launch_start_ns[order]
    nonempty_ns = int(Covered.of(in_order, in_order + to_start_ns[order]).covered_ns[-1])
    return {
        "launch_to_start": {
            "n": n,
            **{f"p{100 * q:g}_ns": rank_value(to_start_ns, q) for q in (0.5, 0.95, 0.99)},
            "max_ns": int(to_start_ns.max()) if n else None,
            "queued_ratio": ratio(int((first.start_ns > first.launch_end_ns).sum()), n),
            "n_before_launch": int((first.start_ns < first.launch_start_ns).sum()),
        },
        "launch_depth": {
            "max": int(depth.max(initial=0)),
            "mean": ratio(waiting_ns, int(started_ns[-1] - begun_ns[0]) if n else 0),
            "nonempty_ratio": ratio(nonempty_ns, int(started_ns[-1] - begun_ns[0]) if n else 0),
            "nonempty_mean": ratio(waiting_ns, nonempty_ns),
        },
    }


def _idle(operations: _Operations) -> Row:
    """Idle between the operations of a batch, by what the thread did when the GPU fell idle."""
    is_first = _changes(operations.batch)
    from_ns = earlier_ends(operations.start_ns, operations.end_ns, is_first)
    is_idle = (operations.start_ns > from_ns) & ~is_first
    ended, from_ns = operations.of(is_idle), from_ns[is_idle]
    ns = ended.start_ns - from_ns
    cause = np.select(
        [
            ended.launch_start_ns == NONE_NS,
            ended.launch_start_ns > from_ns,
            ended.launch_end_ns > from_ns,
            ns < BACK_TO_BACK_NS,
        ],
        [CAUSES.index(name) for name in ("not_recorded", "host_wait", "launch_in_flight", "back_to_back")],
        CAUSES.index("other"),
    )
    whole_ns = int(ns.sum())
    of_cause = [ns[cause == at] for at in range(len(CAUSES))]
    return {
        name: {"n": len(own), "ns": int(own.sum()), "time_ratio": ratio(int(own.sum()), whole_ns)}
        for name, own in zip(CAUSES, of_cause, strict=True)
    }


def _changes(*columns: Int64s) -> Bools:
    """Of each row whether it differs from the one before it; the first one does."""
    differs = np.ones(len(columns[0]), np.bool_)
    differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs


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
