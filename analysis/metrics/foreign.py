"""How long other processes kept a GPU busy while an instance ran its batches.

GPU      p p q q q p p          q: another process
batch   [────────────────]      foreign: the time in which a process other than p has an operation running
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from analysis.metrics.batches import Batches
from analysis.metrics.device_ops import Ops
from analysis.metrics.numbering import present
from analysis.metrics.unions import CoveredTime, Pieces, Union
from analysis.row_groups import NULL

Int64s = NDArray[np.int64]
Process = tuple[str, int]
"""Node and process id."""


class ForeignSweep:
    """Adds up, by group of batches, the time within its batches in which another process used its GPU.

    The GPUs of a batch are those that its process has operations on, now or later.
    """

    def __init__(self, batches: Batches, rows: Mapping[Process, Sequence[int]]) -> None:
        """`rows`: those of the counted batches, in order of start, by the process that executed them."""
        self._batches = batches
        self._rows = {key: np.array(own, np.int64) for key, own in rows.items()}
        self._gpus: dict[int, _Gpu] = {}
        self._found: dict[tuple[int, Process], Int64s] = {}

    def add(self, ops: Ops, processes: Sequence[Process]) -> None:
        """Adds a slice; later ones start after the last operation of this one. `processes`: see `DeviceOps`."""
        horizon_ns = int(ops.start_ns[-1]) + 1
        gpus = present(ops.gpu)
        for number in gpus:
            is_own = ops.gpu == number if len(gpus) > 1 else slice(None)
            process, start_ns, end_ns = ops.process[is_own], ops.start_ns[is_own], ops.end_ns[is_own]
            gpu = self._gpus.setdefault(number, _Gpu(int(start_ns[0])))
            own = {one: (start_ns[process == one], end_ns[process == one]) for one in present(process)}
            self._count(number, gpu.advance(own, horizon_ns), processes)

    def finish(self, processes: Sequence[Process]) -> Int64s:
        """Adds what still ran after the last slice; returns ns by group."""
        total = np.zeros(len(self._batches.groups), np.int64)
        for number, gpu in self._gpus.items():
            self._count(number, gpu.advance({}, max(gpu.reached_ns.values()) + 1), processes)
            for process in gpu.reached_ns:
                total += self._found.get((number, processes[process]), 0)
        return total

    def _count(self, gpu: int, busy: _Busy, processes: Sequence[Process]) -> None:
        """Counts the stretch of time that `busy` is of, for every process with batches on the node of the GPU."""
        if not busy.pieces:
            return
        node = processes[next(iter(busy.pieces))][0]
        number = {key: one for one, key in enumerate(processes)}
        covered: dict[int, CoveredTime] = {}
        for key, rows in self._rows.items():
            one = number.get(key, -1)
            one = one if one in busy.pieces else -1  # to whom has nothing running, all is foreign
            if key[0] != node or set(busy.pieces) == {one}:
                continue
            if one not in covered:
                covered[one] = CoveredTime(busy.foreign_to(one))
            starts, ends = self._batches.start_ns[rows], self._batches.end_ns[rows]
            own = np.flatnonzero((ends > busy.first_ns) & (starts < busy.last_ns))
            first, last = np.maximum(starts[own], busy.first_ns), np.minimum(ends[own], busy.last_ns)
            empty = np.zeros(len(self._batches.groups), np.int64)
            sums = self._found.setdefault((gpu, key), empty)
            np.add.at(sums, self._batches.group[rows[own]], covered[one](last) - covered[one](first))


class _Gpu:
    """How far each process has kept a GPU busy, as far as it is known."""

    def __init__(self, first_ns: int) -> None:
        self.reached_ns: dict[int, int] = {}
        self._done_ns = first_ns

    def advance(self, own: Mapping[int, tuple[Int64s, Int64s]], horizon_ns: int) -> _Busy:
        """When each process was busy from where the last call ended to the horizon; `own`: its new operations."""
        first_ns, self._done_ns = self._done_ns, horizon_ns
        pieces = {
            process: self._pieces(process, own.get(process), first_ns, horizon_ns)
            for process in sorted({*self.reached_ns, *own})
        }
        active = {process: found for process, found in pieces.items() if len(found.start_ns)}
        return _Busy(active, first_ns, horizon_ns)

    def _pieces(
        self, process: int, own: tuple[Int64s, Int64s] | None, first_ns: int, horizon_ns: int
    ) -> Pieces:
        before_ns = self.reached_ns.get(process, NULL)
        starts, ends = own if own is not None else (np.zeros(0, np.int64), np.zeros(0, np.int64))
        union = Union(max(before_ns, first_ns))
        pieces, _ = union.add(starts, ends)
        self.reached_ns[process] = union.reached_ns
        if before_ns > first_ns:  # what an earlier slice left running
            pieces = Pieces(np.r_[first_ns, pieces.start_ns], np.r_[before_ns, pieces.end_ns])
        end_ns = np.minimum(pieces.end_ns, horizon_ns)
        is_within = end_ns > pieces.start_ns
        return Pieces(pieces.start_ns[is_within], end_ns[is_within])


class _Busy:
    """When processes were busy on a GPU in [first, last)."""

    def __init__(self, pieces: dict[int, Pieces], first_ns: int, last_ns: int) -> None:
        self.pieces = pieces
        self.first_ns, self.last_ns = first_ns, last_ns
        self._edges: tuple[Int64s, Int64s, Int64s] | None = None

    def foreign_to(self, process: int) -> Pieces:
        """When any process but `process` was busy."""
        if len(self.pieces) == 1:
            ((only, found),) = self.pieces.items()
            return found if only != process else Pieces(found.start_ns[:0], found.end_ns[:0])
        at_ns, n_busy, owner = self._edges = self._edges or self._counted()
        is_foreign = (n_busy > 0) & ~((n_busy == 1) & (owner == process + 1))
        start, end = at_ns[:-1], at_ns[1:]
        is_piece = is_foreign[:-1] & (end > start)
        return Pieces(start[is_piece], end[is_piece])

    def _counted(self) -> tuple[Int64s, Int64s, Int64s]:
        """Instants, how many processes are busy from each on, and the sum of their numbers: of one, who it is."""
        starts = np.concatenate([found.start_ns for found in self.pieces.values()])
        ends = np.concatenate([found.end_ns for found in self.pieces.values()])
        owner = np.concatenate([np.full(len(found.start_ns), one + 1) for one, found in self.pieces.items()])
        instants = np.r_[starts, ends]
        order = np.argsort(instants, kind="stable")
        n_busy = np.cumsum(np.r_[np.ones(len(starts), np.int64), np.full(len(ends), -1)][order])
        return instants[order], n_busy, np.cumsum(np.r_[owner, -owner][order])
