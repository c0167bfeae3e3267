"""What a phase sends: configuration of its arrivals. `squall.scenarios.plan.build` makes the processes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from squall.scenarios.arrivals.gaps import LARGEST_GAMMA_C2
from squall.scenarios.arrivals.presets import ClientPresetName, PresetName
from squall.scenarios.arrivals.process import SMALLEST_CLIENT_CV
from squall.scenarios.arrivals.random_paths import LARGEST_SIGMA, MarkovPath
from squall.scenarios.arrivals.unit import LARGEST_HAWKES_N
from squall.scenarios.config.fields import Count, Cv, Duration, Number, PositiveDuration, Rate, Section
from squall.scenarios.config.residuals import (
    GammaResidual,
    HyperexponentialResidual,
    LognormalResidual,
    ParetoResidual,
    PoissonResidual,
    ResidualConfig,
    WeibullResidual,
)
from squall.scenarios.config.shapes import LARGEST_LEVEL, Level, ShapeConfig, Sojourn
from squall.scenarios.config.trace import TraceArrivals
from squall.scenarios.units import NS_PER_S

LARGEST_USER_COUNT = 1_000_000  # of a closed loop: each is a connection in the worst case
LARGEST_CLIENT_COUNT = 100_000
LARGEST_STATE_COUNT = 16
LARGEST_ZIPF = 20.0  # beyond, the second client has a millionth of the rate
LARGEST_PART_COUNT = 1_000


class ConstantArrivals(Section):
    """One request every 1/rate."""

    kind: Literal["constant"]
    rate_hz: Rate = Field(alias="rate")


class PoissonArrivals(PoissonResidual):
    """Independent arrivals."""

    rate_hz: Rate = Field(alias="rate")


class GammaArrivals(GammaResidual):
    """Renewal process of gamma gaps."""

    rate_hz: Rate = Field(alias="rate")


class WeibullArrivals(WeibullResidual):
    """Renewal process of Weibull gaps."""

    rate_hz: Rate = Field(alias="rate")


class LognormalArrivals(LognormalResidual):
    """Renewal process of lognormal gaps."""

    rate_hz: Rate = Field(alias="rate")


class ParetoArrivals(ParetoResidual):
    """Renewal process of Pareto gaps."""

    rate_hz: Rate = Field(alias="rate")


class HyperexponentialArrivals(HyperexponentialResidual):
    """Renewal process of hyper-exponential gaps."""

    rate_hz: Rate = Field(alias="rate")


class HawkesArrivals(Section):
    """Self-exciting: each arrival brings `n` more on average, the delays exponential of rate `beta`."""

    kind: Literal["hawkes"]
    rate_hz: Rate = Field(alias="rate")
    preset: PresetName | None = None
    n: Annotated[Number, Field(ge=0, le=LARGEST_HAWKES_N)] | None = None
    beta_hz: Rate | None = Field(default=None, alias="beta")

    @model_validator(mode="after")
    def _one_source(self) -> HawkesArrivals:
        given = (self.n is not None, self.beta_hz is not None)
        if (self.preset is None and not all(given)) or (self.preset is not None and any(given)):
            raise ValueError("needs n and beta, or a preset")
        return self


class MmppState(Section):
    """A state of an MMPP: its rate relative to the other states', and how long it lasts on average."""

    level: Level
    stay_ns: PositiveDuration = Field(alias="stay")


class MmppArrivals(Section):
    """Markov-modulated Poisson: two states by peak, base and tau, or any number by states and jumps, or a preset."""

    kind: Literal["mmpp"]
    rate_hz: Rate = Field(alias="rate")
    preset: PresetName | None = None
    peak: Annotated[Number, Field(gt=1, le=LARGEST_LEVEL)] | None = None
    base: Annotated[Number, Field(ge=0, lt=1)] | None = None
    tau_ns: PositiveDuration | None = Field(default=None, alias="tau")
    states: Annotated[tuple[MmppState, ...], Field(min_length=2, max_length=LARGEST_STATE_COUNT)] | None = (
        None
    )
    jumps: tuple[tuple[Annotated[Number, Field(ge=0, le=1)], ...], ...] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> MmppArrivals:
        two = [self.peak is not None, self.base is not None, self.tau_ns is not None]
        forms = [self.preset is not None, any(two), self.states is not None]
        if sum(forms) != 1 or (any(two) and not all(two)):
            raise ValueError("needs exactly one of: preset; peak, base and tau; states")
        if self.jumps is not None and self.states is None:
            raise ValueError("jumps need states")
        if self.states is not None and self.jumps is None and len(self.states) > 2:
            raise ValueError(
                "more than two states need jumps: for each state the probability of each next one"
            )
        if self.states is not None:
            self.chain()
        return self

    def chain(self) -> MarkovPath:
        """The rate that states and jumps describe. Raises ValueError where they are no chain with one mean."""
        assert self.states is not None
        levels = tuple(state.level for state in self.states)
        stays = tuple(float(state.stay_ns) for state in self.states)
        return MarkovPath(levels, stays, self.jumps if self.jumps is not None else ((0.0, 1.0), (1.0, 0.0)))


class OnOffArrivals(Section):
    """The superposition of many sources that are ON or OFF, each with Poisson arrivals while ON."""

    kind: Literal["on-off"]
    rate_hz: Rate = Field(alias="rate")
    sources: Annotated[Count, Field(le=LARGEST_CLIENT_COUNT)] = 1
    on: Sojourn
    off: Sojourn


class FgnArrivals(Section):
    """Poisson arrivals whose log-rate is fractional Gaussian noise: self-similar, of a Hurst index."""

    kind: Literal["fgn"]
    rate_hz: Rate = Field(alias="rate")
    preset: PresetName | None = None
    hurst: Annotated[Number, Field(gt=0, lt=1)] | None = None
    sigma: Annotated[Number, Field(gt=0, le=LARGEST_SIGMA)] | None = None
    bin_ns: PositiveDuration = Field(default=1_000_000_000, alias="bin")

    @model_validator(mode="after")
    def _one_source(self) -> FgnArrivals:
        given = (self.hurst is not None, self.sigma is not None)
        if (self.preset is None and not all(given)) or (self.preset is not None and any(given)):
            raise ValueError("needs hurst and sigma, or a preset")
        return self


class BModelArrivals(Section):
    """Poisson arrivals under a cascade that splits each interval bias : 1 - bias, down to pieces of `bin`."""

    kind: Literal["b-model"]
    rate_hz: Rate = Field(alias="rate")
    preset: PresetName | None = None
    bias: Annotated[Number, Field(ge=0.5, lt=1)] | None = None
    bin_ns: PositiveDuration = Field(default=1_000_000_000, alias="bin")

    @model_validator(mode="after")
    def _one_source(self) -> BModelArrivals:
        if (self.preset is None) == (self.bias is None):
            raise ValueError("needs exactly one of bias and preset")
        return self


class EnvelopeArrivals(Section):
    """A rate curve, a shape or the name of a fitted one, times a short-memory residual."""

    kind: Literal["envelope"]
    rate_hz: Rate = Field(alias="rate")
    preset: PresetName | None = None
    curve: tuple[Level, ...] | None = None
    bin_ns: PositiveDuration | None = Field(default=None, alias="bin")
    shape: ShapeConfig | None = None
    residual: ResidualConfig | None = None

    @model_validator(mode="after")
    def _one_curve(self) -> EnvelopeArrivals:
        if sum(source is not None for source in (self.preset, self.curve, self.shape)) != 1:
            raise ValueError("needs exactly one of preset, curve and shape")
        if self.curve is not None:
            if self.bin_ns is None:
                raise ValueError("a curve needs bin, the width of each of its values, such as 60s")
            if not any(self.curve):
                raise ValueError("a curve needs a value above 0")
        if self.shape is not None and self.bin_ns is not None:
            raise ValueError("bin is for a curve or a preset; a shape has its own times")
        return self


class ClientsArrivals(Section):
    """Many clients with Zipf shares of the rate, each a renewal process of gamma gaps with a cv of its own."""

    kind: Literal["clients"]
    rate_hz: Rate = Field(alias="rate")
    preset: ClientPresetName | None = None
    clients: Annotated[Count, Field(le=LARGEST_CLIENT_COUNT)] | None = None
    zipf: Annotated[Number, Field(ge=0, le=LARGEST_ZIPF)] | None = None
    cv: Annotated[Cv, Field(ge=SMALLEST_CLIENT_CV)] | None = None
    cv_sigma: Annotated[Number, Field(ge=0, le=LARGEST_SIGMA)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ClientsArrivals:
        given = (self.clients is not None, self.zipf is not None, self.cv is not None)
        has_any = any(given) or self.cv_sigma is not None
        if (self.preset is None and not all(given)) or (self.preset is not None and has_any):
            raise ValueError("needs clients, zipf and cv, or a preset")
        if self.cv is not None and self.cv * self.cv > LARGEST_GAMMA_C2:
            raise ValueError(f"cv² {self.cv * self.cv:g} is above {LARGEST_GAMMA_C2:g}")
        return self


class TicksArrivals(Section):
    """A Poisson number of requests at once, every period."""

    kind: Literal["ticks"]
    rate_hz: Rate = Field(alias="rate")
    period_ns: PositiveDuration = Field(alias="period")


class SuperposeArrivals(Section):
    """All parts at once, independent of each other."""

    kind: Literal["superpose"]
    parts: Annotated[tuple[OpenPart, ...], Field(min_length=1, max_length=LARGEST_PART_COUNT)]


class ConcatenatedPart(Section):
    """A part of a concatenation."""

    duration_ns: PositiveDuration = Field(alias="duration")
    arrivals: OpenPart


class ConcatenateArrivals(Section):
    """One part after the other; the last goes on to the end of the phase."""

    kind: Literal["concatenate"]
    parts: Annotated[tuple[ConcatenatedPart, ...], Field(min_length=1, max_length=LARGEST_PART_COUNT)]


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
    cv: Cv


ThinkConfig = Annotated[ConstantThink | ExponentialThink | LognormalThink, Field(discriminator="kind")]


class ClosedArrivals(Section):
    """Closed loop: each user sends, waits for the reply, thinks, and sends again.

    It has no schedule, so no response time and no send lag; see `squall.scenarios.plan.closed`.
    """

    kind: Literal["closed"]
    users: Annotated[Count, Field(le=LARGEST_USER_COUNT)]
    think: ThinkConfig = ConstantThink()
    ramp_ns: Duration = Field(default=0, alias="ramp")


class LocustArrivals(Section):
    """What the users of `load.locust` send, who wait for their replies; a phase need not state it."""

    kind: Literal["locust"]


UserArrivals = ClosedArrivals | LocustArrivals
"""Of users who wait for their replies: there is no schedule."""


OpenArrivals = (
    ConstantArrivals
    | PoissonArrivals
    | GammaArrivals
    | WeibullArrivals
    | LognormalArrivals
    | ParetoArrivals
    | HyperexponentialArrivals
    | MmppArrivals
    | OnOffArrivals
    | HawkesArrivals
    | FgnArrivals
    | BModelArrivals
    | EnvelopeArrivals
    | ClientsArrivals
    | TicksArrivals
    | TraceArrivals
    | SuperposeArrivals
    | ConcatenateArrivals
)
OpenPart = Annotated[OpenArrivals, Field(discriminator="kind")]
ArrivalsConfig = Annotated[OpenArrivals | ClosedArrivals | LocustArrivals, Field(discriminator="kind")]

for _section in (SuperposeArrivals, ConcatenatedPart, ConcatenateArrivals):
    _section.model_rebuild()


def expected_count(config: OpenArrivals, horizon_ns: int) -> float:
    """Arrivals in [0, horizon_ns) by the stated rates; a trace states none and counts 0."""
    match config:
        case SuperposeArrivals():
            return sum(expected_count(part, horizon_ns) for part in config.parts)
        case ConcatenateArrivals():
            total, left_ns = 0.0, horizon_ns
            for stretch in config.parts[:-1]:
                total += expected_count(stretch.arrivals, min(left_ns, stretch.duration_ns))
                left_ns = max(left_ns - stretch.duration_ns, 0)
            return total + expected_count(config.parts[-1].arrivals, left_ns)
        case TraceArrivals():
            return 0.0
        case _:
            return config.rate_hz * (horizon_ns / NS_PER_S)
