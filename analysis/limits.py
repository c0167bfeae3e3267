"""The limits that the checks of `squall.analysis.verdict` hold a run to.

Before each limit stand the checks of it, by the names that reasons and docs/checks.md give them, behind the file that
decides (`held_to` in verdict/check.py compares). Checks that are not here have the limit 0: `unsent`, `sent early`,
`completeness`, `lost records`, `losses`, `Locust's counts`; and of `ok share` one request that ended ok is enough.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of the checks, each with its reason. A run states them beside its figures."""

    # verdict/stimulus_checks.py: `send lag of the worst worker`, `send lag end drift`; verdict/validity.py:
    # `event-loop lag p95`
    lag_ns: int = 1_000_000
    """Send lag of a worker, drift and event-loop lag that is always allowed: what a timer on a busy host costs."""
    # verdict/lag_parts.py: `lag in p50`, `lag in p95`, `lag in p99`
    timer_ns: int = 500_000
    """Lag that any quantile of response time may have in it: what a timer's wake-up costs at the p99 of a quiet host
    with 2 cores (450 us, 2026-11-22; 50 us at the median). Below it a share says what the host's timers are: the larger
    of this and `lag_of_latency_ratio` of the quantile is allowed."""
    # verdict/lag_parts.py: `lag in p50`, `lag in p95`, `lag in p99`; verdict/stimulus_checks.py:
    # `send lag of the worst worker`, `send lag end drift`; verdict/validity.py: `event-loop lag p95`
    lag_of_latency_ratio: float = 0.10
    """Share of each quantile of response time that may be send lag, and of the same quantile of latency what a worker's
    lag and the event loop's may be: the client made at most a tenth of what is reported."""
    # verdict/validity.py: `worker saturation`, `event-loop lag p95`; verdict/user_checks.py: `late users`
    least_samples: int = 20
    """Samples, or wakes of users, below which one alone is more than the share that may be saturated or late
    (`saturated_share_ratio`)."""
    # verdict/validity.py: `server reached`
    unreached_ratio: float = 0.01
    """Share of the requests for which there was no connection to the server, as `overall_ratio`: more, and the load was
    not delivered, for want of somebody to take it."""
    # verdict/stimulus_checks.py: `delivered load per second`
    window_ratio: float = 0.05
    """Difference of a second's sends from its schedule, beyond one stall: a burst cut by more than 5 % is another."""
    # verdict/stimulus_checks.py: `delivered load per second`, `send lag of the worst worker`,
    # `send lag end drift`
    window_least_count: int = 20
    """Seconds with fewer arrivals are left out: one arrival over the edge would be more than 5 %."""
    # verdict/stimulus_checks.py: `delivered load`, `delivered load per second`, `delivered load in bursts`
    window_edge_count: int = 2
    """Sends that may in any case fall over an edge of a second, a burst or a phase before the difference counts."""
    # verdict/stimulus_checks.py: `delivered load`
    overall_ratio: float = 0.01
    """Difference of all sends within the phases from their schedule: the first claim of a run."""
    # verdict/stimulus_checks.py: `delivered load in bursts`
    burst_factor: float = 2.0
    """Planned count of a window over the mean one from which it belongs to a burst: twice the load is what a server
    that is half busy cannot serve any more."""
    # verdict/stimulus_checks.py: `delivered load in bursts`
    burst_ratio: float = 0.05
    """Share of the arrivals planned in bursts that may be missing from them, or on top: as `window_ratio`."""
    # verdict/stimulus_checks.py: `delivered load per second`, `delivered load in bursts`, `dispersion 0.1 s`,
    # `dispersion 1 s`, `dispersion 10 s`, `dispersion 100 s`
    stall_ns: int = 10_000_000
    """A stall of a shared host, which is no fault of the client: arrivals planned within this time before an edge of
    a second or a burst may fall over it; of all edges of the windows of a dispersion, at one."""
    # verdict/stimulus_checks.py: `dispersion 0.1 s`, `dispersion 1 s`, `dispersion 10 s`, `dispersion 100 s`
    dispersion_ratio: float = 0.02
    """Change of the index of dispersion, relative to the schedule's or to Poisson's 1 if that is larger. In heavy
    traffic the mean wait is proportional to it plus the c² of service (Kingman 1961, with the dispersion for the c²
    of gaps), so that waits change by no more. On top comes what an allowed lag does to this plan in windows this few
    (`stimulus.lag_noise_ratio`)."""
    # verdict/stimulus_checks.py: `dispersion 0.1 s`, `dispersion 1 s`, `dispersion 10 s`, `dispersion 100 s`
    dispersion_errors: float = 3.0
    """Standard errors of that which still count as chance."""
    # verdict/stimulus_checks.py: `send lag end drift`
    drift_ratio: float = 1e-4
    """How much later the last sends may be than the first, relative to the phase, beyond the lag that is allowed
    anyway: a schedule that stretches by more has another rate in its fourth digit."""
    # verdict/validity.py: `worker saturation`
    saturated_ratio: float = 0.90
    """CPU time, less that spent waiting busily, over wall time from which a single-threaded worker has no room
    for a burst; of a node, over all its cores."""
    # verdict/validity.py: `worker saturation`, `event-loop lag p95`
    saturated_share_ratio: float = 0.05
    """Share of samples that may be saturated, or whose event loop may be late."""
    # verdict/starvation.py: `CPU of the server`; verdict/shared_gpu.py: `GPU of the server`
    taken_ratio: float = 0.20
    """CPU that others had while the server's threads waited for it, over what the server could have had, and time of
    its GPU. Beyond it the server computes a quarter slower than on a host of its own, and queues grow by more than
    that: the run is INVALID where that is more than `consequence_ratio` of the response times, too."""
    # verdict/starvation.py: `CPU of the server`; verdict/shared_gpu.py: `GPU of the server`
    consequence_ratio: float = 0.10
    """Share of the response times that may come of it: as with `lag_of_latency_ratio`, at most a tenth of what is
    reported is not the server's. Below it the run is VALID, whatever was taken."""
    # verdict/starvation.py: `CPU of the server`
    throttled_ratio: float = 0.10
    """Share of the periods of a CPU quota in which the server may use it up before that is
    named: a tenth of its batches meet it."""
    # verdict/starvation.py: `CPU of the server`
    room_ratio: float = 0.5
    """Idle share of a node's CPU in a second beyond which a server whose quota was used up in it was not held back by
    others (`verdict/cpu_shares.py` leaves that second out)."""
    # verdict/validity.py: `clock bound`
    clock_of_latency_ratio: float = 0.10
    """Clock bound over the latency p50: beyond it wait and reply of `joined` are mostly clock."""
    # verdict/user_checks.py: `users accounted for`
    user_gap_ratio: float = 0.05
    """Closed loop: share of the users' time that may be neither service nor think, beyond 3 standard errors of the
    think time: more, and the client slowed its own users down."""
    # verdict/user_checks.py: `users accounted for`
    user_gap_errors: float = 3.0
    # verdict/validity.py: `event-loop lag p95`
    hub_lag_ns: int = 5_000_000
    """Locust: event-loop lag that is always allowed, in place of `lag_ns`: its hub has coarse timers and runs all users
    in turn. Ten users at 2 % CPU had 1.6 ms (FastHttpUser) and 3.6 ms (HttpUser) at the p95, sixty at 37 % had 8.3 ms,
    three hundred at 81 % 89 ms (Locust 2.47.0, a shared host with 2 cores, 2026-11-26)."""
    # verdict/user_checks.py: `late users`
    late_users_ratio: float = 0.05
    """Locust: share of the users' wakes that may be late (`late_ns` of the manifest), as `saturated_share_ratio`: more,
    and users waited for their turn in a full process, before a send that no response time holds."""
    # verdict/user_checks.py: `users present`
    missing_users_ratio: float = 0.01
    """Locust: share of the users asked for that may be missing, as `overall_ratio`: users are the load."""


LIMITS = Limits()
