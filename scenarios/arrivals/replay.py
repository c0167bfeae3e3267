"""A recorded trace as arrivals: its window, de-quantised, scaled in time and in rate, with sizes and sessions.

The order is that of the keys: window (with `overlap` several at once), loop, quantum, time_scale, and the
other rate scales. What is drawn comes from the phase's generator, anew in every lap of a loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from squall.scenarios.arrays import Int64s
from squall.scenarios.arrivals.process import OpenProcess, refuse_many
from squall.scenarios.arrivals.scaling import (
    AS_IT_IS,
    OverlapScale,
    RateScaleConfig,
    Ratio,
    delayed,
    other_sessions,
    scaled,
)
from squall.scenarios.errors import ScenarioError, Sentences, placed
from squall.scenarios.fields import Duration, PositiveDuration, Text
from squall.scenarios.records import Frozen
from squall.scenarios.traces.options import TraceOptions
from squall.scenarios.traces.part import TracePart, join_parts
from squall.scenarios.traces.reading import open_trace
from squall.scenarios.units import format_duration

if TYPE_CHECKING:
    from numpy.random import Generator

    from squall.scenarios.traces.stamps import Reading

_LARGEST_NS = 2**62

FileState = tuple[int, int, int, int]
"""Device, inode, bytes and time of the last change of a file."""


class Replay(Frozen, eq=False):
    """The arrivals of a trace and what is known of its file."""

    rows: TracePart  # `stamp_ns` counts from the beginning of the window
    end_ns: int | None  # of the window; None: it goes on behind what was asked for
    origin_ns: int  # the stamp of the file at which the window begins
    state: FileState
    reading: Reading  # which columns the stamps come from

    @property
    def stamps_from(self) -> dict[str, object]:
        """Which columns the instants come from: column, side, and the durations taken off or, where the side is not
        known, those that would be."""
        return {
            "column": self.reading.stamp,
            "side": self.reading.side,
            "less": list(self.reading.durations),
            "less_unit": self.reading.duration_unit,
            "n_without": self.reading.n_absent,
            "maybe": list(self.reading.maybe),
        }


def file_state(path: Path) -> FileState:
    """What tells a file from an earlier or later one of its name; zeros where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0, 0
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def changed(path: Path) -> ScenarioError:
    """The error of a trace that is not the same at two reads."""
    return ScenarioError(f"{path}: the trace changed while it was read; run again once it is complete")


class _OfFile(OpenProcess):
    """A process that stands in a file."""

    file: Text


class TraceArrivals(TraceOptions, _OfFile):
    """Arrivals replayed from a file; `squall.scenarios.traces` has the formats.

    In this order: the window [start, start + length) of the file (`overlap`: several at once), loop, quantum,
    time_scale, the other rate scales. What loop, quantum and time_scale do to burstiness:

    `loop`: rate, c2 and IDC(w) for w well below the period the same; at multiples of the period all counts are equal.

    `quantum` spread, each arrival uniformly in [its stamp, its stamp + width): rate the same; IDC(w) for w well above
    the width the same; below it, and in c2, the batches of the grid are gone: of Poisson arrivals floored to a grid it
    makes Poisson arrivals again (c2 1, IDC 1).

    `time_scale`: rate / ratio; c2 the same; IDC'(w) = IDC(w / ratio), P/M'(w) = P/M(w / ratio): bursts get as much
    shorter as the gaps do, so against fixed times (a service time, a queue delay) they are other bursts.
    """

    example = "{kind: trace, file: service.csv, time_scale: 1/10, loop: true}"
    kind: Literal["trace"]
    start_ns: Duration = 0
    length_ns: PositiveDuration | None = None
    quantum: Literal["as-is", "spread"] = "as-is"
    quantum_width_ns: PositiveDuration | None = None
    time_scale: Ratio = Fraction(1)
    rate_scale: RateScaleConfig | None = None
    loop: bool = False

    def misfits(self) -> Sentences:
        if (self.quantum == "spread") != (self.quantum_width_ns is not None):
            yield "quantum 'spread' and quantum_width, the tick of the trace, go together"

    def draw(self, rng: Generator, horizon_ns: int, whole_ns: int | None = None) -> Int64s:
        del whole_ns
        return self.replay(rng, horizon_ns, sizes=()).rows.stamp_ns

    def stated_count(self, horizon_ns: int) -> float:
        del horizon_ns
        return 0.0

    def expected_count(self, t_ns: int, whole_ns: int) -> float:
        """Recorded arrivals, each at its uniform place, times what the rate scale makes of it."""
        del whole_ns
        scale = self.rate_scale or AS_IT_IS
        with placed(self.file, ScenarioError, ValueError):
            window = self._window(self._recorded_ns(scale.reach_ns(t_ns)), ())
            rows = replace(window.rows, stamp_ns=scaled(window.rows.stamp_ns, self.time_scale))
            return scale.expected(rows, t_ns, self._width_ns, self._end_ns(window, _LARGEST_NS))

    def replay(
        self,
        rng: Generator,
        horizon_ns: int,
        sizes: Sequence[str] | None = None,
        session: str | None = None,
    ) -> Replay:
        """Arrivals in [0, horizon_ns); of a trace that ends before and is not looped those that there are.

        `sizes`: the size columns that are read; None: all. `session`: the column of the sessions, where it is not found
        by its name. What is drawn comes from `rng`. Raises ScenarioError for a file that cannot be used or changes
        meanwhile, a window that is empty, and sessions that the trace does not have.
        """
        quantum_rng, scale_rng = rng.spawn(2)
        with placed(self.file, ScenarioError, ValueError):
            window = self._window(self._recorded_ns(horizon_ns), sizes, session)
            rows = window.rows
            if self.quantum_width_ns is not None:
                late = quantum_rng.integers(0, self.quantum_width_ns, len(rows), dtype=np.int64)
                rows = delayed(rows, late)
            rows = replace(rows, stamp_ns=scaled(rows.stamp_ns, self.time_scale))
            end_ns = min(horizon_ns, self._end_ns(window, horizon_ns))
            rows = (self.rate_scale or AS_IT_IS).applied(rows, scale_rng, end_ns)
            rows = rows.take(slice(0, int(np.searchsorted(rows.stamp_ns, horizon_ns))))
        return replace(window, rows=rows)

    @property
    def _width_ns(self) -> int:
        """The width, in time of the phase, in which an arrival's place is uniform."""
        return int((self.quantum_width_ns or 0) * self.time_scale)

    def _recorded_ns(self, horizon_ns: int) -> int:
        """The instant of the looped window that time_scale maps to the horizon."""
        recorded_ns = math.ceil(horizon_ns / self.time_scale)
        if (recorded_ns >= _LARGEST_NS and self.loop) or horizon_ns + self._width_ns >= _LARGEST_NS:
            raise ValueError(
                f"time_scale {self.time_scale} takes times beyond the 146 years that replay computes with, or the"
                " quantum_width does; use a scale nearer to 1 and a shorter tick"
            )
        return min(recorded_ns, _LARGEST_NS)

    def _end_ns(self, window: Replay, horizon_ns: int) -> int:
        """Where the replay ends, in time of the phase."""
        if self.loop or window.end_ns is None:
            return horizon_ns
        return max(1, int(window.end_ns * self.time_scale))

    def _window(self, limit_ns: int, sizes: Sequence[str] | None, session: str | None = None) -> Replay:
        """The window as it was recorded, or its copies over one another, looped up to `limit_ns` if it is looped.

        Its end is the period of the loop: the length if one is given; else the last instant plus the tick on which the
        trace was logged, if that is known, or plus the mean gap.
        """
        length_ns = self.length_ns
        copies = self.rate_scale.copies if isinstance(self.rate_scale, OverlapScale) else 1
        most_ns = limit_ns if copies == 1 else _LARGEST_NS
        window, is_cut = self._read(min(most_ns, copies * (length_ns or most_ns)), sizes, session)
        rows = window.rows
        if copies == 1 and is_cut and (length_ns is None or length_ns > limit_ns):
            return window
        if not len(rows):
            raise ValueError(
                f"no arrival in the {format_duration(copies * (length_ns or 0))} from"
                f" {format_duration(self.start_ns)} on; use another start or a longer length"
            )
        first_ns, last_ns = int(rows.stamp_ns[0]), int(rows.stamp_ns[-1])
        gap_ns = (last_ns - first_ns) // max(len(rows) - 1, 1)
        if copies > 1:
            span_ns = last_ns + gap_ns
            end_ns = length_ns or span_ns // copies
            if end_ns < 1 or (copies * end_ns > span_ns and not is_cut):
                raise ValueError(
                    f"{copies} windows of {format_duration(end_ns)} are longer than the {format_duration(span_ns)} of"
                    " the trace; use fewer copies or a shorter length"
                )
            rows = _overlaid(rows, copies, end_ns)
        else:
            gap_ns = self.quantum_width_ns or gap_ns
            if self.loop and not (length_ns or gap_ns):
                raise ValueError(
                    f"all {len(rows)} arrivals of the window come at one instant, so a loop has no period; give the"
                    " length"
                )
            end_ns = length_ns or last_ns + max(gap_ns, 1)
        return replace(window, rows=_looped(rows, end_ns, limit_ns) if self.loop else rows, end_ns=end_ns)

    def _read(self, most_ns: int, sizes: Sequence[str] | None, session: str | None) -> tuple[Replay, bool]:
        """Rows of the file from the start of the window on, before `most_ns`, and whether more are there."""
        path = Path(self.file)
        state = file_state(path)
        reader = open_trace(path, self, session)
        names = reader.size_names if sizes is None else sizes
        for name in names:
            if name not in reader.size_names:
                known = ", ".join(reader.size_names) or "none"
                raise ValueError(f"has no size column {name!r}, it has {known}")
        parts: list[TracePart] = []
        first_ns, is_cut = 0, False
        for part in reader:
            first_ns = first_ns if parts else int(part.stamp_ns[0])
            since = part.stamp_ns - (first_ns + self.start_ns)
            low, high = np.searchsorted(since, [0, min(most_ns, _LARGEST_NS)])
            rows = TracePart(since, {name: part.sizes[name] for name in names}, part.session)
            parts.append(rows.take(slice(low, high)))
            is_cut = high < since.size
            if is_cut:
                break
        if file_state(path) != state:
            raise changed(path)
        rows = join_parts(parts)
        if not len(rows) and not is_cut:
            last_ns = int(since[-1]) + self.start_ns
            raise ValueError(
                f"no arrival from {format_duration(self.start_ns)} on, the last one comes {format_duration(last_ns)}"
                " after the first; use an earlier start"
            )
        # a begin before the zero of a trace's own numbers would be no instant of a file that is written
        origin_ns = max(first_ns, 0) if reader.unit is not None else first_ns
        return Replay(rows, None, origin_ns + self.start_ns, state, reader.reading), is_cut


def _overlaid(rows: TracePart, copies: int, length_ns: int) -> TracePart:
    """Windows of `length_ns` at once; at one instant the rows of a later window come after those of an earlier one."""
    copy, stamp_ns = np.divmod(rows.stamp_ns, length_ns)
    order = np.argsort(stamp_ns, kind="stable")
    order = order[copy[order] < copies]
    session = None if rows.session is None else other_sessions(rows.session, copy)
    return replace(rows, stamp_ns=stamp_ns, session=session).take(order)


def _looped(rows: TracePart, period_ns: int, limit_ns: int) -> TracePart:
    """Lap after lap up to `limit_ns`."""
    n_laps, rest_ns = divmod(limit_ns, period_ns)
    n_rows = n_laps * len(rows) + int(np.searchsorted(rows.stamp_ns, rest_ns))
    refuse_many(n_rows)
    lap, row = np.divmod(np.arange(n_rows), len(rows))
    lap *= period_ns
    again = rows.take(row)
    return replace(again, stamp_ns=again.stamp_ns + lap)
