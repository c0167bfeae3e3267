"""The greatest of a likelihood, and how sharp it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize

from squall.analysis.arrays import Floats
from squall.analysis.traces.fitted import Coordinate, Fitted, Parameter, scenario_of
from squall.scenarios.records import Frozen

_AT_BOUND = 1e-6
_STEP = 1e-3
_NO_VALUE = 1e6
"""Cost where the likelihood has no value: far above that of any that has, which are a few units per arrival."""
_OUT_OF_STEPS = 1
"""Status of L-BFGS-B at its limit of steps or evaluations; a line search that finds nothing better (2) is there."""
_OPTIONS = {"ftol": 1e-12, "gtol": 1e-7, "finite_diff_rel_step": 1e-6}


class Maximum(Frozen, eq=False):
    """The parameters where it lies, of `n` arrivals, and the likelihood there, None where it has no value.

    Standard errors are those of the free coordinates times the slopes of the parameters (delta method); a parameter at
    its bound has none. `failure`: why it is no maximum but where the search stopped; empty for one.
    """

    parameters: tuple[Parameter, ...]
    log_likelihood: float | None
    n: int
    failure: str = ""

    def fitted(self, kind: str, rate_hz: float, *known: Parameter) -> Fitted:
        """The process of that kind, with what is known of it by other means; `rate_hz`: of the whole trace."""
        parameters = (*known, *self.parameters)
        scenario = scenario_of(kind, rate_hz, parameters)
        return Fitted(kind, parameters, len(parameters), scenario, self.log_likelihood, self.n, self.failure)


def maximise(
    log_likelihood: Callable[..., float],
    coordinates: Sequence[Coordinate],
    starts: Sequence[Sequence[float]],
    n_arrivals: int,
    n_tried: int = 1,
) -> Maximum:
    """The greatest value found from the `n_tried` best of `starts`; `log_likelihood` is of values of the parameters.

    The covariance is the inverse of the observed information -d² ln L of the free coordinates, by central differences
    of 0.001 (Cox, Hinkley, Theoretical Statistics, 1974, 9.2).
    """
    bounds = [one.bounds for one in coordinates]
    low, high = np.array(bounds, np.float64).T
    scale = max(n_arrivals, 1)

    def cost(at: Floats) -> float:
        inside = np.clip(at, low, high).tolist()
        value = log_likelihood(*(one.value(x) for one, x in zip(coordinates, inside, strict=True)))
        return -value / scale if np.isfinite(value) else _NO_VALUE

    free = [[one.free(value) for one, value in zip(coordinates, start, strict=True)] for start in starts]
    ordered = sorted((np.clip(start, low, high) for start in free), key=cost)
    found = [
        optimize.minimize(cost, start, method="L-BFGS-B", jac="2-point", bounds=bounds, options=_OPTIONS)
        for start in ordered[:n_tried]
    ]
    least = min(found, key=lambda one: float(one.fun))
    best = np.clip(least.x, low, high)
    variances = np.full(best.size, np.nan)
    value: float | None = None
    failure = "its likelihood has no value at any start"
    if least.fun < _NO_VALUE:
        value = -cost(best) * scale
        failure = f"the search stopped after {least.nit} steps" if least.status == _OUT_OF_STEPS else ""
        inside = np.flatnonzero((best > low + _AT_BOUND) & (best < high - _AT_BOUND))
        information = _curvature(lambda at: cost(at) * scale, best, inside.tolist())
        if inside.size and np.all(np.linalg.eigvalsh(information) > 0):
            variances[inside] = np.linalg.inv(information).diagonal()
    parameters = []
    for one, x, variance in zip(coordinates, best.tolist(), variances.tolist(), strict=True):
        error = one.scale * one.of.slope(x) * variance**0.5 if variance > 0 else 0.0
        parameters.append(Parameter(one.name, one.value(x), error or None, one.unit))
    return Maximum(tuple(parameters), value, n_arrivals, failure)


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
