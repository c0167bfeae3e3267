"""Likelihoods and dispersion formulas against slow direct ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import linalg, stats

from squall.analysis.traces import hawkes, mmpp
from squall.analysis.traces.dispersion_formulas import fgn_idc, hawkes_idc, mmpp_c2, mmpp_idc
from squall.analysis.traces.fitted import Excerpt, excerpts_of, parted, spans_of
from squall.analysis.traces.renewal import FAMILIES

RATE = 2.5
_RNG = np.random.default_rng(4)
STRETCHES = (
    Excerpt(np.sort(_RNG.uniform(0, 30, 70)), 30.0),
    Excerpt(np.sort(_RNG.uniform(0, 9, 25)), 9.5),
)
GAPS = _RNG.gamma(0.7, 1 / 0.7, 300)


def slow_hawkes(excerpt: Excerpt, rate: float, n: float, beta: float) -> float:
    """Every pair of points, one at a time; before an excerpt X is rate/beta."""
    points, length = excerpt.points, excerpt.length
    total = -rate * (1 - n) * length - n * rate / beta * (1 - math.exp(-beta * length))
    for i, t in enumerate(points):
        x = rate / beta * math.exp(-beta * t) + sum(math.exp(-beta * (t - u)) for u in points[:i])
        total += math.log(rate * (1 - n) + n * beta * x) - n * (1 - math.exp(-beta * (length - t)))
    return total


def slow_mmpp(excerpt: Excerpt, rate: float, peak: float, base: float, tau: float) -> float:
    """The product of matrix exponentials, one gap after the other."""
    share = (1 - base) / (peak - base)
    jumps = np.array([[-(1 - share), 1 - share], [share, -share]]) / tau
    arrivals = np.diag([rate * peak, rate * base])
    state = np.array([share, 1 - share])
    for gap in np.diff(excerpt.points, prepend=0.0):
        state = state @ linalg.expm((jumps - arrivals) * gap) @ arrivals
    return math.log((state @ linalg.expm((jumps - arrivals) * (excerpt.length - excerpt.points[-1]))).sum())


@pytest.mark.parametrize(
    ("fast", "slow", "shape"),
    [
        *((hawkes.log_likelihood, slow_hawkes, shape) for shape in ((0.5, 0.3), (0.9, 0.01), (0.2, 40.0))),
        *(
            (mmpp.log_likelihood, slow_mmpp, shape)
            for shape in ((2.0, 0.4, 3.0), (1.1, 0.9, 0.2), (50.0, 0.001, 20.0))
        ),
    ],
)
def test_a_likelihood_is_that_of_all_points_one_at_a_time(
    fast: Callable[..., float], slow: Callable[..., float], shape: tuple[float, ...]
) -> None:
    expected = sum(slow(excerpt, RATE, *shape) for excerpt in STRETCHES)
    assert fast(STRETCHES, RATE, *shape) == pytest.approx(expected, rel=1e-10)
    assert fast(STRETCHES, 1.1 * RATE, *shape) != pytest.approx(expected, rel=1e-5)


def test_an_excitation_remembers_points_further_back_than_any_step_of_the_scan() -> None:
    places = [0, 1, 2, 500, 999]
    slow = [sum(math.exp(-1e-3 * k) for k in range(1, i + 1)) for i in places]
    assert hawkes.excitations(np.full(1000, 1e-3), 1.0, 0.0)[places] == pytest.approx(slow, rel=1e-12)


def hyperexponential(shape: float) -> Any:
    p = (1 + math.sqrt((shape**2 - 1) / (shape**2 + 1))) / 2
    return 2 * p**2 * np.exp(-2 * p * GAPS) + 2 * (1 - p) ** 2 * np.exp(-2 * (1 - p) * GAPS)


LAWS: dict[str, Callable[[float], Any]] = {
    "gamma": lambda cv: stats.gamma(cv**-2, scale=cv**2).pdf(GAPS),
    "weibull": lambda k: stats.weibull_min(k, scale=1 / math.gamma(1 + 1 / k)).pdf(GAPS),
    "lognormal": lambda cv: stats.lognorm(math.sqrt(math.log1p(cv**2)), scale=(1 + cv**2) ** -0.5).pdf(GAPS),
    "pareto": lambda alpha: stats.lomax(alpha, scale=alpha - 1).pdf(GAPS),
    "hyperexponential": hyperexponential,
}
"""Densities of the laws of mean 1 by their shape."""


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family.name))
@pytest.mark.parametrize("shape", [1.3, 2.4])
def test_the_density_of_gaps_is_that_of_the_textbook_law_of_mean_1(family: Any, shape: float) -> None:
    slow = float(np.log(LAWS[family.name](shape)).sum())
    assert family.log_density(GAPS, np.log(GAPS), shape) == pytest.approx(slow, rel=1e-10)


def test_the_dispersion_of_log_fgn_is_the_sum_of_its_covariances() -> None:
    rate, sigma, hurst, bin_s, span = 3.0, 0.6, 0.85, 2.0, 5000
    n_bins = np.array([1, 2, 7, 150])
    k = np.abs(np.subtract.outer(np.arange(150), np.arange(150)))
    rho = 0.5 * ((k + 1) ** 1.7 - 2 * k**1.7 + np.abs(k - 1) ** 1.7)
    covariance = np.exp(sigma**2 * (rho - span ** (2 * hurst - 2))) - 1
    slow = [1 + rate * bin_s / m * covariance[:m, :m].sum() for m in n_bins]
    fast = fgn_idc(rate, sigma, hurst, n_bins, bin_s, span)
    # exact below 100 lags; beyond, 40 points a factor of ten under the trapezoidal rule: 1e-3
    assert fast[:3] == pytest.approx(slow[:3], rel=1e-12)
    assert fast[3] == pytest.approx(slow[3], rel=1e-3)


def test_the_dispersion_of_hawkes_goes_from_1_to_1_over_1_minus_n_squared() -> None:
    n, beta = 0.6, 0.5
    found = hawkes_idc(n, beta, np.array([1e-4, 1e-3, 1e7]))
    # derivative at 0: A = n·beta(2 - n)/(2(1 - n)), and IDC(w) = 1 + A·w + …
    slope = n * beta * (2 - n) / (2 * (1 - n))
    assert found == pytest.approx([1 + 1e-4 * slope, 1 + 1e-3 * slope, 1 / (1 - n) ** 2], rel=1e-6)


def test_the_gaps_of_an_interrupted_poisson_process_have_the_c2_of_kuczura() -> None:
    """base 0: c2 = 1 + 2·λ_on·leave_on/(leave_on + leave_off)² (Kuczura, Bell System Technical Journal 52, 1973)."""
    rate, peak, tau = 2.0, 4.0, 3.0
    leave_on, leave_off = (1 - 1 / peak) / tau, 1 / peak / tau
    expected = 1 + 2 * rate * peak * leave_on / (leave_on + leave_off) ** 2
    assert mmpp_c2(rate, peak, 0.0, tau) == pytest.approx(expected, rel=1e-9)
    assert mmpp_idc(rate, peak, 0.0, tau, np.array([1e9])) == pytest.approx(
        [1 + 2 * rate * tau * 3], rel=1e-6
    )


def test_equal_instants_are_parted_within_the_finest_step() -> None:
    times = np.array([0, 10, 10, 10, 14, 30, 30])
    assert parted(times).tolist() == pytest.approx([0, 10, 10 + 4 / 3, 10 + 8 / 3, 14, 30, 32])
    assert parted(np.array([3, 4])).tolist() == [3, 4]


def test_a_long_series_is_cut_into_stretches_that_hold_all_arrivals_of_their_time() -> None:
    times = np.sort(np.random.default_rng(1).integers(0, 10**12, 5000))
    spans = spans_of(times, 10**12, most=800)
    assert [s.last - s.first for s in spans] == [100] * 8
    for span, excerpt in zip(spans, excerpts_of(times, 10**12, most=800), strict=True):
        inside = times[(times >= span.start_ns) & (times < span.end_ns)]
        assert excerpt.points == pytest.approx((inside - span.start_ns) / 1e9)
        assert excerpt.length == (span.end_ns - span.start_ns) / 1e9
    assert len(excerpts_of(times, 10**12)) == 1
