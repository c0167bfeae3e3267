"""Unions of intervals: in pieces that do not overlap, over slices in order of time, or of many owners at once.

    intervals   ├────────┤      ├──┤
                    ├───────┤
    pieces      [────────)[─)   [──)        each interval's part beyond all before it
    stretches   [───────────)   [──)        what they cover together

The pieces of intervals in order of their start are disjoint and in order, and their lengths add up to the union.
Between two slices only the end reached so far has to be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from squall.analysis.arrays import Int64s


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
    order = np.argsort(start_ns, kind="stable")
    return Covered.of(start_ns[order], end_ns[order]).stretches()


@dataclass(frozen=True, eq=False)
class Covered:
    """What intervals in order of their starts cover together."""

    start_ns: Int64s
    reach_ns: Int64s
    """Latest end of each and all before it."""
    covered_ns: Int64s
    """Length that the first i cover together; one more than there are intervals."""

    @classmethod
    def of(cls, start_ns: Int64s, end_ns: Int64s) -> Covered:
        """Of intervals in order of start."""
        covered = np.zeros(len(start_ns) + 1, np.int64)
        if not len(start_ns):
            return cls(start_ns, end_ns, covered)
        reach = np.maximum.accumulate(end_ns)
        fresh = end_ns.copy()
        fresh[0] -= start_ns[0]
        fresh[1:] -= np.maximum(start_ns[1:], reach[:-1])
        np.cumsum(np.maximum(fresh, 0, out=fresh), out=covered[1:])
        return cls(start_ns, reach, covered)

    def before(self, t_ns: Int64s) -> Int64s:
        """Length that they cover before each instant."""
        if not len(self.start_ns):
            return np.zeros(len(t_ns), np.int64)
        n = np.searchsorted(self.start_ns, t_ns, side="right")
        # one stretch: all of these began before
        beyond = np.maximum(self.reach_ns[np.maximum(n, 1) - 1] - t_ns, 0)
        return np.where(n > 0, self.covered_ns[n] - beyond, 0)

    def between(self, first_ns: Int64s, last_ns: Int64s) -> Int64s:
        """Length that they cover from `first_ns` to `last_ns`, pair by pair."""
        return self.before(last_ns) - self.before(first_ns)

    def stretches(self) -> Pieces:
        """Their union in separate intervals, those that touch as one."""
        if not len(self.start_ns):
            return Pieces(self.start_ns, self.start_ns)
        opens = np.r_[True, self.start_ns[1:] > self.reach_ns[:-1]]
        return Pieces(self.start_ns[opens], self.reach_ns[np.r_[opens[1:], True]])
