"""How long a series of instants remembers: autocorrelation, rank correlation and Hurst estimates."""

from __future__ import annotations

import math

import numpy as np

from squall.scenarios.arrays import Floats, Int64s

LEAST_PAIRS = 30
LEAST_COUNTS = 100  # counts below which no Hurst estimate is made
LEAST_DETAILS = 8  # Haar details of an octave below which its energy is left out
N_BLOCK_LENGTHS = 20
MOST_RANK_PAIRS = 2**20
RANK_STRETCHES = 32


def autocorrelation(values: Int64s | Floats, lag: int = 1) -> float | None:
    """Σ (x_i - m)(x_(i+lag) - m) / Σ (x_i - m)²; None below 30 pairs or where all values are equal.

    Uncorrelated values have standard error 1/√n (Box and Jenkins, Time Series Analysis, 2.1.5).
    """
    if values.size - lag < LEAST_PAIRS:
        return None
    centred = values - values.mean()
    spread = float(np.dot(centred, centred))
    return float(np.dot(centred[:-lag], centred[lag:])) / spread if spread > 0 else None


def gap_rank_correlation(times_ns: Int64s) -> float | None:
    """Spearman's correlation of each gap with the next; None below 30 pairs or where all gaps are equal.

    Of at most 2**20 pairs: a longer series is read in 32 excerpts, evenly placed.
    """
    if times_ns.size - 2 < LEAST_PAIRS:
        return None
    gaps = [np.diff(excerpt) for excerpt in _excerpts(times_ns)]
    before = _ranks(np.concatenate([part[:-1] for part in gaps]))
    after = _ranks(np.concatenate([part[1:] for part in gaps]))
    if before.min() == before.max() or after.min() == after.max():
        return None
    return float(np.corrcoef(before, after)[0, 1])


def hurst_variance_time(counts: Int64s, least_block: int = 1) -> float | None:
    """Hurst exponent from the variance of block means of counts, which falls as m^(2H - 2).

    Least squares on logarithms at about 20 block lengths m from 1 to a tenth of the series, those of
    `least_block` or more (Leland et al., IEEE/ACM Trans. Networking 2(1), 1994, section IV). 0.5: short
    memory. A drifting rate raises it too; of long memory it is low (by 0.06 at H 0.9 and 2**14 counts). None below 100
    counts or 3 usable lengths.
    """
    if counts.size < LEAST_COUNTS:
        return None
    lengths = np.unique(np.round(np.geomspace(1, counts.size // 10, N_BLOCK_LENGTHS)).astype(np.int64))
    lengths = lengths[lengths >= least_block]
    sums = np.concatenate(([0], np.cumsum(counts)))
    variances = np.array([np.diff(sums[::m]).var(ddof=1) / m**2 for m in lengths.tolist()])
    return _hurst(np.log(lengths[variances > 0]), np.log(variances[variances > 0]), 2.0)


def hurst_haar(counts: Int64s) -> float | None:
    """Hurst exponent from Haar wavelet energies, which grow as 2^(j (2H - 1)) over octaves j.

    Octaves from 3 (blocks of 8 counts) to the last with 8 details, weighted by their number (Abry and
    Veitch, IEEE Trans. Information Theory 44(1), 1998). A linear drift of the rate moves it less than
    the variance-time slope. None below 3 such octaves.
    """
    points = []
    sums, octave = counts.astype(np.float64), 0
    while sums.size // 2 >= LEAST_DETAILS:
        left, right = sums[: sums.size // 2 * 2].reshape(-1, 2).T
        energy = float(np.square(left - right).mean()) / 2
        sums = (left + right) / math.sqrt(2)
        octave += 1
        if octave >= 3 and energy > 0:
            points.append((octave, math.log2(energy), math.sqrt(left.size)))
    octaves, energies, weights = np.array(points).reshape(-1, 3).T
    return _hurst(octaves, energies, 1.0, weights)


def _hurst(x: Floats, y: Floats, rise: float, weights: Floats | None = None) -> float | None:
    """(rise + least-squares slope)/2, residuals times `weights`; None with fewer than 3 points."""
    return (rise + float(np.polyfit(x, y, 1, w=weights)[0])) / 2 if x.size >= 3 else None


def _excerpts(times_ns: Int64s) -> list[Int64s]:
    if times_ns.size - 2 <= MOST_RANK_PAIRS:
        return [times_ns]
    length = MOST_RANK_PAIRS // RANK_STRETCHES + 2
    starts = np.linspace(0, times_ns.size - length, RANK_STRETCHES).astype(np.int64)
    return [times_ns[start : start + length] for start in starts.tolist()]


def _ranks(values: Int64s) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[place]
