"""The grid that a log's stamps lie on, and the same arrivals spread inside its ticks.

A log that stamps on a coarse grid turns independent arrivals into batches: figures of the stamps as they
are describe the log, not the service.
"""

from __future__ import annotations

import numpy as np

from squall.scenarios.arrays import Int64s
from squall.scenarios.records import Frozen

LEAST_STEPS = 20  # distinct stamps less one, below which a grid cannot be told
COARSE_COUNT = 0.02
"""Arrivals per tick from which a tick is coarse: about that share of arrivals has another in its tick."""
JITTER_RATIO = 0.01  # a stamp may lie this far, in ticks, off the grid
_MOST_STEPS = 2**20  # from which a jittered tick is told


class Grid(Frozen):
    """What the stamps look like. `tick_ns` is None where they lie on no coarse grid.

    `resolution_ns` divides every gap. `is_jittered`: the steps are multiples of the tick but for a small
    error, as a timer writes them. `equal_ratio` is the share of arrivals that share their stamp with the
    one before.
    """

    resolution_ns: int
    equal_ratio: float
    tick_ns: float | None = None
    is_jittered: bool = False
    per_tick_count: float | None = None


def find_grid(stamp_ns: Int64s) -> Grid:
    """The grid of sorted stamps. Of fewer than two distinct ones the resolution is 0."""
    n = stamp_ns.size
    steps = np.diff(stamp_ns)
    steps = steps[steps > 0]
    n_equal = n - 1 - steps.size
    resolution_ns = int(np.gcd.reduce(steps))
    equal_ratio = n_equal / (n - 1) if n > 1 else 0.0
    if steps.size < LEAST_STEPS:
        return Grid(resolution_ns, equal_ratio)
    tick_ns: float | None = resolution_ns
    span_ns = int(stamp_ns[-1] - stamp_ns[0])
    coarse_ns = COARSE_COUNT * span_ns / (n - 1)
    is_jittered = resolution_ns < coarse_ns
    if is_jittered:
        tick_ns = _jittered_tick(steps[:_MOST_STEPS])
    if tick_ns is None or tick_ns < coarse_ns or not n_equal:
        return Grid(resolution_ns, equal_ratio)
    return Grid(resolution_ns, equal_ratio, tick_ns, is_jittered, n / (span_ns / tick_ns + 1))


def spread_in_ticks(stamp_ns: Int64s, tick_ns: float, seed: int = 1) -> Int64s:
    """The sorted stamps, each at a uniform place inside its tick, sorted again; the grid begins at the first.

    A stamp up to 1 % of a tick before its grid point still belongs to it. Keeps no row's place: two
    arrivals of one tick may change order.
    """
    ticks = np.floor((stamp_ns - stamp_ns[0]) / tick_ns + JITTER_RATIO)
    ticks += np.random.default_rng(seed).random(stamp_ns.size)
    spread: Int64s = (ticks * tick_ns).astype(np.int64)
    spread.sort()
    spread += stamp_ns[0]
    return spread


def _jittered_tick(steps: Int64s) -> float | None:
    """The tick of which 99 % of the steps are multiples within 1 % of it; None if there is none."""
    first = float(np.quantile(steps, 0.05))
    multiples = np.maximum(1, np.round(steps / first))
    # Steps of few ticks fix the tick before longer ones, whose own error would miscount them.
    short = multiples <= 3
    tick_ns = float(steps[short].sum() / multiples[short].sum())
    multiples = np.maximum(1, np.round(steps / tick_ns))
    tick_ns = float(steps.sum() / multiples.sum())
    off = np.abs(steps / tick_ns - np.maximum(1, np.round(steps / tick_ns)))
    return tick_ns if float((off <= JITTER_RATIO).mean()) >= 0.99 else None
