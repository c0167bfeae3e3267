"""Figures of the checks of an open-loop run that its sends were its schedule, and that its latencies are the server's.

Planned against sent, at the worst of the phases; what none carries is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from squall.analysis.limits import LIMITS
from squall.analysis.requests.stimulus import Stimulus
from squall.analysis.statistics.order_statistics import smallest_n
from squall.analysis.verdict.check import Figure
from squall.analysis.verdict.run_view import RunView
from squall.analysis.wording import share_text


def largest(ratio: Callable[[Stimulus], float | None]) -> Callable[[RunView], Figure | None]:
    """The largest of the phases that carry it."""

    def figure(view: RunView) -> Figure | None:
        found = [value for one in view.loaded if (value := ratio(one)) is not None]
        return Figure(max(found)) if found else None

    return figure


def overall_difference(stimulus: Stimulus) -> float:
    """Of one phase; `window_edge_count` sends may fall over its end."""
    n_off = abs(stimulus.n_within - stimulus.n_planned)
    return max(0, n_off - LIMITS.window_edge_count) / stimulus.n_planned


def _furthest(figures: Sequence[Figure]) -> Figure | None:
    """The one that is furthest beyond its own limit, or nearest to it."""
    return max(figures, key=lambda one: (one.value or 0) / (one.limit or 1), default=None)


def early(view: RunView) -> Figure | None:
    """Of all phases that have arrivals."""
    return Figure(sum(one.n_early for one in view.loaded)) if view.loaded else None


def dispersion(window_ns: int) -> Callable[[RunView], Figure | None]:
    """Of the windows of that length."""
    return lambda view: _furthest(
        [
            Figure(abs(one.change_ratio), one.limit_ratio)
            for stimulus in view.loaded
            for one in stimulus.dispersion
            if one.window_ns == window_ns
        ]
    )


def worst_worker(view: RunView) -> Figure | None:
    """The largest p95 of a worker's lags, of the phases that have sends enough."""
    return _furthest(
        [
            Figure(
                one.worst_worker.p95_ns,
                view.allowed_by_phase[one.phase].p95_ns,
                advice=f"worker {one.worst_worker.worker} was late where others may not have been; look at its node",
            )
            for one in view.loaded
            if one.worst_worker
        ]
    )


def end_drift(view: RunView) -> Figure | None:
    """How much later the last sends may be than the first, beyond the lag that is allowed anyway."""
    return _furthest(
        [
            Figure(
                abs(one.end_drift_ns),
                max(view.allowed_by_phase[one.phase].p50_ns, round(LIMITS.drift_ratio * one.duration_ns)),
            )
            for one in view.loaded
            if one.end_drift_ns is not None
        ]
    )


def lag_part(q: float) -> Callable[[RunView], Figure]:
    """Of the worst of the phases, and of all together where there are several."""

    def figure(view: RunView) -> Figure:
        found = _furthest(
            [
                Figure(
                    one.excess_ns,
                    one.limit_ns,
                    advice=f"{share_text(one.ratio)} of that quantile is the client's, not the server's",
                )
                for one in view.lag_parts[q]
                if one is not None
            ]
        )
        why = f"it takes {smallest_n(q)} requests, and a quantile that does not fall on failures"
        return found or Figure(None, not_assessed=why)

    return figure
