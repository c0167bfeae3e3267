"""What every fit gives: the parameters, how sure they are, and the process to draw from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Floats
from squall.scenarios.arrivals.kinds import OpenArrivals, SuperposeArrivals
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S, format_duration

MOST_FITTED = 200_000
"""Arrivals beyond which a likelihood is taken over excerpts of the series that hold about as many."""
N_EXCERPTS = 8


class Excerpt(Frozen, eq=False):
    """Sorted points, (n,) float64, in [0, length), in seconds or in expected arrivals."""

    points: Floats
    length: float


class Transform(NamedTuple):
    """A growing map from free coordinates, logarithms or logits, so that a change of 1 is large; its inverse and its
    derivative."""

    value: Callable[[float], float]
    free: Callable[[float], float]
    slope: Callable[[float], float]


def logit(p: float) -> float:
    """ln(p/(1 - p))."""
    return math.log(p / (1 - p))


def logistic(x: float) -> float:
    """The p whose logit is x."""
    return 1 / (1 + math.exp(-x))


PLAIN = Transform(float, float, lambda _: 1.0)
LOG = Transform(math.exp, math.log, math.exp)
LOGIT = Transform(logistic, logit, lambda x: logistic(x) * (1 - logistic(x)))
ABOVE_1 = Transform(lambda x: 1 + math.exp(x), lambda value: math.log(value - 1), math.exp)


class Coordinate(Frozen):
    """A parameter as a search moves it: `scale` times what `of` makes of a free coordinate, which lies between the
    `low` and the `high` of that."""

    name: str
    of: Transform
    low: float
    high: float
    unit: str = ""
    scale: float = 1.0

    def value(self, x: float) -> float:
        """The parameter at a free coordinate."""
        return self.scale * self.of.value(x)

    def free(self, value: float) -> float:
        """The free coordinate of a value of the parameter."""
        return self.of.free(value / self.scale)

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the free coordinate."""
        return self.of.free(self.low), self.of.free(self.high)


class Parameter(Frozen):
    """An estimate. `stderr` is None where the estimate lies at a bound of what is allowed, or was not estimated."""

    name: str
    value: float
    stderr: float | None
    unit: str = ""

    @property
    def stated(self) -> object:
        """The value as a scenario file has it."""
        match self.unit:
            case "s":
                return time_text(self.value)
            case "1/s":
                return rate_text(self.value)
            case _:
                return rounded(self.value)


class Fitted(Frozen, eq=False):
    """A process with its estimated parameters.

    `scenario` is the mapping that a scenario file holds as `arrivals`, from which it is drawn. It has the rate
    of the trace, n/span, so that every process sends what the trace sent; the parameter `rate` may differ a little.
    `failure`: why the parameters are no estimate but where the search stopped; empty for an estimate.
    `log_likelihood` is over `n_fitted` arrivals, in seconds; None without a likelihood.
    """

    name: str
    parameters: tuple[Parameter, ...]
    n_parameters: int
    scenario: Mapping[str, Any]
    log_likelihood: float | None = None
    n_fitted: int = 0
    failure: str = ""

    @property
    def arrivals(self) -> OpenArrivals:
        """The process."""
        return arrivals_of(self.scenario)

    @property
    def aic_per_arrival(self) -> float | None:
        """(2k - 2 ln L)/n (Akaike, IEEE Trans. Automatic Control 19, 1974)."""
        return self._per_arrival(2.0)

    @property
    def bic_per_arrival(self) -> float | None:
        """(k ln n - 2 ln L)/n (Schwarz, Annals of Statistics 6, 1978)."""
        return self._per_arrival(math.log(max(self.n_fitted, 1)))

    def _per_arrival(self, charge: float) -> float | None:
        """With that charge for each parameter."""
        if self.log_likelihood is None:
            return None
        return (charge * self.n_parameters - 2 * self.log_likelihood) / self.n_fitted


def scenario_of(kind: str, rate_hz: float, parameters: Iterable[Parameter], **more: object) -> dict[str, Any]:
    """`arrivals` of a scenario file; `rate_hz`: of the whole trace, in place of the parameter."""
    stated = {one.name: one.stated for one in parameters if one.name != "rate"}
    return {"kind": kind, "rate": rate_text(rate_hz), **stated, **more}


def arrivals_of(scenario: Mapping[str, Any]) -> OpenArrivals:
    """The process that an `arrivals` section of a scenario file describes."""
    return SuperposeArrivals.model_validate({"kind": "superpose", "parts": [scenario]}).parts[0]


class Span(Frozen):
    """Rows [first, last) of a series and the time [start_ns, end_ns) that they fill."""

    first: int
    last: int
    start_ns: int
    end_ns: int


def spans_of(times_ns: NDArray[np.int64], end_ns: int, most: int = MOST_FITTED) -> list[Span]:
    """The whole series; of more than `most` arrivals, 8 excerpts of it, evenly placed, that hold about `most`."""
    n = times_ns.size
    if n <= most:
        return [Span(0, n, 0, end_ns)]
    each = most // N_EXCERPTS
    firsts = np.linspace(0, n - each - 1, N_EXCERPTS).astype(np.int64)
    return [Span(f, f + each, int(times_ns[f]), int(times_ns[f + each])) for f in firsts.tolist()]


def excerpts_of(times_ns: NDArray[np.int64], end_ns: int, most: int = MOST_FITTED) -> tuple[Excerpt, ...]:
    """The series in seconds, or 8 excerpts of it that each begin anew at 0. Equal instants are `parted`."""
    return tuple(
        Excerpt(
            (parted(times_ns[s.first : s.last]) - s.start_ns) / NS_PER_S, (s.end_ns - s.start_ns) / NS_PER_S
        )
        for s in spans_of(times_ns, end_ns, most)
    )


def parted(times_ns: NDArray[np.int64]) -> Floats:
    """Sorted instants, in ns, with equal ones moved apart inside the finest step of the series.

    A continuous law gives equal instants the probability 0 and some densities are infinite at a gap of 0: k equal
    ones are placed at 0, 1/k … (k-1)/k of the step between the two closest distinct instants.
    """
    times = times_ns.astype(np.float64)
    gaps = np.diff(times_ns)
    if times.size < 2 or gaps.all():
        return times
    moved = gaps[gaps > 0]
    step = float(moved.min()) if moved.size else 1.0
    firsts = np.flatnonzero(np.diff(times_ns, prepend=times_ns[0] - 1))
    sizes = np.repeat(np.diff(firsts, append=times.size), np.diff(firsts, append=times.size))
    places = np.arange(times.size) - np.repeat(firsts, np.diff(firsts, append=times.size))
    parted_times: Floats = times + places / sizes * step
    return parted_times


def rate_text(rate_hz: float) -> str:
    """As a scenario file has it, 6 digits."""
    return f"{rate_hz:.6g}/s"


def time_text(seconds: float) -> str:
    """As a scenario file has it, 4 digits."""
    return format_duration(max(1, round(rounded(seconds) * NS_PER_S)))


def rounded(value: float) -> float:
    """To 4 digits, as a scenario file has it."""
    return float(f"{value:.4g}")
