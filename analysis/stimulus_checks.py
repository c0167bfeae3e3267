"""The checks of an open-loop run that its sends were its schedule: figures of `stimulus`, held to `limits`."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.check import Check, held_to
from analysis.limits import Limits
from analysis.stimulus import SCALES_NS, Stimulus
from scenarios.units import NS_PER_S

_ADVICE = "add client workers or nodes, or lower the rate"


def stimulus_checks(
    n_unsent: int, stimuli: Sequence[Stimulus], allowed_ns: int, limits: Limits
) -> list[Check]:
    """Planned against sent, at the worst of the phases, of which each has arrivals; what none carries is left out.

    `n_unsent` counts measured arrivals never sent; `allowed_ns` is the lag that the run's latency allows.
    """
    return [
        held_to("unsent", n_unsent, 0, "count", "number of measured arrivals never sent", _ADVICE),
        held_to(
            "delivered load",
            _overall_difference(stimuli, limits),
            limits.overall_ratio,
            "ratio",
            "difference of requests sent within the measure phases from those scheduled",
            _ADVICE,
        ),
        held_to(
            "delivered load per second",
            max(one.second_ratio for one in stimuli),
            limits.window_ratio,
            "ratio",
            "largest difference of a second's sends from its schedule",
            _ADVICE,
        ),
        *_burst_checks(stimuli, limits),
        *_dispersion_checks(stimuli),
        *_lag_checks(stimuli, allowed_ns, limits),
    ]


def _overall_difference(stimuli: Sequence[Stimulus], limits: Limits) -> float:
    """Over all phases; in each, `window_edge_count` sends may fall over its end."""
    n_planned = sum(one.n_planned for one in stimuli)
    n_off = abs(sum(one.n_within for one in stimuli) - n_planned)
    return max(0, n_off - limits.window_edge_count * len(stimuli)) / n_planned


def _burst_checks(stimuli: Sequence[Stimulus], limits: Limits) -> list[Check]:
    ratios = [one.bursts.difference_ratio for one in stimuli if one.bursts]
    meaning = "share of the arrivals planned in bursts that was not sent within them, or came on top"
    advice = "the bursts were cut or filled up; add client workers"
    name = "delivered load in bursts"
    return [held_to(name, max(ratios), limits.burst_ratio, "ratio", meaning, advice)] if ratios else []


def _dispersion_checks(stimuli: Sequence[Stimulus]) -> list[Check]:
    """For 0.1, 1, 10 and 100 s: the phase that is furthest beyond its own limit, or nearest to it."""
    checks = []
    for window_ns in SCALES_NS:
        found = [each for one in stimuli for each in one.dispersion if each.window_ns == window_ns]
        worst = max(found, key=lambda each: abs(each.change_ratio) / each.limit_ratio, default=None)
        if worst is None:
            continue
        scale = f"{window_ns / NS_PER_S:g} s"
        meaning = f"change of the index of dispersion at {scale} between schedule and sends"
        advice = "the bursts that were sent are not those of the scenario; add client workers"
        value, limit = abs(worst.change_ratio), worst.limit_ratio
        checks.append(held_to(f"dispersion {scale}", value, limit, "ratio", meaning, advice))
    return checks


def _lag_checks(stimuli: Sequence[Stimulus], allowed_ns: int, limits: Limits) -> list[Check]:
    checks = []
    workers = [one.worst_worker for one in stimuli if one.worst_worker]
    if workers:
        worst = max(workers, key=lambda one: one.p95_ns)
        meaning = "send lag p95 of the worker with the largest"
        advice = f"worker {worst.worker} was late where others may not have been; look at its node"
        name = "send lag of the worst worker"
        checks.append(held_to(name, worst.p95_ns, allowed_ns, "ns", meaning, advice))
    drifts = [
        (abs(one.end_drift_ns), max(allowed_ns, round(limits.drift_ratio * one.duration_ns)))
        for one in stimuli
        if one.end_drift_ns is not None
    ]
    if drifts:
        drift_ns, limit_ns = max(drifts, key=lambda drift: drift[0] / drift[1])
        meaning = "change of the median send lag from the first to the last second of a measure phase"
        advice = "the schedule was stretched; add client workers or nodes"
        checks.append(held_to("send lag end drift", drift_ns, limit_ns, "ns", meaning, advice))
    return checks
