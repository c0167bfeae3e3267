"""Processes whose rate goes up and down, and the shapes that an envelope gives to its rate.

A rate has the mean that is stated: a fixed one exactly over the stretch it is made for; a random one in expectation,
since forcing each draw to its mean would take away the slow variance that makes it what it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field

from squall.scenarios.arrays import Bools, Floats, Int64s
from squall.scenarios.arrivals.curve import LARGEST_FIXED, Curve, FixedPath, curve_of, piecewise, steps
from squall.scenarios.arrivals.presets import PresetName
from squall.scenarios.arrivals.process import (
    Fitted,
    Rated,
    floor_in_place,
    held_below,
    refuse_many,
    refuse_pieces,
)
from squall.scenarios.arrivals.replay import TraceArrivals
from squall.scenarios.arrivals.stationary import (
    LARGEST_CLIENT_COUNT,
    LARGEST_SIGMA,
    SMALLEST_LOMAX_ALPHA,
    Poisson,
    Residual,
    Unit,
)
from squall.scenarios.errors import Sentences
from squall.scenarios.exact import arrays, draws, renewals, scalars
from squall.scenarios.exact.fourier import fourier
from squall.scenarios.fields import (
    BY_KIND,
    Count,
    Duration,
    NonNegative,
    Number,
    PositiveDuration,
    Probability,
    Section,
)
from squall.scenarios.units import NS_PER_S, format_duration

if TYPE_CHECKING:
    from numpy.random import Generator

_LARGEST_POINT_COUNT = 100_000
_LARGEST_LEVEL = 1e12
_SMALLEST_LEVEL = 1e-12
_LARGEST_STATE_COUNT = 16
_LARGEST_MISFIT = 1.1e-5
"""Of a row of probabilities."""
_SPELLS = 1 << 16
"""Most spells drawn at a time: part of what a seed means."""
_PIECES_A_DAY = 288


def _in_range(level: float) -> float:
    """Levels only count against each other; outside this range their integral would leave float64."""
    if level and not _SMALLEST_LEVEL <= level <= _LARGEST_LEVEL:
        raise ValueError(f"{level:g} must be 0 or lie in {_SMALLEST_LEVEL:g} to {_LARGEST_LEVEL:g}")
    return level


Level = Annotated[NonNegative, AfterValidator(_in_range)]
"""A rate against the others of its curve, 0 or more."""
_Sigma = Annotated[Number, Field(gt=0, le=LARGEST_SIGMA)]
_Hurst = Annotated[Number, Field(gt=0, lt=1)]


class RatePath(Section):
    """How a rate goes up and down: fixed for a stretch of time, or else drawn at random with mean level 1."""

    def fixed(self, whole_ns: int) -> FixedPath | None:
        """Over a stretch of `whole_ns`; None of a random path. Raises ValueError for what the stretch does not suit."""
        del whole_ns
        return None

    def random(self, rng: Generator, horizon_ns: int) -> Curve:
        """A realisation of a random path over [0, horizon_ns)."""
        raise NotImplementedError


class Modulated(RatePath, Rated):
    """A process of rate 1 on the clock of a rate path: the rate is the mean rate times the level of the path.

    With Λ(t) the integral of that rate, points s_i of a process of rate 1 become t_i = Λ⁻¹(s_i)
    (time-rescaling theorem: Brown et al., Neural Computation 14, 2002). Where the rate is 0 nothing arrives.
    Poisson points and a random path make a Cox process.
    """

    is_of_whole: ClassVar[bool] = False  # whether a random path is drawn over the whole stretch, to be cut

    def unit(self) -> Unit:
        """The process of rate 1."""
        return Poisson(kind="poisson")

    def draw(self, rng: Generator, horizon_ns: int, whole_ns: int | None = None) -> Int64s:
        whole_ns, per_ns = whole_ns or horizon_ns, self.rate_hz / NS_PER_S
        fixed = self.fixed(whole_ns)
        if fixed is None:
            curve = self.random(rng, whole_ns if self.is_of_whole else horizon_ns)
            area_ns = curve.area_at(horizon_ns)
        else:
            curve = fixed.curve(horizon_ns)
            area_ns = curve.area_at(horizon_ns) if curve.begins is None else fixed.area_ns(horizon_ns)
        refuse_many(area_ns * per_ns)
        points = self.unit().points(rng, area_ns * per_ns)
        points /= per_ns
        curve.invert(points)
        return held_below(floor_in_place(points), horizon_ns)

    def expected_count(self, t_ns: int, whole_ns: int) -> float:
        fixed = self.fixed(whole_ns)
        return self.stated_count(t_ns) if fixed is None else fixed.area_ns(t_ns) / NS_PER_S * self.rate_hz


class MmppState(Section):
    """A state of an MMPP: its rate relative to the other states', and how long it lasts on average."""

    level: Level
    stay_ns: PositiveDuration


class MmppArrivals(Fitted, Modulated):
    """Markov-modulated Poisson: two states by peak, base and tau, or any number by states and jumps, or a preset.

    State i holds for Exp of mean `stay` and is followed by j with probability `jumps[i][j]`, 0 for j = i. Levels are
    scaled to mean 1 under the stationary law, which is that of the first state too
    (Fischer, Meier-Hellstern, Performance Evaluation 18, 1993).
    """

    example = "{kind: mmpp, rate: 100/s, peak: 3, base: 0.5, tau: 2s}"
    forms = (("preset",), ("peak", "base", "tau_ns"), ("states",))
    kind: Literal["mmpp"]
    preset: PresetName | None = None
    peak: Annotated[Number, Field(gt=1, le=_LARGEST_LEVEL)] | None = None
    base: Annotated[NonNegative, Field(lt=1)] | None = None
    tau_ns: PositiveDuration | None = None
    states: Annotated[tuple[MmppState, ...], Field(min_length=2, max_length=_LARGEST_STATE_COUNT)] | None = (
        None
    )
    jumps: tuple[tuple[Probability, ...], ...] | None = None

    def misfits(self) -> Sentences:
        yield from super().misfits()
        if self.states is None:
            if self.jumps is not None:
                yield "jumps need states"
            return
        jumps, k = self._jumps(), len(self.states)
        if not jumps:
            yield "more than two states need jumps: for each state the probability of each next one"
        if any(len(row) != k for row in (jumps, *jumps)):
            yield "jumps: a row for each state, with a probability for each"
        is_off = any(abs(math.fsum(row) - 1) > _LARGEST_MISFIT for row in jumps)
        if is_off or any(row[state] for state, row in enumerate(jumps)):
            yield "jumps: each row holds probabilities that sum to 1, with 0 for the state itself"
        if not self._chain()[0].any():
            yield "an mmpp needs levels that are not all 0"

    def _jumps(self) -> tuple[tuple[float, ...], ...]:
        is_pair = self.states is None or len(self.states) == 2
        return ((0.0, 1.0), (1.0, 0.0)) if self.jumps is None and is_pair else self.jumps or ()

    def _chain(self) -> tuple[Floats, Floats, Floats]:
        """Of each state, (k,): its level over the mean, its mean stay in ns, and its stationary share of the time.

        Of two states by peak, base and tau the level is `peak` for a share (1 - base)/(peak - base) of the time, else
        `base`; tau = 1/(r1 + r2) is the time constant of its autocorrelation: high spells last tau/(1 - P) on average,
        low ones tau/P, with P the share (Heffes, Lucantoni, IEEE JSAC 4, 1986). Raises ValueError where the chain has
        more than one closed class.
        """
        if self.states is not None:
            states = [(state.level, float(state.stay_ns)) for state in self.states]
        else:
            own = self.settled()
            high = (1 - own.base) / (own.peak - own.base)
            states = [(own.peak, own.tau_ns / (1 - high)), (own.base, own.tau_ns / high)]
        levels, stays = np.array(states).T
        weights = stationary_shares(self._jumps()) * stays
        shares: Floats = weights / math.fsum(weights)
        return levels / (math.fsum(shares * levels) or 1.0), stays, shares

    def random(self, rng: Generator, horizon_ns: int) -> Curve:
        """Spells until the horizon is covered."""
        levels, stays, shares = self._chain()
        spells_per_ns = math.fsum(shares / stays)
        refuse_pieces(horizon_ns * spells_per_ns, "time constants of an mmpp")
        state = int(np.searchsorted(np.cumsum(shares)[:-1], rng.random(), side="right"))
        bounds = np.cumsum(self._jumps(), axis=1)
        bounds[:, -1] = 1.0
        edges, heights, reached = [np.zeros(1)], [], 0.0
        while reached < horizon_ns:
            count = min(_SPELLS, int(1.2 * spells_per_ns * (horizon_ns - reached)) + 16)
            uniform = rng.random(count)
            followers = zip(
                *(np.searchsorted(row, uniform, side="right").tolist() for row in bounds), strict=True
            )
            *states, state = accumulate(followers, lambda state, follower: follower[state], initial=state)
            ends = reached + np.cumsum(draws.standard_exponential(rng, count) * stays[states])
            edges.append(ends)
            heights.append(levels[states])
            reached = float(ends[-1])
        return curve_of(np.concatenate(edges), np.concatenate(heights), horizon_ns)


def stationary_shares(jumps: Sequence[Sequence[float]]) -> Floats:
    """How often each state of a chain is entered in the long run, (k,), relative to the others; 0: left for ever.

    `jumps[i][j]`, i not j, is the weight of j after i; the diagonal is not used. By elimination without a subtraction
    (Grassmann, Taksar, Heyman, Operations Research 33, 1985): sums, products and quotients in one order, the same bits
    on every CPU, which a least-squares solution by LAPACK is not. Raises ValueError where the chain has more than one
    closed class.
    """
    weights = np.array(jumps, np.float64)
    np.fill_diagonal(weights, 0.0)
    follows = weights > 0
    # what a state follows is followed, at once or later, by all that follow the state (Warshall, 1962)
    for state in range(len(jumps)):
        follows |= np.outer(follows[:, state], follows[state])
    closed = {tuple(np.flatnonzero(after).tolist()) for after in follows if (follows[after] == after).all()}
    if len(closed) != 1:
        raise ValueError("jumps: some states cannot reach each other, so that there is no one mean rate")
    states = list(closed.pop())
    weights = weights[np.ix_(states, states)]
    for last in range(len(states) - 1, 0, -1):  # each is taken out, its paths being added to the rest
        weights[:last, last] /= sum(weights[last, :last].tolist())
        weights[:last, :last] += np.outer(weights[:last, last], weights[last, :last])
    found = np.zeros(len(jumps))
    found[states[0]] = 1.0
    for place, state in enumerate(states[1:], start=1):
        found[state] = sum((found[states[:place]] * weights[:place, place]).tolist())
    return found


class ExponentialSojourn(Section):
    """Exponential lengths."""

    kind: Literal["exponential"]
    mean_ns: PositiveDuration

    def lengths(self, rng: Generator, count: int) -> Floats:
        """Independent lengths in ns, (count,)."""
        return draws.standard_exponential(rng, count) * self.mean_ns

    def rests(self, rng: Generator, count: int) -> Floats:
        """What is left, in ns, of lengths that are met at a random instant, (count,)."""
        return self.lengths(rng, count)


class ParetoSojourn(Section):
    """Pareto lengths of tail index alpha: below 2 the traffic of many sources is self-similar.

    P(X > x) = (x_m/x)^α from x_m = mean·(α - 1)/α on. Its equilibrium law is uniform on [0, x_m) with probability
    (α - 1)/α, else Pareto of index α - 1 from x_m.
    """

    kind: Literal["pareto"]
    mean_ns: PositiveDuration
    alpha: Annotated[Number, Field(ge=SMALLEST_LOMAX_ALPHA)]

    def lengths(self, rng: Generator, count: int) -> Floats:
        """Independent lengths in ns, (count,)."""
        return self._pareto(rng, self.alpha, count) * (self.mean_ns * (self.alpha - 1) / self.alpha)

    def rests(self, rng: Generator, count: int) -> Floats:
        """What is left, in ns, of lengths that are met at a random instant, (count,)."""
        is_within_least = rng.random(count) < (self.alpha - 1) / self.alpha
        parts = np.where(is_within_least, rng.random(count), self._pareto(rng, self.alpha - 1, count))
        return parts * (self.mean_ns * (self.alpha - 1) / self.alpha)

    def _pareto(self, rng: Generator, alpha: float, count: int) -> Floats:
        """U^(-1/alpha): Pareto of the first kind from 1."""
        return arrays.exp(draws.standard_exponential(rng, count) / alpha)


Sojourn = Annotated[ExponentialSojourn | ParetoSojourn, BY_KIND]


class OnOffArrivals(Modulated):
    """The superposition of many sources that are ON or OFF, each with Poisson arrivals while ON.

    The level is the number of sources that are ON over its mean. With Pareto sojourns of index 1 < α < 2 the sum of
    many tends to fractional noise of H = (3 - α)/2, α the smaller of the two (Taqqu, Willinger, Sherman, ACM CCR 27,
    1997). Each source starts in its stationary state.
    """

    example = (
        "{kind: on-off, rate: 100/s, sources: 50, on: {kind: pareto, mean: 1s, alpha: 1.5},"
        " off: {kind: pareto, mean: 4s, alpha: 1.5}}"
    )
    kind: Literal["on-off"]
    sources: Annotated[Count, Field(le=LARGEST_CLIENT_COUNT)] = 1
    on: Sojourn
    off: Sojourn

    def random(self, rng: Generator, horizon_ns: int) -> Curve:
        """Switches of all sources, merged."""
        on_share = self.on.mean_ns / (self.on.mean_ns + self.off.mean_ns)
        refuse_pieces(self.sources * horizon_ns * on_share / self.on.mean_ns, "sojourns of on-off")
        is_on = self._begins(rng, on_share)
        switches = self._switches(rng, is_on, horizon_ns)
        changes = [
            np.where(np.arange(times.size) % 2 == begins_on, 1, -1)
            for times, begins_on in zip(switches, is_on, strict=True)
        ]
        times = np.concatenate(switches)
        order = np.argsort(times, kind="stable")
        counts = int(is_on.sum()) + np.append(0, np.cumsum(np.concatenate(changes)[order]))
        edges = np.concatenate([[0.0], times[order], [float(horizon_ns)]])
        return curve_of(edges, counts / (self.sources * on_share), horizon_ns)

    def _begins(self, rng: Generator, on_share: float) -> Bools:
        """Which sources are ON at 0."""
        return rng.random(self.sources) < on_share

    def _switches(self, rng: Generator, is_on: Bools, horizon_ns: int) -> list[Floats]:
        """Instants in [0, horizon_ns) at which each source changes; all are drawn together."""
        firsts = np.empty(is_on.size)
        firsts[is_on] = self.on.rests(rng, int(is_on.sum()))
        firsts[~is_on] = self.off.rests(rng, int((~is_on).sum()))
        pair_ns = self.on.mean_ns + self.off.mean_ns
        return renewals.series_until(
            firsts,
            np.full(is_on.size, float(horizon_ns)),
            lambda _, missing_ns: (1.2 * missing_ns / pair_ns).astype(np.int64) + 8,
            lambda sources, n_pairs: self._pairs(rng, np.repeat(is_on[sources], n_pairs)),
        )

    def _pairs(self, rng: Generator, is_on: Bools) -> Floats:
        """Pairs of sojourns, (2 n,): the first of each pair is OFF where the source began ON, and ON else."""
        on, off = self.on.lengths(rng, is_on.size), self.off.lengths(rng, is_on.size)
        return np.stack([np.where(is_on, off, on), np.where(is_on, on, off)], axis=1).ravel()


def gaussian_series(autocorrelation: Floats, rng: Generator) -> Floats:
    """A stationary Gaussian series of variance 1 with that autocorrelation at lags 0..m, (m + 1,); m a power of two.

    Circulant embedding, exact where no eigenvalue is negative, as holds for fractional Gaussian noise and for falling
    convex autocorrelations; rounding below 0 is cut. The real part of the transform of √(eigenvalue/2m)·(A + iB), A and
    B independent normals (Dietrich, Newsam, SIAM J. Sci. Comput. 18, 1997).
    """
    row = np.concatenate([autocorrelation, autocorrelation[-2:0:-1]])
    scale = np.sqrt(np.maximum(fourier(row, np.zeros(row.size))[0], 0.0) / row.size)
    noise = draws.standard_normal(rng, row.size) * scale
    return fourier(noise, draws.standard_normal(rng, row.size) * scale)[0][: autocorrelation.size]


def noise_autocorrelation(hurst: float, n_lags: int) -> Floats:
    """(|k+1|^2H - 2|k|^2H + |k-1|^2H)/2 at lags k from 0 to `n_lags`, (n_lags + 1,): of fractional Gaussian noise.

    Mandelbrot, van Ness, SIAM Review 10, 1968. From lag 8 on by Σ_j C(2H, 2j)·k^(2H - 2j), the binomial series of what
    is a small difference of powers.
    """
    power = 2 * hurst
    powers = np.array([scalars.power(abs(lag), power) for lag in range(-1, 9)])
    near = (powers[2:] - 2 * powers[1:-1] + powers[:-2]) / 2
    lags = np.arange(8, n_lags + 1, dtype=np.float64)
    binomials = list(
        accumulate(range(1, 21), lambda binomial, j: binomial * ((power - j + 1) / j), initial=1.0)
    )
    below, series = 1 / (lags * lags), np.zeros(lags.size)
    for binomial in binomials[:1:-2]:
        series = series * below + binomial
    return np.concatenate([near[: n_lags + 1], series * arrays.power(lags, power - 2)])


class BModelArrivals(Fitted, Modulated):
    """Poisson arrivals under a cascade that splits each interval bias : 1 - bias, down to pieces of `bin`.

    The larger part goes to either half at random. Wang, Madhyastha, Chan, Papadimitriou, Faloutsos, ICDE 2002. The
    stretch is halved until a piece is at most `bin`; peak to mean of the pieces is (2·bias)^levels. The total over the
    stretch is exact.
    """

    example = "{kind: b-model, rate: 100/s, bias: 0.57}"
    forms = (("bias",), ("preset",))
    is_of_whole = True
    kind: Literal["b-model"]
    preset: PresetName | None = None
    bias: Annotated[Number, Field(ge=0.5, lt=1)] | None = None
    bin_ns: PositiveDuration = 1_000_000_000

    def random(self, rng: Generator, horizon_ns: int) -> Curve:
        """A cascade over the whole horizon."""
        bias = self.settled().bias
        n_levels = (-(-horizon_ns // self.bin_ns) - 1).bit_length()
        refuse_pieces(1 << n_levels, "pieces of a b-model")
        mass = np.ones(1)
        for _ in range(n_levels):
            left = np.where(rng.random(mass.size) < 0.5, bias, 1 - bias)
            mass = np.stack([mass * left, mass * (1 - left)], axis=1).ravel()
        edges = np.linspace(0.0, float(horizon_ns), mass.size + 1)
        return curve_of(edges, mass * mass.size, horizon_ns)


class Shape(RatePath):
    """The form of an envelope's rate; `example` as in OpenProcess."""

    example: ClassVar[str]
    kind: str


class Point(Section):
    """A level at an instant of the phase."""

    at_ns: Duration
    level: Level


class PiecewiseShape(Shape):
    """Levels at instants, linear between them; two points at one instant make a jump."""

    example = "{kind: piecewise, points: [{at: 0s, level: 1}, {at: 30s, level: 3}, {at: 40s, level: 0.5}]}"
    kind: Literal["piecewise"]
    points: Annotated[tuple[Point, ...], Field(min_length=1, max_length=_LARGEST_POINT_COUNT)]

    def misfits(self) -> Sentences:
        times = [point.at_ns for point in self.points]
        if times != sorted(times):
            yield "the points must rise in time"

    def fixed(self, whole_ns: int) -> FixedPath:
        return piecewise(tuple((point.at_ns, point.level) for point in self.points), whole_ns)


class RampShape(Shape):
    """Linear from one level to another, over a time or the whole phase; then it stays."""

    example = "{kind: ramp, from: 0.2, to: 2, over: 45s}"
    kind: Literal["ramp"]
    begin: Level = Field(alias="from")
    end: Level = Field(alias="to")
    over_ns: PositiveDuration | None = None

    def fixed(self, whole_ns: int) -> FixedPath:
        return piecewise(((0, self.begin), (self.over_ns or whole_ns, self.end)), whole_ns)


class StepShape(Shape):
    """Level 1, from `at` on `factor`."""

    example = "{kind: step, at: 20s, factor: 3}"
    kind: Literal["step"]
    at_ns: Duration
    factor: Level

    def fixed(self, whole_ns: int) -> FixedPath:
        _refuse_behind(self.at_ns, whole_ns)
        return piecewise(((0, 1.0), (self.at_ns, 1.0), (self.at_ns, self.factor)), whole_ns)


class SpikeShape(Shape):
    """Level 1, and `factor` for `width` from `at` on."""

    example = "{kind: spike, at: 20s, width: 5s, factor: 4}"
    kind: Literal["spike"]
    at_ns: Duration
    width_ns: PositiveDuration
    factor: Level

    def fixed(self, whole_ns: int) -> FixedPath:
        _refuse_behind(self.at_ns, whole_ns)
        begin, end = self.at_ns, self.at_ns + self.width_ns
        levels = ((0, 1.0), (begin, 1.0), (begin, self.factor), (end, self.factor), (end, 1.0))
        return piecewise(levels, whole_ns)


class PulsesShape(Shape):
    """Level 1, and `factor` for `width` at the end of every `period`."""

    example = "{kind: pulses, factor: 4, width: 4s, period: 15s}"
    kind: Literal["pulses"]
    factor: Level
    width_ns: PositiveDuration
    period_ns: PositiveDuration

    def misfits(self) -> Sentences:
        if self.width_ns >= self.period_ns:
            yield "width must be shorter than period"

    def fixed(self, whole_ns: int) -> FixedPath:
        levels = np.array([1.0, self.factor])
        edges = np.array([0.0, self.period_ns - self.width_ns, self.period_ns])
        return FixedPath(edges, levels, levels, whole_ns)


class DiurnalShape(Shape):
    """1 + (peak - 1)·cos: `peak` times the mean at `peak_at` and every `period` after.

    In 288 linear pieces a period: between the points a chord is off the cosine by at most (2π/288)²/8 = 6e-5 of its
    amplitude.
    """

    example = "{kind: diurnal, peak: 1.8, peak_at: 45s, period: 60s}"
    kind: Literal["diurnal"]
    peak: Annotated[Number, Field(ge=1, le=2)]
    peak_at_ns: Duration = 0
    period_ns: PositiveDuration

    def fixed(self, whole_ns: int) -> FixedPath:
        edges = np.linspace(0.0, float(self.period_ns), _PIECES_A_DAY + 1)
        turns = (edges - self.peak_at_ns % self.period_ns) / self.period_ns
        levels = np.maximum(1 + (self.peak - 1) * arrays.cos_sin(turns)[0], 0.0)
        return FixedPath(edges, levels[:-1], levels[1:], whole_ns)


class LogGaussian(Shape):
    """A random level per bin, exp(σ·Z_j - σ²/2) with Z a stationary Gaussian series of variance 1.

    So a process on it is a log-Gaussian Cox process.
    """

    sigma: _Sigma
    bin_ns: PositiveDuration

    def autocorrelation(self, n_lags: int) -> Floats:
        """That of Z at lags 0 to `n_lags`, (n_lags + 1,)."""
        raise NotImplementedError

    def random(self, rng: Generator, horizon_ns: int) -> Curve:
        count = math.ceil(horizon_ns / self.bin_ns)
        # the transforms hold eight times what a path does
        refuse_pieces(8 * count, "bins of a log-gaussian rate")
        n_lags = 1 << (count - 1).bit_length()
        series = gaussian_series(self.autocorrelation(n_lags), rng)
        levels = arrays.exp(self.sigma * series[:count] - self.sigma * self.sigma / 2)
        return curve_of(np.arange(count + 1, dtype=np.float64) * self.bin_ns, levels, horizon_ns)


class LogAr1Shape(LogGaussian):
    """A random level per bin: its logarithm an AR(1) series of standard deviation sigma and time constant tau."""

    example = "{kind: log-ar1, sigma: 0.5, tau: 5s, bin: 500ms}"
    kind: Literal["log-ar1"]
    tau_ns: PositiveDuration

    def autocorrelation(self, n_lags: int) -> Floats:
        """exp(-|k|·bin/tau)."""
        lags = np.arange(n_lags + 1, dtype=np.float64)
        return arrays.exp(-lags * self.bin_ns / float(self.tau_ns))


class FgnShape(LogGaussian):
    """A random level per bin: its logarithm fractional Gaussian noise of standard deviation sigma."""

    example = "{kind: fgn, sigma: 0.4, hurst: 0.9, bin: 500ms}"
    kind: Literal["fgn"]
    hurst: _Hurst

    def autocorrelation(self, n_lags: int) -> Floats:
        return noise_autocorrelation(self.hurst, n_lags)


class TraceShape(Shape, TraceArrivals):
    """The trace's own rate per bin."""

    example = "{kind: trace, file: service.csv, time_scale: 1/60, bin: 1s}"
    kind: Literal["trace"]
    bin_ns: PositiveDuration = 60_000_000_000

    def fixed(self, whole_ns: int) -> FixedPath:
        """The counts of the replayed trace per bin; what its scaling draws is drawn from seed 0."""
        n_bins = -(-whole_ns // self.bin_ns)
        refuse_pieces(n_bins, "bins of the shape", LARGEST_FIXED)
        offsets = self.draw(np.random.default_rng(0), whole_ns)
        counts = np.bincount(offsets // self.bin_ns, minlength=n_bins)
        rates = counts.astype(np.float64)
        # the last bin may end with the phase
        rates[-1] *= self.bin_ns / (whole_ns - (n_bins - 1) * self.bin_ns)
        return steps(rates, self.bin_ns, whole_ns)


AnyShape = Annotated[
    PiecewiseShape
    | RampShape
    | StepShape
    | SpikeShape
    | PulsesShape
    | DiurnalShape
    | LogAr1Shape
    | FgnShape
    | TraceShape,
    BY_KIND,
]


def _refuse_behind(at_ns: int, whole_ns: int) -> None:
    if at_ns >= whole_ns:
        at, phase = format_duration(at_ns), format_duration(whole_ns)
        raise ValueError(f"shape.at: {at} lies behind the phase of {phase}")


class FgnArrivals(Fitted, Modulated):
    """Poisson arrivals whose log-rate is fractional Gaussian noise: self-similar, of a Hurst index."""

    example = "{kind: fgn, rate: 100/s, hurst: 0.9, sigma: 0.4}"
    forms = (("preset",), ("hurst", "sigma"))
    kind: Literal["fgn"]
    preset: PresetName | None = None
    hurst: _Hurst | None = None
    sigma: _Sigma | None = None
    bin_ns: PositiveDuration = 1_000_000_000

    def random(self, rng: Generator, horizon_ns: int) -> Curve:
        own = self.settled()
        path = FgnShape.model_construct(kind="fgn", sigma=own.sigma, hurst=own.hurst, bin_ns=own.bin_ns)
        return path.random(rng, horizon_ns)


class EnvelopeArrivals(Fitted, Modulated):
    """A rate curve, a shape or the name of a fitted one, times a short-memory residual."""

    example = "{kind: envelope, rate: 100/s, preset: nasa-flash-crowd, bin: 1s}"
    forms = (("preset",), ("curve",), ("shape",))
    kind: Literal["envelope"]
    preset: PresetName | None = None
    curve: tuple[Level, ...] | None = None
    bin_ns: PositiveDuration | None = None
    shape: AnyShape | None = None
    residual: Residual | None = None

    def misfits(self) -> Sentences:
        yield from super().misfits()
        if self.curve is not None and self.bin_ns is None:
            yield "a curve needs bin, the width of each of its values, such as 60s"
        if self.curve is not None and not any(self.curve):
            yield "a curve needs a value above 0"
        if self.shape is not None and self.bin_ns is not None:
            yield "bin is for a curve or a preset; a shape has its own times"

    def unit(self) -> Unit:
        return self.settled().residual or super().unit()

    def fixed(self, whole_ns: int) -> FixedPath | None:
        if self.shape is not None:
            return self.shape.fixed(whole_ns)
        own = self.settled()
        return steps(own.curve, own.bin_ns, whole_ns)

    def random(self, rng: Generator, horizon_ns: int) -> Curve:
        assert self.shape is not None
        return self.shape.random(rng, horizon_ns)


VaryingArrivals = MmppArrivals | OnOffArrivals | FgnArrivals | BModelArrivals | EnvelopeArrivals
