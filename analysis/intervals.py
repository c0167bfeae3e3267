"""Unions of intervals as arrays.

intervals   ├────────┤      ├──┤
               ├───────┤
stretches   [──────────)    [──)        what they cover together
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from squall.analysis.arrays import Bools, Int64s
from squall.scenarios.records import Frozen


class Pieces(NamedTuple):
    """Disjoint half-open intervals in ascending order; none is empty."""

    start_ns: Int64s
    end_ns: Int64s


def joined_up(start_ns: Int64s, end_ns: Int64s) -> Pieces:
    """The stretches that intervals, in any order, cover together, those that touch as one; none of the intervals is
    empty."""
    order = np.argsort(start_ns, kind="stable")
    return Covered.of(start_ns[order], end_ns[order]).stretches()


def earlier_ends(start_ns: Int64s, end_ns: Int64s, is_first: Bools) -> Int64s:
    """Latest end of those before each interval in its group, its own start at the first of a group. Groups begin where
    `is_first`; the intervals of one are in order of start."""
    if not len(start_ns):
        return start_ns
    firsts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    # the groups laid end to end, so that no end lies beyond the start of the next one
    least_ns = start_ns[firsts]
    lengths_ns = np.maximum(np.maximum.reduceat(end_ns, firsts) - least_ns, 0)
    shift_ns = (np.cumsum(lengths_ns) - lengths_ns - least_ns)[group]
    reach_ns = np.maximum.accumulate(end_ns + shift_ns)
    return np.where(is_first, start_ns, np.r_[0, reach_ns[:-1]] - shift_ns)


class Reach:
    """How far intervals reach that come in order of their starts, some at a time; none begins before `from_ns`."""

    def __init__(self, from_ns: int) -> None:
        self._to_ns = np.array([from_ns], np.int64)

    def beyond(self, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
        """Of each of the next ones: the latest end of all before it, and its own length beyond that."""
        reach_ns = np.maximum.accumulate(np.concatenate([self._to_ns, end_ns]))
        before_ns, self._to_ns = reach_ns[:-1], reach_ns[-1:]
        return before_ns, np.maximum(end_ns - np.maximum(start_ns, before_ns), 0)


class Covered(Frozen, eq=False):
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
