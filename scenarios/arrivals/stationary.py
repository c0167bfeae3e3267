"""Processes of a constant mean rate, and those of rate 1 that are residuals of an envelope, too.

Of a process of rate 1 one unit of the axis is one expected arrival: its mean count on [0, length) is exactly `length`.
All start in their stationary state: N superposed copies show no burst at 0.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from squall.scenarios.arrays import Floats, Int64s, pieces
from squall.scenarios.arrivals.presets import ClientPresetName, PresetName
from squall.scenarios.arrivals.process import Fitted, Rated, floor_in_place, held_below, merged, refuse_pieces
from squall.scenarios.errors import Sentences
from squall.scenarios.exact import arrays, draws, renewals, scalars
from squall.scenarios.exact.renewals import Law
from squall.scenarios.fields import (
    BY_KIND,
    Count,
    Cv,
    NonNegative,
    Number,
    OneForm,
    PositiveDuration,
    PositiveNumber,
    Rate,
    Section,
)
from squall.scenarios.units import NS_PER_S

if TYPE_CHECKING:
    from numpy.random import Generator

LARGEST_GAMMA_C2 = 10.0
"""Above it a Gamma renewal is a batch process: at shape 0.1 a fifth of the gaps is below 1e-6 of the mean. Recorded
parameters of single clients go beyond."""
SMALLEST_LOMAX_ALPHA = 1.05
"""Nearer to 1 the mean, though finite, is not reached by any sample: 1e7 gaps still miss half of it."""
LARGEST_HAWKES_N = 0.99
SMALLEST_HAWKES_BETA = 1e-9
LONGEST_BURN_IN = 1e5
"""Where it does not suffice, k < 3e-4: the excitation then sums thousands of arrivals and its Gamma law is close."""
_BURN_IN_MISSED = 1e-9
LARGEST_CLIENT_COUNT = 100_000
LARGEST_SIGMA = 4.0
"""Of a logarithm: at 4 the mean is made by levels that come once in 30,000 bins."""
_LARGEST_ZIPF = 20.0  # beyond, the second client has a millionth of the rate
_SMALLEST_CLIENT_CV = 0.1


class Unit(Section):
    """A stationary process of rate 1."""

    kind: str

    def points(self, rng: Generator, length: float) -> Floats:
        """Points in [0, length), (n,) float64, sorted; empty for length 0."""
        raise NotImplementedError


class Stationary(Unit, Rated):
    """A process of rate 1 whose points are stretched by 1/rate and floored to ns."""

    def _drawn(self, rng: Generator, horizon_ns: int) -> Int64s:
        return _in_ns(self.points(rng, self.stated_count(horizon_ns)), self.rate_hz, horizon_ns)


def _in_ns(points: Floats, rate_hz: float, horizon_ns: int) -> Int64s:
    """Points of rate 1 as instants in [0, horizon_ns) of that rate; takes over their memory."""
    points *= NS_PER_S / rate_hz
    return held_below(floor_in_place(points), horizon_ns)


class Poisson(Unit):
    """Independent arrivals: c2 of gaps 1, IDC 1 at every window."""

    kind: Literal["poisson"]

    def points(self, rng: Generator, length: float) -> Floats:
        """Exact: a Poisson count, placed independently and uniformly."""
        points = rng.random(int(draws.poisson(rng, length, 1)[0]))
        points *= length
        points.sort()
        return points


class Renewal(Unit):
    """Independent gaps of one law of mean 1, the first from its equilibrium law."""

    @property
    def law(self) -> Law:
        """That of the gaps. Raises ValueError for gaps of which no process is drawn."""
        raise NotImplementedError

    def misfits(self) -> Sentences:
        yield from super().misfits()
        _ = self.law

    def points(self, rng: Generator, length: float) -> Floats:
        return self.law.points(rng, length)


class Gamma(Renewal, OneForm):
    """Gamma gaps, by their coefficient of variation or by the shape k = 1/cv² that vLLM calls burstiness."""

    forms = (("cv",), ("burstiness",))
    kind: Literal["gamma"]
    cv: Cv | None = None
    burstiness: PositiveNumber | None = None

    def misfits(self) -> Sentences:
        c2 = self._c2
        if c2 > LARGEST_GAMMA_C2 * (1 + 1e-12):  # the cv of a burstiness is rounded
            yield (
                f"gaps with cv² {c2:g} are above {LARGEST_GAMMA_C2:g}: such a gamma sends batches"
                " and pauses; use kind 'mmpp', 'hawkes' or 'envelope' for stronger bursts"
            )
        yield from super().misfits()

    @property
    def _c2(self) -> float:
        cv = self.cv if self.cv is not None else 1 / math.sqrt(self.burstiness or 1)
        return cv * cv

    @property
    def law(self) -> Law:
        return renewals.gamma_law(self._c2)


class Weibull(Renewal, OneForm):
    """Weibull gaps, by their shape (below 1 is bursty) or their coefficient of variation."""

    forms = (("shape",), ("cv",))
    kind: Literal["weibull"]
    shape: PositiveNumber | None = None
    cv: Cv | None = None

    @property
    def law(self) -> Law:
        return renewals.weibull_law(self.shape or weibull_shape(self.cv or 1.0))


@lru_cache(maxsize=256)
def weibull_shape(cv: float) -> float:
    """The shape whose c2 is cv², by bisection of its logarithm: c2 falls as the shape grows."""
    renewals.refuse_c2(cv * cv)
    low, high = 0.05, 1e6
    for _ in range(60):  # of 24 octaves: below one part in 2⁵⁵
        middle = math.sqrt(low * high)
        low, high = (middle, high) if renewals.weibull_c2(middle) > cv * cv else (low, middle)
    return math.sqrt(low * high)


class Lognormal(Renewal):
    """Lognormal gaps; the cv is that of the gap itself, not of its logarithm.

    σ² = ln(1 + cv²), μ = -σ²/2. Length-biased: μ + σ² = σ²/2.
    """

    kind: Literal["lognormal"]
    cv: Cv

    @property
    def law(self) -> Law:
        c2 = self.cv * self.cv
        renewals.refuse_c2(c2)
        mu, sigma = scalars.lognormal_parameters(1.0, self.cv)
        return Law(
            c2,
            lambda rng, count: draws.lognormal(rng, mu, sigma, count),
            lambda rng: float(draws.lognormal(rng, -mu, sigma, 1)[0]) * rng.random(),
        )


class Pareto(Renewal, OneForm):
    """Pareto gaps from 0 (Lomax), by their tail index alpha or their cv; the cv has no value up to alpha 2.

    F(x) = 1 - (1 + x/s)^-α, s = α - 1; c2 = α/(α - 2) where α > 2, else infinite. The equilibrium law is Lomax of
    index α - 1 and the same s, since ∫(1 + x/s)^-α dx = (1 + x/s)^-(α-1). Of a cv α is 2c2/(c2 - 1), above 2.
    """

    forms = (("alpha",), ("cv",))
    kind: Literal["pareto"]
    alpha: Annotated[Number, Field(ge=SMALLEST_LOMAX_ALPHA)] | None = None
    cv: Annotated[Cv, Field(gt=1)] | None = None

    @property
    def law(self) -> Law:
        c2 = (self.cv or 0.0) * (self.cv or 0.0)
        alpha = self.alpha if self.alpha is not None else 2 * c2 / (c2 - 1)

        def lomax(rng: Generator, index: float, count: int) -> Floats:
            """s·(U^(-1/index) - 1)."""
            return arrays.expm1(draws.standard_exponential(rng, count) / index) * (alpha - 1)

        return Law(
            alpha / (alpha - 2) if alpha > 2 else math.inf,
            lambda rng, count: lomax(rng, alpha, count),
            lambda rng: float(lomax(rng, alpha - 1, 1)[0]),
        )


class Hyperexponential(Renewal):
    """One of two exponential gaps at random: of rate 2p with probability p, else of rate 2(1 - p), so that c2 = cv².

    p = (1 + √((c2 - 1)/(c2 + 1)))/2 (Whitt, Operations Research 30, 1982). Each phase carries half of the time, so that
    the equilibrium law is one of the two exponentials with probability 1/2 each.
    """

    kind: Literal["hyperexponential"]
    cv: Annotated[Cv, Field(ge=1)]

    @property
    def law(self) -> Law:
        c2 = self.cv * self.cv
        renewals.refuse_c2(c2, least=1.0)
        p = (1 + math.sqrt((c2 - 1) / (c2 + 1))) / 2

        def mixed(rng: Generator, short: float, count: int) -> Floats:
            """Gaps that are of the short phase with that probability."""
            gaps = draws.standard_exponential(rng, count)
            gaps *= np.where(rng.random(count) < short, 0.5 / p, 0.5 / (1 - p))
            return gaps

        return Law(c2, lambda rng, count: mixed(rng, p, count), lambda rng: float(mixed(rng, 0.5, 1)[0]))


_Children = Annotated[NonNegative, Field(le=LARGEST_HAWKES_N)]


class Hawkes(Unit):
    """Self-exciting: each arrival brings `n` further ones on average, at Exp(`beta`) delays.

    Intensity 1 - n + n·beta·X(t), X(t) = Σ exp(-beta(t - t_i)); `beta` is per expected arrival. IDC(∞) = 1/(1-n)²
    (Hawkes, Biometrika 58, 1971; the branching form is Hawkes and Oakes, J. Appl. Prob. 11, 1974).
    """

    kind: Literal["hawkes"]
    n: _Children
    beta: Annotated[Number, Field(ge=0.001)]

    def points(self, rng: Generator, length: float) -> Floats:
        """Roots from `-burn_in` on, and the first children of what was before; then generation after generation."""
        start = -self.burn_in()
        roots = rng.random(int(draws.poisson(rng, (1 - self.n) * (length - start), 1)[0]))
        roots *= length - start
        before = self._delays(rng, int(draws.poisson(rng, self.n * self._excitation(rng), 1)[0]))
        generation = np.concatenate([roots, before[before < length - start]])
        generation += start
        generations = []
        while generation.size:
            generations.append(generation[generation >= 0])
            parts = pieces(generation.size, renewals.CHUNK)
            generation = np.concatenate([self._children(rng, generation[part], length) for part in parts])
        points = np.concatenate([*generations, np.empty(0)])
        points.sort()
        return points

    def _children(self, rng: Generator, parents: Floats, length: float) -> Floats:
        born = np.repeat(parents, draws.poisson(rng, self.n, parents.size))
        born += self._delays(rng, born.size)
        return born[born < length]

    def _delays(self, rng: Generator, count: int) -> Floats:
        return draws.standard_exponential(rng, count) / self.beta

    def _excitation(self, rng: Generator) -> float:
        """X at the start of the burn-in: Gamma of the stationary mean 1/beta and variance 1/(2·beta·(1-n)).

        The moments follow from 0 = d/dt E X² = -2·beta·E X² + E[(1 - n + n·beta·X)(2X + 1)]. The Gamma law is that
        of the diffusion limit (Jaisson, Rosenbaum, Ann. Appl. Prob. 25, 2015); the burn-in wears off what differs.
        """
        shape = 2 * (1 - self.n) / self.beta
        return float(draws.standard_gamma(rng, shape, 1)[0]) / (2 * (1 - self.n))

    def burn_in(self) -> float:
        """Length before 0 after which what was before leaves fewer than 1e-9 arrivals, at most 100,000.

        The descendants of a root at 0 have intensity n·beta·exp(-k·u) at u, with k = beta(1-n) (the
        resolvent of the kernel). Roots before -B therefore leave, after 0,
        (1-n) ∫_B^∞ ∫_s^∞ n·beta·exp(-k·u) du ds = (n/k)·exp(-k·B).
        """
        k = self.beta * (1 - self.n)
        if not self.n:
            return 0.0
        return min(max(0.0, scalars.log(self.n / k / _BURN_IN_MISSED) / k), LONGEST_BURN_IN)


Residual = Annotated[Poisson | Gamma | Weibull | Lognormal | Pareto | Hyperexponential | Hawkes, BY_KIND]
"""A process of rate 1, as a key of an envelope."""


class ConstantArrivals(Rated):
    """One request every 1/rate, the first at 0."""

    example = "{kind: constant, rate: 100/s}"
    kind: Literal["constant"]

    def _drawn(self, rng: Generator, horizon_ns: int) -> Int64s:
        """Arrival i at floor(i · 1e9 / rate); the generator is not used."""
        del rng
        points = np.arange(math.ceil(self.stated_count(horizon_ns)) + 1, dtype=np.float64)
        points *= float(NS_PER_S)
        with np.errstate(over="ignore"):  # of a rate so low that the second point is beyond every float
            points /= self.rate_hz
        offsets = floor_in_place(points[: np.searchsorted(points, float(horizon_ns))])
        return offsets[: np.searchsorted(offsets, horizon_ns)]


class PoissonArrivals(Poisson, Stationary):
    """Independent arrivals."""

    example = "{kind: poisson, rate: 100/s}"


class GammaArrivals(Gamma, Stationary):
    """Renewal process of gamma gaps, by `cv` or `burstiness` (= 1/cv²)."""

    example = "{kind: gamma, rate: 100/s, cv: 2}"


class WeibullArrivals(Weibull, Stationary):
    """Renewal process of Weibull gaps."""

    example = "{kind: weibull, rate: 100/s, cv: 2}"


class LognormalArrivals(Lognormal, Stationary):
    """Renewal process of lognormal gaps."""

    example = "{kind: lognormal, rate: 100/s, cv: 2}"


class ParetoArrivals(Pareto, Stationary):
    """Renewal process of Pareto gaps, by tail index or cv."""

    example = "{kind: pareto, rate: 100/s, alpha: 1.8}"


class HyperexponentialArrivals(Hyperexponential, Stationary):
    """Renewal process of two exponential gaps mixed."""

    example = "{kind: hyperexponential, rate: 100/s, cv: 2}"


class HawkesArrivals(Fitted, Stationary):
    """Self-exciting: each arrival brings `n` more on average, the delays exponential of rate `beta`."""

    example = "{kind: hawkes, rate: 100/s, n: 0.8, beta: 2/s}"
    forms = (("preset",), ("n", "beta_hz"))
    kind: Literal["hawkes"]
    preset: PresetName | None = None
    n: _Children | None = None
    beta_hz: Rate | None = None

    def points(self, rng: Generator, length: float) -> Floats:
        own = self.settled()
        beta = own.beta_hz / self.rate_hz
        if beta < SMALLEST_HAWKES_BETA:
            raise ValueError(
                f"hawkes needs beta >= {SMALLEST_HAWKES_BETA} per expected arrival, not {beta:g}"
            )
        return Hawkes.model_construct(kind="hawkes", n=own.n, beta=beta).points(rng, length)


class ClientsArrivals(Fitted):
    """Many clients with Zipf shares of the rate, each a renewal process of gamma gaps with a cv of its own.

    The rate of client i is in proportion to i^-zipf. The cv of each is lognormal with median `cv` and spread `cv_sigma`
    of its logarithm, cut to 0.1 … √10 (ServeGen, arXiv 2505.09999, finds that shape: few clients carry most of the
    load, and each has its own burstiness).
    """

    example = "{kind: clients, rate: 100/s, clients: 100, zipf: 1, cv: 2, cv_sigma: 0.6}"
    forms = (("preset",), ("clients", "zipf", "cv"))
    kind: Literal["clients"]
    preset: ClientPresetName | None = None
    clients: Annotated[Count, Field(le=LARGEST_CLIENT_COUNT)] | None = None
    zipf: Annotated[NonNegative, Field(le=_LARGEST_ZIPF)] | None = None
    cv: Annotated[Cv, Field(ge=_SMALLEST_CLIENT_CV)] | None = None
    cv_sigma: Annotated[NonNegative, Field(le=LARGEST_SIGMA)] | None = None

    def misfits(self) -> Sentences:
        yield from super().misfits()
        if self.preset is not None and self.cv_sigma is not None:
            yield "cv_sigma is for clients, zipf and cv; a preset has its own"
        if self.cv is not None and self.cv * self.cv > LARGEST_GAMMA_C2:
            yield f"cv² {self.cv * self.cv:g} is above {LARGEST_GAMMA_C2:g}"

    def _drawn(self, rng: Generator, horizon_ns: int) -> Int64s:
        own = self.settled()
        weights = arrays.power(np.arange(1, own.clients + 1, dtype=np.float64), -own.zipf)
        rates_hz = weights / math.fsum(weights) * self.rate_hz
        cvs = own.cv * draws.lognormal(rng, 0.0, own.cv_sigma or 0.0, rates_hz.size)
        np.clip(cvs, _SMALLEST_CLIENT_CV, math.sqrt(LARGEST_GAMMA_C2), out=cvs)
        c2 = cvs * cvs
        each = renewals.series_until(
            draws.gamma_each(rng, 1 / c2 + 1) * c2 * rng.random(c2.size),
            rates_hz * (horizon_ns / NS_PER_S),
            lambda which, missing: renewals.gap_counts(c2[which], missing),
            lambda which, counts: _gamma_gaps(rng, c2[which], counts),
        )
        return merged(
            [
                _in_ns(points, rate_hz, horizon_ns)
                for points, rate_hz in zip(each, rates_hz.tolist(), strict=True)
            ]
        )


def _gamma_gaps(rng: Generator, c2: Floats, counts: Int64s) -> Floats:
    """Gaps of several clients, (sum of `counts`,), each of a variance of its own."""
    if c2.size == 1:
        return renewals.in_chunks(rng, renewals.gamma_law(float(c2[0])).gaps, int(counts[0]))
    every = np.repeat(c2, counts)
    return draws.gamma_each(rng, 1 / every) * every


class TicksArrivals(Rated):
    """A Poisson number of requests at once, every period from 0 on, as of a service that is polled.

    Its rate and expected counts are as if the arrivals of a tick were spread over the period after it: exact at whole
    periods and at the end.
    """

    example = "{kind: ticks, rate: 100/s, period: 1s}"
    kind: Literal["ticks"]
    period_ns: PositiveDuration

    def _drawn(self, rng: Generator, horizon_ns: int) -> Int64s:
        refuse_pieces(horizon_ns // self.period_ns, "periods of ticks")
        ticks = np.arange(0, horizon_ns, self.period_ns, dtype=np.int64)
        return np.repeat(ticks, draws.poisson(rng, self.stated_count(horizon_ns) / ticks.size, ticks.size))


StationaryArrivals = (
    ConstantArrivals
    | PoissonArrivals
    | GammaArrivals
    | WeibullArrivals
    | LognormalArrivals
    | ParetoArrivals
    | HyperexponentialArrivals
    | HawkesArrivals
    | ClientsArrivals
    | TicksArrivals
)
