"""What ran on GPUs in stretches of time: unions of operations, and the gaps between them.

    cells     [───────────)      [───────────)         disjoint, in order of time
    GPU 0       ├────┤ ├┤          ├────────────┤      cut to the cells
    GPU 1     ├───┤  ├─────┤
    axis      [cell 0, GPU 0)[cell 0, GPU 1)[cell 1, GPU 0)[cell 1, GPU 1)

On the axis no operation reaches beyond its own cell and GPU, so that one running maximum over all ends makes
all unions. DuckDB orders the operations, numpy makes the five maxima, in a third of the time that windows of DuckDB
take.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.intervals import Reach
from squall.analysis.metrics.operations import arrays_of

if TYPE_CHECKING:
    import duckdb

IN_CELLS = "operations o JOIN cells c ON o.start_ns < c.end_ns AND o.end_ns > c.start_ns"
"""Operations with each of the `cells` (cell, start_ns, end_ns: disjoint stretches of time) that they meet."""

# A stream of a GPU has a number, and so has a GPU, in the order of their names.
_LANES = """
CREATE TEMP TABLE lanes AS
SELECT row_number() OVER ()::INTEGER AS lane, (dense_rank() OVER (ORDER BY gpu) - 1)::INTEGER AS gpu_number, *
FROM (SELECT DISTINCT node, process, context, stream, gpu FROM operations)
"""
# Each cell ends with an operation of no length, which ends the last gap.
_ORDERED = """
SELECT cell::INTEGER AS cell, gpu_number, lane, kind = 'kernel' AS is_kernel, kind = 'copy' AS is_copy,
    greatest(o.start_ns, c.start_ns) - c.start_ns AS start_ns, least(o.end_ns, c.end_ns) - c.start_ns AS end_ns
FROM {in_cells} JOIN lanes l
    ON o.node = l.node AND o.gpu = l.gpu AND o.process IS NOT DISTINCT FROM l.process
    AND o.context IS NOT DISTINCT FROM l.context AND o.stream IS NOT DISTINCT FROM l.stream
UNION ALL
SELECT cell, gpu_number, -1, false, false, end_ns - start_ns, end_ns - start_ns
FROM cells CROSS JOIN (SELECT DISTINCT gpu_number FROM lanes)
ORDER BY cell, gpu_number, start_ns, end_ns
"""


class Activity(NamedTuple):
    """Arrays of shape (cells, GPUs), in order of `cells` and of `used_gpus`: how long anything ran, any kernel, any
    copy, either of these, and the sum of how long anything ran in each stream."""

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


class Gaps(NamedTuple):
    """Gaps longer than 0, each with its place in (cells, GPUs) laid flat."""

    place: Int64s
    ns: Int64s


def used_gpus(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """The GPUs that `operations` ran on, in order; makes table `lanes`, of streams."""
    connection.execute(_LANES)
    return [gpu for (gpu,) in connection.execute("SELECT DISTINCT gpu FROM lanes ORDER BY gpu").fetchall()]


def activity(
    connection: duckdb.DuckDBPyConnection, n_gpus: int, in_cells: str = IN_CELLS, with_gaps: bool = True
) -> Activity:
    """Of `operations` in `cells`, as `in_cells` joins them; needs `lanes` of `n_gpus` GPUs. `with_gaps`: with the gaps
    too, 16 bytes each."""
    cells = connection.execute("SELECT cell, end_ns - start_ns AS ns FROM cells ORDER BY cell").fetchnumpy()
    ends_ns = np.cumsum(np.repeat(cells["ns"].astype(np.int64), n_gpus))
    base_ns = np.r_[0, ends_ns[:-1]] if len(ends_ns) else ends_ns
    every, kernels = (_Union(base_ns, with_gaps) for _ in range(2))
    copies, either = (_Union(base_ns, False) for _ in range(2))
    streams = _Streams(len(base_ns))
    for columns in arrays_of(connection, _ORDERED.format(in_cells=in_cells)):
        cell, gpu, lane, is_kernel, is_copy, start_ns, end_ns = columns
        place = np.searchsorted(cells["cell"], cell) * n_gpus + gpu
        start_ns, end_ns = start_ns + base_ns[place], end_ns + base_ns[place]
        every.add(place, start_ns, end_ns, from_edge=True)
        for union, of_it in ((kernels, is_kernel), (copies, is_copy), (either, is_kernel | is_copy)):
            union.add(place[of_it], start_ns[of_it], end_ns[of_it], from_edge=False)
        streams.add(lane, place, start_ns, end_ns)
    any_ns, kernel_ns, copy_ns, either_ns, stream_ns = (
        one.ns.reshape(-1, n_gpus) for one in (every, kernels, copies, either, streams)
    )
    return Activity(any_ns, kernel_ns, copy_ns, either_ns, stream_ns, every.gaps(), kernels.gaps())


class _Union:
    """What intervals cover together at each place of the axis, as they come in order; and what lies between."""

    def __init__(self, base_ns: Int64s, with_gaps: bool) -> None:
        self._with_gaps = with_gaps
        self.ns = np.zeros(len(base_ns), np.int64)
        self._base_ns = base_ns
        self._reach = Reach(0)
        self._gaps: list[Gaps] = []

    def add(self, place: Int64s, start_ns: Int64s, end_ns: Int64s, from_edge: bool) -> None:
        """`from_edge`: what lies before the first interval of a place is a gap too."""
        before_ns, fresh_ns = self._reach.beyond(start_ns, end_ns)
        np.add.at(self.ns, place, fresh_ns)
        if not self._with_gaps:
            return
        base_ns = self._base_ns[place]
        is_gap: Bools = start_ns > np.maximum(before_ns, base_ns)
        if not from_edge:
            is_gap &= before_ns > base_ns
        self._gaps.append(Gaps(place[is_gap], (start_ns - np.maximum(before_ns, base_ns))[is_gap]))

    def gaps(self) -> Gaps:
        """Of all that was added; none where they are not kept."""
        nothing = Gaps(np.empty(0, np.int64), np.empty(0, np.int64))
        return Gaps(*(np.concatenate(parts) for parts in zip(nothing, *self._gaps, strict=True)))


class _Streams:
    """Sum over the streams of what the intervals of each cover."""

    def __init__(self, n_places: int) -> None:
        self.ns = np.zeros(n_places, np.int64)
        self._reach: dict[int, Reach] = defaultdict(lambda: Reach(0))

    def add(self, lane: Int64s, place: Int64s, start_ns: Int64s, end_ns: Int64s) -> None:
        order = np.argsort(lane, kind="stable")
        lane, start_ns, end_ns = lane[order], start_ns[order], end_ns[order]
        fresh_ns = np.empty(len(lane), np.int64)
        firsts = np.flatnonzero(np.r_[True, lane[1:] != lane[:-1]])
        for first, last in zip(firsts, np.r_[firsts[1:], len(lane)], strict=True):
            own = slice(first, last)
            _, fresh_ns[own] = self._reach[lane[first]].beyond(start_ns[own], end_ns[own])
        np.add.at(self.ns, place[order], fresh_ns)
