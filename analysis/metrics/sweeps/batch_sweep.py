"""How the operations of a batch follow one another: launch to launch, launch to start, idle between them.

thread   ├L1┤  ├L2┤      ├L3┤             L: a call that launches; issue interval: from L1 to L2, start to start
GPU        ├─op1─┤├─op2─┤   ├─op3─┤       launch to start: from L to its kernel
                  idle  ├──┤              its cause: what the thread did when the GPU fell idle

What one call launches, the nodes of a CUDA graph, counts as one operation from launch to launch, from launch to start
and in the launch queue: it takes the union of its nodes. Within a batch these are the operations of one launch instant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Int64s
from squall.analysis.intervals import NEVER, Union, reached_by_group
from squall.analysis.metrics.sweeps.device_ops import KERNEL, Ops
from squall.analysis.metrics.sweeps.numbering import present
from squall.analysis.metrics.sweeps.tally import Tally
from squall.analysis.storage.row_groups import NULL

BACK_TO_BACK_NS = 1_500
"""Idle below this between operations already launched is what the GPU takes from one to the next: kernels in one stream
of an H200 followed each other 1.17 us apart (nsys 2025.3.2); the 30 ns that HTA takes for it marks nothing there."""

CAUSES = ("host_wait", "launch_in_flight", "back_to_back", "other", "not_recorded")


@dataclass
class Issue:
    """What was found of a group of batches. Times in ns; see docs/metrics.md for each."""

    interval: Tally = field(default_factory=Tally)
    host_gap: Tally = field(default_factory=Tally)
    call: Tally = field(default_factory=Tally)
    op: Tally = field(default_factory=Tally)
    to_start: Tally = field(default_factory=Tally)
    n_queued: int = 0
    n_before_launch: int = 0
    n_by_cause: Int64s = field(default_factory=lambda: np.zeros(len(CAUSES), np.int64))
    idle_by_cause_ns: Int64s = field(default_factory=lambda: np.zeros(len(CAUSES), np.int64))
    depth: Depth = field(default_factory=lambda: Depth())


class BatchOps(NamedTuple):
    """What is asked of operations here, see `Ops`; `batch` counts the batches."""

    kind: Int64s
    start_ns: Int64s
    end_ns: Int64s
    launch_start_ns: Int64s
    launch_end_ns: Int64s
    batch: Int64s


class BatchSweep:
    """Adds up operations of whole batches by group. Only batches that count, and kernels, copies and sets alike."""

    def __init__(self, n_groups: int, group: Int64s, closed_ns: Int64s) -> None:
        """Of each batch its group, -1 of one that does not count, and when the last of its operations starts, or
        later."""
        self._group = np.append(group, np.int64(-1))
        self._closed_ns = closed_ns
        self._held: BatchOps | None = None
        self.issues = [Issue() for _ in range(n_groups)]

    def add(self, ops: Ops | BatchOps) -> None:
        """Adds a slice in order of start, not empty; later ones hold nothing that starts before its last operation."""
        horizon_ns = int(ops.start_ns[-1])
        is_counted = self._group[ops.batch] >= 0
        counted = _taken(BatchOps(*(getattr(ops, name) for name in BatchOps._fields)), is_counted)
        whole = counted if self._held is None else _joined(self._held, counted)
        is_closed = self._closed_ns[whole.batch] <= horizon_ns
        self._held = _taken(whole, ~is_closed)
        self._add(_taken(whole, is_closed))

    def finish(self) -> None:
        """Adds the batches that the last slice left open."""
        if self._held is not None:
            self._add(self._held)
            self._held = None

    def _add(self, ops: BatchOps) -> None:
        group = self._group[ops.batch]
        for number in present(group):
            own = _taken(ops, group == number)
            if (own.batch[1:] < own.batch[:-1]).any():
                own = BatchOps(*(column[np.argsort(own.batch, kind="stable")] for column in own))
            issue = self.issues[number]
            _add_idle(issue, own)
            launched = _by_launch(_taken(own, own.launch_start_ns != NULL))
            _add_intervals(issue, launched)
            kernels = _taken(launched, launched.kind == KERNEL)
            kernels = _taken(kernels, _is_first(kernels))
            _add_starts(issue, kernels)
            issue.depth.add(kernels)


def _joined(first: BatchOps, second: BatchOps) -> BatchOps:
    return BatchOps(*(np.concatenate(columns) for columns in zip(first, second, strict=True)))


def _taken(ops: BatchOps, is_taken: NDArray[np.bool_]) -> BatchOps:
    return ops if is_taken.all() else BatchOps(*(column[is_taken] for column in ops))


def _add_idle(issue: Issue, ops: BatchOps) -> None:
    """Idle between the operations of a batch, by its cause. Operations in order of batch and start."""
    before = reached_by_group(ops.batch, ops.end_ns)
    is_idle = (before != NEVER) & (ops.start_ns > before)
    end, gap = before[is_idle], (ops.start_ns - before)[is_idle]
    launch_start, launch_end = ops.launch_start_ns[is_idle], ops.launch_end_ns[is_idle]
    cause = np.select(
        [launch_start == NULL, launch_start > end, launch_end > end, gap < BACK_TO_BACK_NS],
        [4, 0, 1, 2],
        3,
    )
    for number in range(len(CAUSES)):
        is_so = cause == number
        issue.n_by_cause[number] += int(is_so.sum())
        issue.idle_by_cause_ns[number] += int(gap[is_so].sum())


def _by_launch(ops: BatchOps) -> BatchOps:
    """`ops`, in order of batch and start, in order of batch, launch and start."""
    if not (np.diff(ops.launch_start_ns)[np.diff(ops.batch) == 0] < 0).any():
        return ops
    order = np.lexsort((ops.start_ns, ops.launch_start_ns, ops.batch))
    return BatchOps(*(column[order] for column in ops))


def _is_first(ops: BatchOps) -> NDArray[np.bool_]:
    """Whether each is the first of its launch; operations as `_by_launch` orders them."""
    is_next = (ops.batch[1:] != ops.batch[:-1]) | (ops.launch_start_ns[1:] != ops.launch_start_ns[:-1])
    return np.asarray(np.r_[True, is_next][: len(ops.batch)])


def _add_starts(issue: Issue, kernels: BatchOps) -> None:
    """From the start of the launch to the start of its first kernel."""
    delay = kernels.start_ns - kernels.launch_start_ns
    issue.n_before_launch += int((delay < 0).sum())
    issue.to_start.add(np.maximum(delay, 0))
    issue.n_queued += int((kernels.start_ns > kernels.launch_end_ns).sum())


def _add_intervals(issue: Issue, ops: BatchOps) -> None:
    """From launch to launch within a batch; operations as `_by_launch` orders them."""
    is_first = _is_first(ops)
    length = ops.end_ns - ops.start_ns
    if not is_first.all():
        before = reached_by_group(np.cumsum(is_first), ops.end_ns)
        length = np.maximum(ops.end_ns - np.maximum(ops.start_ns, before), 0)
        length = np.add.reduceat(length, np.flatnonzero(is_first))
    one = _taken(ops, is_first)
    is_next = np.flatnonzero(one.batch[1:] == one.batch[:-1]) + 1
    start, end = one.launch_start_ns, one.launch_end_ns
    issue.interval.add(start[is_next] - start[is_next - 1])
    issue.host_gap.add(np.maximum(start[is_next] - end[is_next - 1], 0))
    issue.call.add(np.maximum(end[is_next] - start[is_next], 0))
    issue.op.add(length[is_next])


class Depth:
    """Launches of kernels of which none has begun: the depth of the launch queue over time.

    A launch counts in [its start, start of its first kernel). The mean over the time in which any counts is
    sum(start - launch) / |union of these|.
    """

    def __init__(self) -> None:
        self.most = 0
        self.waiting_ns = 0
        """Sum over launches of the time from launch to start: the integral of the depth."""
        self.nonempty_ns = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._union: Union | None = None
        self._outstanding: Int64s = np.zeros(0, np.int64)

    def add(self, kernels: BatchOps) -> None:
        """Adds the first kernel of each launch; none is launched before one that was added before."""
        if not len(kernels.start_ns):
            return
        order = np.argsort(kernels.launch_start_ns, kind="stable")
        launch = kernels.launch_start_ns[order]
        begin = np.maximum(kernels.start_ns[order], launch)
        self.first_ns = int(launch[0]) if self.first_ns is None else min(self.first_ns, int(launch[0]))
        self.last_ns = max(int(begin.max()), self.last_ns or int(begin.max()))
        self.waiting_ns += int((begin - launch).sum())
        self._union = self._union or Union(int(launch[0]))
        self.nonempty_ns += self._union.add(launch, begin)[0].total_ns
        self._add_most(launch, begin)

    def _add_most(self, launch: Int64s, begin: Int64s) -> None:
        starts = np.sort(np.r_[self._outstanding, begin])
        depth = len(self._outstanding) + np.arange(1, len(launch) + 1)
        depth -= np.searchsorted(starts, launch, side="right")
        self.most = max(self.most, int(depth.max()))
        self._outstanding = starts[starts > launch[-1]]

    @property
    def span_ns(self) -> int:
        """From the first launch to the last start."""
        return 0 if self.first_ns is None or self.last_ns is None else self.last_ns - self.first_ns
