"""90 % bands of figures of one series, by resampling blocks of it.

Arrivals depend on one another, so blocks that hold their dependence are drawn, not arrivals: whole ones
that do not overlap (Carlstein, Annals of Statistics 14(3), 1986). Dependence longer than a block is lost:
the band of a dispersion over windows near the block's length is too low.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.series.burstiness import LEAST_WINDOWS, N_SHIFTS, window_runs
from squall.scenarios.units import NS_PER_S

BLOCK_NS = 300 * NS_PER_S
N_DRAWS = 400
"""The 5 % and 95 % points of 400 draws have a standard error of √(.05 .95/400) = 1.1 % in rank."""
BAND_RATIOS = (0.05, 0.95)
LEAST_BLOCKS = 10
_SEED = 1


def block_ns_for(span_ns: int, block_ns: int = BLOCK_NS) -> int:
    """`block_ns`, or a tenth of a span that holds fewer than ten of them."""
    return min(block_ns, max(1, span_ns // LEAST_BLOCKS))


def dispersion_band(
    times_ns: NDArray[np.int64],
    window_ns: int,
    start_ns: int,
    end_ns: int,
    block_ns: int = BLOCK_NS,
) -> tuple[float, float] | None:
    """5 % and 95 % points of the index of dispersion at one window, from sums per block: O(n_arrivals) in all.

    The blocks are equal to a window and cover all windows: a burst in what a last short block would hold counts too.
    None below 10 windows, where a block holds no whole window, or where a draw is empty.
    """
    span_ns = end_ns - start_ns
    per_block = block_ns_for(span_ns, block_ns) // window_ns
    n_windows = span_ns // window_ns
    if n_windows < LEAST_WINDOWS or not per_block:
        return None
    n_blocks = n_windows // per_block
    lengths = np.diff(
        -(-np.arange(n_blocks + 1) * n_windows // n_blocks)
    )  # block b: n_blocks * window // n_windows
    windows, counts = window_runs(times_ns, window_ns, start_ns, start_ns + n_windows * window_ns)
    blocks = windows * n_blocks // n_windows
    picked = np.random.default_rng(_SEED).integers(0, n_blocks, (N_DRAWS, n_blocks))
    total, squares = (
        np.bincount(blocks, weights=values, minlength=n_blocks)[picked].sum(axis=1)
        for values in (counts, counts * counts)
    )
    if not total.all():
        return None
    n_drawn = lengths[picked].sum(axis=1)
    found = (squares - total**2 / n_drawn) / (n_drawn - 1) / (total / n_drawn)
    low_ratio, high_ratio = np.quantile(found, BAND_RATIOS).tolist()
    return low_ratio, high_ratio


def shifted_band(
    times_ns: NDArray[np.int64], window_ns: int, start_ns: int, end_ns: int, block_ns: int = BLOCK_NS
) -> tuple[float, float] | None:
    """The band of `idc_shifted`: the mean of the bands of its 10 grids, whose draws pick the same blocks.

    One grid alone can lie beside the mean of ten: a burst in one of its windows is in two of the next grid. Of instants
    that were spread inside a tick as long as the window, the grid of the ticks alone has the dispersion of the log.
    """
    shifts = [start_ns + shift * window_ns // N_SHIFTS for shift in range(N_SHIFTS)]
    found = [dispersion_band(times_ns, window_ns, shift_ns, end_ns, block_ns) for shift_ns in shifts]
    bands = np.array([band for band in found if band is not None])
    return (float(bands[:, 0].mean()), float(bands[:, 1].mean())) if bands.size else None
