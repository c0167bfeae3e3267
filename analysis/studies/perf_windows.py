"""Windows of a measured phase, and whether three in a row are stable.

As perf_analyzer has them (its docs/measurements_metrics.md, and `src/inference_profiler.cc`: `Measure`,
`DetermineStability`): a request belongs to the window in which it ended; throughput is requests by rows over the
length of the window; three windows in a row are stable where the largest throughput is at most 1 + s of the smallest,
and so is the latency that was asked for.

    run    ├─ warm-up ─┤├──────────── measured ────────────┤├ drain ┤
    windows             ├── 1 ──┤├── 2 ──┤├── 3 ──┤├── 4 ──┤         end to end; what is left over counts nowhere
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.statistics.latency import nearest_rank
from squall.analysis.studies.perf_rows import EndedRequests
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

IN_A_ROW = 3
"""Windows that must be stable, one after another."""


class Window(Frozen):
    """[start_ns, end_ns) of the run clock and the requests that ended in it."""

    start_ns: int
    end_ns: int
    requests: EndedRequests

    @property
    def n_ok(self) -> int:
        return int(np.count_nonzero(self.requests.is_ok))

    def throughput_hz(self, rows: int) -> float:
        """Rows a second that were answered ok, of requests of `rows` each."""
        return self.n_ok * rows * NS_PER_S / (self.end_ns - self.start_ns)


def latency_ns(requests: EndedRequests, percentile: int | None) -> float:
    """The percentile of the service time, failed requests counted as infinitely slow; or, where None, the average of
    those that succeeded. NaN without any."""
    if percentile is None:
        ok = requests.is_ok
        return float(np.mean((requests.done_ns - requests.sent_ns)[ok])) if ok.any() else math.nan
    return percentiles_ns(requests.done_ns - requests.sent_ns, requests, [percentile])[0]


def percentiles_ns(values_ns: Int64s, requests: EndedRequests, percentiles: Sequence[int]) -> list[float]:
    """By nearest rank over all rows (analysis/statistics/latency.py); infinite where the rank falls on a failed
    request, NaN without requests. `values_ns`: (n,), one of each request."""
    n = len(requests)
    if not n:
        return [math.nan] * len(percentiles)
    ordered = np.sort(values_ns[requests.is_ok])
    ranks = [nearest_rank(one / 100, n) for one in percentiles]
    return [float(ordered[rank - 1]) if rank <= len(ordered) else math.inf for rank in ranks]


def warm_from_ns(requests: EndedRequests, start_ns: int, n_warmup: int) -> int | None:
    """From when on windows may begin: the measured phase has begun and `n_warmup` requests have ended. None where fewer
    did."""
    if not n_warmup:
        return start_ns
    if len(requests) < n_warmup:
        return None
    return max(start_ns, int(requests.done_ns[n_warmup - 1]) + 1)


def time_windows(requests: EndedRequests, start_ns: int, end_ns: int, length_ns: int) -> list[Window]:
    """Windows of that length."""
    edges = range(start_ns, end_ns + 1, length_ns)
    return [Window(a, b, requests.between(a, b)) for a, b in pairwise(edges)]


def count_windows(requests: EndedRequests, start_ns: int, end_ns: int, n_requests: int) -> list[Window]:
    """Windows of whole seconds, each as long as it takes until `n_requests` have ended in it."""
    found, begin_ns, at_ns = list[Window](), start_ns, start_ns
    while (at_ns := at_ns + NS_PER_S) <= end_ns:
        inside = requests.between(begin_ns, at_ns)
        if len(inside) >= n_requests:
            found.append(Window(begin_ns, at_ns, inside))
            begin_ns = at_ns
    return found


def request_window(requests: EndedRequests, start_ns: int, n_requests: int) -> list[Window]:
    """One window from the first send to the last reply of the first `n_requests` sent; none where fewer ended."""
    chosen = requests.first_sent(n_requests, start_ns)
    if len(chosen) < n_requests:
        return []
    return [Window(int(chosen.sent_ns.min()), int(chosen.done_ns[-1]) + 1, chosen)]


def first_stable(
    windows: Sequence[Window], ratio: float, percentile: int | None, latency_may_vary: bool = False
) -> int | None:
    """Where the first three windows in a row begin that are stable; None where there are none.

    `percentile`: of the latency, None: its average. `latency_may_vary`: the throughput alone decides where the latency
    does not settle, as perf_analyzer has it with --async.
    """
    hz = [window.throughput_hz(1) for window in windows]
    latency = [latency_ns(window.requests, percentile) for window in windows]
    for figures in ([hz, latency], [hz]) if latency_may_vary else ([hz, latency],):
        for first in range(len(windows) - IN_A_ROW + 1):
            if all(_most_by_least(one[first : first + IN_A_ROW]) <= 1.0 + ratio for one in figures):
                return first
    return None


def spread_ratio(values: Sequence[float]) -> float:
    """By how much the largest is above the smallest, as a share of it; infinite where that cannot be said."""
    return _most_by_least(values) - 1.0


def _most_by_least(values: Sequence[float]) -> float:
    """Infinite of none, and where one is 0, infinite or unknown."""
    if not values or not all(math.isfinite(value) and value > 0.0 for value in values):
        return math.inf
    return max(values) / min(values)


def joined(windows: Sequence[Window], requests: EndedRequests) -> Window:
    """Windows that follow one another as one; `requests`: all of the run."""
    if len(windows) == 1:
        return windows[0]
    start_ns, end_ns = windows[0].start_ns, windows[-1].end_ns
    return Window(start_ns, end_ns, requests.between(start_ns, end_ns))
