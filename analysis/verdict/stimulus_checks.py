"""The checks of an open-loop run that its sends were its schedule, and that its latencies are the server's.

Planned against sent, at the worst of the phases; what none carries is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from squall.analysis.limits import LIMITS
from squall.analysis.requests.stimulus import SCALES_NS, Stimulus
from squall.analysis.statistics.order_statistics import smallest_n
from squall.analysis.verdict.check import SENDS, Check, Figure
from squall.analysis.verdict.lag_parts import JUDGED
from squall.analysis.verdict.run_view import RunView, is_open
from squall.analysis.wording import share_text
from squall.scenarios.units import NS_PER_S

_ADVICE = "add client workers or nodes, or lower the rate"
_DRIFT_RATIO = 1e-4


def _largest(ratio: Callable[[Stimulus], float | None]) -> Callable[[RunView], Figure | None]:
    """The largest of the phases that carry it."""

    def figure(view: RunView) -> Figure | None:
        found = [value for one in view.stimuli if (value := ratio(one)) is not None]
        return Figure(max(found)) if found else None

    return figure


def _overall_difference(stimulus: Stimulus) -> float:
    """Of one phase; `window_edge_count` sends may fall over its end."""
    n_off = abs(stimulus.n_within - stimulus.n_planned)
    return max(0, n_off - LIMITS.window_edge_count) / stimulus.n_planned


def _furthest(figures: Sequence[Figure]) -> Figure | None:
    """The one that is furthest beyond its own limit, or nearest to it."""
    return max(figures, key=lambda one: (one.value or 0) / (one.limit or 1), default=None)


def _dispersion(window_ns: int) -> Callable[[RunView], Figure | None]:
    return lambda view: _furthest(
        [
            Figure(abs(one.change_ratio), one.limit_ratio)
            for stimulus in view.stimuli
            for one in stimulus.dispersion
            if one.window_ns == window_ns
        ]
    )


def _worst_worker(view: RunView) -> Figure | None:
    return _furthest(
        [
            Figure(
                one.worst_worker.p95_ns,
                view.allowed_by_phase[one.phase].p95_ns,
                advice=f"worker {one.worst_worker.worker} was late where others may not have been; look at its node",
            )
            for one in view.stimuli
            if one.worst_worker
        ]
    )


def _end_drift(view: RunView) -> Figure | None:
    """How much later the last sends may be than the first, beyond the lag that is allowed anyway."""
    return _furthest(
        [
            Figure(
                abs(one.end_drift_ns),
                max(view.allowed_by_phase[one.phase].p50_ns, round(_DRIFT_RATIO * one.duration_ns)),
            )
            for one in view.stimuli
            if one.end_drift_ns is not None
        ]
    )


def _lag_part(q: float) -> Callable[[RunView], Figure]:
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


STIMULUS_CHECKS = (
    Check(
        name="unsent",
        figure=lambda view: Figure(view.n_unsent),
        limit=0,
        unit="count",
        reason="an arrival that was never sent is load that the server was spared",
        meaning="number of measured arrivals never sent",
        advice=_ADVICE,
        where=is_open,
        shows=SENDS,
    ),
    Check(
        name="delivered load",
        figure=_largest(_overall_difference),
        limit=LIMITS.overall_ratio,
        unit="ratio",
        reason="the first claim of a run",
        meaning="difference of requests sent within a measure phase from those scheduled",
        advice=_ADVICE,
        where=is_open,
        shows=SENDS,
    ),
    Check(
        name="delivered load per second",
        figure=_largest(lambda one: one.second_ratio),
        limit=0.05,
        unit="ratio",
        reason="a burst cut by more than 5 % is another; beyond what one stall explains",
        meaning="largest difference of a second's sends from its schedule",
        advice=_ADVICE,
        where=is_open,
        shows=SENDS,
    ),
    Check(
        name="delivered load in bursts",
        figure=_largest(lambda one: one.bursts.difference_ratio if one.bursts else None),
        limit=0.05,
        unit="ratio",
        reason="as of a second: a burst cut by more than 5 % is another",
        meaning="share of the arrivals planned in bursts that was not sent within them, or came on top",
        advice="the bursts were cut or filled up; add client workers",
        where=is_open,
        shows=SENDS,
    ),
    *(
        Check(
            name=f"dispersion {window_ns / NS_PER_S:g} s",
            figure=_dispersion(window_ns),
            limit=LIMITS.dispersion_ratio,
            unit="ratio",
            reason="in heavy traffic the mean wait is proportional to it, so that waits change by no more",
            meaning=f"change of the index of dispersion at {window_ns / NS_PER_S:g} s between schedule and sends",
            advice="the bursts that were sent are not those of the scenario; add client workers",
            where=is_open,
            shows=SENDS,
        )
        for window_ns in SCALES_NS
    ),
    Check(
        name="sent early",
        figure=lambda view: Figure(sum(one.n_early for one in view.stimuli)) if view.stimuli else None,
        limit=0,
        unit="count",
        reason="no send may come before its time: a load generator can be late, not early",
        meaning="number of arrivals sent before their time",
        advice="the clock or the schedule of a worker is wrong: please report it with logs/",
        where=is_open,
    ),
    Check(
        name="send lag of the worst worker",
        figure=_worst_worker,
        limit=LIMITS.lag_ns,
        unit="ns",
        reason="a tenth of the latency p95, and what a timer on a busy host costs in any case",
        meaning="send lag p95 of the worker with the largest",
        where=is_open,
        shows=SENDS,
    ),
    Check(
        name="send lag end drift",
        figure=_end_drift,
        limit=LIMITS.lag_ns,
        unit="ns",
        reason="a tenth of the latency p50, or a ten-thousandth of the phase: a schedule that stretches by more has"
        " another rate in its fourth digit",
        meaning="change of the median send lag from the first to the last second of a measure phase",
        advice="the schedule was stretched; add client workers or nodes",
        where=is_open,
        shows=SENDS,
    ),
    *(
        Check(
            name=f"lag in p{100 * q:g}",
            figure=_lag_part(q),
            limit=LIMITS.timer_ns,
            unit="ns",
            reason="the client made at most a tenth of what is reported, or what a timer's wake-up costs",
            meaning=f"part of the response time p{100 * q:g} that is send lag",
            where=is_open,
            shows=SENDS,
        )
        for q in JUDGED
    ),
)
