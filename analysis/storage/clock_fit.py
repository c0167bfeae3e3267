"""The track of a clock through brackets of its offset.

`squall.analysis.storage.clock_brackets` derives the band in which the offset lies in a segment. The track takes its
middle at knots and half its width as the error. Between knots h apart the offset leaves the chord of its own values at
the knots by at most wander h / 2 (a tent whose sides have the slopes c +- wander), and that chord lies in the chord of
the bands: the tent is in the error. Stretches overlap by half; each gives the knots of its middle.

Outside the brackets the drift of the first or last segment goes on for half a segment, within what the brackets of its
other half leave open; further out the error grows by the most drift that is allowed. Where brackets contradict what a
clock may do, the track is split: `steps` has the instants between which it happened, and the error there covers what
was before and what came after.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from squall.analysis.arrays import Floats, Int64s
from squall.analysis.storage.clock_brackets import (
    NO_LOW,
    PPM,
    Allowance,
    Brackets,
    Envelope,
    Segment,
    segments,
)
from squall.analysis.storage.clock_track import ClockTrack
from squall.scenarios.errors import AnalysisError
from squall.scenarios.units import NS_PER_S

DEFAULT_ALLOWANCE = Allowance()
_KNOT_NS = NS_PER_S // 2
_MOST_KNOTS = 4_096
_FAR_NS = 100 * NS_PER_S
"""Where the last knot lies outside; its segment goes on."""


def fit_track(brackets: Brackets, allowance: Allowance = DEFAULT_ALLOWANCE) -> ClockTrack:
    """The track through all brackets. Cost grows with their number n as n log n.

    Raises AnalysisError without a bracket of each side, or where two contradict each other at one instant.
    """
    if not brackets.has_both_sides:
        raise AnalysisError(
            "a clock has an offset only where it was read from both sides; probe it once at least"
        )
    ordered = brackets.ordered()
    base_ns = int(np.median(ordered.low_ns[ordered.low_ns > NO_LOW]))
    pieces = _pieces(ordered, base_ns, allowance)
    rows = [pieces[0].outside(-1)]
    for before, after in pairwise(pieces):
        rows += [before.knots, _across(before, after, allowance)]
    rows += [pieces[-1].knots, pieces[-1].outside(+1)]
    at_ns, low, high = _joined(rows)
    middle = np.rint((low + high) / 2)
    error = np.ceil((high - low) / 2) + 2  # the middle and what lies between knots are rounded
    steps = tuple((before.last_ns, after.first_ns) for before, after in pairwise(pieces))
    probed = (pieces[0].first_ns, pieces[-1].last_ns)
    return ClockTrack(at_ns, base_ns + middle.astype(np.int64), error.astype(np.int64), probed, steps)


class _Rows(NamedTuple):
    """Knots: instants of the source clock, and the band of the offset there relative to the base."""

    at_ns: Int64s
    low: Floats
    high: Floats


def _joined(rows: Sequence[_Rows]) -> _Rows:
    return _Rows(*(np.concatenate(columns) for columns in zip(*rows, strict=True)))


class _Piece:
    """Brackets in order that one clock within the allowance satisfies; `fitted`: its segments."""

    def __init__(self, brackets: Brackets, fitted: list[Segment], base_ns: int, allowance: Allowance) -> None:
        self._brackets = brackets
        self._fitted = fitted
        self._base_ns = base_ns
        self._allowance = allowance
        self._envelope = Envelope(brackets, base_ns, allowance)
        self.first_ns, self.last_ns = int(brackets.at_ns[0]), int(brackets.at_ns[-1])
        wanted_ns = max(_KNOT_NS, (self.last_ns - self.first_ns) // _MOST_KNOTS)
        self._knot_ns = min(wanted_ns, allowance.segment_ns // 2)

    @cached_property
    def knots(self) -> _Rows:
        """From the first to the last bracket."""
        at_ns = np.arange(self.first_ns, self.last_ns, self._knot_ns, dtype=np.int64)
        at_ns = np.append(at_ns, self.last_ns)
        middles = [(one.end_ns + other.start_ns) // 2 for one, other in pairwise(self._fitted)]
        owner = np.searchsorted(np.array(middles, np.int64), at_ns)
        edges = np.searchsorted(owner, np.arange(len(self._fitted) + 1))
        return _joined(
            [
                self._rows(segment, at_ns[first:end])
                for segment, (first, end) in zip(self._fitted, pairwise(edges), strict=True)
            ]
        )

    def torn(self) -> tuple[int, int] | None:
        """Positions of the brackets around the first knot at which its segment and the envelope do not meet; else None.

        So it is where a clock left the allowance in a silence as long as a segment: no segment sees both sides.
        """
        bad = np.flatnonzero(self.knots.low > self.knots.high)
        if not bad.size:
            return None
        at_ns = self._brackets.at_ns
        p = min(int(np.searchsorted(at_ns, self.knots.at_ns[bad[0]], side="right")), len(at_ns) - 1)
        return p - 1, p

    def outside(self, sign: int) -> _Rows:
        """Before the first bracket (`sign` -1) or after the last (+1)."""
        half_ns = self._allowance.segment_ns // 2
        edge_ns = self.first_ns if sign < 0 else self.last_ns
        near_ns = edge_ns + sign * np.arange(self._knot_ns, half_ns + 1, self._knot_ns, dtype=np.int64)
        start_ns, end_ns = sorted((edge_ns, edge_ns - sign * half_ns))
        near = self._rows(Segment(self._brackets, start_ns, end_ns, self._base_ns, self._allowance), near_ns)
        near = _Rows(near.at_ns, np.minimum(near.low, near.high), np.maximum(near.low, near.high))
        growth = self._allowance.most_slope * _FAR_NS
        far = _Rows(near_ns[-1:] + sign * _FAR_NS, near.low[-1:] - growth, near.high[-1:] + growth)
        rows = _joined([near, far])
        return rows if sign > 0 else _Rows(rows.at_ns[::-1], rows.low[::-1], rows.high[::-1])

    def _rows(self, segment: Segment, at_ns: Int64s) -> _Rows:
        """The band at `at_ns`, instants of that segment, with the tent between knots."""
        low, high = self._envelope.band(at_ns)
        own_low, own_high = segment.band(at_ns)
        low, high = np.maximum(low, own_low), np.minimum(high, own_high)
        tent = self._allowance.wander_ppm * PPM * self._knot_ns / 2
        return _Rows(at_ns, low - tent, high + tent)


def _across(before: _Piece, after: _Piece, allowance: Allowance) -> _Rows:
    """Inside a step: all that either side, going on to there, would allow."""
    start_ns, end_ns = before.last_ns, after.first_ns
    at_ns = np.unique(np.array([start_ns + 1, end_ns - 1], np.int64))
    at_ns = at_ns[(at_ns > start_ns) & (at_ns < end_ns)]
    gone, left = allowance.most_slope * (at_ns - start_ns), allowance.most_slope * (end_ns - at_ns)
    low = np.minimum(before.knots.low[-1] - gone, after.knots.low[0] - left)
    high = np.maximum(before.knots.high[-1] + gone, after.knots.high[0] + left)
    return _Rows(at_ns, low, high)


def _pieces(ordered: Brackets, base_ns: int, allowance: Allowance) -> list[_Piece]:
    """`ordered` cut where the clock left the allowance.

    Brackets between those that prove a change may lie on either side of it and are left out; so are pieces with one
    side only, which give no offset.
    """
    found, left = [], [ordered]
    while left:
        part = left.pop()
        fitted, cut = _fit_segments(part, base_ns, allowance)
        if cut is None:
            piece = _Piece(part, fitted, base_ns, allowance)
            cut = piece.torn()
            if cut is None:
                found.append(piece)
                continue
        q, p = cut
        if part.at_ns[q] == part.at_ns[p]:
            at_ns = part.at_ns[p]
            raise AnalysisError(
                f"a clock's readings at {at_ns} ns contradict each other; read both clocks again"
            )
        sides = (part.taken(slice(p, None)), part.taken(slice(0, q + 1)))
        left += [side for side in sides if side.has_both_sides]
    if not found:
        raise AnalysisError(
            "a clock's readings contradict each other on every side of a step; probe it again"
        )
    return found


def _fit_segments(
    part: Brackets, base_ns: int, allowance: Allowance
) -> tuple[list[Segment], tuple[int, int] | None]:
    """The segments of `part`; and the positions of the brackets around a change, where there is one.

    A change that the most drift alone rules out is cut where the first bracket shows it. A segment knows only the best
    ends of its slots: cut there, a few probes on one side of a step could be left with no piece of their own.
    """
    envelope = Envelope(part, base_ns, allowance)
    fitted: list[Segment] = []
    for start_ns, end_ns in segments(part.at_ns, allowance):
        segment = Segment(part, start_ns, end_ns, base_ns, allowance)
        if not segment.is_feasible:
            return fitted, envelope.contradiction() or segment.contradiction()
        fitted.append(segment)
    return fitted, envelope.contradiction()
