"""How far a count over dependent rows may be off, from blocks of the rows drawn again.

Blocks that outlast the dependence are drawn, not rows: they overlap and go round the end of the series
(Künsch, Annals of Statistics 17(3), 1989; circular: Politis and Romano 1992).
"""

from __future__ import annotations

import math

import numpy as np

from squall.analysis.arrays import Floats
from squall.analysis.statistics.autocorrelation import Deviations
from squall.scenarios.records import Frozen

BLOCK_TIMES = 10.0
"""Autocorrelation times that a block lasts at least: a sum over it then misses a tenth of the covariance at most."""
MOST_BLOCKS = 400
"""More blocks than this are made longer instead: 400 give the spread of a count to 1/sqrt(2 400) = 3.5 %."""
N_DRAWS = 2_000
"""The 2.5 % point of 2,000 draws has a standard error of sqrt(.025 .975 / 2000) = 0.35 % in rank."""
_SEED = 1


def n_blocks_of(n: int, tau: float) -> int:
    """Blocks of `BLOCK_TIMES` autocorrelation times `tau`, in rows, that n rows hold; `MOST_BLOCKS` at most."""
    return min(MOST_BLOCKS, math.floor(n / (BLOCK_TIMES * tau)))


class Draws(Frozen, eq=False):
    """(N_DRAWS,) sorted: the deviation of the whole count from its mean in each draw.

    `degrees`: of the chi-square that the variance of the blocks is like, at least 1.
    """

    counts: Floats
    degrees: float


def draw(series: Deviations, n_blocks: int) -> Draws:
    """Draws of `n_blocks` blocks, as long as fills the series. The same series gives the same draws.

    Exact but for what `Deviations` leaves out: a block begins at the edge of a bin. A variance of k values with
    excess kurtosis K varies by (2 / (k - 1) + K / k) of its square, one of d degrees by 2 / d: blocks of which few
    hold all the slow rows count for few.
    """
    n_bins = len(series.sums)
    length = -(-n_bins // n_blocks)
    around = np.concatenate([series.sums, series.sums[:length]])
    totals = np.concatenate([[0.0], np.cumsum(around)])
    blocks = totals[length : length + n_bins] - totals[:n_bins]
    picked = np.random.default_rng(_SEED).integers(0, n_bins, (N_DRAWS, n_blocks))
    # draws are of length x n_blocks bins, a little more than the series: scaled as a standard deviation is
    counts: Floats = blocks[picked].sum(axis=1) * math.sqrt(n_bins / (length * n_blocks))
    counts.sort()
    square = float((blocks**2).mean())
    kurtosis = float((blocks**4).mean()) / square**2 - 3.0 if square else 0.0
    degrees = 2.0 / (2.0 / max(1, n_blocks - 1) + max(0.0, kurtosis) / n_blocks)
    return Draws(counts, max(1.0, degrees))
