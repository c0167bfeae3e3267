"""Which sequence a request is of, and where in it: a function of its id, the same for any number of workers.

Requests are dealt to lanes in turn, id mod lanes; in each lane sequences follow each other, of lengths that are drawn:

    lane 0    id 0  4  8 │ 12 16 │ 20 …      lengths 3, 2, …
    lane 1    id 1  5 │ 9 13 17 21 …

In a closed loop a lane is a user, whose ids are so already (`squall.scenarios.plan.closed.request_id`).
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.plan.plan import stream

if TYPE_CHECKING:  # of a file's sections: a worker without sequences starts without them
    from squall.scenarios.config.rows import Law

_CHUNK = 64
"""Lengths drawn at a time: part of what a seed means, since a longer array is drawn differently."""
LEAST_ID = 10**18
"""Ids have 19 digits, and 9 bytes in protobuf, whatever they are: requests differ in these places only."""
_SHARE_IDS = 2**31
CUT = "its sequence was cut"
"""How the detail of a request begins that was not sent since an earlier one of its sequence had failed."""
IN_TURN = "held back until the request before it in its sequence had ended"
"""The detail of a request that was sent late for that."""


class Place(NamedTuple):
    """Where a request stands: its sequence's correlation id, and its step in it from 0."""

    correlation_id: int
    step: int
    is_start: bool
    is_end: bool


@dataclass(frozen=True)
class SequenceRule:
    """`n_lanes` sequences at once, of lengths that the law gives. `run`: name of the run, so that the ids of two runs
    against one server differ. `is_ordered`: a request waits for the end of the one before it; `is_cut_by_failure`: what
    follows one that failed is not sent; `is_pinned`: to one connection."""

    n_lanes: int
    length: Law
    seed: int
    run: str
    is_ordered: bool = True
    is_cut_by_failure: bool = True
    is_pinned: bool = False


class Sequences:
    """Of one worker, or of a run that is read: remembers the lengths drawn so far, of each lane that is asked for.

    `first_id`: correlation id of the run's sequence number 0; the others follow.
    """

    def __init__(self, rule: SequenceRule) -> None:
        self._rule = rule
        self.first_id = LEAST_ID + (zlib.crc32(rule.run.encode()) >> 1) * _SHARE_IDS
        self._lanes: dict[int, _Lane] = {}

    def place(self, request_id: int) -> Place:
        """Of a request of the run."""
        rule = self._rule
        number, lane = divmod(request_id, rule.n_lanes)
        if lane not in self._lanes:
            self._lanes[lane] = _Lane(rule, lane)
        ordinal, index, length = self._lanes[lane].at(number)
        return Place(self.first_id + ordinal * rule.n_lanes + lane, index, index == 0, index == length - 1)

    def lengths(self, lane: int, first: int, n: int) -> NDArray[np.int64]:
        """Of `n` sequences of that lane, from number `first` in it on."""
        return self._lanes.setdefault(lane, _Lane(self._rule, lane)).lengths(first, n)

    def spread(self, request_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """`place` of many: number of the sequence in the run, step and length of the sequence of each, (n,) each."""
        rule = self._rule
        number, lane = np.divmod(request_ids, rule.n_lanes)
        found = np.zeros((3, len(request_ids)), np.int64)
        order = np.argsort(lane, kind="stable")
        bounds = np.flatnonzero(np.diff(lane[order], prepend=-1, append=rule.n_lanes))
        for low, high in pairwise(bounds.tolist()):
            rows = order[low:high]
            own = int(lane[rows[0]])
            at = self._lanes.setdefault(own, _Lane(rule, own)).at_all(number[rows])
            found[:, rows] = at[0] * rule.n_lanes + own, at[1], at[2]
        return tuple(found)


class _Lane:
    """The sequences of a lane, drawn as far as was asked."""

    def __init__(self, rule: SequenceRule, lane: int) -> None:
        self._law = rule.length
        self._rng = stream(rule.seed, "sequences", lane)
        self._ends: list[int] = []

    def at(self, number: int) -> tuple[int, int, int]:
        """(which sequence of the lane, index in it, its length) of the lane's request `number`."""
        while not self._ends or self._ends[-1] <= number:
            self._draw()
        ordinal = bisect_right(self._ends, number)
        begin = self._ends[ordinal - 1] if ordinal else 0
        return ordinal, number - begin, self._ends[ordinal] - begin

    def at_all(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """`at` of many, (n,) each."""
        self.at(int(numbers.max()))
        ends = np.array([0, *self._ends], np.int64)
        ordinal = np.searchsorted(ends, numbers, side="right") - 1
        return ordinal, numbers - ends[ordinal], ends[ordinal + 1] - ends[ordinal]

    def lengths(self, first: int, n: int) -> NDArray[np.int64]:
        """Of the sequences from `first` on, (n,)."""
        while len(self._ends) < first + n:
            self._draw()
        begin = self._ends[first - 1] if first else 0
        ends = np.array([begin, *self._ends[first : first + n]], np.int64)
        return ends[1:] - ends[:-1]

    def _draw(self) -> None:
        from squall.scenarios.plan.mix import draw_rows

        end = self._ends[-1] if self._ends else 0
        for length in draw_rows(self._law, self._rng, _CHUNK).tolist():
            end += length
            self._ends.append(end)
