"""What ran on GPUs in stretches of time: unions of operations, and the gaps between them.

    cells      [───────────)      [───────────)         disjoint, in order of time
    GPU          ├────┤ ├┤          ├────────────┤
    union        [────) [)          [────────────)      pieces: what each operation adds to those before it
    length      what pieces cover before the end of a cell, less what before its start

DuckDB orders the operations of each GPU, numpy makes the five maxima, in a third of the time that windows of DuckDB
take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.intervals import Reach
from squall.analysis.metrics.operations import NONE_NS, runs_of_rows

if TYPE_CHECKING:
    import duckdb

_ORDERED = """
SELECT gpu_number, lane, is_kernel, is_copy, start_ns, end_ns FROM operations
WHERE end_ns > (SELECT min(start_ns) FROM cells) AND start_ns < (SELECT max(end_ns) FROM cells)
ORDER BY gpu_number, start_ns, end_ns
"""


class Gaps(NamedTuple):
    """Gaps longer than 0, each with its place in (cells, GPUs) laid flat."""

    place: Int64s
    ns: Int64s


class Activity(NamedTuple):
    """Arrays of shape (cells, GPUs), in order of `cells` and of GPUs: how long anything ran, any kernel, any copy,
    either of these, and the sum of how long anything ran in each stream."""

    any_ns: Int64s
    kernel_ns: Int64s
    copy_ns: Int64s
    either_ns: Int64s
    stream_ns: Int64s
    idle: Gaps
    """In which nothing ran, the edges of cells among them."""
    between: Gaps
    """From kernel to kernel."""

    @property
    def overlap_ns(self) -> Int64s:
        """A copy and a kernel at once: |K| + |C| - |K u C|."""
        return self.kernel_ns + self.copy_ns - self.either_ns


class Cells(NamedTuple):
    """Stretches of time that are disjoint and in order."""

    start_ns: Int64s
    end_ns: Int64s

    def lengths(self, start_ns: Int64s, end_ns: Int64s) -> tuple[slice, Int64s]:
        """The cells that intervals meet, which may overlap, and how much of each cell they fill, added up."""
        if not len(start_ns):
            return slice(0, 0), np.empty(0, np.int64)
        own = slice(
            int(np.searchsorted(self.end_ns, start_ns.min(), side="right")),
            int(np.searchsorted(self.start_ns, end_ns.max(), side="left")),
        )
        zero_ns = start_ns.min()  # sums of instants since then are far from the largest int64
        starts_ns, ends_ns = (np.sort(one) - zero_ns for one in (start_ns, end_ns))

        def before(t_ns: Int64s) -> Int64s:
            """Length of all that lies before each instant: since the starts before it, less since the ends."""
            since_zero_ns = t_ns - zero_ns
            return _since(starts_ns, since_zero_ns) - _since(ends_ns, since_zero_ns)

        return own, before(self.end_ns[own]) - before(self.start_ns[own])

    def parts(self, from_ns: Int64s, to_ns: Int64s) -> tuple[Int64s, Int64s]:
        """Disjoint intervals in order, cut at the edges of cells: the cell and the length of each part of them."""
        first = np.searchsorted(self.end_ns, from_ns, side="right")
        n = np.maximum(np.searchsorted(self.start_ns, to_ns, side="left") - first, 0)
        row = np.repeat(np.arange(len(n)), n)
        cell = np.arange(len(row)) - np.repeat(np.cumsum(n) - n, n) + first[row]
        return cell, np.minimum(to_ns[row], self.end_ns[cell]) - np.maximum(from_ns[row], self.start_ns[cell])

    def within(self, from_ns: Int64s, to_ns: Int64s) -> tuple[Int64s, Int64s]:
        """The cell and the length of each interval of which both ends lie within one cell, off its edges."""
        cell = np.searchsorted(self.start_ns, from_ns) - 1
        is_within = (cell >= 0) & (to_ns < self.end_ns[cell])
        return cell[is_within], (to_ns - from_ns)[is_within]


def _since(instants_ns: Int64s, t_ns: Int64s) -> Int64s:
    """Sum of the times from each of the instants, in order, that lie before `t_ns`."""
    n = np.searchsorted(instants_ns, t_ns)
    sums_ns: Int64s = np.concatenate([[0], np.cumsum(instants_ns)])[n]
    return n * t_ns - sums_ns


def activity(connection: duckdb.DuckDBPyConnection, n_gpus: int, with_gaps: bool = True) -> Activity:
    """Of `operations` of `n_gpus` GPUs in `cells`. `with_gaps`: with the gaps too, 16 bytes each."""
    columns = connection.execute("SELECT start_ns, end_ns FROM cells ORDER BY start_ns").fetchnumpy()
    cells = Cells(columns["start_ns"], columns["end_ns"])
    gpus = [_Gpu(cells, with_gaps) for _ in range(n_gpus)]
    for gpu, rows in runs_of_rows(connection, _ORDERED):
        gpus[gpu].add(*rows)
    any_ns, kernel_ns, copy_ns, either_ns, stream_ns = np.stack([one.lengths_ns() for one in gpus], axis=2)
    return Activity(
        any_ns,
        kernel_ns,
        copy_ns,
        either_ns,
        stream_ns,
        _laid_flat([cells.parts(*one.every.gaps()) for one in gpus]),
        _laid_flat([cells.within(*one.kernels.gaps()) for one in gpus]),
    )


def _laid_flat(of_gpus: Sequence[tuple[Int64s, Int64s]]) -> Gaps:
    """Cells and lengths of the gaps of each GPU as `Gaps`."""
    places = [cell * len(of_gpus) + at for at, (cell, _) in enumerate(of_gpus)]
    return Gaps(np.concatenate(places), np.concatenate([ns for _, ns in of_gpus]))


class _Gpu:
    """What ran on one GPU."""

    def __init__(self, cells: Cells, with_gaps: bool) -> None:
        self._cells = cells
        self.every, self.kernels = (_Union(cells, with_gaps) for _ in range(2))
        self._copies, self._either = (_Union(cells, with_gaps=False) for _ in range(2))
        self._stream_ns = np.zeros(len(cells.start_ns), np.int64)
        self._streams: dict[int, Reach] = defaultdict(lambda: Reach(NONE_NS))

    def add(self, lane: Int64s, is_kernel: Bools, is_copy: Bools, start_ns: Int64s, end_ns: Int64s) -> None:
        """Operations in order of their starts, after those before."""
        self.every.add(start_ns, end_ns)
        for union, of_it in (
            (self.kernels, is_kernel), (self._copies, is_copy), (self._either, is_kernel | is_copy)
        ):  # fmt: skip
            union.add(start_ns[of_it], end_ns[of_it])
        fresh_ns = np.empty(len(lane), np.int64)
        for stream in np.unique(lane):
            rows = np.flatnonzero(lane == stream)
            _, fresh_ns[rows] = self._streams[stream].beyond(start_ns[rows], end_ns[rows])
        own, ns = self._cells.lengths(end_ns - fresh_ns, end_ns)
        self._stream_ns[own] += ns

    def lengths_ns(self) -> Int64s:
        """Those of `Activity`, in its order, by cell."""
        unions = self.every, self.kernels, self._copies, self._either
        return np.stack([*(union.ns for union in unions), self._stream_ns])


class _Union:
    """What intervals cover together in each cell, as they come in order; and what lies between."""

    def __init__(self, cells: Cells, with_gaps: bool) -> None:
        self._cells, self._with_gaps = cells, with_gaps
        self.ns = np.zeros(len(cells.start_ns), np.int64)
        self._reach = Reach(NONE_NS)
        self._gaps: list[tuple[Int64s, Int64s]] = []

    def add(self, start_ns: Int64s, end_ns: Int64s) -> None:
        before_ns, fresh_ns = self._reach.beyond(start_ns, end_ns)
        own, ns = self._cells.lengths(end_ns - fresh_ns, end_ns)
        self.ns[own] += ns
        if self._with_gaps:
            is_gap = start_ns > before_ns
            self._gaps.append((before_ns[is_gap], start_ns[is_gap]))

    def gaps(self) -> tuple[Int64s, Int64s]:
        """Where they begin and end, before the first and after the last too; none where they are not kept."""
        if not self._with_gaps:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        self.add(*np.full((2, 1), -NONE_NS))
        from_ns, to_ns = (np.concatenate(parts) for parts in zip(*self._gaps, strict=True))
        return from_ns, to_ns
