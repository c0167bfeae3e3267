"""What ran on each GPU when, over all processes: temporal activity, overlap, idle gaps, streams at once.

Symbols: K, C, A are the unions of all kernels, all copies, all operations (kernels, copies, sets) of a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.intervals import Covered, Pieces, Union, clipped
from squall.analysis.metrics.sweeps.device_ops import COPY, KERNEL, SET, Ops
from squall.analysis.metrics.sweeps.numbering import present
from squall.analysis.metrics.sweeps.tally import Tally


class Cells:
    """Disjoint stretches of time in order, and how much of each is covered."""

    def __init__(self, start_ns: Int64s, end_ns: Int64s) -> None:
        self.start_ns, self.end_ns = start_ns, end_ns
        self.covered_ns = np.zeros(len(start_ns), np.int64)

    def add(self, pieces: Pieces) -> None:
        if not len(pieces.start_ns) or not len(self.start_ns):
            return
        low = int(np.searchsorted(self.end_ns, pieces.start_ns[0], side="right"))
        high = int(np.searchsorted(self.start_ns, pieces.end_ns[-1], side="left"))
        if low == high:
            return
        is_one = high - low == 1
        if is_one and pieces.start_ns[0] >= self.start_ns[low] and pieces.end_ns[-1] <= self.end_ns[low]:
            self.covered_ns[low] += pieces.total_ns
        else:
            covered = Covered.of(*pieces)
            self.covered_ns[low:high] += covered.between(self.start_ns[low:high], self.end_ns[low:high])


class _Busy:
    """A union of operations, and how much of each cell it covers."""

    def __init__(self, start_ns: Int64s, end_ns: Int64s) -> None:
        self.union = Union(int(start_ns[0]) if len(start_ns) else 0)
        self.cells = Cells(start_ns, end_ns)

    def add(self, start_ns: Int64s, end_ns: Int64s) -> Pieces:
        """Adds operations in order of start; returns the gaps before them."""
        pieces, gaps = self.union.add(start_ns, end_ns)
        self.cells.add(pieces)
        return gaps


@dataclass(frozen=True, eq=False)
class GpuTimes:
    """Of one GPU: ns of each place in which something ran, all (n_places,); the gaps of each place."""

    kernel_ns: Int64s
    copy_ns: Int64s
    overlap_ns: Int64s
    """A copy and a kernel at once: |K| + |C| - |K u C|."""
    any_ns: Int64s
    stream_ns: Int64s
    """Sum over streams of the time in which the stream had an operation."""
    n_with_kernels: Int64s
    """Cells of each place in which any kernel ran."""
    idle: list[Tally]
    """Gaps of A in the cells of each place, their edges included; empty if not asked for."""
    between_kernels: list[Tally]
    """Gaps of K in the cells of each place, between two kernels of one cell; likewise."""


class GpuSweep:
    """Adds up operations by GPU and place. Cells are disjoint and in order of time; each is of a place."""

    def __init__(
        self,
        start_ns: Sequence[int] | Int64s,
        end_ns: Sequence[int] | Int64s,
        with_gaps: bool,
        place: Int64s | None = None,
    ) -> None:
        """`place`: of each cell, from 0; without it each cell is one of its own."""
        self._cells = np.asarray(start_ns, np.int64), np.asarray(end_ns, np.int64)
        self._place = np.arange(len(self._cells[0])) if place is None else place
        self._with_gaps = with_gaps
        self._gpus: dict[int, _Gpu] = {}

    def add(self, ops: Ops) -> None:
        """Adds operations that start no earlier than those added before."""
        numbers = present(ops.gpu)
        for number in numbers:
            own = _Placed(ops.kind, ops.stream, ops.start_ns, ops.end_ns)
            if len(numbers) > 1:
                own = _Placed(*(column[ops.gpu == number] for column in own))
            if number not in self._gpus:
                self._gpus[number] = _Gpu(*self._cells, self._place, self._with_gaps)
            self._gpus[number].add(own)

    def times(self) -> dict[int, GpuTimes]:
        """What was found, by number of the GPU. Ends the sweep: nothing may be added after."""
        return {number: gpu.times() for number, gpu in self._gpus.items()}


class _Placed(NamedTuple):
    """What is asked of operations here, see `Ops`."""

    kind: Int64s
    stream: Int64s
    start_ns: Int64s
    end_ns: Int64s


class _Gpu:
    def __init__(self, start_ns: Int64s, end_ns: Int64s, place: Int64s, with_gaps: bool) -> None:
        self._start_ns, self._end_ns, self._place = start_ns, end_ns, place
        self._kernels, self._copies, self._either, self._any = (_Busy(start_ns, end_ns) for _ in range(4))
        self._streams: dict[int, _Busy] = {}
        self._n_places = int(place.max(initial=-1)) + 1
        n = self._n_places if with_gaps else 0
        self._idle = [Tally() for _ in range(n)]
        self._between = [Tally() for _ in range(n)]

    def add(self, ops: _Placed) -> None:
        is_kernel, is_copy, is_either = ops.kind == KERNEL, ops.kind == COPY, ops.kind != SET
        self._copies.add(ops.start_ns[is_copy], ops.end_ns[is_copy])
        self._either.add(ops.start_ns[is_either], ops.end_ns[is_either])
        self._add_between(self._kernels.add(ops.start_ns[is_kernel], ops.end_ns[is_kernel]))
        self._add_idle(self._any.add(ops.start_ns, ops.end_ns))
        streams = present(ops.stream)
        for stream in streams:
            is_own = ops.stream == stream if len(streams) > 1 else slice(None)
            busy = self._streams.setdefault(stream, _Busy(self._start_ns, self._end_ns))
            busy.add(ops.start_ns[is_own], ops.end_ns[is_own])

    def _add_idle(self, gaps: Pieces) -> None:
        for cell in self._cells_of(gaps) if self._idle else ():
            inside = clipped(gaps, int(self._start_ns[cell]), int(self._end_ns[cell]))
            self._idle[self._place[cell]].add(inside.end_ns - inside.start_ns)

    def _add_between(self, gaps: Pieces) -> None:
        """Gaps with a kernel before and one after, both in the cell."""
        for cell in self._cells_of(gaps) if self._between else ():
            low = int(np.searchsorted(gaps.start_ns, self._start_ns[cell], side="right"))
            high = int(np.searchsorted(gaps.end_ns, self._end_ns[cell], side="left"))
            self._between[self._place[cell]].add(gaps.end_ns[low:high] - gaps.start_ns[low:high])

    def _cells_of(self, gaps: Pieces) -> range:
        """The cells that any of them may meet."""
        if not len(gaps.start_ns):
            return range(0)
        low = int(np.searchsorted(self._end_ns, gaps.start_ns[0], side="left"))
        return range(low, int(np.searchsorted(self._start_ns, gaps.end_ns[-1], side="right")))

    def _by_place(self, of_cells: Int64s) -> Int64s:
        """Sums of (n_cells,) over the cells of each place."""
        found = np.zeros(self._n_places, np.int64)
        np.add.at(found, self._place, of_cells)
        return found

    def times(self) -> GpuTimes:
        last_ns, reached_ns = int(self._end_ns[-1]) if len(self._end_ns) else 0, self._any.union.reached_ns
        if reached_ns < last_ns:
            self._add_idle(Pieces(np.array([reached_ns]), np.array([last_ns])))
        kernel_ns, copy_ns = self._kernels.cells.covered_ns, self._copies.cells.covered_ns
        overlap_ns = kernel_ns + copy_ns - self._either.cells.covered_ns
        stream_ns = sum((busy.cells.covered_ns for busy in self._streams.values()), np.zeros_like(kernel_ns))
        return GpuTimes(
            self._by_place(kernel_ns),
            self._by_place(copy_ns),
            self._by_place(overlap_ns),
            self._by_place(self._any.cells.covered_ns),
            self._by_place(stream_ns),
            self._by_place((kernel_ns > 0).astype(np.int64)),
            self._idle,
            self._between,
        )
