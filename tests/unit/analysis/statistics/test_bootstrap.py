"""Bands by blocks: as wide as independent series differ, and of the same figure by both ways."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.analysis.statistics.bootstrap import block_ns_for, dispersion_band, shifted_band
from squall.scenarios.series.burstiness import gap_c2, idc_shifted
from tests.bootstrap import bootstrap_bands
from tests.dispersion import index_of_dispersion

S = 1_000_000_000
SPAN = 6_000 * S
Int64s = NDArray[np.int64]


def poisson(seed: int, n: int = 30_000) -> Int64s:
    return np.sort(np.random.default_rng(seed).integers(0, SPAN, n))


def test_a_band_is_as_wide_as_the_figure_varies() -> None:
    # dispersion of Poisson over m = 600 windows: standard error √(2/600), a 90 % band of 2 · 1.645 of it.
    # The band of 20 blocks varies itself: a standard deviation from 20 has relative error 1/√40 = 0.16.
    expected = 2 * 1.645 * math.sqrt(2 / 600)
    low_high = bootstrap_bands(poisson(1), SPAN, lambda t, end: index_of_dispersion(t, 10 * S, 0, end))[0]
    by_sums = dispersion_band(poisson(1), 10 * S, 0, SPAN)
    assert by_sums is not None
    for low, high in (low_high, by_sums):
        assert abs((high - low) / expected - 1) < 3 * 0.16


def test_both_ways_give_one_band_where_the_blocks_are_the_same() -> None:
    times = poisson(2)
    by_series = bootstrap_bands(
        times, SPAN, lambda t, end: index_of_dispersion(t, 10 * S, 0, end), n=50, seed=3
    )
    by_sums = dispersion_band(times, 10 * S, 0, SPAN, n=50, seed=3)
    assert by_sums == pytest.approx(tuple(by_series[0]), rel=1e-9)


def test_a_band_holds_the_true_value_about_nine_times_in_ten() -> None:
    # of 100 series, a binomial of 0.9: standard error 3; the spread of 20 blocks is low by 1/√20 or so: 5 more
    bands = [dispersion_band(poisson(seed), 10 * S, 0, SPAN, n=200) for seed in range(100)]
    n_held = sum(band is not None and band[0] < 1 < band[1] for band in bands)
    assert 90 - 4 * 3 - 5 <= n_held <= 90 + 3 * 3
    lumps = [np.repeat(poisson(seed, 15_000), 2) for seed in range(20)]  # dispersion 2, not 1
    found = [dispersion_band(one, 10 * S, 0, SPAN, n=200) for one in lumps]
    assert all(band is not None and band[0] > 1 for band in found)


def test_several_figures_are_drawn_at_once_and_none_is_nan() -> None:
    bands = bootstrap_bands(poisson(4), SPAN, lambda t, _: [gap_c2(t), None], n=20)
    assert bands.shape == (2, 2)
    assert bands[0, 0] < 1 < bands[0, 1] or abs(bands[0].mean() - 1) < 0.1
    assert np.isnan(bands[1]).all()


def test_a_start_other_than_0_changes_nothing() -> None:
    times = poisson(5)
    plain = bootstrap_bands(times, SPAN, lambda t, _: gap_c2(t), n=20)
    moved = bootstrap_bands(times + 77 * S, SPAN + 77 * S, lambda t, _: gap_c2(t), n=20, start_ns=77 * S)
    assert plain.tolist() == moved.tolist()
    assert dispersion_band(times, S, 0, SPAN) == dispersion_band(times + 77 * S, S, 77 * S, SPAN + 77 * S)


def test_what_no_block_holds_has_no_band() -> None:
    assert block_ns_for(SPAN) == 300 * S
    assert block_ns_for(100 * S) == 10 * S
    times = poisson(6)
    assert dispersion_band(times, 301 * S, 0, SPAN) is None
    assert dispersion_band(times, 10 * S, 0, 90 * S) is None
    assert dispersion_band(np.zeros(0, dtype=np.int64), S, 0, SPAN) is None


@pytest.mark.parametrize("length_s", [60, 120, 599, 3_600])
def test_an_index_of_dispersion_lies_in_its_band_wherever_a_burst_is(length_s: int) -> None:
    """Bursts anywhere, also in what the last block of 300 s has left over, and on the edge of a window."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        begin_ns = int(rng.integers(0, (length_s - 1) * 10)) * S // 10 if seed else (length_s - 1) * S
        burst = begin_ns + rng.integers(0, S, int(rng.integers(20, 400)))
        times = np.sort(np.concatenate([rng.integers(0, length_s * S, 5 * length_s), burst]))
        first, last = int(times[0]), int(times[-1])
        for window_ns in (S // 10, S, 10 * S, 100 * S):
            found = idc_shifted(times, window_ns, first, last)
            band = shifted_band(times, window_ns, first, last)
            assert band is None or found is None or band[0] <= found <= band[1], (
                seed,
                window_ns,
                found,
                band,
            )
