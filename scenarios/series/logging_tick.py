"""The grid that a log's stamps lie on, and the same arrivals spread inside its ticks.

A log that stamps on a coarse grid turns independent arrivals into batches: figures of the stamps as they
are describe the log, not the service.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.series.burstiness import gap_pieces

LEAST_STEPS = 20  # distinct stamps less one, below which a grid cannot be told
COARSE_COUNT = 0.02
"""Arrivals per tick from which a tick is coarse: about that share of arrivals has another in its tick."""
JITTER_RATIO = 0.01  # a stamp may lie this far, in ticks, off the grid
_MOST_STEPS = 2**20
_PIECE = 2**20


@dataclass(frozen=True)
class Grid:
    """What the stamps look like. `tick_ns` is None where they lie on no coarse grid.

    `resolution_ns` divides every gap. `is_jittered`: the steps are multiples of the tick but for a small
    error, as a timer writes them. `equal_ratio` is the share of arrivals that share their stamp with the
    one before.
    """

    resolution_ns: int
    equal_ratio: float
    tick_ns: float | None
    is_jittered: bool
    per_tick_count: float | None


def find_grid(stamp_ns: NDArray[np.int64]) -> Grid:
    """The grid of sorted stamps. Of fewer than two distinct ones the resolution is 0."""
    n = stamp_ns.size
    resolution_ns, n_equal, steps = 0, 0, []
    n_kept = 0
    for gaps in (piece.astype(np.int64) for piece in gap_pieces(stamp_ns)):
        moved = gaps[gaps > 0]
        n_equal += gaps.size - moved.size
        resolution_ns = _common_divisor(moved, resolution_ns)
        if n_kept < _MOST_STEPS:
            steps.append(moved)
            n_kept += moved.size
    equal_ratio = n_equal / (n - 1) if n > 1 else 0.0
    if not resolution_ns or n_kept < LEAST_STEPS:
        return Grid(resolution_ns, equal_ratio, None, False, None)
    tick_ns: float | None = resolution_ns
    span_ns = int(stamp_ns[-1] - stamp_ns[0])
    coarse_ns = COARSE_COUNT * span_ns / (n - 1)
    is_jittered = resolution_ns < coarse_ns
    if is_jittered:
        tick_ns = _jittered_tick(np.concatenate(steps))
    if tick_ns is None or tick_ns < coarse_ns or not n_equal:
        return Grid(resolution_ns, equal_ratio, None, False, None)
    return Grid(resolution_ns, equal_ratio, tick_ns, is_jittered, n / (span_ns / tick_ns + 1))


def spread_in_ticks(stamp_ns: NDArray[np.int64], tick_ns: float, seed: int = 1) -> NDArray[np.int64]:
    """The sorted stamps, each at a uniform place inside its tick, sorted again; the grid begins at the first.

    A stamp up to 1 % of a tick before its grid point still belongs to it. Keeps no row's place: two
    arrivals of one tick may change order.
    """
    spread = np.empty(stamp_ns.size, dtype=np.int64)
    rng = np.random.default_rng(seed)
    for begin in range(0, stamp_ns.size, _PIECE):
        piece = stamp_ns[begin : begin + _PIECE]
        ticks = np.floor((piece - stamp_ns[0]) / tick_ns + JITTER_RATIO)
        spread[begin : begin + piece.size] = (ticks + rng.random(piece.size)) * tick_ns
    spread.sort()
    spread += stamp_ns[0]
    return spread


def _common_divisor(steps: NDArray[np.int64], divisor: int) -> int:
    """Greatest common divisor of `divisor` and all steps; a remainder is looked for before it is reduced."""
    if not divisor and steps.size:
        divisor = int(steps[0])
    while divisor > 1:
        rest = steps % divisor
        rest = rest[rest > 0]
        if not rest.size:
            break
        divisor = int(np.gcd(divisor, int(np.gcd.reduce(rest[:64]))))
    return divisor


def _jittered_tick(steps: NDArray[np.int64]) -> float | None:
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
