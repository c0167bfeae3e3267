"""Bands of any figure of a series by resampling blocks of it, each draw laid out: what `dispersion_band` is held to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Floats
from squall.analysis.statistics.bootstrap import BAND_RATIOS, BLOCK_NS, N_DRAWS, block_ns_for

Statistic = Callable[[NDArray[np.int64], int], object]
"""Sorted instants in [0, end_ns) and end_ns, to a float, None or a sequence of them."""


def bootstrap_bands(
    times_ns: NDArray[np.int64],
    end_ns: int,
    statistic: Statistic,
    block_ns: int = BLOCK_NS,
    n: int = N_DRAWS,
    seed: int = 1,
    start_ns: int = 0,
) -> Floats:
    """5 % and 95 % points of `statistic` over `n` resampled series, (n_figures, 2); NaN where it is None.

    A draw lays as many whole blocks of the sorted instants as the span holds end to end, each picked at
    random; its instants begin at 0. One figure gives shape (1, 2). A draw costs as much as the statistic:
    `dispersion_band` finds the same from sums per block.
    """
    width_ns = block_ns_for(end_ns - start_ns, block_ns)
    n_blocks = (end_ns - start_ns) // width_ns
    edges_ns = start_ns + width_ns * np.arange(n_blocks + 1)
    places = np.searchsorted(times_ns, edges_ns)
    blocks = [
        times_ns[low:high] - edge_ns
        for low, high, edge_ns in zip(places[:-1], places[1:], edges_ns[:-1], strict=True)
    ]
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        picked = rng.integers(0, n_blocks, n_blocks).tolist()
        drawn = np.concatenate([blocks[block] + slot * width_ns for slot, block in enumerate(picked)])
        found.append(np.atleast_1d(np.array(statistic(drawn, n_blocks * width_ns), dtype=np.float64)))
    return np.quantile(np.stack(found), BAND_RATIOS, axis=0).T
