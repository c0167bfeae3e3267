"""Rate paths: how the rate of a phase goes up and down, apart from the arrivals that follow it.

A path has mean level 1. A fixed one has it exactly over the horizon it was made for; a random one in expectation, since
forcing each draw to its mean would take away the slow variance that makes it what it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scenarios.processes import CHUNK

Floats = NDArray[np.float64]
Instants = NDArray[np.int64]

LARGEST_PATH = 1 << 26
"""Pieces of a path: 1 GiB of edges and areas; more is a mistyped bin or time constant."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Cumulated level over time: `cum[i]`, in ns of level 1, at `edges_ns[i]`; both (m + 1,), from 0.

    The level goes linearly through a piece, from `begins[i]` to 2·mean - `begins[i]`; None: it is constant there.
    """

    edges_ns: Floats
    cum: Floats
    begins: Floats | None = None

    def invert(self, areas: Floats) -> None:
        """Replaces cumulated levels, (n,) sorted in [0, cum[-1]], by their instants in ns, in place.

        In a piece of width h, mean level m and begin b, the area a lies at x = 2a/(b + √(b² + 4a(m - b)/h)):
        the root of b·x + (m - b)·x²/h = a.
        """
        for start in range(0, areas.size, CHUNK):
            part = areas[start : start + CHUNK]
            part[:] = np.interp(part, self.cum, self.edges_ns) if self.begins is None else self._slope(part)

    def _slope(self, areas: Floats) -> Floats:
        assert self.begins is not None
        widths, mass = np.diff(self.edges_ns), np.diff(self.cum)
        piece = np.clip(np.searchsorted(self.cum, areas, side="right") - 1, 0, len(widths) - 1)
        inside, begin, width = areas - self.cum[piece], self.begins[piece], widths[piece]
        rise = (mass[piece] / width - begin) / width
        root = np.sqrt(np.maximum(begin**2 + 4 * inside * rise, 0.0))
        denominator = np.maximum(begin + root, np.finfo(np.float64).tiny)
        return self.edges_ns[piece] + np.minimum(2 * inside / denominator, width)


class RatePath(Protocol):
    """The level of a rate over time, 1 on average."""

    def draw(self, rng: np.random.Generator, horizon_ns: int) -> Curve:
        """A realisation over [0, horizon_ns)."""

    def level(self, t_ns: Instants) -> Floats:
        """Expected level at `t_ns` (0 or more), same shape."""

    def area_ns(self, t_ns: int) -> float:
        """Expected integral of the level over [0, t_ns), in ns."""


@dataclass(frozen=True, eq=False)
class FixedPath:
    """Levels that go linearly from point to point, repeated without end; scaled to mean 1 over [0, horizon_ns).

    `edges_ns` (m + 1,) from 0 is one period; `begins` and `ends`, (m,) each, are the levels at both ends of its pieces.
    """

    edges_ns: Floats
    begins: Floats
    ends: Floats
    horizon_ns: int

    def __post_init__(self) -> None:
        levels = np.concatenate([self.begins, self.ends])
        if levels.size == 0 or not np.isfinite(levels).all() or (levels < 0).any():
            raise ValueError("the curve needs at least one relative rate, each finite and 0 or more")
        if self.horizon_ns <= 0 or self.edges_ns[0] != 0 or (np.diff(self.edges_ns) <= 0).any():
            raise ValueError("a curve needs pieces and a horizon longer than 0")
        if self._raw_area(self.horizon_ns) <= 0:
            raise ValueError("the curve is 0 over the whole horizon")

    def draw(self, rng: np.random.Generator, horizon_ns: int) -> Curve:
        """The curve itself, over as many whole periods as the horizon needs; the generator is not used."""
        del rng
        period = self.edges_ns[-1]
        repeats = max(1, math.ceil(horizon_ns / period))
        widths = np.tile(np.diff(self.edges_ns), repeats)
        begins, ends = np.tile(self.begins, repeats) * self._scale, np.tile(self.ends, repeats) * self._scale
        starts = (np.arange(repeats) * period)[:, None] + self.edges_ns[:-1]
        edges = np.append(starts.ravel(), repeats * period)
        cum = np.concatenate([[0.0], np.cumsum((begins + ends) / 2 * widths)])
        return Curve(edges, cum, None if np.array_equal(begins, ends) else begins)

    def level(self, t_ns: Instants) -> Floats:
        """The level at `t_ns` itself; at a jump that after it."""
        rest = np.mod(np.asarray(t_ns, np.float64), self.edges_ns[-1])
        piece = np.searchsorted(self.edges_ns, rest, side="right") - 1
        share = (rest - self.edges_ns[piece]) / np.diff(self.edges_ns)[piece]
        levels: Floats = (self.begins[piece] + (self.ends - self.begins)[piece] * share) * self._scale
        return levels

    def area_ns(self, t_ns: int) -> float:
        """Exactly `t_ns` at the horizon."""
        return float(t_ns) if t_ns == self.horizon_ns else self._raw_area(t_ns) * self._scale

    @property
    def _scale(self) -> float:
        return self.horizon_ns / self._raw_area(self.horizon_ns)

    def _raw_area(self, t_ns: int) -> float:
        widths = np.diff(self.edges_ns)
        mass = (self.begins + self.ends) / 2 * widths
        cycles, rest = divmod(float(t_ns), float(self.edges_ns[-1]))
        piece = min(int(np.searchsorted(self.edges_ns, rest, side="right")) - 1, len(widths) - 1)
        x = rest - self.edges_ns[piece]
        rise = (self.ends[piece] - self.begins[piece]) / widths[piece]
        inside = self.begins[piece] * x + rise * x**2 / 2
        return float(cycles * mass.sum() + mass[:piece].sum() + inside)


def steps(curve: Floats | tuple[float, ...], bin_ns: int, horizon_ns: int) -> FixedPath:
    """One constant level per bin of `bin_ns`, then again from the first."""
    levels = np.asarray(curve, np.float64)
    if bin_ns <= 0:
        raise ValueError("a curve needs a bin above 0")
    return FixedPath(np.arange(len(levels) + 1, dtype=np.float64) * bin_ns, levels, levels, horizon_ns)


def piecewise(points: tuple[tuple[int, float], ...], horizon_ns: int) -> FixedPath:
    """Levels at instants (ns, rising), linear between them; constant before the first and after the last.

    Two points at one instant make a jump.
    """
    at = [0, *(t for t, _ in points), max(horizon_ns, points[-1][0] + 1)]
    levels = [points[0][1], *(level for _, level in points), points[-1][1]]
    kept = [i for i in range(len(at) - 1) if at[i + 1] > at[i]]
    if any(later < sooner for sooner, later in pairwise(at)):
        raise ValueError("the points of a curve must rise in time")
    edges = np.array([at[i] for i in kept] + [at[-1]], np.float64)
    begins = np.array([levels[i] for i in kept], np.float64)
    return FixedPath(edges, begins, np.array([levels[i + 1] for i in kept], np.float64), horizon_ns)


def pulses(factor: float, width_ns: int, period_ns: int, horizon_ns: int) -> FixedPath:
    """Level 1, and `factor` for `width_ns` at the end of every `period_ns`."""
    if not 0 < width_ns < period_ns:
        raise ValueError("a pulse must be shorter than its period")
    levels = np.array([1.0, factor])
    edges = np.array([0.0, period_ns - width_ns, period_ns])
    return FixedPath(edges, levels, levels, horizon_ns)


_PIECES_A_DAY = 288


def diurnal(peak_ratio: float, peak_at_ns: int, period_ns: int, horizon_ns: int) -> FixedPath:
    """1 + (peak_ratio - 1)·cos(2π(t - peak_at)/period), in 288 linear pieces a period.

    Between the points a chord is off the cosine by at most (2π/288)²/8 = 6e-5 of its amplitude.
    """
    if not 1 <= peak_ratio <= 2:
        raise ValueError(f"a diurnal rate has a peak of 1 to 2 times the mean, not {peak_ratio:g}")
    edges = np.linspace(0.0, float(period_ns), _PIECES_A_DAY + 1)
    levels = 1 + (peak_ratio - 1) * np.cos(2 * np.pi * (edges - peak_at_ns) / period_ns)
    levels = np.maximum(levels, 0.0)
    return FixedPath(edges, levels[:-1], levels[1:], horizon_ns)
