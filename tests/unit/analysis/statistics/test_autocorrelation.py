"""Autocorrelation times of series that are known, and their sums by definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.statistics import autocorrelation
from squall.analysis.statistics.autocorrelation import deviations, integrated_time


def two_state(rng: np.random.Generator, n: int, leave_low: float, leave_high: float) -> np.ndarray:
    """(n,) of a Markov chain of two states: spells of geometric length in turn."""
    n_spells = int(2 * n * (leave_low * leave_high) / (leave_low + leave_high) * 1.5) + 100
    lengths = rng.geometric(np.tile([leave_low, leave_high], n_spells))
    return np.repeat(np.tile([True, False], n_spells), lengths)[:n]


@pytest.mark.parametrize(("leave_low", "leave_high"), [(0.5, 0.5), (0.05, 0.05), (0.01, 0.19), (0.95, 0.05)])
def test_the_time_of_a_two_state_chain_is_the_known_one_in_bins_too(
    leave_low: float, leave_high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Autocorrelation at lag k is (1 - a - b)^k: tau = (2 - a - b) / (a + b); of a + b = 1 rows are independent.
    n = 400_000
    series = two_state(np.random.default_rng(1), n, leave_low, leave_high)
    tau = (2 - leave_low - leave_high) / (leave_low + leave_high)
    # Standard error sqrt(2 (2 K + 1) / n), relative, for lags up to K = 5 tau (Madras and Sokal 1988); four of them.
    error = np.sqrt(2 * (2 * 5 * tau + 1) / n)
    fine = integrated_time(deviations(series))
    assert fine == pytest.approx(tau, rel=4 * error)
    monkeypatch.setattr(autocorrelation, "MOST_BINS", 80_000)
    binned = deviations(series)
    assert (binned.width, len(binned.sums)) == (5, 80_000)
    assert integrated_time(binned) == pytest.approx(fine, rel=0.05)


@given(rows=st.lists(st.booleans(), min_size=1, max_size=60))
def test_autocovariances_are_those_of_the_sums_written_out(rows: list[bool]) -> None:
    sums = deviations(np.array(rows, dtype=np.bool_)).sums
    expected = [float(sums[: len(sums) - lag] @ sums[lag:]) / len(sums) for lag in range(len(sums))]
    assert autocorrelation._autocovariances(sums) == pytest.approx(expected, abs=1e-9)


def test_each_stretch_deviates_from_its_own_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.array([True, False, True, True, True, False, False, False, True, False])
    found = deviations(rows, [4, 0, 6])
    assert found.sums == pytest.approx(rows - np.repeat([3 / 4, 1 / 3], [4, 6]))
    assert found.variance == pytest.approx((4 * 3 / 16 + 6 * 2 / 9) / 10)
    monkeypatch.setattr(autocorrelation, "MOST_BINS", 5)
    binned = deviations(rows, [3, 7])
    assert binned.width == 2
    # rows 2 and 9 fill no bin
    assert binned.sums == pytest.approx([1 - 4 / 3, 2 - 6 / 7, 0 - 6 / 7, 1 - 6 / 7])
