"""Memory of a series: known values for known processes, none where the series is too short."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from squall.scenarios.arrays import Floats
from squall.scenarios.series import correlation
from squall.scenarios.series.correlation import (
    autocorrelation,
    gap_rank_correlation,
    hurst_haar,
    hurst_variance_time,
)

S = 1_000_000_000
N = 20_000


def moving_sums(seed: int) -> Floats:
    """x_i = e_i + e_(i+1): lag-1 correlation 1/2, none beyond."""
    noise = np.random.default_rng(seed).exponential(1.0, N + 1)
    return noise[1:] + noise[:-1]


def test_autocorrelation_is_that_of_a_moving_sum_and_0_of_independent_values() -> None:
    # Bartlett: for this process the variance of r1 is (1 - 3 ρ² + 4 ρ⁴)/n = 0.5/n, of r2 (1 + 2 ρ²)/n = 1.5/n
    values = moving_sums(1)
    assert autocorrelation(values) == pytest.approx(0.5, abs=4 * math.sqrt(0.5 / N))
    assert autocorrelation(values, 2) == pytest.approx(0, abs=4 * math.sqrt(1.5 / N))
    independent = np.random.default_rng(2).exponential(1.0, N)
    assert autocorrelation(independent) == pytest.approx(0, abs=4 / math.sqrt(N))
    assert autocorrelation(values[:30]) is autocorrelation(np.ones(100)) is None


@pytest.mark.parametrize("values", [moving_sums(4), np.floor(moving_sums(5))])  # the second with equal gaps
def test_correlations_of_gaps_are_those_of_their_definitions(
    values: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = np.cumsum(values * S).astype(np.int64)
    gaps = np.diff(times)
    ranked = gap_rank_correlation(times)
    assert ranked == pytest.approx(spearmanr(gaps[:-1], gaps[1:]).statistic, abs=1e-12)
    monkeypatch.setattr(correlation, "MOST_RANK_PAIRS", 3_200)  # in stretches
    in_stretches = gap_rank_correlation(times)
    assert ranked != in_stretches == pytest.approx(ranked, abs=4 / math.sqrt(3_200))
    assert gap_rank_correlation(np.arange(100) * S) is None


def fractional_noise(h: float, n: int, seed: int) -> Floats:
    """Fractional Gaussian noise by circulant embedding (Davies and Harte, Biometrika 74, 1987)."""
    k = np.arange(n + 1)
    cov = 0.5 * (np.abs(k + 1.0) ** (2 * h) - 2 * k ** (2 * h) + np.abs(k - 1.0) ** (2 * h))
    power = np.fft.rfft(np.concatenate([cov, cov[-2:0:-1]])).real
    rng = np.random.default_rng(seed)
    z = rng.normal(size=power.size) + 1j * rng.normal(size=power.size)
    return np.fft.irfft(z * np.sqrt(power * n), 2 * n)[:n]


@pytest.mark.parametrize(("h", "bias"), [(0.5, 0.004), (0.7, 0.016), (0.9, 0.056)])
def test_hurst_estimates_recover_the_exponent_of_fractional_noise(h: float, bias: float) -> None:
    # Bound: four standard errors of the mean of 20 series of 2**14 counts. Block means are taken from a mean of
    # the same series, so the variance-time slope is low by `bias` (mean of 200 series); Haar's by 0.002 at most.
    counts = [(1_000 + 100 * fractional_noise(h, 2**14, seed)).astype(np.int64) for seed in range(20)]
    for estimate, expected in ((hurst_variance_time, h - bias), (hurst_haar, h - 0.0015)):
        found = np.array([estimate(one) for one in counts], dtype=np.float64)
        error = found.std(ddof=1) / math.sqrt(20)
        assert abs(found.mean() - expected) < 4 * error < 0.04


def test_a_drifting_rate_raises_the_slope_and_hardly_the_wavelets() -> None:
    counts = np.random.default_rng(8).poisson(np.linspace(1, 3, 10_000))
    assert (hurst_variance_time(counts) or 0) > 0.8
    assert (hurst_haar(counts) or 1) < 0.6


def test_counts_too_few_or_without_spread_have_no_hurst_exponent() -> None:
    assert hurst_variance_time(np.arange(99)) is hurst_haar(np.arange(200)) is None
    assert hurst_variance_time(np.full(1_000, 3)) is hurst_haar(np.full(1_000, 3)) is None
