"""What readings of two clocks say about the offset between them, as hard bounds.

**What is known.** A bracket holds the offset (target clock - source clock) at one instant s of the source clock between
two numbers L and H, by causality alone. Of a probe with the stamps t1 (target clock, sent), t2 (source clock, got), t3
(source clock, answered) and t4 (target clock, back), t1 came before t2 and t3 before t4, whatever the delays were:

    offset(t2) > t1 - t2        offset(t3) < t4 - t3

(Cristian 1989; RFC 5905 section 8 takes the middle of the two and half the round trip.) A delay, however asymmetric,
never moves the truth out of a bracket; it only makes the bracket wide.

**What is assumed.** In any segment of `segment_ns` there is a constant c, |c| <= `most_drift_ppm`, such that the drift
d offset / d source stays within `wander_ppm` of c. So for two instants s < t of a segment

    (c - wander) (t - s) <= offset(t) - offset(s) <= (c + wander) (t - s)

With a wander of 0 the pairs (offset, c) that satisfy every bracket are the convex polygon between the hulls of upper
and lower ends (Moon, Skelly, Towsley 1999; Zhang, Liu, Xia 2002). With a wander the set of feasible (offset function,
c) is convex too. A function with these slopes through all brackets exists for a given c exactly if every pair of
brackets allows it, and such functions reach every value between the envelopes (McShane 1934). Hence, over pairs of
brackets i, j,

    c >= (L_j - H_i) / (s_j - s_i) - wander     and     c <= (H_j - L_i) / (s_j - s_i) + wander     for all s_i < s_j
    highest offset(t) = max over these c of  min over i of  H_i + c (t - s_i) + wander |t - s_i|

and the lowest likewise. In the minimum brackets before t grow with c and those after t fall: the maximum is where the
two cross, found by halving. Leaving brackets out widens the band and never makes it wrong: of each of 40 slots of a
segment only the lowest upper and the highest lower end are used. That is the minimum-delay filter. Where a segment has
no brackets, those around it still bound the offset, by the most drift alone (`Envelope`).

**The allowances.** `wander_ppm` 15 is PHI of RFC 5905 (section 7.2), by which NTP takes a clock to leave its frequency.
`most_drift_ppm` 1000 is twice what the kernel lets NTP correct one clock by (MAXFREQ of <linux/timex.h>, 500 ppm). A
clock that does more than that (a step, a fast slew, a suspended machine) contradicts the brackets once it shows beyond
their width; what it does within their width, no probe can tell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import numpy as np

from squall.analysis.arrays import Floats, Int64s
from squall.scenarios.errors import AnalysisError
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

NO_LOW = -(2**62)
"""Lower end of a bracket that does not say how low the offset can be."""
NO_HIGH = 2**62
"""Upper end of a bracket that does not say how high the offset can be."""

PPM = 1e-6
_SLOTS = 40
_HALVINGS = 14
_READING_NS = 1.0
"""A clock reads whole ns, rounded down: an end may be that much off."""


class Brackets(Frozen, eq=False):
    """`low_ns[i] <= offset(at_ns[i]) <= high_ns[i]`, at instants of the source clock, in any order; int64 each.

    A bracket of one side has `NO_LOW` or `NO_HIGH` on the other. Raises AnalysisError where the lengths differ or a
    lower end lies above its upper end.
    """

    at_ns: Int64s
    low_ns: Int64s
    high_ns: Int64s

    def __post_init__(self) -> None:
        if not len(self.at_ns) == len(self.low_ns) == len(self.high_ns):
            raise AnalysisError("brackets of a clock need as many instants as lower and upper ends")
        crossed = np.flatnonzero(self.low_ns > self.high_ns)
        if crossed.size:
            first = int(crossed[0])
            raise AnalysisError(
                f"a clock's readings contradict each other: its offset would be above {self.low_ns[first]} ns and below"
                f" {self.high_ns[first]} ns at once; read both clocks again"
            )

    @classmethod
    def of_probes(cls, sent_ns: Int64s, got_ns: Int64s, answered_ns: Int64s, back_ns: Int64s) -> Brackets:
        """Two brackets of each probe: `sent_ns` and `back_ns` on the target clock, the others on the source's."""
        n = len(sent_ns)
        return cls(
            np.concatenate([got_ns, answered_ns]),
            np.concatenate([sent_ns - got_ns, np.full(n, NO_LOW, np.int64)]),
            np.concatenate([np.full(n, NO_HIGH, np.int64), back_ns - answered_ns]),
        )

    def __len__(self) -> int:
        return len(self.at_ns)

    @property
    def has_both_sides(self) -> bool:
        """True if some bracket has a lower and some, perhaps the same, an upper end."""
        return bool((self.low_ns > NO_LOW).any() and (self.high_ns < NO_HIGH).any())

    def ordered(self) -> Brackets:
        """In order of the source clock."""
        return self.taken(np.argsort(self.at_ns, kind="stable"))

    def taken(self, which: Any) -> Brackets:
        """Those that a slice or an index array picks."""
        return Brackets(self.at_ns[which], self.low_ns[which], self.high_ns[which])


class Allowance(Frozen):
    """What a clock may do, as the module says: `segment_ns` > 0, the others >= 0."""

    wander_ppm: float = 15.0
    most_drift_ppm: float = 1_000.0
    segment_ns: int = 10 * NS_PER_S

    @property
    def most_slope(self) -> float:
        """The most that the offset changes by, in ns per ns."""
        return (self.most_drift_ppm + self.wander_ppm) * PPM


class Segment:
    """What the brackets of a segment say: the feasible drifts c, and the band of the offset at any instant.

    Of `brackets`, which are in order of the source clock, those within [start_ns, end_ns] count; there may be none.
    Offsets are floats in ns relative to `base_ns`, exact to far below 1 ns where they stay within a day of it.
    """

    def __init__(
        self, brackets: Brackets, start_ns: int, end_ns: int, base_ns: int, allowance: Allowance
    ) -> None:
        self.start_ns, self.end_ns = start_ns, end_ns
        self._wander = allowance.wander_ppm * PPM
        self._most = allowance.most_drift_ppm * PPM
        first, end = np.searchsorted(brackets.at_ns, (start_ns, end_ns + 1)).tolist()
        brackets, self._first = brackets.taken(slice(first, end)), first
        at = (brackets.at_ns - start_ns).astype(np.float64)
        slots = np.minimum(_SLOTS * at / max(end_ns - start_ns, 1), _SLOTS - 1).astype(np.int64)
        ends = [
            (np.flatnonzero(known), sign)
            for known, sign in ((brackets.low_ns > NO_LOW, -1.0), (brackets.high_ns < NO_HIGH, 1.0))
        ]
        values = [(end - base_ns).astype(np.float64) for end in (brackets.low_ns, brackets.high_ns)]
        slope = 0.0
        for _ in range(2):  # the best of a slot are found once the drift is known roughly
            lows, highs = (
                which[_least_of_each(slots[which], sign * (value[which] - slope * at[which]))]
                for (which, sign), value in zip(ends, values, strict=True)
            )
            self._low_at, self._low = at[lows], values[0][lows] - _READING_NS
            self._high_at, self._high = at[highs], values[1][highs] + _READING_NS
            self._low_index, self._high_index = lows, highs
            self.least, self.most = self._drifts()
            if not self.is_feasible:
                break
            slope = (self.least + self.most) / 2

    @property
    def is_feasible(self) -> bool:
        """False if no clock within the allowance satisfies all brackets."""
        return self.least <= self.most

    def band(self, at_ns: Int64s) -> tuple[Floats, Floats]:
        """Lowest and highest offset at instants of the source clock, relative to the base; infinite without that side.

        Holds at instants that lie, with all brackets, in one segment. Only where `is_feasible`.
        """
        at = (at_ns - self.start_ns).astype(np.float64)
        high = _highest(self._high_at, self._high, at, (self.least, self.most), self._wander)
        low = -_highest(self._low_at, -self._low, at, (-self.most, -self.least), self._wander)
        return low, high

    def contradiction(self) -> tuple[int, int]:
        """Positions q < p among all brackets between which the clock left the allowance. Only where not `is_feasible`.

        p ends the shortest infeasible beginning, q begins the shortest infeasible end of that: were the change before q
        or after p, one clock would satisfy all from q to p.
        """
        positions = np.union1d(self._low_index, self._high_index).tolist()
        p = bisect_left(positions, True, key=lambda last: not self._is_feasible_within(0, last))
        q = bisect_left(positions, True, key=lambda first: self._is_feasible_within(first, positions[p])) - 1
        return self._first + positions[q], self._first + positions[p]

    def _is_feasible_within(self, first: int, last: int) -> bool:
        lows = (self._low_index >= first) & (self._low_index <= last)
        highs = (self._high_index >= first) & (self._high_index <= last)
        least, most = self._drifts(lows, highs)
        return least <= most

    def _drifts(self, lows: Any = slice(None), highs: Any = slice(None)) -> tuple[float, float]:
        """Least and most feasible drift of those ends; the least above the most where there is none."""
        rise = self._low[lows][:, None] - self._high[highs][None, :]
        apart = self._low_at[lows][:, None] - self._high_at[highs][None, :]
        if bool((rise[apart == 0] > 0).any()):
            return np.inf, -np.inf
        later, earlier = apart > 0, apart < 0
        least = np.max(rise[later] / apart[later], initial=-np.inf) - self._wander
        most = np.min(rise[earlier] / apart[earlier], initial=np.inf) + self._wander
        return max(float(least), -self._most), min(float(most), self._most)


class Envelope:
    """The band that the most drift alone leaves around all brackets, however far they are apart: never infinite.

    `brackets` in order of the source clock, with both sides; offsets relative to `base_ns`.
    """

    def __init__(self, brackets: Brackets, base_ns: int, allowance: Allowance) -> None:
        self._at_ns = brackets.at_ns
        self._slope = allowance.most_slope
        self._travelled = self._slope * (self._at_ns - self._at_ns[0])
        self._low = np.where(brackets.low_ns > NO_LOW, brackets.low_ns - base_ns - _READING_NS, -np.inf)
        self._high = np.where(brackets.high_ns < NO_HIGH, brackets.high_ns - base_ns + _READING_NS, np.inf)
        self._sides = [self._hulls(ends) for ends in (-self._low, self._high)]

    def band(self, at_ns: Int64s) -> tuple[Floats, Floats]:
        """Lowest and highest offset at instants of the source clock."""
        return -self._highest(*self._sides[0], at_ns), self._highest(*self._sides[1], at_ns)

    def contradiction(self) -> tuple[int, int] | None:
        """Positions q < p of the first bracket p that contradicts an earlier one, and of the last such q; else None."""
        travelled = self._travelled
        is_below = np.maximum.accumulate(self._low + travelled) - travelled > self._high
        is_above = np.minimum.accumulate(self._high - travelled) + travelled < self._low
        bad = np.flatnonzero(is_below | is_above)
        if not bad.size:
            return None
        p = int(bad[0])
        reach = travelled[p] - travelled[:p]
        opposed = (self._low[:p] - reach > self._high[p]) | (self._high[:p] + reach < self._low[p])
        return int(np.flatnonzero(opposed)[-1]), p

    def _hulls(self, ends: Floats) -> tuple[Floats, Floats]:
        """At position k: the least of ends_i - slope s_i over i < k, and of ends_i + slope s_i over i >= k."""
        earlier = np.minimum.accumulate(ends - self._travelled)
        later = np.minimum.accumulate((ends + self._travelled)[::-1])[::-1]
        return np.append(np.inf, earlier), np.append(later, np.inf)

    def _highest(self, earlier: Floats, later: Floats, at_ns: Int64s) -> Floats:
        """min over i of ends_i + slope |at - at_i|."""
        travelled = self._slope * (at_ns - self._at_ns[0])
        n_before = np.searchsorted(self._at_ns, at_ns, side="right")
        found: Floats = np.minimum(earlier[n_before] + travelled, later[n_before] - travelled)
        return found


def _least_of_each(slots: Int64s, values: Floats) -> Int64s:
    """Position of the least value of each slot, in order of the slots, which are sorted."""
    order = np.lexsort((values, slots))
    return order[np.flatnonzero(np.diff(slots[order], prepend=-1))]


def _highest(ends_at: Floats, ends: Floats, at: Floats, drifts: tuple[float, float], wander: float) -> Floats:
    """max over c of min over i of ends_i + c (at - ends_at_i) + wander |at - ends_at_i|, never below it; by halving."""
    apart = at[:, None] - ends_at[None, :]
    fixed = ends + wander * np.abs(apart)
    growing, falling = np.where(apart >= 0, fixed, np.inf), np.where(apart < 0, fixed, np.inf)

    def least(side: Floats, drift: Floats) -> Floats:
        found: Floats = np.min(side + drift[:, None] * apart, axis=1, initial=np.inf)
        return found

    low, high = np.full(len(at), drifts[0]), np.full(len(at), drifts[1])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_below = least(growing, middle) < least(falling, middle)
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return np.minimum(least(growing, high), least(falling, low))


def segments(at_ns: Int64s, allowance: Allowance) -> Iterator[tuple[int, int]]:
    """Source instants [start, end] of segments over sorted `at_ns`, each half over the one before."""
    first, last, length = int(at_ns[0]), int(at_ns[-1]), allowance.segment_ns
    if last - first <= length:
        yield first, last
        return
    n_hops = -(-(last - first - length) // (length // 2))
    for hop in range(n_hops + 1):
        start = min(first + hop * (length // 2), last - length)
        yield start, start + length
