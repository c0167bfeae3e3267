"""How long other processes kept the GPUs of an instance busy while it ran its batches.

GPU 0     p p q q q p p          q: another process
GPU 1     p p p p q q q
batch    [────────────────]      foreign: the time in which a process other than p has an operation running on either
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.intervals import Covered, Pieces, Union
from squall.analysis.metrics.sweeps.batches import Batches
from squall.analysis.metrics.sweeps.device_ops import Ops
from squall.analysis.metrics.sweeps.numbering import present
from squall.analysis.storage.row_groups import NULL

Process = tuple[str, int]
"""Node and process id."""


class ForeignSweep:
    """Adds up, by group of batches, the time within its batches in which another process used one of its GPUs.

    The GPUs of a batch are those that its process has operations on, now or later: until the end, time is kept by the
    set of GPUs that others used meanwhile.
    """

    def __init__(self, batches: Batches, rows: Mapping[Process, Sequence[int]]) -> None:
        """`rows`: those of the counted batches, in order of start, by the process that executed them."""
        self._batches = batches
        self._rows = {key: np.array(own, np.int64) for key, own in rows.items()}
        self._gpus: dict[str, dict[int, _Gpu]] = {}
        self._found: dict[tuple[Process, int], Int64s] = {}

    def add(self, ops: Ops, processes: Sequence[Process], nodes: Sequence[str]) -> None:
        """Adds a slice; later ones start after the last operation of this one.

        `processes`: see `DeviceOps`; `nodes`: of each GPU.
        """
        horizon_ns = int(ops.start_ns[-1]) + 1
        gpus = present(ops.gpu)
        new: dict[int, dict[int, tuple[Int64s, Int64s]]] = {}
        for number in gpus:
            is_own = ops.gpu == number if len(gpus) > 1 else slice(None)
            process, start_ns, end_ns = ops.process[is_own], ops.start_ns[is_own], ops.end_ns[is_own]
            self._gpus.setdefault(nodes[number], {}).setdefault(number, _Gpu(int(start_ns[0])))
            new[number] = {
                one: (start_ns[process == one], end_ns[process == one]) for one in present(process)
            }
        for node, of_node in self._gpus.items():
            busy = [gpu.advance(new.get(number, {}), horizon_ns) for number, gpu in of_node.items()]
            self._count(node, busy, processes)

    def finish(self, processes: Sequence[Process]) -> Int64s:
        """Adds what still ran after the last slice; returns ns by group."""
        for node, gpus in self._gpus.items():
            last_ns = max(reached for gpu in gpus.values() for reached in gpu.reached_ns.values()) + 1
            self._count(node, [gpu.advance({}, last_ns) for gpu in gpus.values()], processes)
        total = np.zeros(len(self._batches.groups), np.int64)
        for (key, used), found in self._found.items():
            places = enumerate(self._gpus[key[0]].values())
            if any(used >> place & 1 and gpu.is_used_by(key, processes) for place, gpu in places):
                total += found
        return total

    def _count(self, node: str, gpus: Sequence[_Busy], processes: Sequence[Process]) -> None:
        """Counts the stretch of time that `gpus`, all of the node, are of, for every process with batches there."""
        number = {key: one for one, key in enumerate(processes)}
        running = {one for busy in gpus for one in busy.pieces}
        foreign: dict[int, list[tuple[int, Pieces, Covered]]] = {}
        for key, rows in self._rows.items():
            one = number.get(key, -1)
            one = one if one in running else -1  # to whom has nothing running, all is foreign
            if key[0] != node or running <= {one}:
                continue
            if one not in foreign:
                found = _by_gpus([busy.foreign_to(one) for busy in gpus])
                foreign[one] = [(used, pieces, Covered.of(*pieces)) for used, pieces in found.items()]
            starts, ends = self._batches.start_ns[rows], self._batches.end_ns[rows]
            for used, pieces, covered in foreign[one]:
                own = np.flatnonzero((ends > pieces.start_ns[0]) & (starts < pieces.end_ns[-1]))
                empty = np.zeros(len(self._batches.groups), np.int64)
                sums = self._found.setdefault((key, used), empty)
                np.add.at(sums, self._batches.group[rows[own]], covered.between(starts[own], ends[own]))


def _by_gpus(busy: Sequence[Pieces]) -> dict[int, Pieces]:
    """When exactly which GPUs are busy, by the sum of 2^place over these; `busy` by place of the GPU."""
    some = [(place, found) for place, found in enumerate(busy) if len(found.start_ns)]
    if len(some) <= 1:
        return {1 << place: found for place, found in some}
    instants = np.concatenate([np.r_[found.start_ns, found.end_ns] for _, found in some])
    change = np.concatenate(
        [np.repeat([1 << place, -(1 << place)], len(found.start_ns)) for place, found in some]
    )
    order = np.argsort(instants, kind="stable")
    at_ns, used = instants[order], np.cumsum(change[order])
    start, end, used = at_ns[:-1], at_ns[1:], used[:-1]
    is_piece = (used > 0) & (end > start)
    start, end, used = start[is_piece], end[is_piece], used[is_piece]
    return {one: Pieces(start[used == one], end[used == one]) for one in np.unique(used).tolist()}


class _Gpu:
    """How far each process has kept a GPU busy, as far as it is known."""

    def __init__(self, first_ns: int) -> None:
        self.reached_ns: dict[int, int] = {}
        self._done_ns = first_ns

    def is_used_by(self, process: Process, processes: Sequence[Process]) -> bool:
        """Whether the process has had an operation on it."""
        return any(processes[number] == process for number in self.reached_ns)

    def advance(self, own: Mapping[int, tuple[Int64s, Int64s]], horizon_ns: int) -> _Busy:
        """When each process was busy from where the last call ended to the horizon; `own`: its new operations."""
        first_ns, self._done_ns = self._done_ns, horizon_ns
        pieces = {
            process: self._pieces(process, own.get(process), first_ns, horizon_ns)
            for process in sorted({*self.reached_ns, *own})
        }
        active = {process: found for process, found in pieces.items() if len(found.start_ns)}
        return _Busy(active)

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
    """When processes were busy on a GPU."""

    def __init__(self, pieces: dict[int, Pieces]) -> None:
        self.pieces = pieces
        self._edges: tuple[Int64s, Int64s, Int64s] | None = None

    def foreign_to(self, process: int) -> Pieces:
        """When any process but `process` was busy."""
        if not set(self.pieces) - {process}:
            return Pieces(np.zeros(0, np.int64), np.zeros(0, np.int64))
        if len(self.pieces) == 1:
            return next(iter(self.pieces.values()))
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
