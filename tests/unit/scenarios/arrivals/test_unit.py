"""Processes of rate 1: mean and dispersion from the first instant on, and goodness of fit; wrong ones are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from scipy import stats

from squall.scenarios.arrivals import unit as processes
from squall.scenarios.arrivals.gaps import (
    GammaGaps,
    HyperexponentialGaps,
    LognormalGaps,
    LomaxGaps,
    WeibullGaps,
)
from squall.scenarios.arrivals.unit import Points, UnitHawkes, UnitPoisson, UnitProcess, UnitRenewal
from tests.point_checks import (
    Function,
    count_faults,
    exponential_cdf,
    hawkes_idc,
    hawkes_residuals,
    is_correlated,
    misfits,
    renewal_idc,
    replicate,
)

WINDOWS = ((0.0, 0.5), (0.0, 10.0), (4.0, 5.0), (9.5, 10.0))
N_RUNS = 1_500
LENGTH = 20_000.0
SHARES = (0.5, pytest.param(1.0, marks=pytest.mark.slow))
"""Of the runs and of the length: half of them tells all but the closest wrong processes."""


@dataclass(frozen=True)
class Theory:
    """What a process of rate 1 must show: IDC by window, and the residuals of one long run with their law."""

    idc: Callable[[float], float]
    residuals: Callable[[Points], Points]
    law: Function = exponential_cdf
    windows: tuple[tuple[float, float], ...] = WINDOWS
    n_runs: int = N_RUNS


def renewal(law: Function) -> Theory:
    return Theory(cache(lambda w: renewal_idc(law, w)), np.diff, law)


def hawkes(n: float, beta: float, **changes: object) -> Theory:
    start = 25 / beta  # what was before 0 then weighs e^-25
    return Theory(
        lambda w: hawkes_idc(n, beta, w),
        lambda points: hawkes_residuals(points, n, beta, start),
        **changes,  # type: ignore[arg-type]
    )


def lognormal_cdf(cv: float) -> Function:
    sigma = math.sqrt(math.log(1 + cv**2))
    return stats.lognorm(sigma, scale=math.exp(-(sigma**2) / 2)).cdf  # type: ignore[no-any-return]


def weibull_cdf(shape: float) -> Function:
    return stats.weibull_min(shape, scale=1 / math.gamma(1 + 1 / shape)).cdf  # type: ignore[no-any-return]


LONG_WINDOWS = ((0.0, 20.0), (0.0, 200.0), (180.0, 200.0))
MIDDLE_WINDOWS = ((0.0, 3.0), (0.0, 60.0), (57.0, 60.0))

RIGHT: dict[str, tuple[UnitProcess, Theory]] = {
    "poisson": (UnitPoisson(), renewal(exponential_cdf)),
    "gamma 0.5": (UnitRenewal(GammaGaps(0.5)), renewal(stats.gamma(4.0, scale=0.25).cdf)),
    "gamma 2": (UnitRenewal(GammaGaps(2.0)), renewal(stats.gamma(0.25, scale=4.0).cdf)),
    "weibull 0.6": (UnitRenewal(WeibullGaps(0.6)), renewal(weibull_cdf(0.6))),
    "lognormal 1.5": (UnitRenewal(LognormalGaps(1.5)), renewal(lognormal_cdf(1.5))),
    "lomax 1.5": (UnitRenewal(LomaxGaps(1.5)), renewal(stats.lomax(1.5, scale=0.5).cdf)),
    "lomax 2.5": (UnitRenewal(LomaxGaps(2.5)), renewal(stats.lomax(2.5, scale=1.5).cdf)),
    "hyperexponential 2": (
        UnitRenewal(HyperexponentialGaps(2.0)),
        # 2p(1 - p) = 1/(c2 + 1) = 1/5
        renewal(
            lambda x: sum(
                p * exponential_cdf(2 * p * np.asarray(x))
                for p in (0.5 + math.sqrt(0.15), 0.5 - math.sqrt(0.15))
            )
        ),
    ),
    "hawkes 0.3": (UnitHawkes(0.3, 2.0), hawkes(0.3, 2.0)),
    "hawkes 0.7": (UnitHawkes(0.7, 0.5), hawkes(0.7, 0.5, windows=MIDDLE_WINDOWS, n_runs=1_500)),
    "hawkes 0": (UnitHawkes(0.0, 1.0), hawkes(0.0, 1.0)),
    # 1/k = 400 expected arrivals: what was before 0 rules the whole window
    "hawkes slow": (UnitHawkes(0.8, 0.0125), hawkes(0.8, 0.0125, windows=LONG_WINDOWS, n_runs=400)),
}


def faults(
    process: UnitProcess, theory: Theory, sought: frozenset[str] = frozenset(), share: float = 1.0
) -> set[str]:
    """Which checks the draws of `process` fail; with `sought`, only the runs that can find those faults are made."""
    kinds = {fault.split()[0] for fault in sought} or {"mean", "idc", "law", "independence"}
    rng, failed = np.random.default_rng(20261122), set()
    if kinds & {"mean", "idc"}:
        end = max(end for _, end in theory.windows)
        seen = replicate(lambda: process.points(rng, end), theory.windows, round(theory.n_runs * share))
        failed |= count_faults(seen, lambda a, b: b - a, lambda a, b: (b - a) * theory.idc(b - a))
    if kinds & {"law", "independence"}:
        residuals = theory.residuals(process.points(rng, LENGTH * share))
        if misfits(residuals, theory.law):
            failed.add("law")
        if is_correlated(residuals):
            failed.add("independence")
    return failed


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", RIGHT)
def test_a_process_has_its_mean_its_dispersion_and_its_law_from_the_first_instant(
    name: str, share: float
) -> None:
    assert faults(*RIGHT[name], share=share) == set()


def test_the_theory_of_renewals_agrees_with_known_cases() -> None:
    assert renewal_idc(exponential_cdf, 3.0) == pytest.approx(1.0, abs=1e-6)
    # Gamma of shape 2 at rate 1: Var N(w) = w/2 + 1/8 - e^-4w/8 (Cox 1962, section 4.5)
    erlang = stats.gamma(2.0, scale=0.5).cdf
    for w in (0.5, 5.0):
        assert renewal_idc(erlang, w) == pytest.approx(0.5 + (1 - math.exp(-4 * w)) / (8 * w), rel=1e-4)
    # far out w·c2 + 1/6 + c2²/2 - μ3/3, third central moment μ3 = 2kθ³ = 32 of Gamma(1/4, 4) (Cox 1962, section 4.5)
    far = 4 + (1 / 6 + 4**2 / 2 - 32 / 3) / 30
    assert renewal_idc(stats.gamma(0.25, scale=4.0).cdf, 30.0, 4_000) == pytest.approx(far, rel=1e-3)


@dataclass(frozen=True)
class Twin:
    """Points made in a wrong way."""

    points: Callable[[np.random.Generator, float], Points]


class OrdinaryStart(GammaGaps):
    def first_gap(self, rng: np.random.Generator) -> float:
        return float(self.gaps(rng, 1)[0])


class FromNothing(UnitHawkes):
    """Without roots and excitation from before 0."""

    def burn_in(self) -> float:
        return 0.0

    def _excitation(self, rng: np.random.Generator) -> float:
        del rng
        return 0.0


class WithoutBurnIn(UnitHawkes):
    def burn_in(self) -> float:
        return 0.0


class SteadyStart(WithoutBurnIn):
    """The mean excitation, without its spread."""

    def _excitation(self, rng: np.random.Generator) -> float:
        del rng
        return 1 / self.beta


class NoDelay(UnitHawkes):
    def _children(self, rng: np.random.Generator, parents: Points, length: float) -> Points:
        del length
        return np.repeat(parents, rng.poisson(self.n, parents.size))


class OneGeneration(UnitHawkes):
    """Children, but no grandchildren: mean 1 - n + n(1 - n)."""

    def points(self, rng: np.random.Generator, length: float) -> Points:
        start = -self.burn_in()
        roots = rng.random(rng.poisson((1 - self.n) * (length - start))) * (length - start) + start
        every = np.sort(np.concatenate([roots, self._children(rng, roots, length)]))
        return every[every >= 0]


def normalised(rng: np.random.Generator, length: float) -> Points:
    """As tools do that let the last arrival fall on the end: Gamma gaps forced to sum to the length."""
    gaps = GammaGaps(2.0).gaps(rng, max(int(length), 1))
    points: Points = np.cumsum(gaps) / gaps.sum() * length * (1 - 1e-12)
    return points


def even_placement(rng: np.random.Generator, length: float) -> Points:
    """Exactly `length` uniform points: the count has no variance."""
    return np.sort(rng.random(int(length))) * length


def sum_of_two(rng: np.random.Generator, length: float) -> Points:
    """Two Poisson processes of rate 1/2 with gaps that are pairwise the same."""
    gaps = np.repeat(rng.standard_exponential(int(length) + 40), 2)
    points = np.cumsum(gaps) - 5
    return points[(points >= 0) & (points < length)]


WRONG: dict[str, tuple[Callable[[np.random.Generator, float], Points], str, set[str]]] = {
    "fixed count": (even_placement, "poisson", {"idc 0-10"}),
    "each gap twice": (sum_of_two, "poisson", {"idc 0-10", "independence"}),
    "ordinary start": (UnitRenewal(OrdinaryStart(2.0)).points, "gamma 2", {"mean 0-0.5", "mean 0-10"}),
    "ordinary start, regular": (UnitRenewal(OrdinaryStart(0.5)).points, "gamma 0.5", {"mean 0-0.5"}),
    "normalised to the length": (normalised, "gamma 2", {"idc 0-10"}),
    "poisson for gamma": (UnitPoisson().points, "gamma 2", {"idc 0-10", "law"}),
    "gamma for weibull": (UnitRenewal(GammaGaps(1.7581)).points, "weibull 0.6", {"law"}),
    "gamma for lognormal": (UnitRenewal(GammaGaps(1.5)).points, "lognormal 1.5", {"law"}),
    "index 1.7 for 1.5": (UnitRenewal(LomaxGaps(1.7)).points, "lomax 1.5", {"idc 0-10", "law"}),
    "index 2.2 for 2.5": (UnitRenewal(LomaxGaps(2.2)).points, "lomax 2.5", {"law"}),
    "gamma for hyperexponential": (UnitRenewal(GammaGaps(2.0)).points, "hyperexponential 2", {"law"}),
    "n 0.4 for 0.3": (UnitHawkes(0.4, 2.0).points, "hawkes 0.3", {"idc 0-10", "law"}),
    "beta 1 for 0.5": (UnitHawkes(0.7, 1.0).points, "hawkes 0.7", {"law"}),
    "hawkes from nothing": (FromNothing(0.7, 0.5).points, "hawkes 0.7", {"mean 0-3"}),
    "children without delay": (NoDelay(0.7, 0.5).points, "hawkes 0.7", {"idc 0-3", "law"}),
    "one generation": (OneGeneration(0.7, 0.5).points, "hawkes 0.7", {"mean 0-60", "idc 0-60", "law"}),
    "poisson for hawkes": (UnitPoisson().points, "hawkes 0.7", {"idc 0-3", "idc 0-60", "law"}),
    "hawkes for poisson": (UnitHawkes(0.3, 2.0).points, "hawkes 0", {"idc 0-10"}),
    "slow hawkes from nothing": (FromNothing(0.8, 0.0125).points, "hawkes slow", {"mean 0-20", "mean 0-200"}),
    "slow hawkes from its mean": (SteadyStart(0.8, 0.0125).points, "hawkes slow", {"idc 0-200"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_process_is_refused(name: str) -> None:
    points, taken_for, at_least = WRONG[name]
    assert faults(Twin(points), RIGHT[taken_for][1], frozenset(at_least)) >= at_least


def test_every_process_has_a_wrong_twin() -> None:
    assert {taken_for for _, taken_for, _ in WRONG.values()} == set(RIGHT)


@pytest.mark.parametrize("share", SHARES)
def test_the_gamma_law_of_the_excitation_stands_in_for_the_burn_in(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 1/k = 400 it is so close that a burn-in of 5 leaves nothing to be seen."""
    monkeypatch.setattr(processes, "LONGEST_BURN_IN", 5.0)
    process, theory = RIGHT["hawkes slow"]
    assert isinstance(process, UnitHawkes)
    assert process.burn_in() == 5.0
    assert faults(process, theory, share=share) == set()


@pytest.mark.parametrize(
    "process", [UnitRenewal(HyperexponentialGaps(1.0)), UnitRenewal(GammaGaps(2.0)), UnitHawkes(0.3, 2.0)]
)
def test_blocks_join_without_a_seam(process: UnitProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn 100 at a time, the law is the same."""
    monkeypatch.setattr(processes, "CHUNK", 100)
    points = process.points(np.random.default_rng(5), LENGTH)
    if isinstance(process, UnitRenewal):
        law = exponential_cdf if process.law.c2 == 1 else stats.gamma(0.25, scale=4.0).cdf
        assert not misfits(np.diff(points), law)
    else:
        assert not misfits(hawkes_residuals(points, 0.3, 2.0, 100.0), exponential_cdf)


def test_the_hawkes_burn_in_misses_less_than_a_billionth_arrival() -> None:
    process = UnitHawkes(0.95, 0.085)
    k = process.beta * (1 - process.n)
    assert process.n / k * math.exp(-k * process.burn_in()) == pytest.approx(1e-9)
    assert UnitHawkes(0.0, 1.0).burn_in() == 0


@pytest.mark.parametrize(
    ("n", "beta"), [(1.0, 1.0), (-0.1, 1.0), (0.5, 0.0), (math.nan, 1.0), (0.5, math.nan)]
)
def test_an_unstable_hawkes_is_refused(n: float, beta: float) -> None:
    with pytest.raises(ValueError, match=r"hawkes needs 0 <= n <= 0\.99"):
        UnitHawkes(n, beta)
