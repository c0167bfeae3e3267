"""A recorded trace as arrivals: its window, de-quantised, scaled in time and in rate, with sizes and sessions.

The order is that of the keys: window (with `overlap` several at once), loop, quantum, time_scale, and the
other rate scales. What is drawn comes from the phase's generator, anew in every lap of a loop. All but `overlap` stream
through in parts; what is held is the rows of one tick, of one jitter or of one bin of the envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from squall.scenarios.arrivals.process import OpenProcess
from squall.scenarios.arrivals.scaling import (
    EnvelopeScale,
    OverlapScale,
    RateScaleConfig,
    Ratio,
    Redraw,
    ReplicateScale,
    SessionScale,
    ThinScale,
    copy_delays,
    delays,
    kept_by_chance,
    kept_sessions,
    other_sessions,
    scaled,
)
from squall.scenarios.arrivals.window import Drawn, FileState, Window, cut, join
from squall.scenarios.errors import ScenarioError
from squall.scenarios.fields import Duration, PositiveDuration, Text
from squall.scenarios.traces.parts.options import Repair, TraceOptions, TraceUnit
from squall.scenarios.traces.parts.part import TracePart
from squall.scenarios.units import digits_text

PIECE_ROWS = 2**20
LARGEST_DRAW = 10**8
_LARGEST_NS = 2**62


def _known_format(name: str) -> str:
    from squall.scenarios.traces.formats import FORMATS  # a scenario without one starts without the readers

    if name not in FORMATS:
        raise ValueError(f"{name!r} must be one of {', '.join(FORMATS)}")
    return name


class TraceArrivals(OpenProcess):
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
    file: Text
    format: Annotated[Text, AfterValidator(_known_format)] | None = None
    column: Text | None = None
    unit: TraceUnit | None = None
    stamp_at: Literal["begin", "end"] | None = None
    duration_columns: tuple[Text, ...] = ()
    duration_unit: TraceUnit | None = None
    repair: tuple[Repair, ...] = ()
    start_ns: Duration = Field(default=0, alias="start")
    length_ns: PositiveDuration | None = Field(default=None, alias="length")
    quantum: Literal["as-is", "spread"] = "as-is"
    quantum_width_ns: PositiveDuration | None = Field(default=None, alias="quantum_width")
    time_scale: Ratio = Fraction(1)
    rate_scale: RateScaleConfig | None = None
    loop: bool = False

    @model_validator(mode="after")
    def _width_with_spread(self) -> Self:
        if (self.quantum == "spread") != (self.quantum_width_ns is not None):
            raise ValueError("quantum 'spread' and quantum_width, the tick of the trace, go together")
        return self

    def options(self) -> TraceOptions:
        """How the file is read."""
        return TraceOptions(
            self.format,
            self.unit,
            self.column,
            self.repair,
            stamp_at=self.stamp_at,
            duration_columns=self.duration_columns,
            duration_unit=self.duration_unit,
        )

    def replay(self, sizes: tuple[str, ...] = (), session: str | None = None) -> TraceReplay:
        """The replay of the file; it is opened when the first arrival is asked for."""
        return TraceReplay(self, sizes, session)

    def expected_count(self, t_ns: int, whole_ns: int) -> float:
        del whole_ns
        return self.replay().expected_count(t_ns)

    def stated_count(self, horizon_ns: int) -> float:
        del horizon_ns
        return 0.0

    def draw(
        self, rng: np.random.Generator, horizon_ns: int, whole_ns: int | None = None
    ) -> NDArray[np.int64]:
        del whole_ns
        return self.replay().offsets_ns(rng, horizon_ns)


class TraceReplay:
    """The arrivals of a trace. `parts` gives them with what their requests carry; `offsets_ns` the instants alone.

    `sizes` names the size columns that `parts` has beside the sessions; `trace_parts` has all of them. `session`: the
    column of the sessions, where it is not found by its name.
    """

    def __init__(
        self, config: TraceArrivals, sizes: tuple[str, ...] = (), session: str | None = None
    ) -> None:
        self.path = Path(config.file)
        self._config = config
        self._scale = config.rate_scale
        self._width_ns = config.quantum_width_ns or 0
        self._session = session
        self._window = self._open(sizes)

    @property
    def state(self) -> FileState | None:
        """Of the file, once it was read: it must be the same wherever one plan reads it."""
        return self._window.state

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of how the file was read, so far as it was; nothing where its stamps are plain begins."""
        reading = self._window.reading
        return () if reading is None else reading.told(self._config.quantum == "spread")

    @property
    def has_seconds(self) -> bool:
        """Whether the file's stamps are whole seconds, as far as it was looked at."""
        return self._window.reading is not None and self._window.reading.has_seconds

    @property
    def stamps_from(self) -> dict[str, object] | None:
        """Which columns the instants come from: column, side, and the durations taken off or, where the side is not
        known, those that would be. None where the format leaves no choice."""
        reading = self._window.reading
        if reading is None:
            return None
        durations = reading.durations
        return {
            "column": reading.stamp,
            "side": reading.side,
            "less": [] if durations is None else list(durations.names),
            "less_unit": None if durations is None else durations.unit,
            "n_without": 0 if durations is None else durations.n_absent,
            "maybe": list(reading.maybe),
        }

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> NDArray[np.int64]:
        """Arrivals in [0, horizon_ns), (n,) int64, sorted. Raises ScenarioError as `parts` does."""
        found: list[NDArray[np.int64]] = []
        n_rows = 0
        for part in self.parts(rng, horizon_ns):
            found.append(part.offset_ns)
            n_rows += len(part)
            if n_rows > LARGEST_DRAW:
                raise ScenarioError(
                    f"{self.path}: replays more than {LARGEST_DRAW:,} arrivals; use a shorter phase or a smaller"
                    " scale"
                )
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def parts(self, rng: np.random.Generator, horizon_ns: int) -> Iterator[Drawn]:
        """Arrivals in [0, horizon_ns), sorted over all parts, of at most 2²⁰ rows each.

        A trace that ends before the horizon and is not looped just ends. Raises ScenarioError for a file that cannot be
        used or changes meanwhile, a window that is empty, and sessions that the trace does not have.
        """
        return self._replayed(self._window, rng, horizon_ns)

    def trace_parts(self, rng: np.random.Generator, horizon_ns: int) -> Iterator[TracePart]:
        """The same arrivals as rows of a trace, from the stamp at which its window begins, with every size column."""
        self._window = window = self._open(None)
        for part in self._replayed(window, rng, horizon_ns):
            yield TracePart(part.offset_ns + window.origin_ns, part.sizes, part.session)

    def _open(self, sizes: tuple[str, ...] | None) -> Window:
        config, scale = self._config, self._scale
        options = replace(config.options(), session=self._session)
        return Window(
            self.path, options, sizes, config.start_ns, config.length_ns, config.quantum_width_ns,
            scale.copies if isinstance(scale, OverlapScale) else 1, config.loop,
        )  # fmt: skip

    def _replayed(self, window: Window, rng: np.random.Generator, horizon_ns: int) -> Iterator[Drawn]:
        quantum_rng, scale_rng = rng.spawn(2)
        rows = window.rows(self._recorded_ns(horizon_ns))
        if self._config.quantum == "spread":
            width_ns = self._width_ns
            rows = _displaced((part, delays(quantum_rng, len(part), width_ns)) for part in rows)
        rows = self._rate_scaled(self._time_scaled(rows), scale_rng, horizon_ns, window)
        for part in cut(rows, horizon_ns):
            yield from part.pieces(PIECE_ROWS)

    def expected_count(self, t_ns: int) -> float:
        """Arrivals expected in [0, t_ns): recorded ones, each at its uniform place, times what the rate scale makes
        of it. Where `spread` and `replicate` meet, the copies are counted from the middle of the tick."""
        return float(self._expected(np.array([t_ns], np.int64))[0])

    def _recorded_ns(self, horizon_ns: int) -> int:
        """The instant of the looped window that time_scale maps to the horizon."""
        ratio = self._config.time_scale
        recorded_ns = -(-horizon_ns * ratio.denominator // ratio.numerator)
        width_ns = self._width_ns * ratio.numerator // ratio.denominator
        if (recorded_ns >= _LARGEST_NS and self._config.loop) or horizon_ns + width_ns >= _LARGEST_NS:
            raise ScenarioError(
                f"{self.path}: time_scale {ratio} takes times beyond the 146 years that replay computes with, or the"
                " quantum_width does; use a scale nearer to 1 and a shorter tick"
            )
        return min(recorded_ns, _LARGEST_NS)

    def _time_scaled(self, rows: Iterable[Drawn]) -> Iterator[Drawn]:
        ratio = self._config.time_scale
        for part in rows:
            yield part if ratio == 1 else replace(part, offset_ns=scaled(part.offset_ns, ratio))

    def _rate_scaled(
        self, rows: Iterator[Drawn], rng: np.random.Generator, horizon_ns: int, window: Window
    ) -> Iterator[Drawn]:
        match self._scale:
            case ThinScale(keep=keep):
                return (part.take(kept_by_chance(rng, len(part), keep)) for part in rows)
            case SessionScale(keep=keep):
                return self._thinned_by_session(rows, keep)
            case ReplicateScale(copies=copies, jitter_ns=jitter_ns):
                return _displaced(_copied(rows, copies, jitter_ns, rng))
            case EnvelopeScale(factor=factor, bin_ns=bin_ns):
                redraw = Redraw.seeded(rng, factor, bin_ns, _LARGEST_NS)
                return self._redrawn(rows, redraw, lambda: min(horizon_ns, self._end_ns(window, horizon_ns)))
            case OverlapScale() | None:
                return rows

    def _thinned_by_session(self, rows: Iterable[Drawn], keep: float) -> Iterator[Drawn]:
        n_rows = 0
        for part in rows:
            if part.session is None:
                raise ScenarioError(
                    f"{self.path}: rate_scale thin-by-session needs a trace with sessions; use kind thin"
                )
            yield part.take(kept_sessions(part.session, keep, n_rows))
            n_rows += len(part)

    def _redrawn(self, rows: Iterable[Drawn], redraw: Redraw, end_ns: Callable[[], int]) -> Iterator[Drawn]:
        """Bins that are complete; at the end the last one, up to `end_ns`, which is known by then."""
        held: list[Drawn] = []
        for part in (part for part in rows if len(part)):
            held.append(part)
            last_bin_ns = int(part.offset_ns[-1]) // redraw.bin_ns * redraw.bin_ns
            if held[0].offset_ns[0] < last_bin_ns:
                whole = join(held)
                place = int(np.searchsorted(whole.offset_ns, last_bin_ns))
                yield from self._redrawn_bins(whole.take(slice(0, place)), redraw)
                held = [whole.take(slice(place, None))]
        if held:
            redraw = replace(redraw, end_ns=end_ns())
            yield from self._redrawn_bins(join(held), redraw)

    def _redrawn_bins(self, rows: Drawn, redraw: Redraw) -> Iterator[Drawn]:
        for group in _bin_groups(rows.offset_ns, redraw.bin_ns, max(1, int(PIECE_ROWS / redraw.factor))):
            bins = rows.take(group)
            if len(bins) * redraw.factor > LARGEST_DRAW:
                raise ScenarioError(
                    f"{self.path}: rate_scale envelope: {len(bins)} arrivals of one bin times"
                    f" {digits_text(redraw.factor)} are"
                    f" more than {LARGEST_DRAW:,}; use a smaller factor"
                )
            placed, picked = redraw.bins(bins.offset_ns)
            yield bins.take(picked, placed)

    def _end_ns(self, window: Window, horizon_ns: int) -> int:
        """Where the replay ends, in time of the phase."""
        end_ns = window.end_ns
        if self._config.loop or end_ns is None:
            return horizon_ns
        ratio = self._config.time_scale
        return max(1, end_ns * ratio.numerator // ratio.denominator)

    def _expected(self, edges_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Arrivals expected before each edge, (n,)."""
        match self._scale:
            case ThinScale(keep=keep):
                return keep * self._recorded(edges_ns, 0, self._spread_ns())
            case ReplicateScale(copies=copies, jitter_ns=jitter_ns):
                later = self._recorded(edges_ns, self._spread_ns() // 2, jitter_ns + 1)
                return self._recorded(edges_ns, 0, self._spread_ns()) + (copies - 1) * later
            case EnvelopeScale(factor=factor, bin_ns=bin_ns):
                bins = edges_ns // bin_ns * bin_ns
                before, after = self._recorded(
                    np.concatenate([bins, bins + bin_ns]), 0, self._spread_ns()
                ).reshape(2, -1)
                widths = np.clip(self._end_ns(self._window, _LARGEST_NS) - bins, 1, bin_ns)
                return factor * (before + (after - before) * np.minimum((edges_ns - bins) / widths, 1.0))
            case _:
                return self._recorded(edges_ns, 0, self._spread_ns())

    def _spread_ns(self) -> int:
        """The width, in time of the phase, in which an arrival's place is uniform."""
        ratio = self._config.time_scale
        return self._width_ns * ratio.numerator // ratio.denominator

    def _recorded(self, edges_ns: NDArray[np.int64], shift_ns: int, width_ns: int) -> NDArray[np.float64]:
        """Recorded arrivals before each edge, each uniform in `width_ns` from `shift_ns` after its instant on."""
        counts = np.zeros(edges_ns.shape)
        rows = self._time_scaled(self._window.rows(self._recorded_ns(int(edges_ns.max(initial=0)))))
        if isinstance(self._scale, SessionScale):
            rows = self._thinned_by_session(rows, self._scale.keep)
        for part in rows:
            counts += _before(part.offset_ns, edges_ns - shift_ns, width_ns)
        return counts


def _before(offset_ns: NDArray[np.int64], edges_ns: NDArray[np.int64], width_ns: int) -> NDArray[np.float64]:
    """Σ P(offset + U < edge) for each edge, U uniform in [0, width): Σ of (edge - offset)/width, held in [0, 1]."""
    done = np.searchsorted(offset_ns, edges_ns - width_ns, side="right") if width_ns else 0
    begun = np.searchsorted(offset_ns, edges_ns)
    if not width_ns or not offset_ns.size:
        return begun.astype(np.float64)
    origin = int(offset_ns[0])
    cum = np.concatenate([[0.0], np.cumsum((offset_ns - origin).astype(np.float64))])
    inside = (begun - done) * (edges_ns - origin).astype(np.float64) - (cum[begun] - cum[done])
    counts: NDArray[np.float64] = done + inside / width_ns
    return counts


def _copied(
    rows: Iterable[Drawn], copies: int, jitter_ns: int, rng: np.random.Generator
) -> Iterator[tuple[Drawn, NDArray[np.int64]]]:
    """Each request `copies` times, with the delays of the copies; later copies are of other sessions."""
    for whole in rows:
        for part in whole.pieces(max(1, PIECE_ROWS // copies)):
            again = part.take(np.repeat(np.arange(len(part)), copies))
            if again.session is not None:
                copy = np.tile(np.arange(copies), len(part))
                again = replace(again, session=other_sessions(again.session, copy))
            yield again, copy_delays(rng, len(part), copies, jitter_ns)


def _displaced(delayed: Iterable[tuple[Drawn, NDArray[np.int64]]]) -> Iterator[Drawn]:
    """Requests put off by their delays, in the order of time; those at one instant in the order of the trace.

    What is due before the last instant of a part is behind all that is still to come, whatever its delay.
    """
    held: list[Drawn] = []
    for part, delay_ns in delayed:
        if not len(part):
            continue
        last_ns = int(part.offset_ns[-1])
        late = join([*held, replace(part, offset_ns=part.offset_ns + delay_ns)])
        late = late.take(np.argsort(late.offset_ns, kind="stable"))
        place = int(np.searchsorted(late.offset_ns, last_ns, side="right"))
        yield late.take(slice(0, place))
        held = [late.take(slice(place, None))]
    yield from held


def _bin_groups(offset_ns: NDArray[np.int64], bin_ns: int, most_rows: int) -> Iterator[slice]:
    """Slices of whole bins, each of at most `most_rows` rows or of one bin."""
    start = 0
    while start < offset_ns.size:
        stop = start + most_rows
        if stop < offset_ns.size:
            bin_start_ns = int(offset_ns[stop]) // bin_ns * bin_ns
            stop = int(np.searchsorted(offset_ns, bin_start_ns))
            if stop <= start:
                stop = int(np.searchsorted(offset_ns, bin_start_ns + bin_ns))
        yield slice(start, stop)
        start = stop
