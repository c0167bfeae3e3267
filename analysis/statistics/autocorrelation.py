"""How much rows in order of time repeat one another: integrated autocorrelation times of 0/1 series.

For a stationary 0/1 series with mean p and autocovariances c_k, the variance of the mean of n rows tends to
tau p (1 - p) / n, where tau = (c_0 + 2 c_1 + 2 c_2 + …) / c_0 is the integrated autocorrelation time, in rows:
n rows tell as much about p as n / tau independent ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from squall.analysis.arrays import Bools, Floats
from squall.scenarios.records import Frozen

MOST_BINS = 2**18
"""Bins of a series: bounds the memory, 4 MB for the transform, whatever n is."""
_MOST_CORRECTION = 0.8
"""Share of a series that lags may span in the correction for the estimated mean: it stops at a factor of 5."""


class Deviations(Frozen, eq=False):
    """A 0/1 series as sums over bins of `width` rows, less the mean of their stretch: (n_bins,) float64.

    `variance`: p (1 - p) of a row within its stretch, mean over the rows. Rows that fill no bin at the end of a
    stretch are left out of `sums`: fewer than `width` for each.
    """

    sums: Floats
    width: int
    variance: float


def deviations(is_below: Bools, stretches: Sequence[int] | None = None) -> Deviations:
    """The deviations of `is_below`, (n,) in order of time, made of `stretches`: lengths that sum to n; None: of one.

    A stretch is planned: one phase of a run. What differs between stretches is no chance, so it is taken out.
    """
    n = len(is_below)
    width = max(1, -(-n // MOST_BINS))
    edges = np.concatenate([[0], np.cumsum([n] if stretches is None else stretches)]).tolist()
    parts = []
    within = 0.0
    for first, last in pairwise(edges):
        if first == last:
            continue
        n_bins = (last - first) // width
        own = is_below[first:last]
        mean = np.count_nonzero(own) / len(own)
        within += len(own) * mean * (1.0 - mean)
        sums = own[: n_bins * width].reshape(n_bins, width).sum(axis=1)
        parts.append(sums - mean * width)
    return Deviations(np.concatenate(parts) if parts else np.empty(0), width, within / n if n else 0.0)


def integrated_time(series: Deviations) -> float:
    """tau of a series in rows, at least 1; 1 for a series that does not vary.

    Autocovariances of the bins by the fast Fourier transform, summed up to where the sum of two neighbours is first
    not positive, these sums made non-increasing: the initial monotone sequence, Geyer (1992), Practical Markov chain
    Monte Carlo, Statist. Sci. 7(4), section 3.3. Bins keep the variance of the mean as it is, so that tau is that of
    the rows. Taking the mean off lowers each autocovariance by about tau c_0 / n; over the lags -K … K that were
    summed tau comes out too low by the factor 1 - 2 K / n, which is divided out.
    """
    n = len(series.sums)
    if n < 2 or series.variance <= 0.0:
        return 1.0
    covariances = _autocovariances(series.sums)
    if covariances[0] <= 0.0:
        return 1.0
    pairs = covariances[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    ended = np.flatnonzero(pairs <= 0.0)
    n_pairs = int(ended[0]) if len(ended) else len(pairs)
    total = 2.0 * np.minimum.accumulate(pairs[:n_pairs]).sum() - covariances[0] if n_pairs else 0.0
    correction = 1.0 - min(_MOST_CORRECTION, 2.0 * 2.0 * n_pairs / n)
    return max(1.0, float(total / correction / series.width / series.variance))


def _autocovariances(sums: Floats) -> Floats:
    """c_0 … c_(n-1) of a series with mean 0, each with the divisor n; padded, so that its ends do not meet."""
    n = len(sums)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(sums, size)
    found: Floats = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[:n] / n
    return found
