"""Which batch an operation of a GPU belongs to where nothing names it: by the instance that it is of, and by time.

    process 11, stream 7    ▪▪▪  ▪▪▪      ▪▪▪  ▪▪▪         all of them lie in batches of a, some in those of b
    batches of a           [───][────]   [────][───]
    batches of b         [────]     [────]       [────]

A *lane* is what works for one instance alone: a process (an instance of the Python backend has one of its own), else a
stream of it (an instance inside the server has streams of its own: ONNX Runtime, TensorRT and PyTorch backends). A lane
belongs to the instance whose batches hold nearly all of its operations, if no other instance's do
(`squall.analysis.join.holders`).

An operation of an owned lane belongs to the batch of that instance that holds it whole. Batches of one instance may
overlap (TensorRT begins one while another computes): what several hold belongs to the one that the events of its stream
tell (`squall.cluster.node.injected.execution_matching`), else it is ambiguous, and belongs to none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.analysis.join.holders import AMBIGUOUS, UNHELD, Stretches, holder_of

Int64s = NDArray[np.int64]
Lane = tuple[int, ...]
"""A process; or process, context and stream; or process, context, stream and thread."""


class Instance(Stretches):
    """The batches of one instance, in order of their starts."""

    def __init__(self, start_ns: Int64s, end_ns: Int64s, batch_id: Int64s) -> None:
        """(n,) arrays in any order; none ends before it starts."""
        super().__init__(start_ns, end_ns)
        self._batch_id = batch_id[self.order]

    def batch_ids(self, holders: Int64s) -> Int64s:
        """Of what `holders` gave, where that is no batch 0."""
        if not len(self._batch_id):
            return np.zeros(len(holders), np.int64)
        return np.where(holders >= 0, self._batch_id[np.maximum(holders, 0)], 0)


@dataclass(eq=False)
class Tally:
    """Operations of each lane so far, and how many of them the batches of each instance hold.

    `n_begun`: of each instance how many batches began while operations were recorded.
    """

    instances: tuple[Instance, ...]
    n_begun: tuple[int, ...]
    n: dict[Lane, int] = field(default_factory=dict)
    held: dict[Lane, Int64s] = field(default_factory=dict)

    def add(self, lane: Lane, start_ns: Int64s, end_ns: Int64s, and_process: bool = True) -> None:
        """Counts (n,) operations for their lane, and for its process."""
        held = np.array([one.n_held(start_ns, end_ns) for one in self.instances], np.int64)
        for key in (lane[:1], lane) if and_process else (lane,):
            self.n[key] = self.n.get(key, 0) + len(start_ns)
            self.held[key] = self.held.get(key, np.zeros(len(held), np.int64)) + held

    def owners(self) -> dict[Lane, int]:
        """Number of the instance that each lane belongs to; lanes without one are absent.

        Where a process belongs to one, so do all of its lanes. Of several instances none has a process of its own whose
        batches overlap: together they may hold all that another one in the same process does.
        """
        processes = {lane[0]: self._owner_of_process(lane) for lane in self.n if len(lane) == 1}
        found: dict[Lane, int] = {}
        for lane in self.n:
            own = processes.get(lane[0])
            owner = self._owner(lane) if own is None and len(lane) > 1 else own
            if owner is not None:
                found[lane] = owner
        return found

    def _owner_of_process(self, process: Lane) -> int | None:
        owner = self._owner(process)
        is_alone = owner is not None and (len(self.instances) == 1 or not self.instances[owner].overlaps)
        return owner if is_alone else None

    def _owner(self, lane: Lane) -> int | None:
        held = self.held[lane]
        return holder_of(self.n[lane], held, self.n_begun[int(held.argmax())] if held.size else 0)


def owner_of(lane: Lane, owners: Mapping[Lane, int]) -> int | None:
    """Number of the instance that a lane belongs to, by itself or with its process; None: to none."""
    return owners.get(lane, owners.get(lane[:1]))


def by_lane(process: int, *columns: NDArray[Any]) -> Iterator[tuple[Lane, NDArray[np.intp]]]:
    """Rows of each lane of a process: `columns`, (n,) each, tell its lanes apart."""
    if not len(columns[0]):
        return
    keys = np.column_stack([column.astype(np.int64) for column in columns])
    lanes, place = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(place.ravel(), kind="stable")
    edges = np.searchsorted(place.ravel()[order], np.arange(len(lanes) + 1))
    for number, lane in enumerate(lanes.tolist()):
        yield (process, *lane), order[edges[number] : edges[number + 1]]


@dataclass(frozen=True, eq=False)
class Held:
    """The batch of each operation; (n,) each."""

    instance: Int64s
    """Number of the instance that the operation's lane belongs to; -1: to none."""
    batch_id: Int64s
    is_tied: NDArray[np.bool_]
    is_ambiguous: NDArray[np.bool_]
    """Several batches of its instance hold it."""


def held_by(
    instances: tuple[Instance, ...], owners: Mapping[Lane, int], lanes: Iterable[tuple[Lane, NDArray[np.intp]]],
    start_ns: Int64s, end_ns: Int64s, told: Int64s | None = None,
) -> Held:  # fmt: skip
    """The batches of operations whose `lanes` are as `by_lane` gives them.

    `told`: of each the number of its batch in its instance, where it is known otherwise; below 0: it is not. It
    decides between several that hold it, and nothing else.
    """
    n = len(start_ns)
    instance, batch_id = np.full(n, -1), np.zeros(n, np.int64)
    holders = np.full(n, UNHELD)
    for lane, rows in lanes:
        owner = owner_of(lane, owners)
        if owner is None:
            continue
        own = instances[owner]
        holders[rows] = own.holders(start_ns[rows], end_ns[rows])
        if told is not None:
            is_told = (holders[rows] == AMBIGUOUS) & own.hold(told[rows], start_ns[rows], end_ns[rows])
            holders[rows[is_told]] = told[rows[is_told]]
        instance[rows], batch_id[rows] = owner, own.batch_ids(holders[rows])
    return Held(instance, batch_id, holders >= 0, holders == AMBIGUOUS)
