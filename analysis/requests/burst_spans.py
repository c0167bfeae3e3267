"""Where the bursts of a planned load lie."""

from __future__ import annotations

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.limits import Limits
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.records import Frozen
from squall.scenarios.series.burstiness import window_counts
from squall.scenarios.units import NS_PER_S

WINDOWS_NS = (NS_PER_S // 10, NS_PER_S, 10 * NS_PER_S)


class BurstSpans(Frozen, eq=False):
    """[begin, end) of each burst of a phase, (n,) in order of time, found in windows of `window_ns`.

    `is_burst` is false where no window is high enough: the only span is then that of the busiest one.
    """

    window_ns: int
    begins_ns: Int64s
    ends_ns: Int64s
    is_burst: bool


def find_bursts(planned: Int64s, span: RunPhase, limits: Limits) -> BurstSpans | None:
    """The bursts of the sorted instants `planned`; None for a phase without a window of enough of them.

    Windows are the shortest of 0.1, 1 and 10 s with `window_least_count` planned arrivals on average: enough that
    chance alone makes no burst (Poisson with mean 20 reaches 40 once in 19,000 windows). A burst is a maximal run of
    windows of at least `burst_factor` times the mean; where there is none, the busiest window.
    """
    start_ns, end_ns = span.start_ns, span.end_ns
    for window_ns in WINDOWS_NS:
        counts = window_counts(planned, window_ns, start_ns, end_ns)
        if counts.sum() >= max(1, counts.size) * limits.window_least_count:
            break
    else:
        return None
    is_high = counts >= limits.burst_factor * counts.mean()
    is_burst = bool(is_high.any())
    if not is_burst:
        is_high = np.arange(counts.size) == counts.argmax()
    # first window and the one behind the last of each maximal run, in turn
    edges = np.flatnonzero(np.diff(is_high.astype(np.int8), prepend=0, append=0))
    edges_ns = start_ns + window_ns * edges
    return BurstSpans(window_ns, edges_ns[::2], edges_ns[1::2], is_burst)
