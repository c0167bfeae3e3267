"""Curves of a rate over time: fixed ones with their exact areas, ones that were drawn, and the instants of areas."""

from __future__ import annotations

import math

import numpy as np

from squall.scenarios.arrays import Floats, Int64s, pieces
from squall.scenarios.arrivals.process import refuse_pieces
from squall.scenarios.exact.renewals import CHUNK
from squall.scenarios.records import Frozen

LARGEST_FIXED = 1 << 24
"""Pieces of a fixed curve over a phase, its repeats included: about 1 GiB while it is drawn."""


class Curve(Frozen, eq=False):
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
        for rows in pieces(areas.size, CHUNK):
            part = areas[rows]
            piece = np.searchsorted(self.cum[1:-1], part, side="right")
            first_ns, end_ns = self.edges_ns[piece], self.edges_ns[piece + 1]
            width, mass = end_ns - first_ns, self.cum[piece + 1] - self.cum[piece]
            part -= self.cum[piece]
            if self.begins is None:
                part *= np.divide(width, mass, out=np.zeros_like(mass), where=mass > 0)
            else:
                begin = self.begins[piece]
                root = np.maximum(part * (4 * ((mass / width - begin) / width)) + begin * begin, 0.0)
                part *= 2.0
                part /= np.maximum(np.sqrt(root) + begin, np.finfo(np.float64).tiny)
            part += first_ns
            np.minimum(part, end_ns, out=part)  # so that rounding keeps them sorted
            if self.begins is not None:  # a root may be rounded below that of a smaller area
                np.maximum.accumulate(part, out=part)

    def area_at(self, t_ns: float) -> float:
        """Cumulated level at `t_ns` of a curve of constant levels; beyond the last edge that of it."""
        piece = int(np.searchsorted(self.edges_ns[1:-1], t_ns, side="right"))
        begin, end = self.edges_ns[piece : piece + 2].tolist()
        below, above = self.cum[piece : piece + 2].tolist()
        area: float = above if t_ns >= end else below + (above - below) * ((t_ns - begin) / (end - begin))
        return area


class FixedPath(Frozen, eq=False):
    """Levels that go linearly from point to point, repeated without end; scaled to mean 1 over [0, horizon_ns).

    `edges_ns` (m + 1,) from 0 is one period; `begins` and `ends`, (m,) each, are the levels at both ends of its pieces.
    """

    edges_ns: Floats
    begins: Floats
    ends: Floats
    horizon_ns: int

    def __post_init__(self) -> None:
        if self._raw_area(self.horizon_ns) <= 0:
            raise ValueError("the curve is 0 over the whole horizon")

    def curve(self, horizon_ns: int) -> Curve:
        """The curve over as many whole periods as `horizon_ns` needs; ValueError for more pieces than are drawn."""
        period = self.edges_ns[-1]
        repeats = max(1, math.ceil(horizon_ns / period))
        refuse_pieces(self.begins.size * repeats, "pieces of the curve", LARGEST_FIXED)
        widths = np.tile(np.diff(self.edges_ns), repeats)
        begins, ends = np.tile(self.begins, repeats) * self._scale, np.tile(self.ends, repeats) * self._scale
        starts = (np.arange(repeats) * period)[:, None] + self.edges_ns[:-1]
        edges = np.append(starts.ravel(), repeats * period)
        cum = np.append(0.0, np.cumsum((begins + ends) / 2 * widths))
        return Curve(edges, cum, None if np.array_equal(begins, ends) else begins)

    def level(self, t_ns: Int64s) -> Floats:
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
        sums = np.append(0.0, np.cumsum((self.begins + self.ends) / 2 * widths))
        cycles, rest = divmod(float(t_ns), float(self.edges_ns[-1]))
        piece = np.searchsorted(self.edges_ns[1:-1], rest, side="right")
        x = rest - self.edges_ns[piece]
        rise = (self.ends[piece] - self.begins[piece]) / widths[piece]
        return float(cycles * sums[-1] + sums[piece] + (self.begins[piece] * x + rise * x * x / 2))


def steps(curve: Floats | tuple[float, ...], bin_ns: int, horizon_ns: int) -> FixedPath:
    """One constant level per bin of `bin_ns`, then again from the first."""
    levels = np.asarray(curve, np.float64)
    return FixedPath(np.arange(len(levels) + 1, dtype=np.float64) * bin_ns, levels, levels, horizon_ns)


def piecewise(points: tuple[tuple[int, float], ...], horizon_ns: int) -> FixedPath:
    """Levels at instants (ns, rising), linear between them; constant before the first and after the last.

    Two points at one instant make a jump.
    """
    at_ns = np.array([0, *(t for t, _ in points), max(horizon_ns, points[-1][0] + 1)], np.float64)
    levels = np.array([points[0][1], *(level for _, level in points), points[-1][1]], np.float64)
    is_piece = np.diff(at_ns) > 0
    edges = np.append(at_ns[:-1][is_piece], at_ns[-1])
    return FixedPath(edges, levels[:-1][is_piece], levels[1:][is_piece], horizon_ns)


def curve_of(edges_ns: Floats, levels: Floats, horizon_ns: int) -> Curve:
    """The curve of constant `levels`, (m,), between `edges_ns`, (m + 1,), without the pieces past the horizon."""
    last = int(np.searchsorted(edges_ns, horizon_ns))
    edges_ns, levels = edges_ns[: last + 1], levels[:last]
    return Curve(edges_ns, np.append(0.0, np.cumsum(levels * np.diff(edges_ns))))
