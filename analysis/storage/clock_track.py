"""One clock on another: offset and error bound at each instant, as a piecewise linear track.

    target clock = source clock + offset(source instant), true within error(source instant)

`squall.analysis.storage.clock_fit` makes one of readings of two clocks.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Int64s
from squall.analysis.storage.clock_brackets import PPM
from squall.analysis.storage.deployed import ClockKnots
from squall.scenarios.errors import AnalysisError
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

_FURTHER_NS = NS_PER_S * 2 ** np.arange(27, dtype=np.int64)
"""After the knot before the last, up to two years: rows of errors that grow without end are twice too wide at most."""


class ClockTrack(Frozen, eq=False):
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

    def largest_error_between(self, first_ns: int, last_ns: int) -> int:
        """Largest error bound in [first_ns, last_ns] of the source clock, probed or not."""
        inside = self.at_ns[(self.at_ns > first_ns) & (self.at_ns < last_ns)]
        return int(self.error_at(np.concatenate([inside, np.array([first_ns, last_ns], np.int64)])).max())

    def errors_from(self) -> tuple[Int64s, Int64s]:
        """Instants of the target clock, in order, and the largest error from each of them to the next.

        With one knot, and up to the last probe after a step, when the target clock does not say which knots hold: from
        the least int64 on, the largest error where probed.
        """
        start = np.array([np.iinfo(np.int64).min], np.int64)
        largest = np.array([self.largest_error_ns], np.int64)
        if len(self.at_ns) == 1:
            return start, largest
        source_ns = np.concatenate([self.at_ns[:-1], self.at_ns[-2] + _FURTHER_NS])
        from_ns, error_ns = self.convert(source_ns), self.error_at(source_ns)
        error_ns = np.maximum(error_ns, np.append(error_ns[1:], error_ns[-1]))
        if not self.steps or self.probed_ns is None:
            return from_ns, error_ns
        is_after = source_ns >= self.probed_ns[1]
        return (
            np.concatenate([start, from_ns[is_after]]),
            np.concatenate([largest, np.maximum(error_ns[is_after], largest)]),
        )

    def to_knots(self) -> ClockKnots:
        """For the manifest; instants and offsets as differences from the knot before, which keeps them short."""
        return ClockKnots(
            at_ns=_differences(self.at_ns),
            offset_ns=_differences(self.offset_ns),
            error_ns=tuple(self.error_ns.tolist()),
            probed_ns=self.probed_ns,
            steps=self.steps,
        )

    @classmethod
    def from_knots(cls, knots: ClockKnots) -> ClockTrack:
        """What `to_knots` gave. Raises AnalysisError where it is something else."""
        try:
            at, offsets = (np.cumsum(np.array(one, np.int64)) for one in (knots.at_ns, knots.offset_ns))
            errors = np.array(knots.error_ns, np.int64)
            span = None
            if knots.probed_ns is not None:
                first_ns, last_ns = knots.probed_ns
                span = first_ns, last_ns
            steps = tuple((first, last) for first, last in knots.steps)
        except (ValueError, OverflowError) as error:
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


def _differences(values: Int64s) -> tuple[int, ...]:
    return int(values[0]), *np.diff(values).tolist()
