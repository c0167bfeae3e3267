"""A recorded trace as arrivals: configuration. `scenarios.traces.replay` replays it."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from scenarios.fields import Count, Duration, Number, PositiveDuration, PositiveNumber, Section, Text
from scenarios.traces.options import Repair, TraceFormat, TraceOptions, TraceUnit

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
        raise ValueError(
            f"{value!r} must be above 0, with numerator and denominator up to {LARGEST_TERM:.0e}"
        )
    return ratio


Ratio = Annotated[Fraction, BeforeValidator(_fraction), PlainSerializer(str, return_type=str)]
"""An exact ratio above 0: `1/60` in the file."""

Share = Annotated[Number, Field(gt=0, le=1)]


class ThinScale(Section):
    """Each arrival stays with probability `keep`: IDC(w) becomes 1 + keep (IDC(w) - 1)."""

    kind: Literal["thin"]
    keep: Share


class SessionScale(Section):
    """Each session stays whole with probability `keep`: what a load balancer with affinity leaves to one server."""

    kind: Literal["thin-by-session"]
    keep: Share


class OverlapScale(Section):
    """`copies` different windows of the trace at once, as of independent tenants; the trace must be long enough."""

    kind: Literal["overlap"]
    copies: Annotated[Count, Field(ge=2, le=LARGEST_COPIES)]


class ReplicateScale(Section):
    """Each arrival `copies` times, the further ones up to `jitter` later: bursts grow with the rate."""

    kind: Literal["replicate"]
    copies: Annotated[Count, Field(ge=2, le=LARGEST_COPIES)]
    jitter_ns: Duration = Field(alias="jitter")


class EnvelopeScale(Section):
    """The trace's rate per `bin`, times `factor`, with Poisson arrivals drawn anew: more of the same users."""

    kind: Literal["envelope"]
    factor: PositiveNumber
    bin_ns: PositiveDuration = Field(default=60_000_000_000, alias="bin")


RateScaleConfig = Annotated[
    ThinScale | SessionScale | OverlapScale | ReplicateScale | EnvelopeScale, Field(discriminator="kind")
]


class TraceArrivals(Section):
    """Arrivals replayed from a file; `scenarios.traces` has the formats.

    In this order: the window [start, start + length) of the file (`overlap`: several at once), loop, quantum,
    time_scale, the other rate scales.
    """

    kind: Literal["trace"]
    file: Text
    format: TraceFormat | None = None
    column: Text | None = None
    unit: TraceUnit | None = None
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
        return TraceOptions(self.format, self.unit, self.column, self.repair)
