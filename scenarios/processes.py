"""Point processes of rate 1 on a unitless axis: the randomness that `arrivals` and `envelope` scale.

One unit of the axis is one expected arrival, so every process here has mean count exactly `length`
on [0, length). All start in their stationary state: N superposed copies show no burst at 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]

LARGEST_GAMMA_C2 = 10.0
"""Above it a Gamma renewal is a batch process: at shape 0.1 a fifth of the gaps is below 1e-6 of the mean."""

_BURN_IN_MISSED = 1e-9


class UnitProcess(Protocol):
    """A stationary point process of rate 1."""

    def points(self, rng: np.random.Generator, length: float) -> Points:
        """Points in [0, length), (n,) float64, sorted; empty for length 0."""


@dataclass(frozen=True)
class UnitPoisson:
    """Independent arrivals: c2 of gaps 1, IDC 1 at every window."""

    def points(self, rng: np.random.Generator, length: float) -> Points:
        """Exact: a Poisson count, placed independently and uniformly."""
        return np.sort(rng.random(rng.poisson(length)) * length)


@dataclass(frozen=True)
class UnitGamma:
    """Renewal process with Gamma gaps of mean 1 and coefficient of variation `cv`.

    Shape k = 1/cv² (the `burstiness` of vLLM's benchmark), scale cv². The first gap follows the
    equilibrium law 1 - F(x): it is U·G with U uniform on [0, 1) and G length-biased, and a
    length-biased Gamma(k) is Gamma(k + 1) of the same scale (Cox, Renewal Theory, 1962, section 5.3).
    """

    cv: float

    def __post_init__(self) -> None:
        if not (self.cv > 0 and self.cv**2 <= LARGEST_GAMMA_C2):
            raise ValueError(
                f"cv {self.cv} gives c2 {self.cv**2:g}, allowed is above 0 up to {LARGEST_GAMMA_C2:g}"
            )

    def points(self, rng: np.random.Generator, length: float) -> Points:
        """Gaps drawn in blocks until they pass `length`."""
        c2 = self.cv**2
        blocks = [np.array([rng.gamma(1 / c2 + 1, c2) * rng.random()])]
        reached = float(blocks[0][0])
        while reached < length:
            missing = length - reached
            gaps = rng.gamma(1 / c2, c2, int(missing + 4 * math.sqrt(c2 * missing)) + 16)
            blocks.append(reached + np.cumsum(gaps))
            reached = float(blocks[-1][-1])
        points = np.concatenate(blocks)
        return points[: np.searchsorted(points, length)]


@dataclass(frozen=True)
class UnitHawkes:
    """Self-exciting process: each arrival brings `n` further ones on average, at Exp(`beta`) delays.

    Intensity 1 - n + n·beta·Σ exp(-beta(t - t_i)); `beta` is per expected arrival. IDC(∞) = 1/(1-n)²
    (Hawkes, Biometrika 58, 1971; the branching form is Hawkes and Oakes, J. Appl. Prob. 11, 1974).
    """

    n: float
    beta: float

    def __post_init__(self) -> None:
        if not (0 <= self.n <= 0.99 and self.beta >= 1e-3):
            raise ValueError(
                f"hawkes needs 0 <= n <= 0.99 and beta >= 0.001, not n={self.n}, beta={self.beta}"
            )

    def points(self, rng: np.random.Generator, length: float) -> Points:
        """Roots at rate 1 - n from `-burn_in` on, then generation after generation of their children."""
        start = -self.burn_in()
        roots = rng.poisson((1 - self.n) * (length - start))
        generation = start + rng.random(roots) * (length - start)
        generations = [generation]
        while generation.size:
            parents = np.repeat(generation, rng.poisson(self.n, generation.size))
            generation = parents + rng.exponential(1 / self.beta, parents.size)
            generation = generation[generation < length]
            generations.append(generation)
        points = np.concatenate(generations)
        return np.sort(points[points >= 0])

    def burn_in(self) -> float:
        """Length before 0 after which fewer than 1e-9 arrivals are missed in expectation.

        The descendants of a root at 0 have intensity n·beta·exp(-k·u) at u, with k = beta(1-n) (the
        resolvent of the kernel). Roots before -B therefore leave, after 0,
        (1-n) ∫_B^∞ ∫_s^∞ n·beta·exp(-k·u) du ds = (n/k)·exp(-k·B).
        """
        k = self.beta * (1 - self.n)
        return max(0.0, math.log(self.n / k / _BURN_IN_MISSED) / k) if self.n else 0.0
