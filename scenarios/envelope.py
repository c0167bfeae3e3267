"""Arrivals under a rate curve, by time rescaling of a process of rate 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scenarios.processes import UnitProcess
from scenarios.units import NS_PER_S


@dataclass(frozen=True)
class Envelope:
    """A piecewise constant rate curve times a short-memory residual.

    `curve` holds relative rates of bins of `bin_ns`; it repeats cyclically where `horizon_ns` is longer
    and is cut where it is shorter. It is scaled so that the mean over [0, horizon_ns) is exactly
    `rate_hz_mean`.
    With Λ(t) = expected arrivals in [0, t), points s_i of a process of rate 1 become t_i = Λ⁻¹(s_i)
    (time-rescaling theorem: Brown et al., Neural Computation 14, 2002). Bins of rate 0 stay empty.
    """

    rate_hz_mean: float
    curve: tuple[float, ...]
    bin_ns: int
    residual: UnitProcess
    horizon_ns: int

    def __post_init__(self) -> None:
        weights = np.asarray(self.curve, dtype=np.float64)
        if weights.size == 0 or not np.isfinite(weights).all() or (weights < 0).any():
            raise ValueError("the curve needs at least one relative rate, each finite and 0 or more")
        if self.bin_ns <= 0 or self.horizon_ns <= 0 or not 0 < self.rate_hz_mean < math.inf:
            raise ValueError("an envelope needs a rate, a bin and a horizon above 0")
        if self._area_at(np.float64(self.horizon_ns)) <= 0:
            raise ValueError("the curve is 0 over the whole horizon")

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> NDArray[np.int64]:
        """Arrivals in [0, horizon_ns), (n,) int64, sorted; the horizon may differ from the one scaled for."""
        points = self.residual.points(rng, self.expected_count(horizon_ns))
        cum, edges = self._cycle()
        cycles, rest = np.divmod(points / self._scale(), cum[-1])
        times = cycles * edges[-1] + np.interp(rest, cum, edges)
        offsets: NDArray[np.int64] = np.minimum(np.floor(times), horizon_ns - 1).astype(np.int64)
        return offsets

    def rate_hz(self, t_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Rate of the curve at `t_ns` (0 or more), same shape."""
        index = np.asarray(t_ns) // self.bin_ns % len(self.curve)
        rates: NDArray[np.float64] = (
            np.asarray(self.curve, dtype=np.float64)[index] * self._scale() * NS_PER_S
        )
        return rates

    def expected_count(self, t_ns: int) -> float:
        """Λ(t): expected arrivals in [0, t_ns)."""
        if t_ns == self.horizon_ns:
            return self.rate_hz_mean * (t_ns / NS_PER_S)
        return float(self._area_at(np.float64(t_ns)) * self._scale())

    def _cycle(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Cumulated curve x ns, and the bin edges in ns, over one pass of the curve; (n_bins + 1,) each."""
        cum = np.concatenate(([0.0], np.cumsum(np.asarray(self.curve, dtype=np.float64) * self.bin_ns)))
        return cum, np.arange(len(self.curve) + 1, dtype=np.float64) * self.bin_ns

    def _area_at(self, t_ns: np.float64) -> float:
        """Integral of the unscaled curve over [0, t_ns), in curve units x ns."""
        cum, edges = self._cycle()
        cycles, rest = np.divmod(t_ns, edges[-1])
        return float(cycles * cum[-1] + np.interp(rest, edges, cum))

    def _scale(self) -> float:
        """Expected arrivals per curve unit x ns."""
        return self.rate_hz_mean * (self.horizon_ns / NS_PER_S) / self._area_at(np.float64(self.horizon_ns))
