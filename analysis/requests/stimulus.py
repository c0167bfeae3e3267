"""Was the load that was sent the load that was asked for? Planned against sent, over each measure phase.

Pure figures: `validity` holds them to limits, `summary` writes them down. All are of the merged sends of all workers:
the burstiness of one worker's share is not that of the whole. A closed loop plans no instants and has none of this.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Bools, Floats, Int64s, Integers
from squall.analysis.limits import Limits
from squall.analysis.requests.bursts import Bursts, compare_bursts, count_within, missed
from squall.analysis.requests.failures import is_cut, is_lost, is_unreached
from squall.analysis.requests.requests import Requests, in_order, together
from squall.analysis.storage.query import over
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.records import Frozen
from squall.scenarios.series.burstiness import LEAST_WINDOWS, N_SHIFTS, idc_shifted, window_counts
from squall.scenarios.units import NS_PER_S

SCALES_NS = (NS_PER_S // 10, NS_PER_S, 10 * NS_PER_S, 100 * NS_PER_S)
"""Windows of the dispersion that is judged. One that a phase holds fewer than 10 of is left out."""
MOST_GAPS = 1_000_000
"""Gaps of each series in the Kolmogorov-Smirnov distance, evenly spaced over more."""
_MOST_EDGES = 2**24


class Sends(Frozen, eq=False):
    """The arrivals of one measure phase in the order of their schedule, (n,) each; ns on the run clock.

    `sent_ns` is 0 where `is_sent` is false. `n_unreached` more were tried in vain, for want of a server that takes
    connections: whether they came at their time is not known, and no matter of the client's.
    """

    span: RunPhase
    worker: Integers
    scheduled_ns: Int64s
    sent_ns: Int64s
    is_sent: Bools
    n_unreached: int = 0

    @property
    def all_planned_ns(self) -> Int64s:
        """Instants of all arrivals, sorted."""
        return in_order(self.scheduled_ns)

    @property
    def all_sent_ns(self) -> Int64s:
        """Instants of all sends, sorted."""
        return in_order(self.sent_ns[together(self.is_sent)])

    @functools.cached_property
    def lag_ns(self) -> Int64s:
        """sent - scheduled of those sent, in the order of the schedule."""
        rows = together(self.is_sent)
        return self.sent_ns[rows] - self.scheduled_ns[rows]


class Dispersion(Frozen):
    """Index of dispersion in windows of `window_ns`, mean over ten shifted grids, of the plan and of the sends.

    `change_ratio` = (sent - planned) / max(planned, 1); `limit_ratio` is what its size may be.
    """

    window_ns: int
    planned_ratio: float
    sent_ratio: float
    change_ratio: float
    limit_ratio: float


class Lags(Frozen):
    """Send lag of `n` sends, by nearest rank; `worker` None: of all."""

    worker: int | None
    n: int
    p50_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int


class Stimulus(Frozen):
    """Planned against sent in one phase, without the arrivals that found no server. None where it has no such figure.

    `n_within` were sent within the phase's span, `n_early` before their instant. `second_ratio`: largest difference
    of a second's sends from its plan. `end_drift_ns`: how much later the last sends were than the first.
    `gap_ks_ratio` is information alone: a harmless lag of the size of a gap moves it.
    """

    phase: str
    duration_ns: int
    n_planned: int
    n_sent: int
    n_within: int
    n_early: int
    second_ratio: float | None
    bursts: Bursts | None
    dispersion: tuple[Dispersion, ...]
    lag: Lags | None
    workers: tuple[Lags, ...]
    end_drift_ns: int | None
    gap_ks_ratio: float | None
    n_unreached: int = 0

    STATED: ClassVar = ("worst_worker",)

    @property
    def worst_worker(self) -> Lags | None:
        """The worker with the largest p95; None where none has sends enough."""
        return max(self.workers, key=lambda one: one.p95_ns, default=None)


def sends_of(requests: Requests, spans: Sequence[RunPhase]) -> Iterator[Sends]:
    """The arrivals of each of the phases `spans`, one phase after the other, of an open-loop run."""
    for span in spans:
        own = requests.in_phases([span.name])
        n_unreached = int(is_unreached(own).sum())
        is_unknown = is_unreached(own) | is_lost(own) | is_cut(own)
        if is_unknown.any():
            own = own.take(together(~is_unknown))
        yield Sends(span, own.worker, own.scheduled_ns, own.sent_ns, own.is_sent, n_unreached)


def verify(sends: Sends, limits: Limits) -> Stimulus:
    """Planned against sent of one phase; `limits` say what a burst is and what a lag may move."""
    span, planned, sent = sends.span, sends.all_planned_ns, sends.all_sent_ns
    lags = _lags(sends, limits.window_least_count)
    return Stimulus(
        phase=span.name,
        duration_ns=span.end_ns - span.start_ns,
        n_planned=len(planned),
        n_sent=len(sent),
        n_within=int(count_within(sent, span.start_ns, span.end_ns)),
        n_early=int((sends.lag_ns < 0).sum()),
        second_ratio=second_difference(planned, sent, span, limits),
        bursts=compare_bursts(planned, sent, span, limits),
        dispersion=tuple(
            found for w in SCALES_NS if (found := compare_dispersion(planned, sent, span, w, limits))
        ),
        lag=lags[0] if lags else None,
        workers=tuple(lags[1:]),
        end_drift_ns=end_drift(sends, limits.window_least_count),
        gap_ks_ratio=gap_distance(planned, sent),
        n_unreached=sends.n_unreached,
    )


def second_difference(planned: Int64s, sent: Int64s, span: RunPhase, limits: Limits) -> float | None:
    """Largest share of a second's planned arrivals that is `missed`. Both series sorted.

    Seconds with fewer planned than `window_least_count` are left out; None where that leaves none.
    """
    n_planned = window_counts(planned, NS_PER_S, span.start_ns, span.end_ns)
    begins_ns = span.start_ns + NS_PER_S * np.flatnonzero(n_planned >= limits.window_least_count)
    if not begins_ns.size:
        return None
    n_missed = missed(planned, sent, begins_ns, begins_ns + NS_PER_S, limits)
    return float((n_missed / n_planned[n_planned >= limits.window_least_count]).max())


# dispersion


def compare_dispersion(
    planned: Int64s, sent: Int64s, span: RunPhase, window_ns: int, limits: Limits
) -> Dispersion | None:
    """Of both sorted series in windows of `window_ns`; None where the phase holds fewer than 10 or has no arrival."""
    intended = idc_shifted(planned, window_ns, span.start_ns, span.end_ns)
    if intended is None:
        return None
    delivered = idc_shifted(sent, window_ns, span.start_ns, span.end_ns) or 0.0
    noise = lag_noise_ratio(planned, window_ns, span, limits)
    change = (delivered - intended) / max(intended, 1.0)
    return Dispersion(window_ns, intended, delivered, change, limits.dispersion_ratio + noise)


def lag_noise_ratio(planned: Int64s, window_ns: int, span: RunPhase, limits: Limits) -> float:
    """What lags that are allowed change in the dispersion of a plan (sorted), relative to max(it, 1).

    Of n arrivals planned in the last `lag_ns` before a window's edge, M cross it. For lags spread evenly up to
    `lag_ns` each crosses with probability 1/2 on average, so that E M² <= n²/4 + n/4. With counts x, from window i-1
    into window i cross M_i, and the sum of squares about the mean changes by

        sum 2 M_i (x_i - x_{i-1}) + sum (M_i - M_{i+1})²

    The first sum has a sign that changes from edge to edge: `dispersion_errors` standard errors of it,
    2 sqrt(sum E M² (x_i - x_{i-1})²). The second is at most 2 sum E M² on average. On top comes one stall at the
    worst edge: up to m planned within `stall_ns` before it cross, k of them so that |2 k (x_i - x_{i-1} + k)| is
    largest, in each grid with an edge in that time. Beyond the outer edges the mean stands for x. As in the index,
    sums of squares are divided by (windows - 1) x mean, grid by grid. Falls as 1/sqrt(windows), but for the second
    term, which matters where a plan is more regular than Poisson. 0 without a grid of 10 windows. Of a very long phase
    the first `_MOST_EDGES` edges stand for all.
    """
    step_ns = window_ns // N_SHIFTS
    last_ns = min(span.end_ns, span.start_ns + _MOST_EDGES * step_ns)
    edges = np.arange(span.start_ns, last_ns + 1, step_ns)
    before = np.searchsorted(planned, edges)
    n_near = before - np.searchsorted(planned, edges - limits.lag_ns)
    n_stalled = before - np.searchsorted(planned, edges - limits.stall_ns)
    mean_square = n_near * (n_near + 1) / 4.0
    variance = added = worst = dispersion = 0.0
    n_grids = 0
    for shift in range(N_SHIFTS):
        counts = np.diff(before[shift::N_SHIFTS]).astype(np.float64)
        if counts.size < LEAST_WINDOWS or not counts.any():
            continue
        mean = float(counts.mean())
        divisor = (counts.size - 1) * mean
        crossing, stalled = mean_square[shift::N_SHIFTS], n_stalled[shift::N_SHIFTS]
        steps = np.diff(counts, prepend=mean, append=mean)
        variance += float((crossing * steps**2).sum()) / divisor**2
        added += 2.0 * float(crossing.sum()) / divisor
        worst = max(worst, _largest_change(steps, stalled) / divisor)
        dispersion += float(((counts - mean) ** 2).sum()) / divisor
        n_grids += 1
    if not n_grids:
        return 0.0
    stall = worst * min(n_grids, math.ceil(limits.stall_ns / step_ns))
    return (limits.dispersion_errors * 2.0 * math.sqrt(variance) + added + stall) / max(dispersion, n_grids)


def _largest_change(steps: Floats, most: Int64s) -> float:
    """Largest |2 k (step + k)| over the edges and over k in 0 … `most`: at k = `most`, or at k = -step/2 before it."""
    some = np.minimum(most, np.maximum(-steps, 0.0) / 2.0)
    return float(max((2.0 * most * (steps + most)).max(), (2.0 * some * (-steps - some)).max()))


# lag


def end_drift(sends: Sends, least_count: int) -> int | None:
    """Median lag of the last sends less that of the first, ns; None below twice `least_count` sends.

    Last and first: those planned within a second of either end of the phase, or within a tenth of it if that is
    less; at least `least_count` sends. Medians, so that a stall is no drift.
    """
    lags, planned = sends.lag_ns, sends.scheduled_ns[together(sends.is_sent)]
    if len(lags) < 2 * least_count:
        return None
    start_ns, end_ns = sends.span.start_ns, sends.span.end_ns
    stretch_ns = min(NS_PER_S, (end_ns - start_ns) // 10)
    n_first = max(least_count, int((planned < start_ns + stretch_ns).sum()))
    n_last = max(least_count, int((planned >= end_ns - stretch_ns).sum()))
    return round(float(np.median(lags[-n_last:])) - float(np.median(lags[:n_first])))


_LAGS = """
SELECT worker, count(*), quantile_disc(lag_ns, [0.50, 0.95, 0.99, 1.00])
FROM sends GROUP BY GROUPING SETS ((worker), ()) ORDER BY worker NULLS FIRST
"""


def _lags(sends: Sends, least_count: int) -> list[Lags]:
    """Lags of all, then of each worker with `least_count` sends or more: of fewer the p95 is the largest."""
    table = pa.table({"worker": sends.worker[together(sends.is_sent)], "lag_ns": sends.lag_ns})
    with over({"sends": table}) as connection:
        found = connection.execute(_LAGS).fetchall()
    return [
        Lags(worker, n, *lags) for worker, n, lags in found if n >= (1 if worker is None else least_count)
    ]


def gap_distance(planned: Int64s, sent: Int64s) -> float | None:
    """Two-sample Kolmogorov-Smirnov distance sup |F(gap) - G(gap)| of the sorted series; None below three instants."""
    if min(len(planned), len(sent)) < 3:
        return None
    stride = math.ceil(len(planned) / MOST_GAPS)
    gaps = [np.sort(np.diff(series)[::stride]) for series in (planned, sent)]
    steps = np.concatenate(gaps)
    shares = [np.searchsorted(one, steps, side="right") / len(one) for one in gaps]
    return float(np.abs(shares[0] - shares[1]).max())
