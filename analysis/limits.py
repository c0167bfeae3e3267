"""Limits that several checks of a verdict have in common, or figures and findings beside them.

A check's own limit stands with its reason in its entry (`squall.analysis.verdict.checks`). A run of which one figure is
beyond its limit is INVALID.
"""

from __future__ import annotations

from squall.scenarios.records import Frozen


class Limits(Frozen):
    """The limits, each with its reason."""

    lag_ns: int = 1_000_000
    """Send lag of a worker, drift and event-loop lag that is always allowed: what a timer on a busy host costs."""
    timer_ns: int = 500_000
    """Lag that any quantile of response time may have in it: what a timer's wake-up costs at the p99 of a quiet host
    with 2 cores (450 us, 2026-11-22; 50 us at the median). Below it a share says what the host's timers are: the larger
    of this and `lag_of_latency_ratio` of the quantile is allowed."""
    lag_of_latency_ratio: float = 0.10
    """Share of each quantile of response time that may be send lag, and of the same quantile of latency what a worker's
    lag and the event loop's may be: the client made at most a tenth of what is reported."""
    drift_ratio: float = 1e-4
    """Of the length of a phase, how much later its last sends may be than its first: a schedule that stretches by more
    has another rate in its fourth digit."""
    window_least_count: int = 20
    """Seconds with fewer arrivals are left out: one arrival over the edge would be more than 5 %."""
    window_edge_count: int = 2
    """Sends that may in any case fall over an edge of a second, a burst or a phase before the difference counts."""
    overall_ratio: float = 0.01
    """Difference of all sends within the phases from their schedule: the first claim of a run."""
    unreached_ratio: float = 0.01
    """Requests for which there was no connection: as `overall_ratio`, that load was not delivered."""
    burst_factor: float = 2.0
    """Planned count of a window over the mean one from which it belongs to a burst: twice the load is what a server
    that is half busy cannot serve any more."""
    stall_ns: int = 10_000_000
    """A stall of a shared host, which is no fault of the client: arrivals planned within this time before an edge of
    a second or a burst may fall over it; of all edges of the windows of a dispersion, at one."""
    dispersion_ratio: float = 0.02
    """Change of the index of dispersion, relative to the schedule's or to Poisson's 1 if that is larger. In heavy
    traffic the mean wait is proportional to it plus the c² of service (Kingman 1961, with the dispersion for the c²
    of gaps), so that waits change by no more. On top comes what an allowed lag does to this plan in windows this few
    (`stimulus.lag_noise_ratio`)."""
    dispersion_errors: float = 3.0
    """Standard errors of that which still count as chance."""
    taken_ratio: float = 0.20
    """CPU that others had while the server's threads waited for it, over what the server could have had, and time of
    its GPU. Beyond it the server computes a quarter slower than on a host of its own, and queues grow by more than
    that: the run is INVALID where that is more than `consequence_ratio` of the response times, too."""
    consequence_ratio: float = 0.10
    """Share of the response times that may come of it: as with `lag_of_latency_ratio`, at most a tenth of what is
    reported is not the server's. Below it the run is VALID, whatever was taken."""
    throttled_ratio: float = 0.10
    """Share of the periods of a CPU quota in which the server may use it up before that is
    named: a tenth of its batches meet it."""
    user_gap_ratio: float = 0.05
    """Closed loop: share of the users' time that may be neither service nor think, beyond 3 standard errors of the
    think time: more, and the client slowed its own users down."""
    user_gap_errors: float = 3.0
    client_lag_ratio: float = 0.20
    """Share of the mean latency before the send that makes the client the limit by itself."""
    queue_delay_ratio: float = 0.10
    """Share of the time in the server from which on the batcher's delay is told: no other tenth is had by one
    setting."""


LIMITS = Limits()


def allowed_lag_ns(quantile_ns: int, always_ns: int = LIMITS.lag_ns) -> int:
    """Lag of the client beyond which a run is INVALID, where the same quantile of latency is `quantile_ns`.

    Of the checks "send lag of the worst worker" and "event-loop lag p95" by p95, "send lag end drift" by p50, or
    `drift_ratio` of the phase if that is more; "lag in p50", p95 and p99 by theirs, always `timer_ns`.
    """
    return max(always_ns, round(LIMITS.lag_of_latency_ratio * quantile_ns))
