"""One clock on another: offset and error bound at each instant, as a piecewise linear track.

    target clock = source clock + offset(source instant), true within error(source instant)

`analysis.clock_brackets` derives the band in which the offset lies in a stretch. The track takes its middle at knots
and half its width as the error. Between knots h apart the offset leaves the chord of its own values at the knots by at
most wander h / 2 (a tent whose sides have the slopes c +- wander), and that chord lies in the chord of the bands: the
tent is in the error. Stretches overlap by half; each gives the knots of its middle.

Outside the brackets the drift of the first or last stretch goes on for half a stretch, within what the brackets of its
other half leave open; further out the error grows by the most drift that is allowed. Where brackets contradict what a
clock may do, the track is split: `steps` has the instants between which it happened, and the error there covers what
was before and what came after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.clock_brackets import (
    NO_HIGH,
    NO_LOW,
    PPM,
    Allowance,
    Brackets,
    Envelope,
    Floats,
    Int64s,
    Stretch,
    stretches,
)
from scenarios.errors import AnalysisError
from scenarios.units import NS_PER_S

__all__ = ["DEFAULT_ALLOWANCE", "NO_HIGH", "NO_LOW", "Allowance", "Brackets", "ClockTrack", "fit_track"]

DEFAULT_ALLOWANCE = Allowance()
_KNOT_NS = NS_PER_S // 2
_MOST_KNOTS = 4_096
_FAR_NS = 100 * NS_PER_S
"""Where the last knot lies outside; its segment goes on."""


@dataclass(frozen=True, eq=False)
class ClockTrack:
    """`target = source + offset(source)`, true within `error(source)`: linear between knots, k >= 1 of them, in order.

    With one knot both are constant. Else the first and last segment go on outside the knots. `probed_ns`: the source
    instants between which there are brackets, inclusive; None where the clock is known everywhere. `steps`: pairs of
    source instants between which the clock did what no allowance covers; the error there covers both sides.
    """

    at_ns: Int64s
    offset_ns: Int64s
    error_ns: Int64s
    probed_ns: tuple[int, int] | None = None
    steps: tuple[tuple[int, int], ...] = field(default=())

    def __post_init__(self) -> None:
        if not len(self.at_ns) == len(self.offset_ns) == len(self.error_ns) >= 1:
            raise AnalysisError("a clock track needs one or more knots, each with instant, offset and error")
        if len(self.at_ns) > 1 and int(np.diff(self.at_ns).min()) <= 0:
            raise AnalysisError("the knots of a clock track must be in order of time")
        if int(self.error_ns.min()) < 0:
            raise AnalysisError(f"a clock's error bound is never negative: {self.error_ns.min()} ns")

    @classmethod
    def constant(cls, offset_ns: int, error_ns: int = 0) -> ClockTrack:
        """A clock that neither drifts nor wanders: processes of one kernel, or a mere shift."""
        zero = np.zeros(1, np.int64)
        return cls(zero, np.array([offset_ns], np.int64), np.array([error_ns], np.int64))

    def offsets_at(self, source_ns: Int64s) -> Int64s:
        """Offset at instants of the source clock."""
        return self._along(self.offset_ns, source_ns)

    def convert(self, source_ns: Int64s) -> Int64s:
        """Instants on the target clock; to the ns with one knot, else rounded to it once."""
        return np.asarray(source_ns, np.int64) + self.offsets_at(source_ns)

    def target_ns(self, source_ns: int) -> int:
        """One instant on the target clock."""
        return int(source_ns) + int(self.offsets_at(np.array([source_ns], np.int64))[0])

    def invert(self, target_ns: Int64s) -> Int64s:
        """Instants of the source clock that `convert` maps there, to 1 ns; the latest, where there are several."""
        target_ns = np.asarray(target_ns, np.int64)
        if len(self.at_ns) == 1:
            return target_ns - int(self.offset_ns[0])
        knots = self.at_ns + self.offset_ns
        least_to_come = np.minimum.accumulate(knots[::-1])[::-1]
        first = np.clip(np.searchsorted(least_to_come, target_ns, side="right") - 1, 0, len(knots) - 2)
        rise = np.maximum(np.diff(knots), 1)  # less only inside a step back in time
        slope = np.diff(self.at_ns) / rise
        return self.at_ns[first] + np.rint((target_ns - knots[first]) * slope[first]).astype(np.int64)

    def source_ns(self, target_ns: int) -> int:
        """One instant on the source clock; see `invert`."""
        return int(self.invert(np.array([target_ns], np.int64))[0])

    def error_at(self, source_ns: Int64s) -> Int64s:
        """Error bound at instants of the source clock."""
        return np.maximum(self._along(self.error_ns, source_ns), 0)

    @property
    def largest_error_ns(self) -> int:
        """Largest error bound where the clock was probed, steps included."""
        return int(self.error_ns[self._is_probed()].max())

    @property
    def drift_ppm(self) -> float:
        """Mean change of the offset per source time over the probed span, without steps; 0 with one knot."""
        is_probed = self._is_probed()
        at_ns, offset_ns = self.at_ns[is_probed], self.offset_ns[is_probed]
        is_smooth = np.ones(max(len(at_ns) - 1, 0), bool)
        for first_ns, last_ns in self.steps:
            is_smooth &= (at_ns[1:] <= first_ns) | (at_ns[:-1] >= last_ns)
        span_ns = int(np.diff(at_ns)[is_smooth].sum())
        return int(np.diff(offset_ns)[is_smooth].sum()) / span_ns / PPM if span_ns else 0.0

    def errors_from(self) -> tuple[Int64s, Int64s]:
        """Instants of the target clock, in order, and the largest error from each of them to the next.

        With one knot, or after a step, when the target clock does not say which knots hold: the least int64, and the
        largest error of all.
        """
        knots = self.at_ns + self.offset_ns
        if len(knots) == 1 or self.steps:
            return np.array([np.iinfo(np.int64).min]), np.array([self.largest_error_ns], np.int64)
        return knots, np.maximum(self.error_ns, np.append(self.error_ns[1:], self.error_ns[-1]))

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON; instants and offsets as differences from the knot before, which keeps them short."""
        return {
            "at_ns": _differences(self.at_ns),
            "offset_ns": _differences(self.offset_ns),
            "error_ns": self.error_ns.tolist(),
            "probed_ns": None if self.probed_ns is None else list(self.probed_ns),
            "steps": [list(step) for step in self.steps],
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> ClockTrack:
        """What `to_mapping` gave. Raises AnalysisError where it is something else."""
        try:
            at, offsets = (np.cumsum(np.array(mapping[name], np.int64)) for name in ("at_ns", "offset_ns"))
            errors = np.array(mapping["error_ns"], np.int64)
            probed = mapping["probed_ns"]
            span = None if probed is None else (int(probed[0]), int(probed[1]))
            steps = tuple((int(first), int(last)) for first, last in mapping["steps"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise AnalysisError(f"the manifest's clock track cannot be read: {error!r}") from error
        return cls(at, offsets, errors, span, steps)

    def _is_probed(self) -> NDArray[np.bool_]:
        if self.probed_ns is None:
            return np.ones(len(self.at_ns), bool)
        return (self.at_ns >= self.probed_ns[0]) & (self.at_ns <= self.probed_ns[1])

    def _along(self, values: Int64s, source_ns: Int64s) -> Int64s:
        """Linear between knots and beyond them, rounded once; differences only go through floats."""
        source_ns = np.asarray(source_ns, np.int64)
        if len(self.at_ns) == 1:
            return np.full(source_ns.shape, values[0])
        first = np.clip(np.searchsorted(self.at_ns, source_ns, side="right") - 1, 0, len(self.at_ns) - 2)
        slope = np.diff(values) / np.diff(self.at_ns)
        moved = np.rint((source_ns - self.at_ns[first]) * slope[first])
        return values[first] + moved.astype(np.int64)


def _differences(values: Int64s) -> list[int]:
    return [int(values[0]), *np.diff(values).tolist()]


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
    return _Rows(
        np.concatenate([row.at_ns for row in rows]),
        np.concatenate([row.low for row in rows]),
        np.concatenate([row.high for row in rows]),
    )


class _Piece:
    """Brackets in order that one clock within the allowance satisfies; `fitted`: its stretches."""

    def __init__(self, brackets: Brackets, fitted: list[Stretch], base_ns: int, allowance: Allowance) -> None:
        self._brackets = brackets
        self._fitted = fitted
        self._base_ns = base_ns
        self._allowance = allowance
        self._envelope = Envelope(brackets, base_ns, allowance)
        self.first_ns, self.last_ns = int(brackets.at_ns[0]), int(brackets.at_ns[-1])
        wanted_ns = max(_KNOT_NS, (self.last_ns - self.first_ns) // _MOST_KNOTS)
        self._knot_ns = min(wanted_ns, allowance.stretch_ns // 2)

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
                self._rows(stretch, at_ns[first:end])
                for stretch, (first, end) in zip(self._fitted, pairwise(edges), strict=True)
            ]
        )

    def outside(self, sign: int) -> _Rows:
        """Before the first bracket (`sign` -1) or after the last (+1)."""
        half_ns = self._allowance.stretch_ns // 2
        edge_ns = self.first_ns if sign < 0 else self.last_ns
        near_ns = edge_ns + sign * np.arange(self._knot_ns, half_ns + 1, self._knot_ns, dtype=np.int64)
        start_ns, end_ns = sorted((edge_ns, edge_ns - sign * half_ns))
        near = self._rows(Stretch(self._brackets, start_ns, end_ns, self._base_ns, self._allowance), near_ns)
        growth = self._allowance.most_slope * _FAR_NS
        far = _Rows(near_ns[-1:] + sign * _FAR_NS, near.low[-1:] - growth, near.high[-1:] + growth)
        rows = _joined([near, far])
        return rows if sign > 0 else _Rows(rows.at_ns[::-1], rows.low[::-1], rows.high[::-1])

    def _rows(self, stretch: Stretch, at_ns: Int64s) -> _Rows:
        """The band at `at_ns`, instants of that stretch, with the tent between knots."""
        low, high = self._envelope.band(at_ns)
        own_low, own_high = stretch.band(at_ns)
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
        fitted, cut = _fit_stretches(part, base_ns, allowance)
        if cut is None:
            found.append(_Piece(part, fitted, base_ns, allowance))
            continue
        q, p = cut
        if part.at_ns[q] == part.at_ns[p]:
            at_ns = part.at_ns[p]
            raise AnalysisError(
                f"a clock's readings at {at_ns} ns contradict each other; read both clocks again"
            )
        sides = (part.taken(slice(p, None)), part.taken(slice(0, q + 1)))
        left += [side for side in sides if side.has_both_sides]
    return found


def _fit_stretches(
    part: Brackets, base_ns: int, allowance: Allowance
) -> tuple[list[Stretch], tuple[int, int] | None]:
    """The stretches of `part`; and the positions of the brackets around a change, where there is one."""
    fitted: list[Stretch] = []
    for start_ns, end_ns in stretches(part.at_ns, allowance):
        stretch = Stretch(part, start_ns, end_ns, base_ns, allowance)
        if not stretch.is_feasible:
            return fitted, stretch.contradiction()
        fitted.append(stretch)
    return fitted, Envelope(part, base_ns, allowance).contradiction()
