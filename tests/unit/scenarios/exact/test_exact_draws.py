"""Draws of the same bits on every CPU: the law of each, and series that do not depend on how they are cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from squall.scenarios.arrays import Floats, Int64s
from squall.scenarios.exact import draws
from tests.point_checks import is_correlated, misfits, misses_mean, misses_shares, misses_variance

N = 100_000

Numbers = Floats
Draw = Callable[[np.random.Generator, int], Numbers]


def gamma_of(shape: float) -> Draw:
    return lambda rng, n: draws.standard_gamma(rng, shape, n)


def gamma_each_of(shape: float) -> Draw:
    return lambda rng, n: draws.gamma_each(rng, np.full(n, shape))


SHAPES = (0.1, 0.25, 0.9, 1.0, 1.7, 30.0, 1e9)
LAWS: dict[str, tuple[Draw, stats.rv_continuous]] = {
    "exponential": (draws.standard_exponential, stats.expon()),
    "normal": (draws.standard_normal, stats.norm()),
    "lognormal": (lambda rng, n: draws.lognormal(rng, 0.3, 0.8, n), stats.lognorm(0.8, scale=np.exp(0.3))),
    **{
        f"gamma {shape:g}": (gamma_of(shape), stats.gamma(shape))
        for shape in SHAPES
    },
    **{
        f"gamma {shape:g}, each": (gamma_each_of(shape), stats.gamma(shape))
        for shape in SHAPES
    },
}  # fmt: skip
WRONG = {
    "gamma for exponential": (LAWS["gamma 0.9"][0], "exponential"),
    "normal 3 % wider": (lambda rng, n: draws.standard_normal(rng, n) * 1.03, "normal"),
    "gamma without its power": (LAWS["gamma 1.7"][0], "gamma 0.9"),
    "gamma of 28.5": (lambda rng, n: draws.standard_gamma(rng, 28.5, n), "gamma 30"),
}


def faults(draw: Draw, law: stats.rv_continuous) -> set[str]:
    found = draw(np.random.default_rng(20261122), N)
    failed = {"law": misfits(found, law.cdf), "independence": is_correlated(found)}
    failed["mean"] = misses_mean(found, law.mean(), law.var())
    return {name for name, is_failed in failed.items() if is_failed}


@pytest.mark.parametrize("name", LAWS)
def test_draws_are_of_their_law(name: str) -> None:
    assert faults(*LAWS[name]) == set()


@pytest.mark.parametrize("name", WRONG)
def test_draws_of_another_law_are_refused(name: str) -> None:
    draw, taken_for = WRONG[name]
    assert "law" in faults(draw, LAWS[taken_for][1])


def test_both_of_a_pair_of_normals_are_independent_and_an_odd_number_is_cut() -> None:
    found = draws.standard_normal(np.random.default_rng(1), 2 * N)
    assert not is_correlated(np.stack([found[:N], found[N:]], axis=1).ravel())
    assert not misses_mean(found[:N] * found[N:], 0.0, 1.0)
    odd = draws.standard_normal(np.random.default_rng(1), 2 * N - 1)
    assert np.array_equal(odd, found[:-1])
    assert draws.standard_normal(np.random.default_rng(1), 0).size == 0


MEANS = (0.02, 0.9, 5.0, 9.99, 10.0, 11.0, 37.5, 1_000.0, 3e6)


def shares_miss(found: Int64s, mean: float) -> bool:
    """Chi-square over cells of equal width between the quantiles of 0.1 and 99.9 %."""
    low, high = stats.poisson(mean).ppf([0.001, 0.999])
    edges = np.arange(low, high + 1, max(1, int((high - low) / 40)))
    below = stats.poisson(mean).cdf(edges)
    cells = np.diff(np.concatenate([[0.0], below, [1.0]]))
    counts = np.histogram(found, np.concatenate([[-1], edges, [1e18]]) + 0.5)[0]
    return misses_shares(counts, cells * found.size)


@pytest.mark.parametrize("mean", MEANS)
def test_poisson_numbers_are_of_their_law(mean: float) -> None:
    found = draws.poisson(np.random.default_rng(20261122), mean, N)
    assert not shares_miss(found, mean)
    assert not misses_mean(found, mean, mean)
    assert not misses_variance(found, mean)
    series = draws.poisson_each(np.random.default_rng(20261122), np.full(N, mean))
    assert not shares_miss(series, mean)
    assert not is_correlated(series)
    wrong = draws.poisson(np.random.default_rng(20261122), mean + 0.03 * np.sqrt(mean), N)
    assert shares_miss(wrong, mean) or misses_mean(wrong, mean, mean)


def test_no_mean_gives_no_number() -> None:
    assert draws.poisson(np.random.default_rng(1), 0.0, 50).tolist() == [0] * 50
    assert draws.poisson_each(np.random.default_rng(1), np.zeros(50)).tolist() == [0] * 50
