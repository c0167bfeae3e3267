"""A recorded trace as arrivals: configuration. `squall.scenarios.plan.replay` replays it.

What each operation does to burstiness stands at its class. IDC(w) is var/mean of the counts in windows of w, c2
var/mean² of the gaps, P/M(w) the largest count in a window of w over the mean one; primed is after the operation.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from squall.scenarios.config.fields import (
    Count,
    Duration,
    Number,
    PositiveDuration,
    PositiveNumber,
    Section,
    Text,
)
from squall.scenarios.traces.formats import TraceFormat
from squall.scenarios.traces.parts.options import Repair, TraceOptions, TraceUnit

LARGEST_TERM = 10**9  # of a time scale: times stay within int64 arithmetic of 128 bits
LARGEST_COPIES = 1_000


def _fraction(value: object) -> Fraction:
    """`1/60`, `2`, `0.25` as an exact ratio. Raises ValueError for anything else."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a ratio, write for example 1/60, 2 or 0.25")
    try:
        ratio = Fraction(str(value).strip())
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{value!r} is not a ratio, write for example 1/60, 2 or 0.25") from error
    if ratio <= 0 or max(ratio.numerator, ratio.denominator) > LARGEST_TERM:
        raise ValueError(f"{value!r} must be above 0, with numerator and denominator up to {LARGEST_TERM:,}")
    return ratio


Ratio = Annotated[Fraction, BeforeValidator(_fraction), PlainSerializer(str, return_type=str)]
"""An exact ratio above 0: `1/60` in the file."""

Share = Annotated[Number, Field(gt=0, le=1)]


class ThinScale(Section):
    """Each arrival stays with probability `keep`, independently: a random share of the requests.

    Rate · keep; IDC'(w) = 1 + keep·(IDC(w) - 1) exactly (law of total variance); c2 -> 1; P/M grows by noise alone.
    Taking every k-th arrival instead is no thinning: it evens the gaps out, and its IDC and c2 lie below that.
    """

    kind: Literal["thin"]
    keep: Share


class SessionScale(Section):
    """Each session stays whole with probability `keep`: what a load balancer with affinity leaves to one server.

    By a hash of the session's number, so the same every time. Rate · keep on average over sets of sessions. With
    independent sessions that each bring their arrivals in a time shorter than w, IDC'(w) = IDC(w), since every kept
    session is as clustered as before: the bursts inside sessions stay, where random thinning takes them apart. What
    the sessions have in common (a busy hour) falls as in `thin`.
    """

    kind: Literal["thin-by-session"]
    keep: Share


class OverlapScale(Section):
    """`copies` different windows of the trace at once, as of independent tenants; the trace must be long enough.

    Rate · copies; for windows that are independent IDC'(w) is the mean of theirs, so the same; c2 -> 1; the excess of
    P/M over 1 falls like 1/√copies.
    """

    kind: Literal["overlap"]
    copies: Annotated[Count, Field(ge=2, le=LARGEST_COPIES)]


class ReplicateScale(Section):
    """Each arrival `copies` times, once where it is, the others uniformly up to `jitter` later.

    Rate · copies; IDC'(w) -> copies·IDC(w) for w well above the jitter, since all copies fall into the same window;
    with jitter 0 c2' = copies·(c2 + 1) - 1, falling with the jitter; P/M(w) the same for w well above the jitter.
    """

    kind: Literal["replicate"]
    copies: Annotated[Count, Field(ge=2, le=LARGEST_COPIES)]
    jitter_ns: Duration = Field(alias="jitter")


class EnvelopeScale(Section):
    """The trace's rate per `bin`, times `factor`, with Poisson arrivals drawn anew: more of the same users.

    Rate · factor; c2 -> that of Poisson arrivals on this envelope. In windows that divide the bin B
    IDC'(w) = 1 + factor·(w/B)·IDC(B), in multiples of it IDC'(w) = 1 + factor·IDC(w), both exactly (law of total
    variance, given the counts). With IDC = 1 + the envelope's own part that is 1 + factor·(IDC - 1), and up to `factor`
    more for the noise that the counts themselves carry: a bin should hold 50 arrivals or more.
    """

    kind: Literal["envelope"]
    factor: PositiveNumber
    bin_ns: PositiveDuration = Field(default=60_000_000_000, alias="bin")


RateScaleConfig = Annotated[
    ThinScale | SessionScale | OverlapScale | ReplicateScale | EnvelopeScale, Field(discriminator="kind")
]


OTHER_SESSIONS: Final = (SessionScale, OverlapScale, ReplicateScale)
"""Scales that look at sessions, or whose copies are of others than the trace's."""


class TraceArrivals(Section):
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

    kind: Literal["trace"]
    file: Text
    format: TraceFormat | None = None
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
    def _width_with_spread(self) -> TraceArrivals:
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
