"""How bursty a series of instants is, of a plan or of what was really sent.

c2 = var/mean² of gaps; IDC(w) = var/mean of the counts in windows of w. Poisson has 1 for both.
Sample variances have the divisor n - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scenarios.units import NS_PER_S

LEAST_WINDOWS = 10  # below it the variance of counts says nothing


@dataclass(frozen=True)
class Burstiness:
    """Figures of a series over [start, end); None where the series does not carry the figure."""

    n: int
    rate_hz: float
    gap_c2_ratio: float | None
    idc_100ms_ratio: float | None
    idc_1s_ratio: float | None
    idc_10s_ratio: float | None
    peak_to_mean_1s_ratio: float | None


def describe(times_ns: NDArray[np.int64], end_ns: int, start_ns: int = 0) -> Burstiness:
    """Burstiness of the sorted instants that lie in [start_ns, end_ns); others are left out."""
    if end_ns <= start_ns:
        raise ValueError(f"the span [{start_ns}, {end_ns}) is empty")
    times = _within(times_ns, start_ns, end_ns)
    return Burstiness(
        n=int(times.size),
        rate_hz=times.size * NS_PER_S / (end_ns - start_ns),
        gap_c2_ratio=gap_c2(times),
        idc_100ms_ratio=index_of_dispersion(times, NS_PER_S // 10, start_ns, end_ns),
        idc_1s_ratio=index_of_dispersion(times, NS_PER_S, start_ns, end_ns),
        idc_10s_ratio=index_of_dispersion(times, 10 * NS_PER_S, start_ns, end_ns),
        peak_to_mean_1s_ratio=peak_to_mean(times, NS_PER_S, start_ns, end_ns),
    )


def window_counts(
    times_ns: NDArray[np.int64], window_ns: int, start_ns: int, end_ns: int
) -> NDArray[np.int64]:
    """Instants per whole window of `window_ns` from `start_ns` on, (n_windows,) int64."""
    n_windows = max(0, (end_ns - start_ns) // window_ns)
    times = _within(times_ns, start_ns, start_ns + n_windows * window_ns)
    return np.bincount((times - start_ns) // window_ns, minlength=n_windows).astype(np.int64)


def index_of_dispersion(
    times_ns: NDArray[np.int64], window_ns: int, start_ns: int, end_ns: int
) -> float | None:
    """Var/mean of the counts per window; None below 10 whole windows or without an instant."""
    counts = window_counts(times_ns, window_ns, start_ns, end_ns)
    if counts.size < LEAST_WINDOWS or not counts.any():
        return None
    return float(counts.var(ddof=1) / counts.mean())


def peak_to_mean(times_ns: NDArray[np.int64], window_ns: int, start_ns: int, end_ns: int) -> float | None:
    """Largest count of a window over the mean one; None below one whole window or without an instant."""
    counts = window_counts(times_ns, window_ns, start_ns, end_ns)
    return float(counts.max() / counts.mean()) if counts.any() else None


def gap_c2(times_ns: NDArray[np.int64]) -> float | None:
    """Var/mean² of the gaps between sorted instants; None below two gaps or where all are 0."""
    gaps = np.diff(times_ns).astype(np.float64)
    if gaps.size < 2 or not gaps.any():
        return None
    return float(gaps.var(ddof=1) / gaps.mean() ** 2)


def _within(times_ns: NDArray[np.int64], start_ns: int, end_ns: int) -> NDArray[np.int64]:
    return times_ns[(times_ns >= start_ns) & (times_ns < end_ns)]
