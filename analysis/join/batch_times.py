"""Where the time of each execution went on GPU and CPU: unions of intervals of many executions at once.

    execution   start ├─────────────────────────────────────────────┤ end
    operations        ┆  head  ├██████┤      ├████┤  ├███┤   tail   ┆
    blocking calls    ┆               ├───┤        ├────────────┤   ┆
    body                       ├──────┼───┼──┼────┼──┼───┤
                                busy   sync launch busy

Executions overlap in time, so each gets a place of its own on one axis that holds all of its events; places come one
after another with a ns between them. A union over the axis then is the union of each execution, and one sort and one
running maximum serve them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.intervals import Covered
from squall.analysis.storage.row_groups import NULL

LAUNCH, SYNC, ALLOCATION, OTHER = range(4)
"""Kinds of CUDA calls: launches of kernels and graphs, waits by name, allocation and freeing, the rest."""


class Executions(NamedTuple):
    """(n,) int64 instants; none ends before it starts."""

    start_ns: Int64s
    end_ns: Int64s


class Ops(NamedTuple):
    """Operations of a GPU in any order: (n_ops,) arrays. `row` is the execution that each belongs to."""

    row: Int64s
    start_ns: Int64s
    end_ns: Int64s
    launch_start_ns: Int64s
    """`NULL` where the call that launched it was not recorded."""
    is_kernel: Bools
    gpu: Int64s
    """Place of its GPU in a list of them."""


class Copies(NamedTuple):
    """Copies and memory sets in any order: (n,) arrays."""

    row: Int64s
    length_ns: Int64s
    n_bytes: Int64s
    direction: Int64s
    is_pageable: Bools
    call: Int64s
    """The CUDA call that made it, by a number that no other call of its node has."""


class Calls(NamedTuple):
    """CUDA calls in any order: (n_calls,) arrays. `row` is the execution that each belongs to."""

    row: Int64s
    start_ns: Int64s
    end_ns: Int64s
    kind: Int64s
    blocks: Bools


class Axis:
    """The places of the executions: each from its first instant to its last, events included."""

    def __init__(self, executions: Executions, *events: Ops | Calls) -> None:
        first, last = executions.start_ns.copy(), executions.end_ns.copy()
        for one in events:
            np.minimum.at(first, one.row, one.start_ns)
            np.maximum.at(last, one.row, one.end_ns)
        self.bounds: Int64s = np.zeros(len(first) + 1, np.int64)
        np.cumsum(last - first + 1, out=self.bounds[1:])
        self._shift = self.bounds[:-1] - first

    def at(self, instants: Int64s, row: Int64s | slice = slice(None)) -> Int64s:
        """Instants of executions `row` (all in turn) on the axis."""
        return np.asarray(instants + self._shift[row])


@dataclass(frozen=True, eq=False)
class Spans:
    """Intervals on an axis in order of their starts, and what they cover."""

    bounds: Int64s
    start: Int64s
    end: Int64s
    covered: Covered
    edges: Int64s
    """First interval of each execution; one more at the end."""

    @classmethod
    def make(cls, axis_bounds: Int64s, start: Int64s, end: Int64s) -> Spans:
        """Of sorted starts and their ends, both on the axis."""
        return cls(axis_bounds, start, end, Covered.of(start, end), np.searchsorted(start, axis_bounds))

    def where(self, chosen: Bools) -> Spans:
        """The chosen ones alone."""
        return Spans.make(self.bounds, self.start[chosen], self.end[chosen])

    def counts(self) -> Int64s:
        """Number of intervals of each execution."""
        return np.diff(self.edges)

    def sums(self) -> Int64s:
        """Sum of their lengths by execution."""
        length = np.zeros(len(self.start) + 1, np.int64)
        np.cumsum(self.end - self.start, out=length[1:])
        return np.diff(length[self.edges])

    def unions(self) -> Int64s:
        """Length that they cover, by execution."""
        return np.diff(self.covered.covered_ns[self.edges])

    def between(self, first: Int64s, last: Int64s) -> Int64s:
        """Length that they cover from `first` to `last`, pair by pair."""
        return self.covered.between(first, last)

    def merged(self) -> tuple[Int64s, Int64s, Int64s]:
        """Their union in separate intervals: execution, start and end of each."""
        start, end = self.covered.stretches()
        return np.searchsorted(self.bounds, start, side="right") - 1, start, end


def total(row: Int64s, values: Int64s | Bools, n_rows: int) -> Int64s:
    """Sum of `values` by `row`; exact while a sum stays below 2^53."""
    return np.bincount(row, weights=values, minlength=n_rows).astype(np.int64)


def batch_times(executions: Executions, ops: Ops, calls: Calls) -> dict[str, Int64s]:
    """Columns of `batch_costs` by name, (n_executions,) each: all that follows from instants alone.

    kernel_busy_ns + copy_exposed_ns + sync_wait_ns + launch_idle_ns + head_ns + tail_ns is the length of the execution,
    to the ns: operations count as far as they lie within it. Times of calls are unions: a call within another counts
    once.
    """
    axis = Axis(executions, ops, calls)
    on_gpu, is_kernel = _sorted(axis, ops, ops.is_kernel)
    kernels = on_gpu.where(is_kernel)
    first, last = axis.at(executions.start_ns), axis.at(executions.end_ns)
    begin, end = _body(on_gpu, first, last)
    busy = on_gpu.between(first, last)
    kernel_busy = kernels.between(first, last)
    columns = {
        "n_kernels": kernels.counts(),
        "n_copies": on_gpu.counts() - kernels.counts(),
        "kernel_ns": kernels.sums(),
        "copy_ns": on_gpu.sums() - kernels.sums(),
        "kernel_busy_ns": kernel_busy,
        "copy_exposed_ns": busy - kernel_busy,
        "head_ns": begin - first,
        "tail_ns": last - end,
        "overrun_ns": on_gpu.between(last, axis.bounds[1:] - 1),
    }
    by_call, blocking = _call_times(axis, calls)
    row, start, until = blocking.merged()
    columns |= by_call
    columns["blocked_busy_ns"] = total(row, on_gpu.between(start, until), len(first))
    start, until = np.maximum(start, begin[row]), np.minimum(until, end[row])
    start = np.minimum(start, until)
    waited = until - start - on_gpu.between(start, until)
    columns["sync_wait_ns"] = total(row, waited, len(first))
    columns["launch_idle_ns"] = end - begin - busy - columns["sync_wait_ns"]
    columns["n_mid_blocks"] = _mid_blocks(calls, ops, len(first))
    return columns


def _sorted(axis: Axis, events: Ops | Calls, label: NDArray[Any]) -> tuple[Spans, NDArray[Any]]:
    """Events on the axis, and their labels in the same order."""
    start = axis.at(events.start_ns, events.row)
    order = np.argsort(start, kind="stable")  # nearly sorted as it comes: runs are merged
    end = axis.at(events.end_ns, events.row)[order]
    return Spans.make(axis.bounds, start[order], end), label[order]


def _body(on_gpu: Spans, first: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """Start of the first and end of the last operation, within the execution; its end twice where it has none."""
    has_any = on_gpu.counts() > 0
    begin, end = last.copy(), last.copy()
    begin[has_any] = on_gpu.start[on_gpu.edges[:-1][has_any]]
    end[has_any] = on_gpu.covered.reach_ns[on_gpu.edges[1:][has_any] - 1]
    begin = np.clip(begin, first, last)
    return begin, np.clip(end, begin, last)


def _call_times(axis: Axis, calls: Calls) -> tuple[dict[str, Int64s], Spans]:
    """Columns of the calls, and the calls that block."""
    label = calls.kind * 2 + calls.blocks
    by_host, labels = _sorted(axis, calls, label)
    launches, syncs, allocations = (by_host.where(labels >> 1 == kind) for kind in (LAUNCH, SYNC, ALLOCATION))
    blocking = by_host.where(labels & 1 == 1)
    columns = {
        "n_launches": launches.counts(),
        "launch_ns": launches.unions(),
        "sync_ns": syncs.unions(),
        "alloc_ns": allocations.unions(),
        "api_ns": by_host.unions(),
        "n_blocks": blocking.counts(),
        "blocked_ns": blocking.unions(),
    }
    return columns, blocking


def _mid_blocks(calls: Calls, ops: Ops, n_rows: int) -> Int64s:
    """Calls that block and end before some operation of the same execution is launched."""
    last_launch = np.full(n_rows, NULL)
    np.maximum.at(last_launch, ops.row, ops.launch_start_ns)
    row = calls.row[calls.blocks]
    return total(row, last_launch[row] > calls.end_ns[calls.blocks], n_rows)


def waits_within(executions: Executions, row: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Length of the union of intervals, each cut to the execution `row` that it starts in; (n_executions,)."""
    axis = Axis(executions)
    start = axis.at(start_ns, row)
    order = np.argsort(start, kind="stable")
    end = np.minimum(axis.at(end_ns, row), axis.bounds[1:][row] - 1)
    return Spans.make(axis.bounds, start[order], end[order]).unions()
