"""Burstiness figures: against hand-made series, and silent where the series is too short."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.scenarios.series import burstiness
from squall.scenarios.series.burstiness import (
    ROUGH_WINDOWS,
    busiest_window,
    gap_c2,
    gd1_wait_p99,
    gd1_waits,
    hill,
    idc_shifted,
    largest,
    local_c2,
    local_c2s,
    local_window_ns,
    peak_to_mean,
    safe_load,
    window_counts,
    window_runs,
)
from tests.dispersion import index_of_dispersion

S = 1_000_000_000
Int64s = NDArray[np.int64]


def instants(*times_s: float) -> np.ndarray:
    return np.array([round(t * S) for t in times_s], dtype=np.int64)


def test_windows_are_closed_at_the_start_and_a_partial_one_is_left_out() -> None:
    times = instants(0, 0.5, 1, 2.9, 3.0, 3.4)
    assert window_counts(times, S, 0, round(3.5 * S)).tolist() == [2, 1, 1]
    assert window_counts(times, S, S, 3 * S).tolist() == [1, 1]
    assert window_counts(times, S, S, S).tolist() == []


def test_evenly_spaced_arrivals_have_no_dispersion() -> None:
    times = np.arange(0, 100 * S, S // 50, dtype=np.int64)
    assert gap_c2(times) == 0.0
    assert [index_of_dispersion(times, window, 0, 100 * S) for window in (S // 10, S, 10 * S)] == [0.0] * 3
    assert peak_to_mean(times, S, 0, 100 * S) == 1.0


def test_figures_of_a_small_series_are_those_worked_by_hand() -> None:
    # counts 2,0 five times: mean 1, sample variance 10/9; gaps 0, 2, 0, 2, ...: five of 0 and four of 2
    times = np.repeat(instants(0, 2, 4, 6, 8), 2)
    assert index_of_dispersion(times, S, 0, 10 * S) == pytest.approx(10 / 9)
    assert peak_to_mean(times, S, 0, 10 * S) == 2.0
    mean = 8 / 9
    assert gap_c2(times) == pytest.approx((5 * mean**2 + 4 * (2 - mean) ** 2) / 8 / mean**2)


def test_a_figure_that_the_series_does_not_carry_is_none() -> None:
    times = instants(0.1, 0.2)
    assert index_of_dispersion(times, S, 0, 9 * S) is None
    assert index_of_dispersion(times, 10 * S, 0, 9 * S) is None
    assert index_of_dispersion(times, S // 10, 0, 9 * S) is not None
    assert gap_c2(times) is None
    assert index_of_dispersion(instants(), S, 0, 100 * S) is None
    assert peak_to_mean(instants(), S, 0, 100 * S) is None
    assert gap_c2(instants(1, 1, 1)) is None


def test_poisson_arrivals_have_all_figures_at_1() -> None:
    rng = np.random.default_rng(2)
    times = np.sort(rng.integers(0, 2_000 * S, 100_000))
    # c2 of exponential gaps: relative variance (2 + 2)/n; a variance over m windows: sqrt(2/m)
    assert gap_c2(times) == pytest.approx(1, abs=4 * math.sqrt(4 / 100_000))
    assert index_of_dispersion(times, S, 0, 2_000 * S) == pytest.approx(1, abs=4 * math.sqrt(2 / 2_000))
    assert index_of_dispersion(times, 10 * S, 0, 2_000 * S) == pytest.approx(1, abs=4 * math.sqrt(2 / 200))


def poisson(n: int, span_s: int, seed: int = 3) -> Int64s:
    return np.sort(np.random.default_rng(seed).integers(0, span_s * S, n))


def clumped(seed: int = 4) -> Int64s:
    """Pairs 1 ms apart on a rate that changes tenfold each 100 s."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate(
        [rng.integers(k * 100 * S, (k + 1) * 100 * S, (40, 400)[k % 2]) for k in range(10)]
    )
    return np.sort(np.concatenate([starts, starts + S // 1000]))


def test_the_dispersion_on_shifted_grids_is_the_mean_of_ten_plain_ones() -> None:
    times = clumped()
    for window in (S, 10 * S, 7 * S + 3):  # the last does not divide by ten
        plain = [index_of_dispersion(times, window, k * window // 10, 1000 * S) for k in range(10)]
        values = [value for value in plain if value is not None]
        assert len(values) == 10
        assert idc_shifted(times, window, 0, 1000 * S) == pytest.approx(np.mean(values), rel=1e-12)


def test_a_dispersion_needs_ten_windows_unless_a_rough_one_will_do() -> None:
    times = clumped()
    assert idc_shifted(times, 100 * S, 0, 1000 * S) is not None
    assert idc_shifted(times, 100 * S, 0, 999 * S) is None
    assert index_of_dispersion(times, 300 * S, 0, 900 * S) is None
    rough = idc_shifted(times, 300 * S, 0, 900 * S, ROUGH_WINDOWS)
    counts = window_counts(times, 300 * S, 0, 900 * S)  # the nine later grids hold two windows
    assert rough == pytest.approx(counts.var(ddof=1) / counts.mean())
    assert idc_shifted(instants(), S, 0, 100 * S) is None


def test_small_pieces_and_sparse_windows_change_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    times = clumped()

    def figures() -> list[float | None]:
        peak, tail = busiest_window(times, S, 0, 1000 * S), hill(np.diff(times), 0.05)
        assert peak is not None
        assert tail is not None
        return [
            *(idc_shifted(times, w, 0, 1000 * S) for w in (S // 100, S, 10 * S)),
            gap_c2(times), *peak, tail.index, tail.stderr,
            *gd1_waits(times, 0.8).tolist(), *window_counts(times[::-1], S, 0, 1000 * S).tolist(),
        ]  # fmt: skip

    whole = figures()
    monkeypatch.setattr(burstiness, "_PIECE", 7)
    assert figures() == pytest.approx(whole, rel=1e-6)
    monkeypatch.setattr(burstiness, "_MOST_BINS", 0)  # one grid, from runs
    assert idc_shifted(times, S, 0, 1000 * S) == pytest.approx(index_of_dispersion(times, S, 0, 1000 * S))


def test_runs_of_windows_hold_the_counts_of_the_full_ones() -> None:
    times = clumped()
    counts = window_counts(times, S, 30 * S, 700 * S + 5)
    found = np.zeros_like(counts)
    for windows, held in window_runs(times, S, 30 * S, 700 * S + 5):
        found[windows] += held
    assert found.tolist() == counts.tolist()
    peak = int(counts.argmax())
    assert busiest_window(times, S, 30 * S, 700 * S + 5) == ((30 + peak) * S, int(counts[peak]))
    assert busiest_window(instants(), S, 0, 10 * S) is None


def test_the_local_c2_leaves_out_what_a_changing_rate_adds() -> None:
    rng = np.random.default_rng(5)
    sizes = (300, 3_000) * 5
    times = np.sort(
        np.concatenate([rng.integers(k * 600 * S, (k + 1) * 600 * S, n) for k, n in enumerate(sizes)])
    )
    # relative s.e. of one window's c2 of n exponential gaps √(4/n): the largest, n = 300, is 0.115
    assert local_c2(times, 0, 6_000 * S) == pytest.approx(1, abs=4 * math.sqrt(4 / 300))
    c2 = gap_c2(times)
    assert c2 is not None
    # 1/11 of the gaps have mean 2 s, 10/11 have 0.2 s: mean 4/11 s, mean square 2 (4 + 0.4)/11, c2 = 5.05
    assert c2 == pytest.approx(5.05, rel=0.2)
    assert local_c2s(times, 0, 6_000 * S).size == 10
    assert local_c2(times[:49], 0, 6_000 * S) is None


def test_the_local_c2_is_a_median_that_one_odd_window_does_not_move() -> None:
    even = np.arange(0, 3_000 * S, S)
    paired = np.sort(np.concatenate([even, even[:600] + 1]))  # gaps of 1 ns and 1 s in the first window alone
    assert local_c2s(paired, 0, 3_000 * S).tolist() == pytest.approx([1, 0, 0, 0, 0], abs=0.01)
    assert local_c2(paired, 0, 3_000 * S) == 0


def test_a_series_shorter_than_three_windows_has_local_windows_of_a_tenth() -> None:
    assert local_window_ns(1_800 * S) == 600 * S
    assert local_window_ns(1_799 * S) == 179_900_000_000
    assert local_c2s(poisson(1_000, 100), 0, 100 * S).size == 10


def test_what_is_left_behind_the_last_whole_window_is_no_window() -> None:
    times = poisson(1_000, 2_300)
    assert local_c2s(times, 0, 2_300 * S).size == 3
    assert local_c2s(times, 0, 2_340 * S - 1).tolist() == local_c2s(times, 0, 1_800 * S).tolist()
    assert local_c2s(times, 0, 2_340 * S).size == 4, "nine tenths of a window are one"
    assert local_c2s(poisson(1_000, 2_400), 0, 2_400 * S).size == 4


def test_the_safe_load_is_one_over_the_peak_to_mean() -> None:
    # two windows of 60 s with 1 and 3 arrivals: mean 2, peak 3
    times = instants(0, 60, 61, 62)
    assert safe_load(times, 0, 120 * S) == pytest.approx(2 / 3)
    assert safe_load(times, 0, 119 * S) is None


def test_waits_are_those_of_the_recursion() -> None:
    times = clumped()
    service = 0.7 * (times[-1] - times[0]) / (times.size - 1)
    wait, by_hand = 0.0, []
    for i, t in enumerate(times.tolist()):
        wait = max(0.0, wait + service - (t - times[i - 1])) if i else 0.0
        by_hand.append(wait / service)
    assert gd1_waits(times, 0.7) == pytest.approx(by_hand, rel=1e-5, abs=1e-5)
    assert gd1_wait_p99(times, 0.7) == pytest.approx(
        sorted(by_hand)[math.ceil(0.99 * len(by_hand)) - 1], rel=1e-5
    )
    assert gd1_wait_p99(times[:99], 0.7) is None
    assert gd1_wait_p99(np.zeros(200, dtype=np.int64), 0.7) is None


def test_poisson_arrivals_wait_as_in_md1_and_burstier_ones_longer() -> None:
    # Pollaczek-Khinchine: mean wait of M/D/1 = load/(2 (1 - load)) services = 0.5 at 50 %
    def mean_and_error(times: Int64s) -> tuple[float, float]:
        means = gd1_waits(times, 0.5)[:100_000].reshape(20, -1).mean(axis=1)  # 5,000 long: nearly independent
        return float(means.mean()), float(means.std(ddof=1) / math.sqrt(20))

    mean, error = mean_and_error(poisson(100_000, 10_000))
    assert abs(mean - 0.5) < 4 * error
    gaps = np.random.default_rng(6).gamma(0.5, 2.0, 100_000)  # c2 = 2
    bursty, error = mean_and_error((np.cumsum(gaps) * S).astype(np.int64))
    assert abs(bursty - 0.5) > 4 * error


def test_hill_recovers_the_index_of_a_pareto_law_and_not_another() -> None:
    values = np.random.default_rng(7).random(100_000) ** (-1 / 1.5)  # P(X > x) = x^-1.5
    tail = hill(values, 0.01)
    assert tail is not None
    assert tail.n_tail == 1_000
    assert tail.stderr == pytest.approx(tail.index / math.sqrt(1_000))
    assert abs(tail.index - 1.5) < 3 * tail.stderr  # 3 s.e. = 0.14
    lighter = hill(np.random.default_rng(7).random(100_000) ** (-1 / 2.0), 0.01)
    assert lighter is not None
    assert abs(lighter.index - 1.5) > 3 * lighter.stderr


def test_hill_says_nothing_of_few_or_equal_values_and_leaves_zeros_out() -> None:
    values = np.arange(1, 201, dtype=np.int64)
    assert hill(values, 0.05) == hill(np.concatenate([np.zeros(500, dtype=np.int64), values]), 0.05)
    tail = hill(values, 0.05)
    assert tail is not None
    assert tail.index == pytest.approx(10 / sum(math.log(x / 190) for x in range(191, 201)), rel=1e-12)
    assert hill(values, 0.049) is None
    assert hill(np.full(1_000, 7), 0.05) is None
    assert hill(np.zeros(1_000), 0.05) is None


def test_windows_end_where_the_next_begins_also_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burstiness, "_PIECE", 7)
    found = list(window_runs(np.arange(1_000), 10, 0, 1_000))
    assert np.concatenate([windows for windows, _ in found]).tolist() == list(range(100))
    assert np.concatenate([counts for _, counts in found]).tolist() == [10] * 100


MISLEADING = np.where(np.arange(4_000) % 20 == 0, 10_000 + np.arange(4_000), np.arange(4_000))
"""Large where a sample of every 20th looks, so that its bound is too high."""


@pytest.mark.parametrize(
    "values", [MISLEADING, np.arange(4_000), np.arange(4_000)[::-1], np.zeros(4_000), np.arange(4_000) % 2]
)
def test_the_largest_values_are_those_of_a_full_sort(values: Int64s, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burstiness, "_PIECE", 100)
    monkeypatch.setattr(burstiness, "_SAMPLE", 200)
    for count in (1, 40, 300, 999, 4_000):
        found = largest(values, count)
        assert found[0] == found.min()
        assert np.sort(found).tolist() == np.sort(values)[values.size - count :].tolist()
