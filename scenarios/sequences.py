"""Which sequence a request is of, and where in it: a function of its id, the same for any number of workers.

Requests are dealt to lanes in turn, id mod lanes; in each lane sequences follow each other, of lengths that are drawn:

    lane 0    id 0  4  8 │ 12 16 │ 20 …      lengths 3, 2, …
    lane 1    id 1  5 │ 9 13 17 21 …

In a closed loop a lane is a user, whose ids are so already (`squall.scenarios.plan.closed.request_id`).
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from squall.scenarios.arrays import Int64s
from squall.scenarios.plan.plan import stream
from squall.scenarios.records import Frozen

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


class SequenceRule(Frozen):
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
        self._lane = cache(partial(_Lane, rule))

    def place(self, request_id: int) -> Place:
        """Of a request of the run."""
        number, lane = divmod(request_id, self._rule.n_lanes)
        ordinal, index, length = self._lane(lane).at(number)
        sequence = self.first_id + ordinal * self._rule.n_lanes + lane
        return Place(sequence, index, index == 0, index == length - 1)

    def lengths(self, lane: int, first: int, n: int) -> Int64s:
        """Of `n` sequences of that lane, from number `first` in it on."""
        return self._lane(lane).lengths(first, n)

    def spread(self, request_ids: Int64s) -> tuple[Int64s, ...]:
        """`place` of many: number of the sequence in the run, step and length of the sequence of each, (n,) each."""
        number, lane = np.divmod(request_ids, self._rule.n_lanes)
        found = np.zeros((3, len(request_ids)), np.int64)
        order = np.argsort(lane, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1) if len(order) else ():
            own = int(lane[rows[0]])
            ordinal, step, length = self._lane(own).at_all(number[rows])
            found[:, rows] = ordinal * self._rule.n_lanes + own, step, length
        return tuple(found)


class _Lane:
    """The sequences of a lane, drawn as far as was asked."""

    def __init__(self, rule: SequenceRule, lane: int) -> None:
        self._law = rule.length
        self._rng = stream(rule.seed, "sequences", lane)
        self._bounds = [0]  # sequence k has the requests [_bounds[k], _bounds[k + 1]) of the lane

    def at(self, number: int) -> tuple[int, int, int]:
        """(which sequence of the lane, index in it, its length) of the lane's request `number`."""
        bounds = self._bounds
        while bounds[-1] <= number:
            self._draw()
        ordinal = bisect_right(bounds, number) - 1
        return ordinal, number - bounds[ordinal], bounds[ordinal + 1] - bounds[ordinal]

    def at_all(self, numbers: Int64s) -> tuple[Int64s, ...]:
        """`at` of many, (n,) each."""
        self.at(int(numbers.max()))
        bounds = np.array(self._bounds, np.int64)
        ordinal = np.searchsorted(bounds, numbers, side="right") - 1
        return ordinal, numbers - bounds[ordinal], np.diff(bounds)[ordinal]

    def lengths(self, first: int, n: int) -> Int64s:
        """Of the sequences from `first` on, (n,)."""
        while len(self._bounds) <= first + n:
            self._draw()
        bounds = np.array(self._bounds[first : first + n + 1], np.int64)
        return bounds[1:] - bounds[:-1]

    def _draw(self) -> None:
        from squall.scenarios.plan.mix import draw_rows

        ends = np.cumsum(draw_rows(self._law, self._rng, _CHUNK), dtype=np.int64) + self._bounds[-1]
        self._bounds += ends.tolist()
