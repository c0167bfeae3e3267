"""Laws of the gap between two arrivals, all of mean 1: what a renewal process is made of.

A renewal process in its stationary state begins with a gap of the equilibrium law, density 1 - F(x): that of U·G with
U uniform on [0, 1) and G the length-biased gap, density x·f(x) (Cox, Renewal Theory, 1962, section 5.3). Started with
a gap of F instead, every one of N superposed copies has an arrival near 0: a burst that nobody asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Gaps = NDArray[np.float64]

LARGEST_GAMMA_C2 = 10.0
"""Of a scenario. Above it a Gamma renewal is a batch process: at shape 0.1 a fifth of the gaps is below 1e-6 of the
mean. Recorded parameters of single clients go beyond."""
LARGEST_C2 = 1_000.0
"""Of the other laws: beyond, a gap of a million means is ordinary and no run sees the mean rate."""
SMALLEST_LOMAX_ALPHA = 1.05
"""Nearer to 1 the mean, though finite, is not reached by any sample: 1e7 gaps still miss half of it."""


class GapLaw(Protocol):
    """A positive law of mean 1."""

    @property
    def c2(self) -> float:
        """Variance, which is the squared coefficient of variation; infinite for a tail index up to 2."""

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        """Independent gaps, (count,) float64."""

    def first_gap(self, rng: np.random.Generator) -> float:
        """A gap of the equilibrium law."""


@dataclass(frozen=True)
class ExponentialGaps:
    """F(x) = 1 - e^-x: the gaps of a Poisson process."""

    @property
    def c2(self) -> float:
        return 1.0

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        return rng.standard_exponential(count)

    def first_gap(self, rng: np.random.Generator) -> float:
        return rng.standard_exponential()


@dataclass(frozen=True)
class GammaGaps:
    """Shape k = 1/cv² (the `burstiness` of vLLM's benchmark), scale cv². Length-biased: Gamma(k + 1), same scale."""

    cv: float

    def __post_init__(self) -> None:
        _refuse_c2(self.cv**2 if self.cv > 0 else -1.0, 0.0)

    @property
    def c2(self) -> float:
        return self.cv**2

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        return rng.gamma(1 / self.c2, self.c2, count)

    def first_gap(self, rng: np.random.Generator) -> float:
        return rng.gamma(1 / self.c2 + 1, self.c2) * rng.random()


@dataclass(frozen=True)
class WeibullGaps:
    """F(x) = 1 - exp(-(x/s)^k), s = 1/Γ(1 + 1/k); k < 1 is bursty. (x/s)^k is Exp(1); length-biased: Gamma(1 + 1/k)."""

    shape: float

    def __post_init__(self) -> None:
        if not (self.shape >= SMALLEST_WEIBULL_SHAPE):
            raise ValueError(
                f"a weibull shape of {self.shape} is below {SMALLEST_WEIBULL_SHAPE} (c2 {LARGEST_C2:g})"
            )

    @property
    def c2(self) -> float:
        return weibull_c2(self.shape)

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        return rng.weibull(self.shape, count) / math.gamma(1 + 1 / self.shape)

    def first_gap(self, rng: np.random.Generator) -> float:
        longest = rng.standard_gamma(1 + 1 / self.shape) ** (1 / self.shape)
        return float(longest / math.gamma(1 + 1 / self.shape) * rng.random())


@dataclass(frozen=True)
class LognormalGaps:
    """σ² = ln(1 + cv²), μ = -σ²/2. Length-biased: μ + σ² = σ²/2."""

    cv: float

    def __post_init__(self) -> None:
        _refuse_c2(self.cv**2 if self.cv > 0 else -1.0, 0.0)

    @property
    def c2(self) -> float:
        return self.cv**2

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        variance = math.log1p(self.c2)
        return rng.lognormal(-variance / 2, math.sqrt(variance), count)

    def first_gap(self, rng: np.random.Generator) -> float:
        variance = math.log1p(self.c2)
        return rng.lognormal(variance / 2, math.sqrt(variance)) * rng.random()


@dataclass(frozen=True)
class LomaxGaps:
    """Pareto of the second kind from 0: F(x) = 1 - (1 + x/s)^-α, s = α - 1; c2 = α/(α - 2) where α > 2, else infinite.

    The equilibrium law is Lomax of index α - 1 and the same s, since ∫(1 + x/s)^-α dx = (1 + x/s)^-(α-1).
    """

    alpha: float

    def __post_init__(self) -> None:
        if not (SMALLEST_LOMAX_ALPHA <= self.alpha < math.inf):
            raise ValueError(f"a pareto tail index of {self.alpha} is below {SMALLEST_LOMAX_ALPHA}")

    @property
    def c2(self) -> float:
        return self.alpha / (self.alpha - 2) if self.alpha > 2 else math.inf

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        return rng.pareto(self.alpha, count) * (self.alpha - 1)

    def first_gap(self, rng: np.random.Generator) -> float:
        return rng.pareto(self.alpha - 1) * (self.alpha - 1)


@dataclass(frozen=True)
class HyperexponentialGaps:
    """Exponential of rate 2p with probability p, else of rate 2(1 - p): two phases of balanced means, c2 = cv² >= 1.

    p = (1 + √((c2 - 1)/(c2 + 1)))/2 (Whitt, Operations Research 30, 1982). Each phase carries half of the time, so that
    the equilibrium law is one of the two exponentials with probability 1/2 each.
    """

    cv: float

    def __post_init__(self) -> None:
        _refuse_c2(self.cv**2 if self.cv > 0 else -1.0, 1.0)

    @property
    def c2(self) -> float:
        return self.cv**2

    @property
    def p(self) -> float:
        """Probability of the short phase."""
        return (1 + math.sqrt((self.c2 - 1) / (self.c2 + 1))) / 2

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        p = self.p
        gaps = rng.standard_exponential(count)
        gaps *= np.where(rng.random(count) < p, 0.5 / p, 0.5 / (1 - p))
        return gaps

    def first_gap(self, rng: np.random.Generator) -> float:
        p = self.p
        return rng.standard_exponential() * (0.5 / p if rng.random() < 0.5 else 0.5 / (1 - p))


def weibull_c2(shape: float) -> float:
    """c2 = Γ(1 + 2/k)/Γ(1 + 1/k)² - 1 of a Weibull law of shape k."""
    return max(0.0, math.expm1(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)))


def weibull_shape(cv: float) -> float:
    """The shape whose c2 is cv², by bisection on its logarithm: c2 falls as the shape grows."""
    _refuse_c2(cv**2 if cv > 0 else -1.0, 0.0)
    low, high = math.log(0.05), math.log(1e6)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if weibull_c2(math.exp(middle)) > cv**2 else (low, middle)
    return math.exp((low + high) / 2)


def lomax_alpha(cv: float) -> float:
    """α = 2c2/(c2 - 1), the index whose c2 is cv²; only c2 > 1 has one, and then α > 2."""
    if not (cv**2 > 1 and cv > 0):
        raise ValueError(f"pareto gaps have a cv above 1, not {cv}")
    return 2 * cv**2 / (cv**2 - 1)


SMALLEST_WEIBULL_SHAPE = 0.165
"""c2 is then about 1,000."""


def _refuse_c2(c2: float, least: float) -> None:
    if not (least <= c2 <= LARGEST_C2 and c2 > 0):
        raise ValueError(f"c2 {c2:g} of the gaps must lie in {least:g} to {LARGEST_C2:g}")
