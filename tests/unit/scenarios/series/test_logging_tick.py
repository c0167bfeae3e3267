"""The grid of a log: found where there is one, exact or jittered, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.scenarios.series.burstiness import gap_c2
from squall.scenarios.series.logging_tick import find_grid, spread_in_ticks

S = 1_000_000_000
MS = 1_000_000
Int64s = NDArray[np.int64]


def poisson(n: int, span_s: int, seed: int = 1) -> Int64s:
    return np.sort(np.random.default_rng(seed).integers(0, span_s * S, n))


def timer(n: int, tick_ns: int, jitter_ns: int, seed: int = 2) -> Int64s:
    """Poisson arrivals stamped by a timer that is off by up to `jitter_ns`, in whole ms."""
    ticks = poisson(n, 3_600) // tick_ns
    off = np.random.default_rng(seed).integers(-jitter_ns // MS, jitter_ns // MS + 1, int(ticks[-1]) + 1) * MS
    return ticks * tick_ns + off[ticks] + 100 * S


def test_whole_seconds_are_an_exact_grid() -> None:
    grid = find_grid(poisson(3_600, 3_600) // S * S)
    assert (grid.resolution_ns, grid.tick_ns, grid.is_jittered) == (S, S, False)
    assert grid.per_tick_count == pytest.approx(1, rel=0.01)
    # the share of arrivals after the first of a tick at 1 per tick: 1 - (1 - e^-1) = 0.368
    assert grid.equal_ratio == pytest.approx(np.exp(-1), abs=4 * 0.5 / 60)


def test_a_grid_is_found_through_the_jitter_of_its_timer() -> None:
    grid = find_grid(timer(12_000, 3 * S, 3 * MS))
    assert grid.resolution_ns == MS
    assert grid.is_jittered
    assert grid.tick_ns == pytest.approx(3 * S, rel=1e-5)
    assert grid.per_tick_count == pytest.approx(10, rel=0.01)
    assert find_grid(timer(12_000, 3 * S, 300 * MS)).tick_ns is None


def test_fine_stamps_and_a_constant_rate_are_no_grid() -> None:
    assert find_grid(poisson(20_000, 3_600)).tick_ns is None
    assert find_grid(poisson(20_000, 3_600) // MS * MS).tick_ns is None  # 0.006 arrivals a tick
    assert find_grid(np.arange(1_000) * S).tick_ns is None  # one arrival a second, none equal
    assert find_grid(np.zeros(1_000, dtype=np.int64)).resolution_ns == 0
    assert find_grid(np.array([5])).equal_ratio == 0


def test_the_resolution_divides_every_gap() -> None:
    assert find_grid(np.array([7, 7 + 60, 7 + 60 + 84])).resolution_ns == 12
    long = np.concatenate(
        [np.arange(3 * 2**20) * 100, [3 * 2**20 * 100 + 50]]
    )  # the odd one in the last piece
    assert find_grid(long).resolution_ns == 50


@pytest.mark.parametrize("jitter_ns", [0, 3 * MS])
def test_arrivals_spread_inside_their_ticks_are_poisson_again(jitter_ns: int) -> None:
    stamps = timer(12_000, 3 * S, jitter_ns)
    logged, spread = gap_c2(stamps), gap_c2(spread_in_ticks(stamps, 3.0 * S))
    assert logged is not None
    assert logged > 5  # batches of 10: c² = 10 - 1 + …
    assert spread == pytest.approx(1, abs=4 * np.sqrt(4 / 12_000))  # c² of exponential gaps: variance 4/n


def test_a_spread_arrival_stays_in_its_tick_and_follows_the_seed() -> None:
    stamps = poisson(1_000, 3_600) // S * S
    spread = spread_in_ticks(stamps, S, seed=4)
    assert np.all(np.diff(spread) >= 0)
    assert (np.sort(spread) // S * S).tolist() == stamps.tolist()
    assert spread.tolist() == spread_in_ticks(stamps, S, seed=4).tolist()
    assert spread.tolist() != spread_in_ticks(stamps, S, seed=5).tolist()
