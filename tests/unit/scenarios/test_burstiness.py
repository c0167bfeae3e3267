"""Burstiness figures: against hand-made series, and silent where the series is too short."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scenarios.burstiness import describe, gap_c2, index_of_dispersion, peak_to_mean, window_counts

S = 1_000_000_000


def instants(*times_s: float) -> np.ndarray:
    return np.array([round(t * S) for t in times_s], dtype=np.int64)


def test_windows_are_closed_at_the_start_and_a_partial_one_is_left_out() -> None:
    times = instants(0, 0.5, 1, 2.9, 3.0, 3.4)
    assert window_counts(times, S, 0, round(3.5 * S)).tolist() == [2, 1, 1]
    assert window_counts(times, S, S, 3 * S).tolist() == [1, 1]
    assert window_counts(times, S, S, S).tolist() == []


def test_evenly_spaced_arrivals_have_no_dispersion() -> None:
    figures = describe(np.arange(0, 100 * S, S // 50, dtype=np.int64), 100 * S)
    assert (figures.n, figures.rate_hz, figures.gap_c2_ratio) == (5000, 50.0, 0.0)
    assert (figures.idc_100ms_ratio, figures.idc_1s_ratio, figures.idc_10s_ratio) == (0.0, 0.0, 0.0)
    assert figures.peak_to_mean_1s_ratio == 1.0


def test_figures_of_a_small_series_are_those_worked_by_hand() -> None:
    # counts 2,0 five times: mean 1, sample variance 10/9; gaps 0, 2, 0, 2, ...: five of 0 and four of 2
    times = np.repeat(instants(0, 2, 4, 6, 8), 2)
    assert index_of_dispersion(times, S, 0, 10 * S) == pytest.approx(10 / 9)
    assert peak_to_mean(times, S, 0, 10 * S) == 2.0
    mean = 8 / 9
    assert gap_c2(times) == pytest.approx((5 * mean**2 + 4 * (2 - mean) ** 2) / 8 / mean**2)


def test_a_figure_that_the_series_does_not_carry_is_none() -> None:
    figures = describe(instants(0.1, 0.2), 9 * S)
    assert figures.idc_1s_ratio is None
    assert figures.idc_10s_ratio is None
    assert figures.idc_100ms_ratio is not None
    assert figures.gap_c2_ratio is None
    empty = describe(instants(), 100 * S)
    assert (empty.n, empty.rate_hz, empty.idc_1s_ratio, empty.peak_to_mean_1s_ratio) == (0, 0.0, None, None)
    assert gap_c2(instants(1, 1, 1)) is None


def test_instants_outside_the_span_are_left_out() -> None:
    figures = describe(instants(0, 5, 10, 15), 10 * S, start_ns=5 * S)
    assert (figures.n, figures.rate_hz) == (1, 0.2)
    with pytest.raises(ValueError, match="is empty"):
        describe(instants(0), 5, start_ns=5)


def test_poisson_arrivals_have_all_figures_at_1() -> None:
    rng = np.random.default_rng(2)
    times = np.sort(rng.integers(0, 2_000 * S, 100_000))
    figures = describe(times, 2_000 * S)
    # c2 of exponential gaps: relative variance (2 + 2)/n; a variance over m windows: sqrt(2/m)
    assert figures.gap_c2_ratio == pytest.approx(1, abs=4 * math.sqrt(4 / 100_000))
    assert figures.idc_1s_ratio == pytest.approx(1, abs=4 * math.sqrt(2 / 2_000))
    assert figures.idc_10s_ratio == pytest.approx(1, abs=4 * math.sqrt(2 / 200))
