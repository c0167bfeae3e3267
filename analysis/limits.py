"""The limits that the checks of `validity` hold a run to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of the checks, each with its reason. A run states them beside its figures."""

    lag_ns: int = 1_000_000
    """Send lag and event-loop lag that is always allowed: what a timer on a busy host costs."""
    lag_of_latency_ratio: float = 0.10
    """Or this share of the latency p99: then the client made at most a tenth of the tail it reports."""
    window_ratio: float = 0.05
    """Difference of a second's sends from its schedule: a burst cut by more than 5 % is another burst."""
    window_least_count: int = 20
    """Seconds with fewer arrivals are left out: one arrival over the edge would be more than 5 %."""
    window_edge_count: int = 2
    """Sends that may fall over each second's edge before the difference counts."""
    overall_ratio: float = 0.01
    """Difference of all sends within the phases from their schedule: the first claim of a run."""
    dispersion_ratio: float = 0.05
    """Change of the index of dispersion, relative to the schedule's or to Poisson's 1 if that is larger."""
    short_dispersion_ratio: float = 0.10
    """The same at 0.1 s, where a single stall of a shared host of some 10 ms is seen."""
    saturated_ratio: float = 0.90
    """CPU time, less that spent waiting busily, over wall time from which a single-threaded worker has no room
    for a burst; of a node, over all its cores."""
    saturated_share_ratio: float = 0.05
    """Share of samples that may be saturated, or whose event loop may be late."""
    clock_of_latency_ratio: float = 0.10
    """Clock bound over the latency p50: beyond it wait and reply of `joined` are mostly clock."""
    user_gap_ratio: float = 0.05
    """Closed loop: share of the users' time that may be neither service nor think, beyond 3 standard errors of the
    think time: more, and the client slowed its own users down."""
    user_gap_errors: float = 3.0


LIMITS = Limits()
