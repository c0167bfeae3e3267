"""Laws of gaps: mean, spread, shape, tail and independence of each, and each check refuses a law that is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from squall.scenarios.arrivals.gaps import (
    GammaGaps,
    GapLaw,
    Gaps,
    HyperexponentialGaps,
    LognormalGaps,
    LomaxGaps,
    WeibullGaps,
    lomax_alpha,
    weibull_c2,
    weibull_shape,
)
from tests.point_checks import (
    Function,
    equilibrium_cdf,
    is_correlated,
    misfits,
    misses,
    misses_mean,
    misses_tail,
)

N = 60_000
N_FIRST = 4_000
"""First gaps are drawn one by one."""
FEW_FIRST = 1_200
POINTS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0)


@dataclass(frozen=True)
class Reference:
    """A law of mean 1 as scipy or a formula of its own states it."""

    cdf: Function
    moments: tuple[float, float, float]
    """E X², E X³, E X⁴; infinite where the law has none."""
    tail: float | None = None
    shift: float = 0.0
    """X + shift is exactly Pareto of index `tail` beyond it."""


def reference(law: stats.rv_continuous, tail: float | None = None, shift: float = 0.0) -> Reference:
    moments = [law.moment(order) if tail is None or order < tail else math.inf for order in (2, 3, 4)]
    return Reference(law.cdf, (moments[0], moments[1], moments[2]), tail, shift)


def lognormal(cv: float) -> Reference:
    sigma = math.sqrt(math.log(1 + cv**2))
    return reference(stats.lognorm(sigma, scale=math.exp(-(sigma**2) / 2)))


def weibull(shape: float) -> Reference:
    return reference(stats.weibull_min(shape, scale=1 / math.gamma(1 + 1 / shape)))


def lomax(alpha: float) -> Reference:
    return reference(stats.lomax(alpha, scale=alpha - 1), alpha, alpha - 1)


def hyperexponential(cv: float) -> Reference:
    """Rates a, b with p/a = (1 - p)/b = 1/2 and E X² = 2p/a² + 2(1-p)/b² = 1/(2p(1-p)) = c2 + 1."""
    p = float(np.roots([1.0, -1.0, 1 / (2 * (cv**2 + 1))]).real.max())
    a, b = 2 * p, 2 * (1 - p)

    def cdf(x: Gaps) -> Gaps:
        return -p * np.expm1(-a * np.asarray(x)) - (1 - p) * np.expm1(-b * np.asarray(x))

    m2, m3, m4 = (math.factorial(i) * (p / a**i + (1 - p) / b**i) for i in (2, 3, 4))
    return Reference(cdf, (m2, m3, m4))


LAWS: dict[str, tuple[GapLaw, Reference]] = {
    "gamma 0.5": (GammaGaps(0.5), reference(stats.gamma(4.0, scale=0.25))),
    "gamma 2": (GammaGaps(2.0), reference(stats.gamma(0.25, scale=4.0))),
    "gamma 3": (GammaGaps(3.0), reference(stats.gamma(1 / 9, scale=9.0))),
    "weibull 0.5": (WeibullGaps(0.5), weibull(0.5)),
    "weibull 2": (WeibullGaps(2.0), weibull(2.0)),
    "lognormal 0.6": (LognormalGaps(0.6), lognormal(0.6)),
    "lognormal 1.5": (LognormalGaps(1.5), lognormal(1.5)),
    "lomax 1.5": (LomaxGaps(1.5), lomax(1.5)),
    "lomax 2.5": (LomaxGaps(2.5), lomax(2.5)),
    "lomax 6": (LomaxGaps(6.0), lomax(6.0)),
    "hyperexponential 1": (HyperexponentialGaps(1.0), reference(stats.expon())),
    "hyperexponential 2": (HyperexponentialGaps(2.0), hyperexponential(2.0)),
    "hyperexponential 4": (HyperexponentialGaps(4.0), hyperexponential(4.0)),
}


def c2_error(moments: tuple[float, float, float], n: int) -> float:
    """Standard error of s²/mean² by the delta method at mean 1.

    c2 = m2/m1² - 1 has the gradient (-2·m2, 1) in (m1, m2), whose estimates have covariances (m2 - 1)/n,
    (m3 - m2)/n and (m4 - m2²)/n.
    """
    m2, m3, m4 = moments
    return math.sqrt((4 * m2**2 * (m2 - 1) - 4 * m2 * (m3 - m2) + m4 - m2**2) / n)


def faults(law: GapLaw, right: Reference, n_first: int = N_FIRST) -> set[str]:
    """Which checks the draws of `law` fail."""
    rng = np.random.default_rng(20261121)
    gaps = law.gaps(rng, N)
    m2 = right.moments[0]
    shares = right.cdf(np.array(POINTS))
    failed = {
        "law": misfits(gaps, right.cdf),
        "independence": is_correlated(gaps),
        # binomial: s.e. √(p(1 - p)/n)
        "shares": any(
            misses(float((gaps <= x).mean()), p, math.sqrt(p * (1 - p) / N))
            for x, p in zip(POINTS, shares.tolist(), strict=True)
        ),
        "first": misfits([law.first_gap(rng) for _ in range(n_first)], equilibrium_cdf(right.cdf)),
    }
    if m2 < math.inf:
        failed["mean"] = misses_mean(gaps, 1.0, m2 - 1)
    if right.moments[2] < math.inf:
        measured = gaps.var() / gaps.mean() ** 2
        failed["c2"] = misses(float(measured), m2 - 1, c2_error(right.moments, N))
    if right.tail is not None:
        failed["tail"] = misses_tail(gaps + right.shift, right.tail, N // 20)
    return {name for name, is_failed in failed.items() if is_failed}


@pytest.mark.parametrize("n_first", [FEW_FIRST, pytest.param(N_FIRST, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LAWS)
def test_the_gaps_are_of_their_law_and_the_first_of_its_equilibrium_law(name: str, n_first: int) -> None:
    assert faults(*LAWS[name], n_first) == set()


@pytest.mark.parametrize("name", LAWS)
def test_the_stated_c2_is_that_of_the_law(name: str) -> None:
    law, right = LAWS[name]
    assert law.c2 == pytest.approx(right.moments[0] - 1, rel=1e-9)


@dataclass(frozen=True)
class Twin:
    """A law with one thing wrong."""

    base: GapLaw
    change: Callable[[Gaps], Gaps] = lambda gaps: gaps
    first: Callable[[np.random.Generator], float] | None = None

    @property
    def c2(self) -> float:
        return self.base.c2

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        return self.change(self.base.gaps(rng, count))

    def first_gap(self, rng: np.random.Generator) -> float:
        return self.first(rng) if self.first is not None else self.base.first_gap(rng)


def ordinary(base: GapLaw) -> Twin:
    return Twin(base, first=lambda rng: float(base.gaps(rng, 1)[0]))


def rising_in_fours(gaps: Gaps) -> Gaps:
    return np.sort(gaps.reshape(-1, 4), axis=1).ravel()


class Unbalanced(HyperexponentialGaps):
    """The same mean and c2 from a short phase of probability 3/4: means 1 - √(r/3) and 1 + √(3r), r = (c2 - 1)/2."""

    def gaps(self, rng: np.random.Generator, count: int) -> Gaps:
        r = (self.c2 - 1) / 2
        means = np.where(rng.random(count) < 0.75, 1 - math.sqrt(r / 3), 1 + math.sqrt(3 * r))
        return rng.standard_exponential(count) * means

    def first_gap(self, rng: np.random.Generator) -> float:
        return float(self.gaps(rng, 1)[0])


WRONG: dict[str, tuple[GapLaw, str, set[str]]] = {
    "3 % too long": (
        Twin(HyperexponentialGaps(1.0), lambda g: g * 1.03),
        "hyperexponential 1",
        {"mean", "law"},
    ),
    "gamma for exponential": (GammaGaps(1.06), "hyperexponential 1", {"c2", "law"}),
    "shape for cv": (GammaGaps(0.25), "gamma 2", {"c2", "law", "shares", "first"}),
    "scale 1": (Twin(GammaGaps(0.5), lambda g: g * 4), "gamma 0.5", {"mean", "law", "shares"}),
    "exponential for gamma 3": (HyperexponentialGaps(1.0), "gamma 3", {"c2", "law", "first"}),
    "gamma for weibull": (GammaGaps(math.sqrt(weibull_c2(0.5)) * 0.99), "weibull 0.5", {"law", "shares"}),
    "weibull for gamma": (WeibullGaps(weibull_shape(2.0)), "gamma 2", {"law", "shares", "first"}),
    "weibull without its scale": (
        Twin(WeibullGaps(2.0), lambda g: g * math.gamma(1.5)),
        "weibull 2",
        {"mean", "law"},
    ),
    "gamma for lognormal": (GammaGaps(0.6), "lognormal 0.6", {"law", "shares"}),
    "mu 0": (Twin(LognormalGaps(0.6), lambda g: g * math.sqrt(1.36)), "lognormal 0.6", {"mean", "law"}),
    "sigma for cv": (LognormalGaps(math.sqrt(math.expm1(1.5**2))), "lognormal 1.5", {"law", "shares"}),
    "gamma for pareto": (GammaGaps(2.0), "lomax 2.5", {"law", "tail"}),
    "index 1.65 for 1.5": (LomaxGaps(1.65), "lomax 1.5", {"law", "tail", "first"}),
    "pareto of the first kind": (
        Twin(LomaxGaps(2.5), lambda g: (g + 1.5) * 0.6),
        "lomax 2.5",
        {"law", "shares"},
    ),
    "cut at 5 means": (Twin(LomaxGaps(1.5), lambda g: np.minimum(g, 5.0)), "lomax 1.5", {"tail", "shares"}),
    "exponential for lomax": (HyperexponentialGaps(1.0), "lomax 6", {"law", "tail"}),
    "gamma for hyperexponential": (GammaGaps(2.0), "hyperexponential 2", {"law", "shares"}),
    "phases of unlike load": (Unbalanced(2.0), "hyperexponential 2", {"law", "shares", "first"}),
    "one phase": (HyperexponentialGaps(1.0), "hyperexponential 2", {"law", "c2", "first"}),
    "hyperexponential for exponential": (HyperexponentialGaps(1.15), "hyperexponential 1", {"law", "c2"}),
    "rounded to 0.05": (
        Twin(HyperexponentialGaps(1.0), lambda g: np.round(g * 20) / 20),
        "hyperexponential 1",
        {"law"},
    ),
    "neighbours alike": (Twin(GammaGaps(0.5), rising_in_fours), "gamma 0.5", {"independence"}),
    "first gap ordinary, gamma": (ordinary(GammaGaps(2.0)), "gamma 2", {"first"}),
    "first gap ordinary, regular": (ordinary(GammaGaps(0.5)), "gamma 0.5", {"first"}),
    "first gap ordinary, weibull": (ordinary(WeibullGaps(0.5)), "weibull 0.5", {"first"}),
    "first gap ordinary, lognormal": (ordinary(LognormalGaps(1.5)), "lognormal 1.5", {"first"}),
    "first gap ordinary, lomax": (ordinary(LomaxGaps(2.5)), "lomax 2.5", {"first"}),
    "first gap ordinary, hyperexponential": (
        ordinary(HyperexponentialGaps(2.0)),
        "hyperexponential 2",
        {"first"},
    ),
    "first gap not cut": (
        Twin(WeibullGaps(2.0), first=lambda rng: WeibullGaps(2.0).first_gap(rng) * 1.5),
        "weibull 2",
        {"first"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_law_is_refused(name: str) -> None:
    law, taken_for, at_least = WRONG[name]
    assert faults(law, LAWS[taken_for][1]) >= at_least


def test_every_law_has_a_wrong_twin() -> None:
    assert {taken_for.split()[0] for _, taken_for, _ in WRONG.values()} == {name.split()[0] for name in LAWS}


def test_weibull_shapes_are_those_of_their_c2() -> None:
    # roots of c2 = Γ(1+2/k)/Γ(1+1/k)² - 1, three digits
    for c2, shape in {2: 0.721, 4: 0.543, 8: 0.427, 16: 0.349, 32: 0.294}.items():
        assert weibull_shape(math.sqrt(c2)) == pytest.approx(shape, abs=5e-4)
        assert weibull_c2(weibull_shape(math.sqrt(c2))) == pytest.approx(c2, rel=1e-9)
    assert weibull_shape(1.0) == pytest.approx(1.0, rel=1e-9)


def test_a_pareto_index_of_a_cv_gives_it_back() -> None:
    assert LomaxGaps(lomax_alpha(1.5)).c2 == pytest.approx(2.25)
    assert LomaxGaps(2.0).c2 == math.inf
    with pytest.raises(ValueError, match="pareto gaps have a cv above 1, not 1"):
        lomax_alpha(1)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: GammaGaps(0.0), "c2 -1 of the gaps must lie in 0 to 1000"),
        (lambda: GammaGaps(-1.0), "of the gaps must lie in 0 to 1000"),
        (lambda: GammaGaps(32.0), "c2 1024 of the gaps must lie in 0 to 1000"),
        (lambda: GammaGaps(math.nan), "of the gaps must lie in 0 to 1000"),
        (lambda: WeibullGaps(0.1), "a weibull shape of 0.1 is below 0.165"),
        (lambda: WeibullGaps(math.nan), "a weibull shape of nan is below"),
        (lambda: weibull_shape(40.0), "c2 1600 of the gaps must lie in 0 to 1000"),
        (lambda: LognormalGaps(0.0), "of the gaps must lie in 0 to 1000"),
        (lambda: LognormalGaps(32.0), "c2 1024 of the gaps must lie in 0 to 1000"),
        (lambda: LomaxGaps(1.0), "a pareto tail index of 1.0 is below 1.05"),
        (lambda: LomaxGaps(math.inf), "a pareto tail index of inf"),
        (lambda: HyperexponentialGaps(0.9), "c2 0.81 of the gaps must lie in 1 to 1000"),
        (lambda: HyperexponentialGaps(-2.0), "c2 -1 of the gaps must lie in 1 to 1000"),
    ],
)
def test_a_law_that_is_none_is_refused(make: Callable[[], GapLaw], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
