"""Laws of gaps: mean, spread, shape, tail and independence of each, and each check refuses a law that is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy import stats

from squall.scenarios.arrays import Floats as Gaps
from squall.scenarios.arrivals.stationary import Residual, weibull_shape
from squall.scenarios.exact.renewals import Law, weibull_c2
from squall.scenarios.strict_yaml import parse_yaml
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
FEW_FIRST = 400
"""Their critical D is 0.11; ordinary first gaps are off by 0.19 (Pareto of index 2.5) and more."""


RESIDUAL: TypeAdapter[Any] = TypeAdapter(Residual)
EVEN, WIDE = "{kind: gamma, cv: 0.5}", "{kind: gamma, cv: 2}"
EXPONENTIAL, MIXED = "{kind: hyperexponential, cv: 1}", "{kind: hyperexponential, cv: 2}"
PARETO, BELL = "{kind: pareto, alpha: 2.5}", "{kind: weibull, shape: 2}"


def law(text: str) -> Law:
    """The gaps of a residual as a scenario file has it."""
    gaps_law: Law = RESIDUAL.validate_python(parse_yaml(text, "test")).law
    return gaps_law


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


LAWS: dict[str, Reference] = {
    "{kind: gamma, cv: 0.5}": reference(stats.gamma(4.0, scale=0.25)),
    "{kind: gamma, cv: 2}": reference(stats.gamma(0.25, scale=4.0)),
    "{kind: gamma, cv: 3}": reference(stats.gamma(1 / 9, scale=9.0)),
    "{kind: weibull, shape: 0.5}": weibull(0.5),
    "{kind: weibull, shape: 2}": weibull(2.0),
    "{kind: lognormal, cv: 0.6}": lognormal(0.6),
    "{kind: lognormal, cv: 1.5}": lognormal(1.5),
    "{kind: pareto, alpha: 1.5}": lomax(1.5),
    "{kind: pareto, alpha: 2.5}": lomax(2.5),
    "{kind: pareto, alpha: 6}": lomax(6.0),
    "{kind: hyperexponential, cv: 1}": reference(stats.expon()),
    "{kind: hyperexponential, cv: 2}": hyperexponential(2.0),
    "{kind: hyperexponential, cv: 4}": hyperexponential(4.0),
}


def c2_error(moments: tuple[float, float, float], n: int) -> float:
    """Standard error of s²/mean² by the delta method at mean 1.

    c2 = m2/m1² - 1 has the gradient (-2·m2, 1) in (m1, m2), whose estimates have covariances (m2 - 1)/n,
    (m3 - m2)/n and (m4 - m2²)/n.
    """
    m2, m3, m4 = moments
    return math.sqrt((4 * m2**2 * (m2 - 1) - 4 * m2 * (m3 - m2) + m4 - m2**2) / n)


def faults(gaps_law: Law, right: Reference, n_first: int = N_FIRST) -> set[str]:
    """Which checks the draws of `gaps_law` fail."""
    rng = np.random.default_rng(20261121)
    gaps = gaps_law.gaps(rng, N)
    m2 = right.moments[0]
    failed = {
        "law": misfits(gaps, right.cdf),
        "independence": is_correlated(gaps),
        "first": misfits([gaps_law.first(rng) for _ in range(n_first)], equilibrium_cdf(right.cdf)),
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
    assert faults(law(name), LAWS[name], n_first) == set()
    assert law(name).c2 == pytest.approx(LAWS[name].moments[0] - 1, rel=1e-9)


def twin(text: str, change: Callable[[Gaps], Gaps]) -> Law:
    """The law with its gaps changed."""
    base = law(text)
    return replace(base, gaps=lambda rng, count: change(base.gaps(rng, count)))


def ordinary(text: str, factor: float | None = None) -> Law:
    """The law with a first gap like all others, or its own times a factor."""
    base = law(text)
    if factor is not None:
        return replace(base, first=lambda rng: base.first(rng) * factor)
    return replace(base, first=lambda rng: float(base.gaps(rng, 1)[0]))


def rising_in_fours(gaps: Gaps) -> Gaps:
    return np.sort(gaps.reshape(-1, 4), axis=1).ravel()


def unbalanced(rng: np.random.Generator, count: int) -> Gaps:
    """c2 4 from a short phase of probability 3/4: means 1 - √(r/3) and 1 + √(3r), r = (c2 - 1)/2."""
    means = np.where(rng.random(count) < 0.75, 1 - math.sqrt(0.5), 1 + math.sqrt(4.5))
    return rng.standard_exponential(count) * means


WRONG: dict[str, tuple[Law, str, set[str]]] = {
    "3 % too long": (twin(EXPONENTIAL, lambda g: g * 1.03), EXPONENTIAL, {"mean", "law"}),
    "gamma for exponential": (law("{kind: gamma, cv: 1.06}"), EXPONENTIAL, {"c2", "law"}),
    "shape for cv": (law("{kind: gamma, cv: 0.25}"), WIDE, {"c2", "law", "first"}),
    "gamma of scale 1": (twin(EVEN, lambda g: g * 4), EVEN, {"mean", "law"}),
    "exponential for gamma": (law(EXPONENTIAL), "{kind: gamma, cv: 3}", {"c2", "law", "first"}),
    "weibull for gamma": (law("{kind: weibull, cv: 2}"), WIDE, {"law", "first"}),
    "weibull without its scale": (twin(BELL, lambda g: g * math.gamma(1.5)), BELL, {"mean", "law"}),
    "mu 0": (
        twin("{kind: lognormal, cv: 0.6}", lambda g: g * math.sqrt(1.36)),
        "{kind: lognormal, cv: 0.6}",
        {"mean", "law"},
    ),
    "sigma for cv": (law("{kind: lognormal, cv: 2.913}"), "{kind: lognormal, cv: 1.5}", {"law"}),
    "pareto of the first kind": (twin(PARETO, lambda g: (g + 1.5) * 0.6), PARETO, {"law"}),
    "exponential for pareto": (law(EXPONENTIAL), "{kind: pareto, alpha: 6}", {"law", "tail"}),
    "one phase": (law(EXPONENTIAL), MIXED, {"law", "c2", "first"}),
    "first gap not cut": (ordinary(BELL, 1.5), BELL, {"first"}),
    "gamma for weibull": (law("{kind: gamma, cv: 2.2138}"), "{kind: weibull, shape: 0.5}", {"law"}),
    "gamma for lognormal": (law("{kind: gamma, cv: 0.6}"), "{kind: lognormal, cv: 0.6}", {"law"}),
    "gamma for pareto": (law(WIDE), PARETO, {"law", "tail"}),
    "index 1.65 for 1.5": (
        law("{kind: pareto, alpha: 1.65}"),
        "{kind: pareto, alpha: 1.5}",
        {"law", "tail", "first"},
    ),
    "cut at 5 means": (
        twin("{kind: pareto, alpha: 1.5}", lambda g: np.minimum(g, 5.0)),
        "{kind: pareto, alpha: 1.5}",
        {"tail"},
    ),
    "gamma for hyperexponential": (law(WIDE), MIXED, {"law"}),
    "phases of unlike load": (
        Law(4.0, unbalanced, lambda rng: float(unbalanced(rng, 1)[0])),
        MIXED,
        {"law", "first"},
    ),
    "hyperexponential for exponential": (
        law("{kind: hyperexponential, cv: 1.15}"),
        EXPONENTIAL,
        {"law", "c2"},
    ),
    "rounded to 0.05": (twin(EXPONENTIAL, lambda g: np.round(g * 20) / 20), EXPONENTIAL, {"law"}),
    "neighbours alike": (twin(EVEN, rising_in_fours), EVEN, {"independence"}),
    **{
        f"first gap ordinary, {text}": (ordinary(text), text, {"first"})
        for text in (
            EVEN,
            WIDE,
            "{kind: weibull, shape: 0.5}",
            "{kind: lognormal, cv: 1.5}",
            PARETO,
            MIXED,
        )
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_law_is_refused(name: str) -> None:
    wrong, taken_for, at_least = WRONG[name]
    assert faults(wrong, LAWS[taken_for]) >= at_least


def test_weibull_shapes_are_those_of_their_c2() -> None:
    # roots of c2 = Γ(1+2/k)/Γ(1+1/k)² - 1, three digits
    for c2, shape in {2: 0.721, 4: 0.543, 8: 0.427, 16: 0.349, 32: 0.294}.items():
        assert weibull_shape(math.sqrt(c2)) == pytest.approx(shape, abs=5e-4)
        assert weibull_c2(weibull_shape(math.sqrt(c2))) == pytest.approx(c2, rel=1e-9)
    assert weibull_shape(1.0) == pytest.approx(1.0, rel=1e-9)


def test_a_pareto_index_of_a_cv_gives_it_back() -> None:
    assert law("{kind: pareto, cv: 1.5}").c2 == pytest.approx(2.25)
    assert law("{kind: pareto, alpha: 2}").c2 == math.inf
    assert law("{kind: weibull, cv: 2}").c2 == pytest.approx(4.0)
