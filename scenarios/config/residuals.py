"""Short-memory processes, alone or under an envelope: configuration."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from squall.scenarios.arrivals.gaps import (
    LARGEST_GAMMA_C2,
    SMALLEST_LOMAX_ALPHA,
    HyperexponentialGaps,
    LognormalGaps,
    WeibullGaps,
    lomax_alpha,
    weibull_shape,
)
from squall.scenarios.arrivals.unit import LARGEST_HAWKES_N
from squall.scenarios.config.fields import Cv, Number, PositiveNumber, Section


class PoissonResidual(Section):
    """Independent arrivals."""

    kind: Literal["poisson"]


class GammaResidual(Section):
    """Gamma gaps, by their coefficient of variation or by the shape k = 1/cv² that vLLM calls burstiness."""

    kind: Literal["gamma"]
    cv: Cv | None = None
    burstiness: PositiveNumber | None = None

    @model_validator(mode="after")
    def _one_measure(self) -> GammaResidual:
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("needs exactly one of cv and burstiness (= 1/cv²)")
        c2 = self.cv * self.cv if self.cv is not None else 1 / (self.burstiness or 1)
        if c2 > LARGEST_GAMMA_C2:
            raise ValueError(
                f"gaps with cv² {c2:g} are above {LARGEST_GAMMA_C2:g}: such a gamma sends batches"
                " and pauses; use kind 'mmpp', 'hawkes' or 'envelope' for stronger bursts"
            )
        return self

    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps, whichever way it was given."""
        if self.cv is not None:
            return self.cv
        assert self.burstiness is not None
        return 1 / math.sqrt(self.burstiness)


class WeibullResidual(Section):
    """Weibull gaps, by their shape (below 1 is bursty) or their coefficient of variation."""

    kind: Literal["weibull"]
    shape: PositiveNumber | None = None
    cv: Cv | None = None

    @model_validator(mode="after")
    def _one_measure(self) -> WeibullResidual:
        if (self.cv is None) == (self.shape is None):
            raise ValueError("needs exactly one of shape and cv")
        WeibullGaps(self.gap_shape())  # refuses what is too heavy
        return self

    def gap_shape(self) -> float:
        """Shape, whichever way it was given. Raises ValueError where the cv has none."""
        if self.shape is not None:
            return self.shape
        assert self.cv is not None
        return weibull_shape(self.cv)


class LognormalResidual(Section):
    """Lognormal gaps; the cv is that of the gap itself, not of its logarithm."""

    kind: Literal["lognormal"]
    cv: Cv

    @model_validator(mode="after")
    def _drawable(self) -> LognormalResidual:
        LognormalGaps(self.cv)
        return self


class ParetoResidual(Section):
    """Pareto gaps from 0 (Lomax), by their tail index alpha or their cv; the cv has no value up to alpha 2."""

    kind: Literal["pareto"]
    alpha: Annotated[Number, Field(ge=SMALLEST_LOMAX_ALPHA)] | None = None
    cv: Annotated[Cv, Field(gt=1)] | None = None

    @model_validator(mode="after")
    def _one_measure(self) -> ParetoResidual:
        if (self.cv is None) == (self.alpha is None):
            raise ValueError("needs exactly one of alpha and cv")
        return self

    def gap_alpha(self) -> float:
        """Tail index, whichever way it was given."""
        if self.alpha is not None:
            return self.alpha
        assert self.cv is not None
        return lomax_alpha(self.cv)


class HyperexponentialResidual(Section):
    """One of two exponential gaps at random, of balanced means."""

    kind: Literal["hyperexponential"]
    cv: Annotated[Cv, Field(ge=1)]

    @model_validator(mode="after")
    def _drawable(self) -> HyperexponentialResidual:
        HyperexponentialGaps(self.cv)
        return self


class HawkesResidual(Section):
    """Each arrival brings `n` more on average, at rate `beta` per expected arrival."""

    kind: Literal["hawkes"]
    n: Annotated[Number, Field(ge=0, le=LARGEST_HAWKES_N)]
    beta: Annotated[Number, Field(ge=0.001)]


ResidualConfig = Annotated[
    PoissonResidual
    | GammaResidual
    | WeibullResidual
    | LognormalResidual
    | ParetoResidual
    | HyperexponentialResidual
    | HawkesResidual,
    Field(discriminator="kind"),
]
