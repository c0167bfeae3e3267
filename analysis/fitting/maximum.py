"""The greatest of a likelihood, and how sharp it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from squall.analysis.arrays import Floats

_AT_BOUND = 1e-6
_STEP = 1e-3
_NO_VALUE = 1e6
"""Cost where the likelihood has no value: far above that of any that has, which are a few units per arrival."""
_OUT_OF_STEPS = 1
"""Status of L-BFGS-B at its limit of steps or evaluations; a line search that finds nothing better (2) is there."""
_OPTIONS = {"ftol": 1e-12, "gtol": 1e-7, "finite_diff_rel_step": 1e-6}


@dataclass(frozen=True, eq=False)
class Maximum:
    """Where it lies, (p,), its value, and the standard error of each coordinate, NaN for one at its bound.

    `failure`: why it is no maximum but where the search stopped; empty for one.
    """

    at: Floats
    value: float
    covariance: Floats
    failure: str = ""

    @property
    def likelihood(self) -> float | None:
        """The value; None where there is none."""
        return self.value if np.isfinite(self.value) else None

    def stderr(self, gradient: Sequence[float]) -> float | None:
        """Standard error of a function of the coordinates with that gradient (delta method); None without one.

        A coordinate at its bound has none, and so has a function that it enters.
        """
        slope = np.asarray(gradient, np.float64)
        used = slope != 0
        variance = float(slope[used] @ self.covariance[np.ix_(used, used)] @ slope[used])
        return variance**0.5 if np.isfinite(variance) and variance > 0 else None


def maximise(
    log_likelihood: Callable[[Floats], float],
    starts: Sequence[Floats],
    bounds: Sequence[tuple[float, float]],
    n_arrivals: int,
    n_tried: int = 1,
) -> Maximum:
    """The greatest value found from the `n_tried` best of `starts`, all within `bounds`.

    Coordinates are logarithms or logits, so that a change of 1 is large. The covariance is the inverse of the
    observed information -d² ln L, by central differences of 0.001 (Cox, Hinkley, Theoretical Statistics, 1974, 9.2).
    """
    low, high = np.array(bounds, np.float64).T
    scale = max(n_arrivals, 1)

    def cost(at: Floats) -> float:
        value = log_likelihood(np.clip(at, low, high))
        return -value / scale if np.isfinite(value) else _NO_VALUE

    ordered = sorted((np.clip(start, low, high) for start in starts), key=cost)
    found = [
        optimize.minimize(cost, start, method="L-BFGS-B", jac="2-point", bounds=bounds, options=_OPTIONS)
        for start in ordered[:n_tried]
    ]
    least = min(found, key=lambda one: float(one.fun))
    best = np.clip(least.x, low, high)
    if least.fun >= _NO_VALUE:
        nothing = np.full((best.size, best.size), np.nan)
        return Maximum(best, -np.inf, nothing, "its likelihood has no value at any start")
    free = (best > low + _AT_BOUND) & (best < high - _AT_BOUND)
    failure = f"the search stopped after {least.nit} steps" if least.status == _OUT_OF_STEPS else ""
    return Maximum(best, -cost(best) * scale, _covariance(lambda at: cost(at) * scale, best, free), failure)


def _covariance(cost: Callable[[Floats], float], at: Floats, free: np.ndarray) -> Floats:
    covariance = np.full((at.size, at.size), np.nan)
    if free.any():
        information = _curvature(cost, at, np.flatnonzero(free).tolist())
        if np.all(np.linalg.eigvalsh(information) > 0):
            covariance[np.ix_(free, free)] = np.linalg.inv(information)
    return covariance


def _curvature(cost: Callable[[Floats], float], at: Floats, places: list[int]) -> Floats:
    """Second derivatives by coordinates `places`."""
    steps = np.eye(at.size)[places] * _STEP
    found = np.empty((len(places), len(places)))
    for i, one in enumerate(steps):
        for j, other in enumerate(steps[: i + 1]):
            near = cost(at + one + other) + cost(at - one - other)
            far = cost(at + one - other) + cost(at - one + other)
            found[i, j] = found[j, i] = (near - far) / (4 * _STEP**2)
    return found
