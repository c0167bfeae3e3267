"""Processes of rate 1: their mean, their burstiness, and a stationary start."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.burstiness import gap_c2
from scenarios.processes import UnitGamma, UnitHawkes, UnitPoisson, UnitProcess

SIGMAS = 4.0  # a test of a correct process with another seed fails once in 16,000


def generator(seed: int = 20261121) -> np.random.Generator:
    return np.random.default_rng(seed)


PROCESSES = [UnitPoisson(), UnitGamma(0.5), UnitGamma(2.0), UnitHawkes(0.3, 2.0), UnitHawkes(0.7, 0.2)]


@given(st.sampled_from(PROCESSES), st.integers(0, 2**32), st.floats(0, 300))
@settings(max_examples=60, deadline=None)
def test_points_are_sorted_and_inside_the_axis(process: UnitProcess, seed: int, length: float) -> None:
    points = process.points(generator(seed), length)
    assert (np.diff(points) >= 0).all()
    assert points.size == 0 or (points[0] >= 0 and points[-1] <= length)


@pytest.mark.parametrize(
    ("process", "count_idc"),
    # variance of the count over a long axis = length x IDC(infinity): c2 for a renewal process
    # (Cox 1962, section 4.5), 1/(1-n)^2 for Hawkes
    [
        (UnitPoisson(), 1.0),
        (UnitGamma(0.5), 0.25),
        (UnitGamma(2.0), 4.0),
        (UnitHawkes(0.29, 2.2), 1 / 0.71**2),
        (UnitHawkes(0.7, 0.2), 1 / 0.3**2),
    ],
)
def test_the_mean_count_is_the_length(process: UnitProcess, count_idc: float) -> None:
    length = 200_000.0
    standard_error = math.sqrt(length * count_idc)
    assert abs(process.points(generator(), length).size - length) < SIGMAS * standard_error


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0, 3.0])
def test_gamma_gaps_have_the_cv_asked_for(cv: float) -> None:
    points = UnitGamma(cv).points(generator(), 50_000)
    # Delta method for var/mean^2 of n Gamma gaps, skewness 2cv and excess kurtosis 6c2:
    # relative variance (6c2 + 2 + 4c2 - 8c2)/n = (2 + 2c2)/n
    relative_error = math.sqrt((2 + 2 * cv**2) / points.size)
    measured = gap_c2((points * 1e9).astype(np.int64))
    assert measured == pytest.approx(cv**2, rel=SIGMAS * relative_error)


def test_hawkes_counts_have_the_dispersion_of_theory() -> None:
    n, beta, window = 0.5, 1.0, 200.0
    windows = 2_000
    points = UnitHawkes(n, beta).points(generator(), window * windows)
    counts = np.bincount((points // window).astype(int), minlength=windows)
    # IDC(w) = 1 + 2A (1/k - (1 - e^-kw)/(k^2 w)), A = n beta (2-n)/(2(1-n)), k = beta(1-n) (Hawkes 1971)
    a, k = n * beta * (2 - n) / (2 * (1 - n)), beta * (1 - n)
    expected = 1 + 2 * a * (1 / k - (1 - math.exp(-k * window)) / (k**2 * window))
    assert expected == pytest.approx(1 / (1 - n) ** 2, rel=0.01)  # the window is long enough for the limit
    # counts of 200 are nearly normal: relative standard error of a variance sqrt(2/windows)
    assert counts.var(ddof=1) / counts.mean() == pytest.approx(expected, rel=SIGMAS * math.sqrt(2 / windows))


@pytest.mark.parametrize("process", [UnitGamma(0.3), UnitGamma(2.83), UnitHawkes(0.8, 0.5)])
def test_superposed_copies_show_no_burst_and_no_lull_at_the_start(process: UnitProcess) -> None:
    rng = generator()
    copies = 4_000
    first, last = np.empty(copies), np.empty(copies)
    for index in range(copies):
        points = process.points(rng, 10.0)
        first[index], last[index] = (points < 0.5).sum(), (points >= 9.5).sum()
    for counts in (first, last):  # 0.5 expected in each stretch of 0.5, wherever it lies
        assert abs(counts.mean() - 0.5) < SIGMAS * counts.std(ddof=1) / math.sqrt(copies)


def test_an_ordinary_renewal_start_would_be_seen_by_that_test() -> None:
    rng = generator()
    c2 = 8.0
    counts = np.array([(np.cumsum(rng.gamma(1 / c2, c2, 64)) < 0.5).sum() for _ in range(4_000)])
    assert counts.mean() - 0.5 > SIGMAS * counts.std(ddof=1) / math.sqrt(counts.size)


def test_the_hawkes_burn_in_misses_less_than_a_billionth_arrival() -> None:
    process = UnitHawkes(0.95, 0.085)
    k = process.beta * (1 - process.n)
    assert process.n / k * math.exp(-k * process.burn_in()) == pytest.approx(1e-9)
    assert UnitHawkes(0.0, 1.0).burn_in() == 0


@pytest.mark.parametrize("cv", [0.0, -1.0, 3.2, math.nan])
def test_a_gamma_that_is_none_is_refused(cv: float) -> None:
    with pytest.raises(ValueError, match="allowed is above 0 up to 10"):
        UnitGamma(cv)


@pytest.mark.parametrize(("n", "beta"), [(1.0, 1.0), (-0.1, 1.0), (0.5, 0.0), (math.nan, 1.0)])
def test_an_unstable_hawkes_is_refused(n: float, beta: float) -> None:
    with pytest.raises(ValueError, match=r"hawkes needs 0 <= n <= 0\.99"):
        UnitHawkes(n, beta)
