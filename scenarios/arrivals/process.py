"""When requests arrive: the protocol, and the processes in time that unit processes and rate paths make up.

No clock and no sleep: an arrival process turns a generator and a horizon into absolute offsets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrivals.gaps import LARGEST_GAMMA_C2, GammaGaps
from squall.scenarios.arrivals.rate_paths import LARGEST_PATH, RatePath
from squall.scenarios.arrivals.unit import CHUNK, UnitProcess, gamma_renewals
from squall.scenarios.exact import arrays, draws
from squall.scenarios.units import NS_PER_S, digits_text

Offsets = NDArray[np.int64]
Rates = NDArray[np.float64]

MOST_DRAWN = 110_000_000
"""Arrivals of one draw, a tenth above what a phase may have: more would fill the memory before it is refused."""


class Arrivals(Protocol):
    """An open-loop arrival process over a phase; t = 0 is the start of the phase."""

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        """Arrivals in [0, horizon_ns), (n,) int64, sorted, ties allowed."""

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        """Intended rate at `t_ns` (0 or more), same shape."""

    def expected_count(self, t_ns: int) -> float:
        """Expected arrivals in [0, t_ns)."""


@dataclass(frozen=True)
class Constant:
    """One arrival every 1/rate, the first at 0; the generator is not used."""

    rate_hz_mean: float

    def __post_init__(self) -> None:
        _refuse_bad_rate(self.rate_hz_mean)

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        """Arrival i at floor(i · 1e9 / rate)."""
        del rng
        _refuse_many(self.expected_count(horizon_ns))
        count = math.ceil(self.expected_count(horizon_ns)) + 1
        points = np.arange(count, dtype=np.float64)
        points *= float(NS_PER_S)
        with np.errstate(over="ignore"):  # of a rate so low that the second point is beyond every float
            points /= self.rate_hz_mean
        offsets = floor_in_place(points[: np.searchsorted(points, float(horizon_ns))])
        return offsets[: np.searchsorted(offsets, horizon_ns)]

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        return np.full(np.shape(t_ns), self.rate_hz_mean)

    def expected_count(self, t_ns: int) -> float:
        return self.rate_hz_mean * (t_ns / NS_PER_S)


@dataclass(frozen=True)
class Stationary:
    """A unit process at a constant rate."""

    rate_hz_mean: float
    unit: UnitProcess

    def __post_init__(self) -> None:
        _refuse_bad_rate(self.rate_hz_mean)

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        """Unit-rate points stretched by 1/rate and floored to ns."""
        _refuse_many(self.expected_count(horizon_ns))
        points = self.unit.points(rng, self.expected_count(horizon_ns))
        points *= NS_PER_S / self.rate_hz_mean
        return held_below(floor_in_place(points), horizon_ns)

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        return np.full(np.shape(t_ns), self.rate_hz_mean)

    def expected_count(self, t_ns: int) -> float:
        return self.rate_hz_mean * (t_ns / NS_PER_S)


@dataclass(frozen=True)
class Modulated:
    """A unit process on the clock of a rate path: the rate is `rate_hz_mean` times the level of the path.

    With Λ(t) the integral of that rate, points s_i of a process of rate 1 become t_i = Λ⁻¹(s_i)
    (time-rescaling theorem: Brown et al., Neural Computation 14, 2002). Where the rate is 0 nothing arrives.
    With a Poisson residual and a random path this is a Cox process.
    """

    rate_hz_mean: float
    path: RatePath
    residual: UnitProcess

    def __post_init__(self) -> None:
        _refuse_bad_rate(self.rate_hz_mean)

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        curve = self.path.draw(rng, horizon_ns)
        per_ns = self.rate_hz_mean / NS_PER_S
        # only fixed paths have slopes, and those know their area
        area_ns = curve.area_at(horizon_ns) if curve.begins is None else self.path.area_ns(horizon_ns)
        _refuse_many(area_ns * per_ns)
        points = self.residual.points(rng, area_ns * per_ns)
        points /= per_ns
        curve.invert(points)
        return held_below(floor_in_place(points), horizon_ns)

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        """Of a random path the expectation over its draws."""
        return self.path.level(t_ns) * self.rate_hz_mean

    def expected_count(self, t_ns: int) -> float:
        return self.path.area_ns(t_ns) / NS_PER_S * self.rate_hz_mean


@dataclass(frozen=True)
class Ticks:
    """A Poisson number of arrivals at once, every `period_ns` from 0 on, as of a service that is polled."""

    rate_hz_mean: float
    period_ns: int

    def __post_init__(self) -> None:
        _refuse_bad_rate(self.rate_hz_mean)
        if self.period_ns <= 0:
            raise ValueError("ticks need a period above 0")

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        _refuse_many(self.expected_count(horizon_ns))
        if horizon_ns // self.period_ns > LARGEST_PATH:
            raise ValueError(f"the period of the ticks is too short: more than {LARGEST_PATH:,} of them")
        ticks = np.arange(0, horizon_ns, self.period_ns, dtype=np.int64)
        per_tick = self.expected_count(horizon_ns) / ticks.size
        return np.repeat(ticks, draws.poisson(rng, per_tick, ticks.size))

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        """The mean over a period."""
        return np.full(np.shape(t_ns), self.rate_hz_mean)

    def expected_count(self, t_ns: int) -> float:
        """As if the arrivals of a tick were spread over the period after it: exact at whole periods and at the end."""
        return self.rate_hz_mean * (t_ns / NS_PER_S)


@dataclass(frozen=True)
class Clients:
    """`n_clients` independent renewal processes of Gamma gaps; the rate of client i is in proportion to i^-zipf.

    The cv of each is lognormal with median `cv` and spread `cv_sigma` of its logarithm, cut to 0.1 … √10
    (ServeGen, arXiv 2505.09999, finds that shape: few clients carry most of the load, and each has its own burstiness).
    """

    rate_hz_mean: float
    n_clients: int
    zipf: float
    cv: float
    cv_sigma: float = 0.0

    def __post_init__(self) -> None:
        _refuse_bad_rate(self.rate_hz_mean)
        if self.n_clients < 1 or self.zipf < 0 or self.cv_sigma < 0:
            raise ValueError("clients need a number above 0, and a zipf exponent and cv_sigma of 0 or more")
        GammaGaps(self.cv)

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        _refuse_many(self.expected_count(horizon_ns))
        cvs = np.clip(self.cv * draws.lognormal(rng, 0.0, self.cv_sigma, self.n_clients), *_CLIENT_CVS)
        rates_hz = self.rates_hz()
        parts = []
        for rate_hz, points in zip(
            rates_hz.tolist(), gamma_renewals(rng, cvs, rates_hz * (horizon_ns / NS_PER_S)), strict=True
        ):
            points *= NS_PER_S / rate_hz
            parts.append(held_below(floor_in_place(points), horizon_ns))
        return merged(parts)

    def rates_hz(self) -> Rates:
        """Rate of each client, (n_clients,), falling."""
        weights = arrays.power(np.arange(1, self.n_clients + 1, dtype=np.float64), -self.zipf)
        rates: Rates = weights / math.fsum(weights) * self.rate_hz_mean
        return rates

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        return np.full(np.shape(t_ns), self.rate_hz_mean)

    def expected_count(self, t_ns: int) -> float:
        return self.rate_hz_mean * (t_ns / NS_PER_S)


SMALLEST_CLIENT_CV = 0.1
_CLIENT_CVS = (SMALLEST_CLIENT_CV, math.sqrt(LARGEST_GAMMA_C2))


@dataclass(frozen=True)
class Superposition:
    """Independent processes at once, each from a generator of its own."""

    parts: tuple[Arrivals, ...]

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        found: list[Offsets] = []
        for part, own in zip(self.parts, rng.spawn(len(self.parts)), strict=True):
            found.append(part.offsets_ns(own, horizon_ns))
            _refuse_many(sum(offsets.size for offsets in found))
        return merged(found)

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        rates = np.zeros(np.shape(t_ns))
        for part in self.parts:
            rates += part.rate_hz(t_ns)
        return rates

    def expected_count(self, t_ns: int) -> float:
        return sum(part.expected_count(t_ns) for part in self.parts)


@dataclass(frozen=True)
class Concatenation:
    """Processes one after the other, each for a time of its own; the last goes on to the end."""

    parts: tuple[tuple[Arrivals, int], ...]
    """(process, its length in ns)."""

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        streams = rng.spawn(len(self.parts))
        found: list[Offsets] = []
        for (part, start, end), own in zip(self._spans(horizon_ns), streams, strict=False):
            found.append(part.offsets_ns(own, end - start) + start)
            _refuse_many(sum(offsets.size for offsets in found))
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        t_ns = np.asarray(t_ns)
        rates = np.zeros(t_ns.shape)
        for part, start, end in self._spans(int(t_ns.max(initial=0)) + 1):
            inside = (t_ns >= start) & (t_ns < end)
            rates[inside] = part.rate_hz(t_ns[inside] - start)
        return rates

    def expected_count(self, t_ns: int) -> float:
        return sum(part.expected_count(end - start) for part, start, end in self._spans(t_ns))

    def _spans(self, horizon_ns: int) -> list[tuple[Arrivals, int, int]]:
        """(process, start, end) of those that begin before the horizon."""
        spans, start = [], 0
        for index, (part, length_ns) in enumerate(self.parts):
            is_last = index == len(self.parts) - 1
            end = horizon_ns if is_last else min(start + length_ns, horizon_ns)
            if start < end:
                spans.append((part, start, end))
            start += length_ns
        return spans


def floor_in_place(points: NDArray[np.float64]) -> Offsets:
    """The whole ns of points in ns, (n,) int64; takes over their memory, since a schedule is most of a planner's."""
    offsets = points.view(np.int64)
    for start in range(0, points.size, CHUNK):
        offsets[start : start + CHUNK] = np.floor(points[start : start + CHUNK]).astype(np.int64)
    return offsets


def held_below(offsets: Offsets, horizon_ns: int) -> Offsets:
    """Sorted offsets with those that rounding put at the horizon moved to the last ns before it."""
    offsets[np.searchsorted(offsets, horizon_ns) :] = horizon_ns - 1
    return offsets


def merged(parts: list[Offsets]) -> Offsets:
    """All of them in one sorted array; empties the list, so that its memory goes as it is copied."""
    whole = np.empty(sum(part.size for part in parts), np.int64)
    place = 0
    while parts:
        part = parts.pop()
        whole[place : place + part.size] = part
        place += part.size
    whole.sort()
    return whole


def _refuse_bad_rate(rate_hz: float) -> None:
    if not 0 < rate_hz < math.inf:
        raise ValueError(f"a rate is finite and above 0, not {rate_hz} Hz")


def _refuse_many(count: float) -> None:
    if count > MOST_DRAWN:
        raise ValueError(
            f"{digits_text(count)} arrivals are more than a plan takes; use a lower rate or a shorter phase, or a path"
            " with less of a peak"
        )
