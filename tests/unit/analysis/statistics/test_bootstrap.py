"""Bands by blocks: as wide as independent series differ, and those of draws that are laid out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.analysis.statistics.bootstrap import block_ns_for, dispersion_band, shifted_band
from squall.scenarios.series.burstiness import idc_shifted
from tests.bootstrap import bootstrap_bands
from tests.dispersion import index_of_dispersion
from tests.known import known

S = 1_000_000_000
SPAN = 6_000 * S


def poisson(seed: int, n: int = 30_000) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(seed).integers(0, SPAN, n))


def test_a_band_is_that_of_series_laid_out_and_as_wide_as_the_figure_varies_wherever_the_series_begins() -> (
    None
):
    # dispersion of Poisson over m = 600 windows: standard error √(2/600), a 90 % band of 2 · 1.645 of it.
    # The band of 20 blocks varies itself: a standard deviation from 20 has relative error 1/√40 = 0.16.
    times = poisson(1)
    low, high = known(dispersion_band(times, 10 * S, 0, SPAN))
    assert abs((high - low) / (2 * 1.645 * math.sqrt(2 / 600)) - 1) < 3 * 0.16
    assert dispersion_band(times + 77 * S, 10 * S, 77 * S, SPAN + 77 * S) == (low, high)
    laid = bootstrap_bands(times, SPAN, lambda t, end: index_of_dispersion(t, 10 * S, 0, end))
    assert (low, high) == pytest.approx(tuple(laid[0]), rel=1e-9)


def test_what_no_block_holds_has_no_band() -> None:
    assert (block_ns_for(SPAN), block_ns_for(100 * S)) == (300 * S, 10 * S)
    times = poisson(6)
    for own, window_ns, end_ns in ((times, 301 * S, SPAN), (times, 10 * S, 90 * S), (times[:0], S, SPAN)):
        assert dispersion_band(own, window_ns, 0, end_ns) is None


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
            assert band is None or found is None or band[0] <= found <= band[1], (seed, window_ns)
