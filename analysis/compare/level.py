"""What a run says of the level of load that it had, beside its promises: throughput, backlog, bursts, busy periods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.limits import LIMITS
from squall.analysis.requests.burst_spans import find_bursts
from squall.analysis.requests.failures import ANSWERED
from squall.analysis.requests.requests import Requests
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.records import Frozen
from squall.scenarios.series.burstiness import window_counts
from squall.scenarios.units import NS_PER_S

SATURATED_RATIO = 0.05
"""A backlog that grows over the whole load to more than this share of the requests: more comes in than goes out."""
FEWEST_BURSTS, FEWEST_BUSY_PERIODS = 10, 30
"""In a run with fewer of either its figures hang on a few bursts, and it flatters: of gamma gaps of cv 3 at 0.8 of a
server's load, 2,000 requests call 0.86 of it the capacity, 6,000 0.82."""
_N_STEPS = 100
"""Instants at which the backlog is read."""


class Level(Frozen):
    """Figures of the measured phases of a run, and of each request that began in them.

    `throughput_hz`: replies ok within the phases; `good_hz`: requests that ended ok and in time, over their length.
    `in_flight_mean_count`: of those sent and not yet answered, over time. `backlog_growth_ratio`: how far the number of
    requests due and not answered grew over the phases, by least squares, over all of them. `n_bursts` 0 where the load
    has none.
    """

    n: int
    n_ok: int
    n_unanswered: int
    offered_hz: float
    throughput_hz: float
    good_hz: float
    response_mean_ns: float | None
    response_p50_ns: float | None
    response_p95_ns: float | None
    response_p99_ns: float | None
    in_flight_mean_count: float
    backlog_growth_ratio: float
    peak_1s_hz: float
    peak_100ms_hz: float
    n_bursts: int
    n_busy_periods: int

    @property
    def is_saturated(self) -> bool:
        """Whether the backlog grew all along."""
        return self.backlog_growth_ratio > SATURATED_RATIO


def is_short(n_bursts: int, n_busy_periods: int) -> bool:
    """Whether figures hang on few bursts, where the load has any, or on few busy periods."""
    return 0 < n_bursts < FEWEST_BURSTS or n_busy_periods < FEWEST_BUSY_PERIODS


def level_of(requests: Requests, spans: Sequence[RunPhase], late_from_ns: int | None) -> Level:
    """The level of an open-loop run with requests; `spans` are its measured phases. `late_from_ns`: the response time
    from which a request is not in time, None: any is."""
    own = requests.in_phases([span.name for span in spans])
    length_ns = sum(span.end_ns - span.start_ns for span in spans)
    is_ok = own.is_ok
    response_ns = np.where(is_ok, own.response_ns, np.iinfo(np.int64).max)
    is_good = is_ok if late_from_ns is None else is_ok & (response_ns < late_from_ns)
    done_ns = own.done_ns[is_ok]
    quantiles = [_quantile(response_ns, is_ok, q) for q in (0.5, 0.95, 0.99)]
    bursts = [find_bursts(own.scheduled_ns[_within(own.scheduled_ns, span)], span, LIMITS) for span in spans]
    is_answered = own.is_done & own.is_sent
    flight_ns = (own.done_ns - own.sent_ns)[is_answered]
    return Level(
        n=len(own),
        n_ok=int(is_ok.sum()),
        n_unanswered=int((~own.outcome.is_any_of(ANSWERED)).sum()),
        offered_hz=len(own) * NS_PER_S / length_ns,
        throughput_hz=sum(int(_within(done_ns, span).sum()) for span in spans) * NS_PER_S / length_ns,
        good_hz=int(is_good.sum()) * NS_PER_S / length_ns,
        response_mean_ns=float(response_ns[is_ok].mean()) if is_ok.any() else None,
        response_p50_ns=quantiles[0],
        response_p95_ns=quantiles[1],
        response_p99_ns=quantiles[2],
        in_flight_mean_count=float(flight_ns.sum()) / length_ns,
        backlog_growth_ratio=_backlog_growth(own, spans),
        peak_1s_hz=_peak_hz(own.scheduled_ns, spans, NS_PER_S),
        peak_100ms_hz=_peak_hz(own.scheduled_ns, spans, NS_PER_S // 10),
        n_bursts=sum(len(one.begins_ns) for one in bursts if one is not None and one.is_burst),
        n_busy_periods=_n_busy_periods(own),
    )


def _within(instants_ns: Int64s, span: RunPhase) -> Bools:
    found: Bools = (instants_ns >= span.start_ns) & (instants_ns < span.end_ns)
    return found


def _quantile(response_ns: Int64s, is_ok: Bools, q: float) -> float | None:
    """Nearest rank over all requests, those that failed being slower than any; None where it is of these."""
    if not len(response_ns):
        return None
    rank = max(0, int(np.ceil(q * len(response_ns) - 1e-9)) - 1)
    value = int(np.partition(response_ns, rank)[rank])
    return None if rank >= int(is_ok.sum()) else float(value)


def _left_ns(own: Requests) -> Int64s:
    """When each request was over: done, else never."""
    found: Int64s = np.where(own.is_done, own.done_ns, np.iinfo(np.int64).max)
    return found


def _backlog_growth(own: Requests, spans: Sequence[RunPhase]) -> float:
    """Least-squares slope of the number in the system, times the phase's length, summed, over the requests."""
    left_ns = np.sort(_left_ns(own))
    grown = 0.0
    for span in spans:
        at_ns = np.linspace(span.start_ns, span.end_ns, _N_STEPS + 1)[1:].astype(np.int64)
        begun = np.searchsorted(own.scheduled_ns, at_ns)
        backlog = (begun - np.searchsorted(left_ns, at_ns)).astype(np.float64)
        steps = np.arange(1, _N_STEPS + 1) / _N_STEPS
        steps = steps - steps.mean()
        grown += float((steps * backlog).sum() / (steps * steps).sum())
    return grown / max(len(own), 1)


def _peak_hz(scheduled_ns: Int64s, spans: Sequence[RunPhase], window_ns: int) -> float:
    """The largest count of any window of the grid from a phase's start; of a phase that holds none its own rate."""
    found = 0.0
    for span in spans:
        inside = scheduled_ns[_within(scheduled_ns, span)]
        length_ns = span.end_ns - span.start_ns
        if length_ns < window_ns:
            found = max(found, len(inside) * NS_PER_S / length_ns)
            continue
        counts = window_counts(inside, window_ns, span.start_ns, span.end_ns)
        found = max(found, int(counts.max(initial=0)) * NS_PER_S / window_ns)
    return found


def _n_busy_periods(own: Requests) -> int:
    """How often a request found nothing before it that was due and unanswered."""
    if not len(own):
        return 0
    left_ns = np.maximum.accumulate(_left_ns(own))
    return 1 + int((own.scheduled_ns[1:] >= left_ns[:-1]).sum())
