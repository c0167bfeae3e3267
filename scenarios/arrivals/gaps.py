"""Laws of the gap between two arrivals, all of mean 1: what a renewal process is made of.

A renewal process in its stationary state begins with a gap of the equilibrium law, density 1 - F(x): that of U·G with
U uniform on [0, 1) and G the length-biased gap, density x·f(x) (Cox, Renewal Theory, 1962, section 5.3). Started with
a gap of F instead, every one of N superposed copies has an arrival near 0: a burst that nobody asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.exact import arrays, draws, scalars

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
class GammaGaps:
    """Shape k = 1/cv² (the `burstiness` of vLLM's benchmark), scale cv². Length-biased: Gamma(k + 1), same scale."""

    cv: float

    def __post_init__(self) -> None:
        _refuse_c2(self.cv * self.cv if self.cv > 0 else -1.0, 0.0)

    @property
    def c2(self) -> float:
        return self.cv * self.cv

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        gaps = draws.standard_gamma(rng, 1 / self.c2, count)
        gaps *= self.c2
        return gaps

    def first_gap(self, rng: np.random.Generator) -> float:
        longest = float(draws.standard_gamma(rng, 1 / self.c2 + 1, 1)[0]) * self.c2
        return longest * rng.random()


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
        return self._root(draws.standard_exponential(rng, count))

    def first_gap(self, rng: np.random.Generator) -> float:
        longest = self._root(draws.standard_gamma(rng, 1 + 1 / self.shape, 1))
        return float(longest[0]) * rng.random()

    def _root(self, powers: Gaps) -> Gaps:
        """s·powers^(1/k), in place."""
        np.maximum(
            powers, 2.0**-54, out=powers
        )  # half the step of an exponential draw; its logarithm is finite
        arrays.log(powers, out=powers)
        powers /= self.shape
        arrays.exp(powers, out=powers)
        powers /= scalars.gamma(1 + 1 / self.shape)
        return powers


@dataclass(frozen=True)
class LognormalGaps:
    """σ² = ln(1 + cv²), μ = -σ²/2. Length-biased: μ + σ² = σ²/2."""

    cv: float

    def __post_init__(self) -> None:
        _refuse_c2(self.cv * self.cv if self.cv > 0 else -1.0, 0.0)

    @property
    def c2(self) -> float:
        return self.cv * self.cv

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        variance = scalars.log1p(self.c2)
        return draws.lognormal(rng, -variance / 2, math.sqrt(variance), count)

    def first_gap(self, rng: np.random.Generator) -> float:
        variance = scalars.log1p(self.c2)
        return float(draws.lognormal(rng, variance / 2, math.sqrt(variance), 1)[0]) * rng.random()


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
        return self._lomax(rng, self.alpha, count)

    def first_gap(self, rng: np.random.Generator) -> float:
        return float(self._lomax(rng, self.alpha - 1, 1)[0])

    def _lomax(self, rng: np.random.Generator, index: float, count: int) -> Gaps:
        """s·(U^(-1/index) - 1)."""
        gaps = draws.standard_exponential(rng, count)
        gaps /= index
        arrays.expm1(gaps, out=gaps)
        gaps *= self.alpha - 1
        return gaps


@dataclass(frozen=True)
class HyperexponentialGaps:
    """Exponential of rate 2p with probability p, else of rate 2(1 - p): two phases of balanced means, c2 = cv² >= 1.

    p = (1 + √((c2 - 1)/(c2 + 1)))/2 (Whitt, Operations Research 30, 1982). Each phase carries half of the time, so that
    the equilibrium law is one of the two exponentials with probability 1/2 each.
    """

    cv: float

    def __post_init__(self) -> None:
        _refuse_c2(self.cv * self.cv if self.cv > 0 else -1.0, 1.0)

    @property
    def c2(self) -> float:
        return self.cv * self.cv

    @property
    def p(self) -> float:
        """Probability of the short phase."""
        return (1 + math.sqrt((self.c2 - 1) / (self.c2 + 1))) / 2

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        p = self.p
        gaps = draws.standard_exponential(rng, count)
        gaps *= np.where(rng.random(count) < p, 0.5 / p, 0.5 / (1 - p))
        return gaps

    def first_gap(self, rng: np.random.Generator) -> float:
        p = self.p
        gap = float(draws.standard_exponential(rng, 1)[0])
        return gap * (0.5 / p if rng.random() < 0.5 else 0.5 / (1 - p))


def weibull_c2(shape: float) -> float:
    """c2 = Γ(1 + 2/k)/Γ(1 + 1/k)² - 1 of a Weibull law of shape k."""
    mean = scalars.gamma(1 + 1 / shape)
    return max(0.0, scalars.gamma(1 + 2 / shape) / (mean * mean) - 1)


@lru_cache(maxsize=256)
def weibull_shape(cv: float) -> float:
    """The shape whose c2 is cv², by bisection of its logarithm: c2 falls as the shape grows."""
    _refuse_c2(cv * cv if cv > 0 else -1.0, 0.0)
    low, high = 0.05, 1e6
    for _ in range(60):  # of 24 octaves: below one part in 2⁵⁵
        middle = math.sqrt(low * high)
        low, high = (middle, high) if weibull_c2(middle) > cv * cv else (low, middle)
    return math.sqrt(low * high)


def lomax_alpha(cv: float) -> float:
    """α = 2c2/(c2 - 1), the index whose c2 is cv²; only c2 > 1 has one, and then α > 2."""
    if not (cv * cv > 1 and cv > 0):
        raise ValueError(f"pareto gaps have a cv above 1, not {cv}")
    return 2 * cv * cv / (cv * cv - 1)


SMALLEST_WEIBULL_SHAPE = 0.165
"""c2 is then about 1,000."""


def _refuse_c2(c2: float, least: float) -> None:
    if not (least <= c2 <= LARGEST_C2 and c2 > 0):
        raise ValueError(f"c2 {c2:g} of the gaps must lie in {least:g} to {LARGEST_C2:g}")
