"""How bursty a series of instants is, of a plan, of a trace or of what was really sent.

c2 = var/mean² of gaps; IDC(w) = var/mean of the counts in windows of w. Poisson has 1 for both.
Sample variances have the divisor n - 1. Beside the series itself a figure holds at most two arrays of its length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrays import Array, Floats, Int64s
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

LEAST_WINDOWS = 10  # below it the variance of counts says nothing
ROUGH_WINDOWS = 3  # from here on a dispersion may be shown, marked as rough
N_SHIFTS = 10  # grids over which a dispersion is averaged
LOCAL_WINDOW_NS = 600 * NS_PER_S
MOST_EQUAL = 20  # a tail of which more than one in so many is the largest value has a cap
LEAST_TO_CAP = 200
LEAST_LOCAL_COUNT = 50  # arrivals of a window whose own c2 counts
PEAK_WINDOW_NS = 60 * NS_PER_S  # an overload that lasts this long is a queue, not jitter

_MOST_BINS = 2**24  # counts held at a time; beyond it, windows without an instant are not stored


def window_counts(times_ns: Int64s, window_ns: int, start_ns: int, end_ns: int) -> Int64s:
    """Instants per whole window of `window_ns` from `start_ns` on, (n_windows,) int64. Any order."""
    n_windows = max(0, (end_ns - start_ns) // window_ns)
    is_inside = (times_ns >= start_ns) & (times_ns < start_ns + n_windows * window_ns)
    return np.bincount((times_ns[is_inside] - start_ns) // window_ns, minlength=n_windows)


def peak_to_mean(times_ns: Int64s, window_ns: int, start_ns: int, end_ns: int) -> float | None:
    """Largest count of a window over the mean one; None below one whole window or without an instant."""
    counts = window_counts(times_ns, window_ns, start_ns, end_ns)
    return float(counts.max() / counts.mean()) if counts.any() else None


def gap_c2(times_ns: Int64s) -> float | None:
    """Var/mean² of the gaps between sorted instants; None below two gaps or where all are 0."""
    if times_ns.size < 3 or times_ns[-1] == times_ns[0]:
        return None
    gaps = np.diff(times_ns)
    return float(gaps.var(ddof=1) / gaps.mean() ** 2)


def idc_shifted(
    times_ns: Int64s,
    window_ns: int,
    start_ns: int,
    end_ns: int,
    least_windows: int = LEAST_WINDOWS,
) -> float | None:
    """Index of dispersion of sorted instants, mean over 10 grids, each a tenth of a window later.

    A grid counts where it has `least_windows` whole windows and an instant. None if the first one has
    fewer: with `ROUGH_WINDOWS` in place of 10 the figure is rough. Above 1.6 million windows, where the
    standard error √(2/windows) is 0.1 %, one grid does. Time O(n), whatever the span.
    """
    if (end_ns - start_ns) // window_ns < least_windows:
        return None
    found = []
    for counts, n_windows in _grids(times_ns, window_ns, start_ns, end_ns):
        total = int(counts.sum())
        if n_windows >= least_windows and total:
            # sample variance over mean, of exact integers until the end
            squares = n_windows * int(np.dot(counts, counts))
            found.append((squares - total * total) / ((n_windows - 1) * total))
    return sum(found) / len(found) if found else None


def local_window_ns(span_ns: int) -> int:
    """Window of the local c2: 600 s, or a tenth of a span that has fewer than three of them."""
    return LOCAL_WINDOW_NS if span_ns >= 3 * LOCAL_WINDOW_NS else max(1, span_ns // 10)


def local_c2s(times_ns: Int64s, start_ns: int, end_ns: int) -> Floats:
    """c2 of the gaps inside each window with 50 arrivals or more.

    What is left at the end is a window from nine tenths of the length on: a span ends with its last arrival.
    """
    width_ns = local_window_ns(end_ns - start_ns)
    n_windows = (end_ns - start_ns + width_ns // 10) // width_ns
    edges = start_ns + width_ns * np.arange(n_windows + 1)
    places = np.searchsorted(times_ns, edges)
    full = np.flatnonzero(np.diff(places) >= LEAST_LOCAL_COUNT)
    found = (gap_c2(times_ns[places[i] : places[i + 1]]) for i in full)
    return np.array([c2 for c2 in found if c2 is not None], dtype=np.float64)


def local_c2(times_ns: Int64s, start_ns: int, end_ns: int) -> float | None:
    """Median of `local_c2s`: the burstiness that is left when the rate's drift is out; None without a window.

    Of sorted instants. A c2 far above it comes from the drift, not from the gaps.
    """
    found = local_c2s(times_ns, start_ns, end_ns)
    return float(np.median(found)) if found.size else None


def safe_load(times_ns: Int64s, start_ns: int, end_ns: int, window_ns: int = PEAK_WINDOW_NS) -> float | None:
    """Largest load ratio at which no window's own mean rate is above the server's: 1/(peak to mean).

    Above it, load x peak/mean > 1, the envelope alone makes a queue of (load x peak/mean - 1) x window.
    None with fewer than two whole windows.
    """
    is_long = (end_ns - start_ns) // window_ns >= 2
    peak = peak_to_mean(times_ns, window_ns, start_ns, end_ns) if is_long else None
    return None if peak is None else 1 / peak


def gd1_waits(times_ns: Int64s, load_ratio: float) -> NDArray[np.float32]:
    """Waits of sorted arrivals at one server of constant service, in service times, (n,) float32.

    Lindley's recursion W' = max(0, W + S - A) solved: with X_i = i S - (t_i - t_0) the wait of arrival i is
    X_i - min(X_0 … X_i) (Asmussen, Applied Probability and Queues, III.6). S = load x mean gap.
    """
    waits = np.arange(times_ns.size, dtype=np.float64)
    if times_ns.size < 2 or times_ns[-1] == times_ns[0]:
        return np.zeros(times_ns.size, np.float32)
    service_ns = load_ratio * int(times_ns[-1] - times_ns[0]) / (times_ns.size - 1)
    waits *= service_ns
    waits -= times_ns - times_ns[0]
    waits -= np.minimum.accumulate(waits)
    waits /= service_ns
    return waits.astype(np.float32)


def gd1_wait_p99(times_ns: Int64s, load_ratio: float) -> float | None:
    """p99, nearest rank, of `gd1_waits`, in service times; None below 100 arrivals or where all are at once."""
    if times_ns.size < 100 or times_ns[-1] == times_ns[0]:
        return None
    waits = gd1_waits(times_ns, load_ratio)
    return float(largest(waits, waits.size - math.ceil(0.99 * waits.size) + 1)[0])


class TailIndex(Frozen):
    """Hill's estimate: P(X > x) falls as x^-index among the `n_tail` largest."""

    index: float
    stderr: float
    n_tail: int


def hill(values: Int64s | Floats, share_ratio: float) -> TailIndex | None:
    """Tail index of the largest `share_ratio` of the values, any order; None where these do not carry it.

    Of the n values above 0, with k = floor(share n) and X_(k) the k-th largest: 1/index = mean of
    ln(X_(i)/X_(k+1)) over i = 1 … k, standard error index/√k (Hill, Annals of Statistics 3, 1975).
    An exponential law gives about 3.9 at 5 %.
    None with k < 10 and where all of the tail are equal. It takes the tail to go on: see `cap_of`.
    """
    n = int(np.count_nonzero(values > 0))
    k = math.floor(share_ratio * n)
    if k < 10 or k >= n:
        return None
    top = largest(values, k + 1).astype(np.float64)
    if top.max() == top[0]:
        return None
    index = 1 / float(np.log(top[1:] / top[0]).mean())
    return TailIndex(index, index / math.sqrt(k), k)


def cap_of(values: Int64s | Floats) -> tuple[float, int] | None:
    """The largest value and how many have it, where a column was cut off there: its tail is not that of its law.

    Where these are more than a twentieth of the largest hundredth, and more than two. None else, and below 200 values
    above 0. Without a cap the largest is alone, or shared by few.
    """
    n = int(np.count_nonzero(values > 0))
    if n < LEAST_TO_CAP:
        return None
    most = values.max()
    n_most = int(np.count_nonzero(values == most))
    return (float(most), n_most) if n_most > max(2, n / 100 / MOST_EQUAL) else None


def largest(values: Array, count: int) -> Array:
    """The `count` largest values, the least of them first and the rest in no order."""
    return np.partition(values, values.size - count)[values.size - count :]


def window_runs(times_ns: Int64s, window_ns: int, start_ns: int, end_ns: int) -> tuple[Int64s, Int64s]:
    """Numbers, rising, and counts of the whole windows that hold one of the sorted instants, (m,) int64 each.

    Unlike `window_counts` it takes no room for the empty windows.
    """
    last_ns = start_ns + max(0, (end_ns - start_ns) // window_ns) * window_ns
    windows = times_ns[slice(*np.searchsorted(times_ns, (start_ns, last_ns)))] - start_ns
    windows //= window_ns
    firsts = np.flatnonzero(np.append(True, windows[1:] != windows[:-1])[: windows.size])
    return windows[firsts], np.diff(firsts, append=windows.size)


def busiest_window(times_ns: Int64s, window_ns: int, start_ns: int, end_ns: int) -> tuple[int, int] | None:
    """Start in ns and count of the first whole window of the grid with most sorted instants; None without one."""
    windows, counts = window_runs(times_ns, window_ns, start_ns, end_ns)
    if not counts.size:
        return None
    place = int(counts.argmax())
    return start_ns + int(windows[place]) * window_ns, int(counts[place])


def _grids(times_ns: Int64s, window_ns: int, start_ns: int, end_ns: int) -> Iterator[tuple[Int64s, int]]:
    """The counts of each shifted grid, without empty windows where there are many, and its number of windows."""
    tenth_ns, rest_ns = divmod(window_ns, N_SHIFTS)
    n_tenths = (end_ns - start_ns) // max(1, tenth_ns)
    if rest_ns or n_tenths > min(_MOST_BINS, max(2**16, 4 * times_ns.size)):
        for shift in range(1 if n_tenths > _MOST_BINS else N_SHIFTS):
            first_ns = start_ns + shift * window_ns // N_SHIFTS
            _, counts = window_runs(times_ns, window_ns, first_ns, end_ns)
            yield counts, (end_ns - first_ns) // window_ns
        return
    sums = np.append(0, np.cumsum(window_counts(times_ns, tenth_ns, start_ns, end_ns)))
    for shift in range(N_SHIFTS):
        counts = np.diff(sums[shift::N_SHIFTS])
        yield counts, counts.size
