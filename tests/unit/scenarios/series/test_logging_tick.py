"""The grid of a log: found where there is one, exact or jittered, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from squall.scenarios.arrays import Int64s
from squall.scenarios.series.burstiness import gap_c2
from squall.scenarios.series.logging_tick import find_grid, spread_in_ticks

S = 1_000_000_000
MS = 1_000_000
Int64s = Int64s


def poisson(n: int) -> Int64s:
    """Arrivals of an hour."""
    return np.sort(np.random.default_rng(1).integers(0, 3_600 * S, n))


def timer(n: int, tick_ns: int, jitter_ns: int) -> Int64s:
    """Poisson arrivals stamped by a timer that is off by up to `jitter_ns`, in whole ms."""
    ticks = poisson(n) // tick_ns
    off = np.random.default_rng(2).integers(-jitter_ns // MS, jitter_ns // MS + 1, int(ticks[-1]) + 1) * MS
    return ticks * tick_ns + off[ticks] + 100 * S


@pytest.mark.parametrize(
    ("stamps", "resolution_ns", "tick_ns", "per_tick_count"),
    [
        (timer(3_600, S, 0), S, S, 1),
        (timer(12_000, 3 * S, 3 * MS), MS, 3 * S, 10),
        (timer(12_000, 3 * S, 300 * MS), MS, None, None),
        (poisson(20_000), 1, None, None),
        (poisson(20_000) // MS * MS, MS, None, None),  # 0.006 arrivals a tick
        (np.arange(1_000) * S, S, None, None),  # one arrival a second, none equal
        (np.zeros(1_000, np.int64), 0, None, None),
        (np.array([5]), 0, None, None),
        (np.array([7, 7 + 60, 7 + 60 + 84]), 12, None, None),
        # the odd one in the last piece
        (np.append(np.arange(3 * 2**20) * 100, 3 * 2**20 * 100 + 50), 50, None, None),
    ],
)
def test_a_grid_is_found_through_the_jitter_of_its_timer_and_nowhere_else(
    stamps: Int64s, resolution_ns: int, tick_ns: int | None, per_tick_count: int | None
) -> None:
    grid = find_grid(stamps)
    assert grid.resolution_ns == resolution_ns
    if tick_ns is None:
        assert grid.tick_ns is grid.per_tick_count is None
    else:
        assert grid.tick_ns == pytest.approx(tick_ns, rel=1e-5)
        assert grid.per_tick_count == pytest.approx(per_tick_count, rel=0.01)
    assert grid.is_jittered == (tick_ns is not None and resolution_ns < tick_ns)
    equal_ratio = (np.diff(stamps) == 0).mean() if stamps.size > 1 else 0
    assert grid.equal_ratio == equal_ratio


@pytest.mark.parametrize("jitter_ns", [0, 3 * MS])
def test_arrivals_spread_inside_their_ticks_are_poisson_again(jitter_ns: int) -> None:
    stamps = timer(12_000, 3 * S, jitter_ns)
    spread = spread_in_ticks(stamps, 3.0 * S)
    assert (gap_c2(stamps) or 0) > 5  # batches of 10: c² = 10 - 1 + …
    assert gap_c2(spread) == pytest.approx(
        1, abs=4 * np.sqrt(4 / 12_000)
    )  # c² of exponential gaps: variance 4/n
    assert (np.diff(spread) >= 0).all()
    if not jitter_ns:
        assert ((spread - stamps[0]) // (3 * S) == (stamps - stamps[0]) // (3 * S)).all()
    assert spread.tolist() == spread_in_ticks(stamps, 3.0 * S).tolist()
    assert spread.tolist() != spread_in_ticks(stamps, 3.0 * S, seed=5).tolist()
