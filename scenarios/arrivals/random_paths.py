"""Rate paths drawn at random: Markov-modulated, ON-OFF, log-Gaussian and the b-model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrivals.gaussian import gaussian_series, noise_autocorrelation
from squall.scenarios.arrivals.rate_paths import LARGEST_PATH, Curve, Floats, Instants
from squall.scenarios.arrivals.stationary import stationary_shares
from squall.scenarios.arrivals.unit import CHUNK, groups
from squall.scenarios.exact import arrays, draws

_LARGEST_MISFIT = 1.1e-5
"""Of a row of probabilities."""
_SPELLS = 1 << 16
"""Most spells drawn at a time: part of what a seed means."""


class _StationaryPath:
    """Mean level 1 at every instant."""

    def level(self, t_ns: Instants) -> Floats:
        """1 everywhere: the expectation over all draws."""
        return np.ones(np.shape(t_ns))

    def area_ns(self, t_ns: int) -> float:
        """`t_ns`: the expectation over all draws."""
        return float(t_ns)


@dataclass(frozen=True)
class MarkovPath(_StationaryPath):
    """The rate of an MMPP: a Markov chain in continuous time, each state with a level of its own.

    State i holds for Exp of mean `stays_ns[i]` and is followed by j with probability `jumps[i][j]`, 0 for j = i.
    Levels are scaled to mean 1 under the stationary law, which is that of the first state too
    (Fischer, Meier-Hellstern, Performance Evaluation 18, 1993).
    """

    levels: tuple[float, ...]
    stays_ns: tuple[float, ...]
    jumps: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        k = len(self.levels)
        jumps = np.asarray(self.jumps, np.float64)
        if k < 2 or len(self.stays_ns) != k or jumps.shape != (k, k):
            raise ValueError(
                "an mmpp needs two or more states, a stay for each and a jump for each pair of them"
            )
        is_off = any(abs(math.fsum(row) - 1) > _LARGEST_MISFIT for row in self.jumps)
        if is_off or (jumps < 0).any() or jumps.diagonal().any():
            raise ValueError("jumps: each row holds probabilities that sum to 1, with 0 for the state itself")
        if min(self.stays_ns) <= 0 or min(self.levels) < 0 or self._mean <= 0:
            raise ValueError("an mmpp needs stays above 0, and levels of 0 or more that are not all 0")

    @classmethod
    def two_state(cls, peak: float, base: float, tau_ns: float) -> MarkovPath:
        """Level `peak` for a share (1 - base)/(peak - base) of the time, else `base`; both are times the mean.

        `tau_ns` = 1/(r1 + r2) is the time constant of its autocorrelation: high spells last tau/(1 - P) on average,
        low ones tau/P, with P the share (Heffes, Lucantoni, IEEE JSAC 4, 1986).
        """
        if not 0 <= base < 1 < peak:
            raise ValueError(f"a two-state mmpp needs 0 <= base < 1 < peak, not base {base:g}, peak {peak:g}")
        share = (1 - base) / (peak - base)
        return cls((peak, base), (tau_ns / (1 - share), tau_ns / share), ((0.0, 1.0), (1.0, 0.0)))

    @cached_property
    def shares(self) -> Floats:
        """Stationary share of time in each state, (k,).

        That of the jumps, each state weighed by its stay. Raises ValueError where the chain has more than one closed
        class.
        """
        weights = np.asarray(stationary_shares(self.jumps)) * np.asarray(self.stays_ns)
        shares: Floats = weights / math.fsum(weights)
        return shares

    @cached_property
    def _mean(self) -> float:
        return math.fsum(self.shares * np.asarray(self.levels))

    def draw(self, rng: np.random.Generator, horizon_ns: int) -> Curve:
        """Spells until the horizon is covered."""
        levels, stays = np.asarray(self.levels) / self._mean, np.asarray(self.stays_ns)
        shares = self.shares
        spells_per_ns = math.fsum(shares / stays)
        _refuse_long(horizon_ns * spells_per_ns, "time constants of an mmpp")
        bounds = np.cumsum(shares)[:-1]
        state = int(np.searchsorted(bounds, rng.random(), side="right"))
        edges, heights, reached = [np.zeros(1)], [], 0.0
        while reached < horizon_ns:
            count = min(_SPELLS, int(1.2 * spells_per_ns * (horizon_ns - reached)) + 16)
            states = np.append(state, self._walk(rng, state, count))
            ends = reached + np.cumsum(draws.standard_exponential(rng, count) * stays[states[:-1]])
            edges.append(ends)
            heights.append(levels[states[:-1]])
            state, reached = int(states[-1]), float(ends[-1])
        return curve_of(np.concatenate(edges), np.concatenate(heights), horizon_ns)

    def _walk(self, rng: np.random.Generator, first: int, count: int) -> NDArray[np.intp]:
        """The `count` states that follow `first`.

        Each step is a random map of all states; the maps are composed by doubling: log2(count) array operations.
        """
        bounds = np.cumsum(np.asarray(self.jumps), axis=1)
        bounds[:, -1] = 1.0
        uniform = rng.random(count)
        maps = np.stack([np.searchsorted(row, uniform, side="right") for row in bounds], axis=1)
        maps = np.minimum(maps, len(self.levels) - 1)
        step = 1
        while step < count:
            maps[step:] = np.take_along_axis(maps[step:], maps[:-step].copy(), axis=1)
            step *= 2
        return maps[:, first]


@dataclass(frozen=True)
class Sojourn:
    """How long a source stays ON, or OFF: exponential, or Pareto of the first kind with tail index `alpha` > 1.

    Pareto: P(X > x) = (x_m/x)^α from x_m = mean·(α - 1)/α on. Its equilibrium law is uniform on [0, x_m) with
    probability (α - 1)/α, else Pareto of index α - 1 from x_m.
    """

    mean_ns: float
    alpha: float | None = None

    def __post_init__(self) -> None:
        if not self.mean_ns > 0 or (self.alpha is not None and not self.alpha > 1):
            raise ValueError("a sojourn needs a mean above 0, and a pareto one a tail index above 1")

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Independent lengths in ns, (count,)."""
        if self.alpha is None:
            return draws.standard_exponential(rng, count) * self.mean_ns
        return _pareto(rng, self.alpha, count) * (self.mean_ns * (self.alpha - 1) / self.alpha)

    def rest(self, rng: np.random.Generator, count: int) -> Floats:
        """What is left, in ns, of sojourns that are met at a random instant, (count,)."""
        if self.alpha is None:
            return draws.standard_exponential(rng, count) * self.mean_ns
        is_within_least = rng.random(count) < (self.alpha - 1) / self.alpha
        parts = np.where(is_within_least, rng.random(count), _pareto(rng, self.alpha - 1, count))
        return parts * (self.mean_ns * (self.alpha - 1) / self.alpha)


@dataclass(frozen=True)
class OnOffPath(_StationaryPath):
    """The number of `n_sources` independent sources that are ON, over its mean.

    With Pareto sojourns of index 1 < α < 2 the sum of many tends to fractional noise of H = (3 - α)/2, α the smaller
    of the two (Taqqu, Willinger, Sherman, ACM CCR 27, 1997). Each source starts in its stationary state.
    """

    on: Sojourn
    off: Sojourn
    n_sources: int = 1

    def draw(self, rng: np.random.Generator, horizon_ns: int) -> Curve:
        """Switches of all sources, merged."""
        on_share = self.on.mean_ns / (self.on.mean_ns + self.off.mean_ns)
        _refuse_long(self.n_sources * horizon_ns * on_share / self.on.mean_ns, "sojourns of on-off")
        is_on = rng.random(self.n_sources) < on_share
        switches = self._switches(rng, is_on, horizon_ns)
        changes = [
            np.where(np.arange(times.size) % 2 == int(not begins_on), -1, 1)
            for times, begins_on in zip(switches, is_on.tolist(), strict=True)
        ]
        times = np.concatenate(switches)
        order = np.argsort(times, kind="stable")
        counts = int(is_on.sum()) + np.concatenate([[0], np.cumsum(np.concatenate(changes)[order])])
        edges = np.concatenate([[0.0], times[order], [float(horizon_ns)]])
        return curve_of(edges, counts / (self.n_sources * on_share), horizon_ns)

    def _switches(self, rng: np.random.Generator, is_on: NDArray[np.bool_], horizon_ns: int) -> list[Floats]:
        """Instants in [0, horizon_ns) at which each source changes; all are drawn together."""
        reached = np.empty(is_on.size)
        reached[is_on] = self.on.rest(rng, int(is_on.sum()))
        reached[~is_on] = self.off.rest(rng, int((~is_on).sum()))
        found = [[first] for first in np.split(reached.copy(), is_on.size)]
        pair_ns = self.on.mean_ns + self.off.mean_ns
        todo = np.flatnonzero(reached < horizon_ns)
        while todo.size:
            counts = (1.2 * (horizon_ns - reached[todo]) / pair_ns).astype(np.int64) + 8
            for part in groups(counts, CHUNK):
                sources = todo[part]
                lengths = self._pairs(rng, np.repeat(is_on[sources], counts[part]))
                ends = np.split(lengths, 2 * np.cumsum(counts[part])[:-1])
                for source, times in zip(sources.tolist(), ends, strict=True):
                    np.cumsum(times, out=times)
                    times += reached[source]
                    found[source].append(times)
                    reached[source] = times[-1]
            todo = todo[reached[todo] < horizon_ns]
        whole = [np.concatenate(parts) for parts in found]
        return [times[: np.searchsorted(times, horizon_ns)] for times in whole]

    def _pairs(self, rng: np.random.Generator, is_on: NDArray[np.bool_]) -> Floats:
        """Pairs of sojourns, (2 n,): the first of each pair is OFF where the source began ON, and ON else."""
        on, off = self.on.draw(rng, is_on.size), self.off.draw(rng, is_on.size)
        return np.stack([np.where(is_on, off, on), np.where(is_on, on, off)], axis=1).ravel()


@dataclass(frozen=True)
class LogGaussianPath(_StationaryPath):
    """exp(σ·Z_j - σ²/2) per bin, Z a stationary Gaussian series of variance 1: a log-Gaussian Cox process.

    `memory` is `ar1`, with autocorrelation exp(-|k|·bin/`tau_ns`), or `fgn`, fractional Gaussian noise of Hurst index
    `hurst`: (|k+1|^2H - 2|k|^2H + |k-1|^2H)/2 (Mandelbrot, van Ness, SIAM Review 10, 1968).
    """

    memory: Literal["ar1", "fgn"]
    sigma: float
    bin_ns: int
    tau_ns: float = 0.0
    hurst: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.sigma <= LARGEST_SIGMA and self.bin_ns > 0):
            raise ValueError(f"a log-gaussian rate needs a bin above 0 and 0 < sigma <= {LARGEST_SIGMA:g}")
        if self.memory == "ar1" and not self.tau_ns > 0:
            raise ValueError("a log-ar1 rate needs a time constant above 0")
        if self.memory == "fgn" and not 0 < self.hurst < 1:
            raise ValueError(f"a hurst index lies between 0 and 1, not {self.hurst:g}")

    def draw(self, rng: np.random.Generator, horizon_ns: int) -> Curve:
        """One level per bin."""
        count = math.ceil(horizon_ns / self.bin_ns)
        _refuse_long(
            8 * count, "bins of a log-gaussian rate"
        )  # the transforms hold eight times what a path does
        n_lags = 1 << (count - 1).bit_length()
        if self.memory == "ar1":
            lags = np.arange(n_lags + 1, dtype=np.float64)
            autocorrelation = arrays.exp(-lags * self.bin_ns / self.tau_ns)
        else:
            autocorrelation = noise_autocorrelation(self.hurst, n_lags)
        series = gaussian_series(autocorrelation, rng)
        levels = arrays.exp(self.sigma * series[:count] - self.sigma * self.sigma / 2)
        return curve_of(np.arange(count + 1, dtype=np.float64) * self.bin_ns, levels, horizon_ns)


LARGEST_SIGMA = 4.0
"""Of the logarithm: at 4 the mean is made by levels that come once in 30,000 bins."""


@dataclass(frozen=True)
class BModelPath:
    """A cascade: each interval's load is split `bias` : 1 - `bias` between its halves, the larger to either at random.

    Wang, Madhyastha, Chan, Papadimitriou, Faloutsos, ICDE 2002. The horizon is halved until a piece is at most
    `bin_ns`; peak to mean of the pieces is (2·bias)^levels. The total over the horizon is exact.
    """

    bias: float
    bin_ns: int
    horizon_ns: int

    def __post_init__(self) -> None:
        if not 0.5 <= self.bias < 1 or self.bin_ns <= 0 or self.horizon_ns <= 0:
            raise ValueError(
                f"a b-model needs a bin above 0 and a bias from 0.5 to below 1, not {self.bias:g}"
            )

    def draw(self, rng: np.random.Generator, horizon_ns: int) -> Curve:
        """The cascade over the horizon that the path was made for, cut at `horizon_ns`."""
        n_bins = -(-self.horizon_ns // self.bin_ns)
        n_levels = (n_bins - 1).bit_length()
        _refuse_long(1 << n_levels, "pieces of a b-model")
        mass = np.ones(1)
        for _ in range(n_levels):
            left = np.where(rng.random(mass.size) < 0.5, self.bias, 1 - self.bias)
            mass = np.stack([mass * left, mass * (1 - left)], axis=1).ravel()
        edges = np.linspace(0.0, float(self.horizon_ns), mass.size + 1)
        return curve_of(edges, mass * mass.size, horizon_ns)

    def level(self, t_ns: Instants) -> Floats:
        """1 inside the horizon: the expectation over all draws; 0 beyond."""
        return (np.asarray(t_ns) < self.horizon_ns).astype(np.float64)

    def area_ns(self, t_ns: int) -> float:
        """The expectation over all draws."""
        return float(min(t_ns, self.horizon_ns))


def curve_of(edges_ns: Floats, levels: Floats, horizon_ns: int) -> Curve:
    """The curve of constant `levels`, (m,), between `edges_ns`, (m + 1,), without the pieces past the horizon."""
    last = int(np.searchsorted(edges_ns, horizon_ns))
    edges_ns, levels = edges_ns[: last + 1], levels[:last]
    return Curve(edges_ns, np.concatenate([[0.0], np.cumsum(levels * np.diff(edges_ns))]))


def _pareto(rng: np.random.Generator, alpha: float, count: int) -> Floats:
    """U^(-1/alpha): Pareto of the first kind from 1."""
    found = draws.standard_exponential(rng, count)
    found /= alpha
    return arrays.exp(found, out=found)


def _refuse_long(n_pieces: float, what: str) -> None:
    if n_pieces > LARGEST_PATH:
        raise ValueError(f"{what} are too short for the phase: more than {LARGEST_PATH:,} pieces")
