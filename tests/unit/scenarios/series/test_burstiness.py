"""Burstiness figures: by their definitions on small series, and what theory says of large ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from squall.scenarios.arrays import Int64s
from squall.scenarios.series import burstiness
from squall.scenarios.series.burstiness import (
    busiest_window,
    cap_of,
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

S = 1_000_000_000
Int64s = Int64s


def instants(*times_s: float) -> Int64s:
    return np.array([round(t * S) for t in times_s], dtype=np.int64)


def poisson(n: int, span_s: int, seed: int = 3) -> Int64s:
    return np.sort(np.random.default_rng(seed).integers(0, span_s * S, n))


def clumped() -> Int64s:
    """Pairs 1 ms apart on a rate that changes tenfold each 100 s."""
    rng = np.random.default_rng(4)
    starts = [rng.integers(k * 100 * S, (k + 1) * 100 * S, (40, 400)[k % 2]) for k in range(10)]
    return np.sort(np.concatenate([*starts, *(start + S // 1000 for start in starts)]))


SERIES = {
    "even": np.arange(0, 100 * S, S // 5),
    "pairs": np.repeat(instants(*range(0, 100, 2)), 2),
    "poisson": poisson(2_000, 300),
    "clumped": clumped(),
    "a part": clumped()[40:500],
    "of a few": instants(0.5, 1, 2.9, 3.0, 3.4),
    "two": instants(0.1, 0.2),
    "at once": instants(*[1] * 200),
    "none": instants(),
}


def grid_idc(times: Int64s, window_ns: int, start_ns: int, end_ns: int, least: int) -> float | None:
    counts = np.diff(np.searchsorted(times, np.arange(start_ns, end_ns + 1, window_ns)))
    return float(counts.var(ddof=1) / counts.mean()) if counts.size >= least and counts.any() else None


def defined(times: Int64s, window_ns: int, end_ns: int) -> dict[str, Any]:
    """Every figure by its definition, over [0, end_ns)."""
    counts = np.diff(np.searchsorted(times, np.arange(0, end_ns + 1, window_ns)))
    found: dict[str, Any] = {"counts": counts.tolist(), "runs": counts.tolist()}
    peak = counts.max(initial=0)
    found["busiest"] = (int(counts.argmax()) * window_ns, int(peak)) if peak else None
    found["peak"] = peak / counts.mean() if peak else None
    found["safe"] = counts.mean() / peak if peak and counts.size > 1 else None
    for least in (10, 3):
        grids = [grid_idc(times, window_ns, k * window_ns // 10, end_ns, least) for k in range(10)]
        known = [idc for idc in grids if idc is not None]
        found[f"idc of {least}"] = np.mean(known) if known and counts.size >= least else None
    gaps = np.diff(times)
    found["c2"] = gaps.var(ddof=1) / gaps.mean() ** 2 if gaps.size > 1 and gaps.any() else None
    wait, waits = 0.0, []
    service = 0.7 * gaps.mean() if gaps.any() else math.inf
    for gap in (math.inf, *gaps.tolist())[: times.size]:
        wait = max(0.0, wait + service - gap) if service < math.inf else 0.0
        waits.append(wait / service)
    found["waits"] = waits
    is_known = times.size >= 100 and gaps.any()
    found["p99"] = sorted(waits)[math.ceil(0.99 * len(waits)) - 1] if is_known else None
    return found


def measured(times: Int64s, window_ns: int, end_ns: int) -> dict[str, Any]:
    counts = window_counts(times[::-1], window_ns, 0, end_ns)
    runs, (windows, held) = np.zeros_like(counts), window_runs(times, window_ns, 0, end_ns)
    runs[windows] = held
    return {
        "counts": counts.tolist(),
        "runs": runs.tolist(),
        "busiest": busiest_window(times, window_ns, 0, end_ns),
        "peak": peak_to_mean(times, window_ns, 0, end_ns),
        "safe": safe_load(times, 0, end_ns, window_ns),
        "idc of 10": idc_shifted(times, window_ns, 0, end_ns),
        "idc of 3": idc_shifted(times, window_ns, 0, end_ns, 3),
        "c2": gap_c2(times),
        "waits": gd1_waits(times, 0.7).tolist(),
        "p99": gd1_wait_p99(times, 0.7),
    }


@pytest.mark.parametrize("window_ns", [S, 10 * S, 7 * S + 3])  # the last does not divide by ten
@pytest.mark.parametrize("name", SERIES)
def test_figures_are_those_of_their_definitions(
    name: str, window_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = SERIES[name]
    end_ns = (int(times.max(initial=0)) // S + 1) * S + S // 2
    found = measured(times, window_ns, end_ns)
    for figure, value in defined(times, window_ns, end_ns).items():
        if value is None:
            assert found[figure] is None, figure
        else:
            assert found[figure] == pytest.approx(value, rel=1e-5, abs=1e-5), figure
    monkeypatch.setattr(burstiness, "_MOST_BINS", 0)  # one grid, from runs
    assert idc_shifted(times, window_ns, 0, end_ns) == pytest.approx(
        grid_idc(times, window_ns, 0, end_ns, 10)
    )


def test_poisson_arrivals_have_all_figures_at_1_and_wait_as_in_md1() -> None:
    times = poisson(100_000, 2_000)
    # c2 of exponential gaps: relative variance (2 + 2)/n; a variance over m windows: sqrt(2/m)
    assert gap_c2(times) == pytest.approx(1, abs=4 * math.sqrt(4 / 100_000))
    assert idc_shifted(times, S, 0, 2_000 * S) == pytest.approx(1, abs=4 * math.sqrt(2 / 2_000))

    # Pollaczek-Khinchine: mean wait of M/D/1 = load/(2 (1 - load)) services = 0.5 at 50 %
    def errors_off(times: Int64s) -> float:
        means = gd1_waits(times, 0.5).reshape(20, -1).mean(axis=1)  # 5,000 long: nearly independent
        return abs(float(means.mean()) - 0.5) / float(means.std(ddof=1)) * math.sqrt(20)

    assert errors_off(times) < 4
    gaps = np.random.default_rng(6).gamma(0.5, 2.0, 100_000)  # c2 = 2
    assert errors_off((np.cumsum(gaps) * S).astype(np.int64)) > 4


def test_the_local_c2_is_a_median_that_leaves_out_what_a_changing_rate_adds() -> None:
    rng = np.random.default_rng(5)
    parts = [rng.integers(k * 600 * S, (k + 1) * 600 * S, n) for k, n in enumerate((300, 3_000) * 5)]
    times = np.sort(np.concatenate(parts))
    # relative s.e. of one window's c2 of n exponential gaps √(4/n): the largest, n = 300, is 0.115
    assert local_c2(times, 0, 6_000 * S) == pytest.approx(1, abs=4 * math.sqrt(4 / 300))
    # 1/11 of the gaps have mean 2 s, 10/11 have 0.2 s: mean 4/11 s, mean square 2 (4 + 0.4)/11, c2 = 5.05
    assert gap_c2(times) == pytest.approx(5.05, rel=0.2)
    assert local_c2(times[:49], 0, 6_000 * S) is None
    even = np.arange(0, 3_000 * S, S)
    paired = np.sort(np.concatenate([even, even[:600] + 1]))  # gaps of 1 ns and 1 s in the first window alone
    assert local_c2s(paired, 0, 3_000 * S).tolist() == pytest.approx([1, 0, 0, 0, 0], abs=0.01)
    assert local_c2(paired, 0, 3_000 * S) == 0


def test_local_windows_are_600_s_or_a_tenth_and_nine_tenths_of_one_are_one() -> None:
    assert [local_window_ns(span_s * S) for span_s in (1_800, 1_799)] == [600 * S, 179_900_000_000]
    for span_ns, n_windows in (
        (100 * S, 10),
        (2_300 * S, 3),
        (2_340 * S - 1, 3),
        (2_340 * S, 4),
        (2_400 * S, 4),
    ):
        assert local_c2s(poisson(1_000, span_ns // S), 0, span_ns).size == n_windows


def test_hill_recovers_the_index_of_a_pareto_law_and_not_another() -> None:
    for index, is_right in ((1.5, True), (2.0, False)):
        tail = hill(np.random.default_rng(7).random(100_000) ** (-1 / index), 0.01)  # P(X > x) = x^-index
        assert tail is not None
        assert (tail.n_tail, tail.stderr) == (1_000, tail.index / math.sqrt(1_000))
        assert (abs(tail.index - 1.5) < 3 * tail.stderr) == is_right  # 3 s.e. = 0.14


def test_hill_says_nothing_of_few_or_equal_values_and_leaves_zeros_out() -> None:
    values = np.arange(1, 201, dtype=np.int64)
    tail = hill(values, 0.05)
    assert tail is not None
    assert tail == hill(np.concatenate([np.zeros(500, dtype=np.int64), values]), 0.05)
    assert tail.index == pytest.approx(10 / sum(math.log(x / 190) for x in range(191, 201)), rel=1e-12)
    for few, share in ((values, 0.049), (np.full(1_000, 7), 0.05), (np.zeros(1_000), 0.05)):
        assert hill(few, share) is None
    assert cap_of(np.minimum(values, 190)) == (190, 11)
    assert cap_of(values) is None


def test_the_largest_values_are_those_of_a_full_sort() -> None:
    for values in (np.arange(4_000)[::-1], np.zeros(4_000, np.int64), np.arange(4_000) % 7):
        for count in (1, 40, 4_000):
            found = largest(values, count)
            assert found[0] == found.min()
            assert np.sort(found).tolist() == np.sort(values)[values.size - count :].tolist()
