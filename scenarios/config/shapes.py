"""Shapes of an envelope, and how long sources stay ON and OFF: configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from squall.scenarios.arrivals.gaps import SMALLEST_LOMAX_ALPHA
from squall.scenarios.arrivals.random_paths import LARGEST_SIGMA
from squall.scenarios.config.fields import Duration, Number, PositiveDuration, Section
from squall.scenarios.config.trace import TraceArrivals

LARGEST_POINT_COUNT = 100_000
LARGEST_LEVEL = 1e12
SMALLEST_LEVEL = 1e-12


def _in_range(level: float) -> float:
    """Levels only count against each other; outside this range their integral would leave float64."""
    if level and not SMALLEST_LEVEL <= level <= LARGEST_LEVEL:
        raise ValueError(f"{level:g} must be 0 or lie in {SMALLEST_LEVEL:g} to {LARGEST_LEVEL:g}")
    return level


Level = Annotated[Number, Field(ge=0), AfterValidator(_in_range)]
"""A rate against the others of its curve, 0 or more."""


class Point(Section):
    """A level at an instant of the phase."""

    at_ns: Duration = Field(alias="at")
    level: Level


class PiecewiseShape(Section):
    """Levels at instants, linear between them; two points at one instant make a jump."""

    kind: Literal["piecewise"]
    points: Annotated[tuple[Point, ...], Field(min_length=1, max_length=LARGEST_POINT_COUNT)]

    @model_validator(mode="after")
    def _rising(self) -> PiecewiseShape:
        times = [point.at_ns for point in self.points]
        if times != sorted(times):
            raise ValueError("the points must rise in time")
        return self


class RampShape(Section):
    """Linear from one level to another, over a time or the whole phase; then it stays."""

    kind: Literal["ramp"]
    begin: Level = Field(alias="from")
    end: Level = Field(alias="to")
    over_ns: PositiveDuration | None = Field(default=None, alias="over")


class StepShape(Section):
    """Level 1, from `at` on `factor`."""

    kind: Literal["step"]
    at_ns: Duration = Field(alias="at")
    factor: Level


class SpikeShape(Section):
    """Level 1, and `factor` for `width` from `at` on."""

    kind: Literal["spike"]
    at_ns: Duration = Field(alias="at")
    width_ns: PositiveDuration = Field(alias="width")
    factor: Level


class PulsesShape(Section):
    """Level 1, and `factor` for `width` at the end of every `period`."""

    kind: Literal["pulses"]
    factor: Level
    width_ns: PositiveDuration = Field(alias="width")
    period_ns: PositiveDuration = Field(alias="period")

    @model_validator(mode="after")
    def _shorter(self) -> PulsesShape:
        if self.width_ns >= self.period_ns:
            raise ValueError("width must be shorter than period")
        return self


class DiurnalShape(Section):
    """1 + (peak - 1)·cos: `peak` times the mean at `peak_at` and every `period` after."""

    kind: Literal["diurnal"]
    peak: Annotated[Number, Field(ge=1, le=2)]
    peak_at_ns: Duration = Field(default=0, alias="peak_at")
    period_ns: PositiveDuration = Field(alias="period")


class LogAr1Shape(Section):
    """A random level per bin: its logarithm an AR(1) series of standard deviation sigma and time constant tau."""

    kind: Literal["log-ar1"]
    sigma: Annotated[Number, Field(gt=0, le=LARGEST_SIGMA)]
    tau_ns: PositiveDuration = Field(alias="tau")
    bin_ns: PositiveDuration = Field(alias="bin")


class FgnShape(Section):
    """A random level per bin: its logarithm fractional Gaussian noise of standard deviation sigma."""

    kind: Literal["fgn"]
    sigma: Annotated[Number, Field(gt=0, le=LARGEST_SIGMA)]
    hurst: Annotated[Number, Field(gt=0, lt=1)]
    bin_ns: PositiveDuration = Field(alias="bin")


class TraceShape(TraceArrivals):
    """The trace's own rate per bin."""

    bin_ns: PositiveDuration = Field(default=60_000_000_000, alias="bin")


ShapeConfig = Annotated[
    PiecewiseShape
    | RampShape
    | StepShape
    | SpikeShape
    | PulsesShape
    | DiurnalShape
    | LogAr1Shape
    | FgnShape
    | TraceShape,
    Field(discriminator="kind"),
]


class ExponentialSojourn(Section):
    """Exponential lengths."""

    kind: Literal["exponential"]
    mean_ns: PositiveDuration = Field(alias="mean")


class ParetoSojourn(Section):
    """Pareto lengths of tail index alpha: below 2 the traffic of many sources is self-similar."""

    kind: Literal["pareto"]
    mean_ns: PositiveDuration = Field(alias="mean")
    alpha: Annotated[Number, Field(ge=SMALLEST_LOMAX_ALPHA)]


Sojourn = Annotated[ExponentialSojourn | ParetoSojourn, Field(discriminator="kind")]
