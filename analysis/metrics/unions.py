"""Unions of intervals, in pieces that do not overlap, over slices in order of time.

    intervals   ├────────┤      ├──┤
                    ├───────┤
    pieces      [────────)[─)   [──)        each interval's part beyond all before it

The pieces of intervals in order of their start are disjoint and in order, and their lengths add up to the union.
Between two slices only the end reached so far has to be kept.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


class Pieces(NamedTuple):
    """Disjoint half-open intervals in ascending order; none is empty."""

    start_ns: Int64s
    end_ns: Int64s

    @property
    def total_ns(self) -> int:
        return int((self.end_ns - self.start_ns).sum())


class Union:
    """The union of the intervals added so far; those of a later `add` start no earlier than those of the one before."""

    def __init__(self, reached_ns: int) -> None:
        self.reached_ns = reached_ns
        """End of all intervals so far; what lies before the first value does not count."""

    def add(self, start_ns: Int64s, end_ns: Int64s) -> tuple[Pieces, Pieces]:
        """The new pieces of the union, and the gaps before them; intervals in order of start."""
        if not len(start_ns):
            return Pieces(start_ns, end_ns), Pieces(start_ns, end_ns)
        before = reached(end_ns, self.reached_ns)
        first = np.maximum(start_ns, before)
        is_piece = end_ns > first
        is_gap = start_ns > before
        self.reached_ns = max(self.reached_ns, int(end_ns.max()))
        pieces = Pieces(first[is_piece], end_ns[is_piece])
        return pieces, Pieces(before[is_gap], start_ns[is_gap])


def reached(end_ns: Int64s, first_ns: int) -> Int64s:
    """For each interval the end that those before it reached, at least `first_ns`."""
    return np.maximum.accumulate(np.r_[first_ns, end_ns[:-1]])


def reached_by_group(group: Int64s, end_ns: Int64s) -> Int64s:
    """The same within runs of equal `group`, without a least: `NEVER` for the first of each.

    One pass for all groups: each group's instants are lifted above those of the group before it.
    """
    if not len(end_ns):
        return end_ns
    is_first = np.r_[True, group[1:] != group[:-1]]
    rank = np.cumsum(is_first) - 1
    low = int(end_ns.min())
    height = int(end_ns.max()) - low + 1
    if height * (int(rank[-1]) + 1) >= 1 << 62:  # too far apart to be lifted
        edges = [*np.flatnonzero(is_first).tolist(), len(group)]
        return np.concatenate([reached(end_ns[a:b], NEVER) for a, b in pairwise(edges)])
    lift = rank * height
    highest = np.maximum.accumulate(end_ns - low + lift)
    before = np.r_[0, highest[:-1]] - lift + low
    return np.where(is_first, NEVER, before)


NEVER = int(np.iinfo(np.int64).min)


def clipped(pieces: Pieces, first_ns: int, end_ns: int) -> Pieces:
    """The parts of `pieces` in [first_ns, end_ns)."""
    low = int(np.searchsorted(pieces.end_ns, first_ns, side="right"))
    high = int(np.searchsorted(pieces.start_ns, end_ns, side="left"))
    start = np.maximum(pieces.start_ns[low:high], first_ns)
    end = np.minimum(pieces.end_ns[low:high], end_ns)
    return Pieces(start, end)


def joined_up(start_ns: Int64s, end_ns: Int64s) -> Pieces:
    """The stretches that intervals, in any order, cover together, those that touch as one; none of the intervals is
    empty."""
    if not len(start_ns):
        return Pieces(start_ns, end_ns)
    order = np.argsort(start_ns, kind="stable")
    start_ns, reach_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
    begins = np.flatnonzero(np.append(True, start_ns[1:] > reach_ns[:-1]))
    return Pieces(start_ns[begins], reach_ns[np.append(begins[1:] - 1, len(reach_ns) - 1)])


class CoveredTime:
    """How much of the time before an instant disjoint pieces cover."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._before = np.cumsum(np.r_[0, pieces.end_ns - pieces.start_ns])

    def __call__(self, t_ns: Int64s) -> Int64s:
        """ns of the pieces that lie before each instant."""
        place = np.searchsorted(self._pieces.start_ns, t_ns, side="right")
        if not len(self._pieces.start_ns):
            return np.zeros_like(t_ns)
        last_end = self._pieces.end_ns[np.maximum(place - 1, 0)]
        return self._before[place] - np.where(place > 0, np.maximum(last_end - t_ns, 0), 0)
