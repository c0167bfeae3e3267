"""90 % bands of figures of one series, by resampling blocks of it.

Arrivals depend on one another, so blocks that hold their dependence are drawn, not arrivals: whole ones
that do not overlap (Carlstein, Annals of Statistics 14(3), 1986). Dependence longer than a block is lost:
the band of a dispersion over windows near the block's length is too low.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.series.burstiness import LEAST_WINDOWS, window_runs
from squall.scenarios.units import NS_PER_S

BLOCK_NS = 300 * NS_PER_S
N_DRAWS = 400
"""The 5 % and 95 % points of 400 draws have a standard error of √(.05 .95/400) = 1.1 % in rank."""
BAND_RATIOS = (0.05, 0.95)
LEAST_BLOCKS = 10


def block_ns_for(span_ns: int, block_ns: int = BLOCK_NS) -> int:
    """`block_ns`, or a tenth of a span that holds fewer than ten of them."""
    return min(block_ns, max(1, span_ns // LEAST_BLOCKS))


def dispersion_band(
    times_ns: NDArray[np.int64],
    window_ns: int,
    start_ns: int,
    end_ns: int,
    block_ns: int = BLOCK_NS,
    n: int = N_DRAWS,
    seed: int = 1,
) -> tuple[float, float] | None:
    """5 % and 95 % points of the index of dispersion at one window, from sums per block: O(n_arrivals) in all.

    None below 10 windows, where a block holds no whole window, or where a draw is empty.
    """
    span_ns = end_ns - start_ns
    per_block = block_ns_for(span_ns, block_ns) // window_ns
    if span_ns // window_ns < LEAST_WINDOWS or not per_block:
        return None
    n_blocks = span_ns // window_ns // per_block
    sums = np.zeros((2, n_blocks))
    for windows, counts in window_runs(
        times_ns, window_ns, start_ns, start_ns + n_blocks * per_block * window_ns
    ):
        blocks = windows // per_block
        low = int(blocks[0])
        for row, values in enumerate((counts, counts * counts)):
            added = np.bincount(blocks - low, weights=values)
            sums[row, low : low + added.size] += added
    picked = np.random.default_rng(seed).integers(0, n_blocks, (n, n_blocks))
    total, squares = (sums[row][picked].sum(axis=1) for row in (0, 1))
    if not total.all():
        return None
    n_windows = n_blocks * per_block
    found = (squares - total**2 / n_windows) / (n_windows - 1) / (total / n_windows)
    low_ratio, high_ratio = np.quantile(found, BAND_RATIOS).tolist()
    return low_ratio, high_ratio
