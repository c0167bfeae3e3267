"""What a phase sends: configuration of arrivals and of the rows of each request."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from scenarios.fields import Count, Duration, Number, PositiveDuration, PositiveNumber, Rate, Section, Text
from scenarios.presets import PresetName
from scenarios.processes import LARGEST_GAMMA_C2

LARGEST_USER_COUNT = 1_000_000  # of a closed loop: each is a connection in the worst case


def _refuse_large_c2(c2: float) -> None:
    if c2 > LARGEST_GAMMA_C2:
        raise ValueError(
            f"gaps with cv² {c2:g} are above {LARGEST_GAMMA_C2:g}: such a gamma sends batches and pauses;"
            " use kind 'envelope' with a hawkes residual for stronger bursts"
        )


class ConstantArrivals(Section):
    """One request every 1/rate."""

    kind: Literal["constant"]
    rate_hz: Rate = Field(alias="rate")


class PoissonArrivals(Section):
    """Independent arrivals."""

    kind: Literal["poisson"]
    rate_hz: Rate = Field(alias="rate")


class GammaArrivals(Section):
    """Gamma gaps, by their coefficient of variation or by the shape k = 1/cv² that vLLM calls burstiness."""

    kind: Literal["gamma"]
    rate_hz: Rate = Field(alias="rate")
    cv: PositiveNumber | None = None
    burstiness: PositiveNumber | None = None

    @model_validator(mode="after")
    def _one_measure(self) -> GammaArrivals:
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("needs exactly one of cv and burstiness (= 1/cv²)")
        _refuse_large_c2(self.gap_cv() ** 2)
        return self

    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps, whichever way it was given."""
        if self.cv is not None:
            return self.cv
        assert self.burstiness is not None
        return 1 / math.sqrt(self.burstiness)


class TraceArrivals(Section):
    """Arrivals replayed from a file; see `scenarios.trace` for the formats."""

    kind: Literal["trace"]
    file: Text
    unit: Literal["s", "ms", "us", "ns"] | None = None
    quantum: Literal["as-is", "spread"] = "as-is"
    quantum_width_ns: PositiveDuration | None = Field(default=None, alias="quantum_width")

    @model_validator(mode="after")
    def _width_with_spread(self) -> TraceArrivals:
        if (self.quantum == "spread") != (self.quantum_width_ns is not None):
            raise ValueError("quantum 'spread' and quantum_width, the tick of the trace, go together")
        return self


class PoissonResidual(Section):
    """Independent arrivals below the width of a bin."""

    kind: Literal["poisson"]


class GammaResidual(Section):
    """Gamma gaps on the rescaled clock."""

    kind: Literal["gamma"]
    cv: PositiveNumber

    @model_validator(mode="after")
    def _moderate(self) -> GammaResidual:
        _refuse_large_c2(self.cv**2)
        return self


class HawkesResidual(Section):
    """Each arrival brings `n` more on average, at rate `beta` per expected arrival."""

    kind: Literal["hawkes"]
    n: Annotated[Number, Field(ge=0, le=0.99)]
    beta: Annotated[Number, Field(ge=0.001)]


ResidualConfig = Annotated[PoissonResidual | GammaResidual | HawkesResidual, Field(discriminator="kind")]


class EnvelopeArrivals(Section):
    """A curve of relative rates, or the name of a fitted one, times a short-memory residual."""

    kind: Literal["envelope"]
    rate_hz: Rate = Field(alias="rate")
    preset: PresetName | None = None
    curve: tuple[Annotated[Number, Field(ge=0)], ...] | None = None
    bin_ns: PositiveDuration | None = Field(default=None, alias="bin")
    residual: ResidualConfig | None = None

    @model_validator(mode="after")
    def _one_curve(self) -> EnvelopeArrivals:
        if (self.preset is None) == (self.curve is None):
            raise ValueError("needs exactly one of preset and curve")
        if self.curve is not None:
            if self.bin_ns is None:
                raise ValueError("a curve needs bin, the width of each of its values, such as 60s")
            if not any(self.curve):
                raise ValueError("a curve needs a value above 0")
        return self


class ConstantThink(Section):
    """Every user thinks equally long; 0: the next request follows the reply at once."""

    kind: Literal["constant"] = "constant"
    value_ns: Duration = Field(default=0, alias="value")


class ExponentialThink(Section):
    """Exponential think times."""

    kind: Literal["exponential"]
    mean_ns: PositiveDuration = Field(alias="mean")


class LognormalThink(Section):
    """Lognormal think times; mean and cv are those of the time itself, not of its logarithm."""

    kind: Literal["lognormal"]
    mean_ns: PositiveDuration = Field(alias="mean")
    cv: PositiveNumber


ThinkConfig = Annotated[ConstantThink | ExponentialThink | LognormalThink, Field(discriminator="kind")]


class ClosedArrivals(Section):
    """Closed loop: each user sends, waits for the reply, thinks, and sends again.

    It has no schedule, so no response time and no send lag; see `scenarios.closed`.
    """

    kind: Literal["closed"]
    users: Annotated[Count, Field(le=LARGEST_USER_COUNT)]
    think: ThinkConfig = ConstantThink()
    ramp_ns: Duration = Field(default=0, alias="ramp")


OpenArrivals = ConstantArrivals | PoissonArrivals | GammaArrivals | TraceArrivals | EnvelopeArrivals
ArrivalsConfig = Annotated[OpenArrivals | ClosedArrivals, Field(discriminator="kind")]


class ConstantRows(Section):
    """Every request has the same number of rows."""

    kind: Literal["constant"] = "constant"
    value: Count = 1


class UniformRows(Section):
    """Whole numbers from low to high, both included, equally often."""

    kind: Literal["uniform"]
    low: Count
    high: Count

    @model_validator(mode="after")
    def _ordered(self) -> UniformRows:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class LognormalRows(Section):
    """Lognormal of this mean and cv before rounding, then held within 1 and max."""

    kind: Literal["lognormal"]
    mean: PositiveNumber
    cv: PositiveNumber
    max: Count


class ParetoRows(Section):
    """Bounded Pareto with tail index alpha, from min to max."""

    kind: Literal["pareto"]
    alpha: PositiveNumber
    min: Count = 1
    max: Count

    @model_validator(mode="after")
    def _ordered(self) -> ParetoRows:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


RowsConfig = Annotated[ConstantRows | UniformRows | LognormalRows | ParetoRows, Field(discriminator="kind")]
