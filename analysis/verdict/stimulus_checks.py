"""The checks of an open-loop run that its sends were its schedule: figures of `stimulus`, held to `limits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from squall.analysis.limits import Limits
from squall.analysis.requests.stimulus import SCALES_NS, Stimulus
from squall.analysis.verdict.check import Check, held_to
from squall.scenarios.units import NS_PER_S

_ADVICE = "add client workers or nodes, or lower the rate"


def stimulus_checks(
    n_unsent: int, stimuli: Sequence[Stimulus], allowed_ns: Mapping[str, AllowedLag], limits: Limits
) -> list[Check]:
    """Planned against sent, at the worst of the phases, of which each has arrivals; what none carries is left out.

    `n_unsent` counts measured arrivals never sent for the client's sake; `allowed_ns` is the lag that the latency of
    each phase allows.
    """
    unsent = held_to("unsent", n_unsent, 0, "count", "number of measured arrivals never sent", _ADVICE)
    if not stimuli:  # the server took none
        return [unsent]
    return [
        unsent,
        held_to(
            "delivered load",
            max(_overall_difference(one, limits) for one in stimuli),
            limits.overall_ratio,
            "ratio",
            "difference of requests sent within a measure phase from those scheduled",
            _ADVICE,
        ),
        *_second_checks(stimuli, limits),
        *_burst_checks(stimuli, limits),
        *_dispersion_checks(stimuli),
        *_lag_checks(stimuli, allowed_ns, limits),
    ]


class AllowedLag(NamedTuple):
    """Of a phase: what its latency p50 allows to a median lag, and its p95 to a p95 of lags."""

    p50_ns: int
    p95_ns: int


def _overall_difference(stimulus: Stimulus, limits: Limits) -> float:
    """Of one phase; `window_edge_count` sends may fall over its end."""
    n_off = abs(stimulus.n_within - stimulus.n_planned)
    return max(0, n_off - limits.window_edge_count) / stimulus.n_planned


def _second_checks(stimuli: Sequence[Stimulus], limits: Limits) -> list[Check]:
    ratios = [one.second_ratio for one in stimuli if one.second_ratio is not None]
    meaning = "largest difference of a second's sends from its schedule"
    name = "delivered load per second"
    return [held_to(name, max(ratios), limits.window_ratio, "ratio", meaning, _ADVICE)] if ratios else []


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


def _lag_checks(
    stimuli: Sequence[Stimulus], allowed_ns: Mapping[str, AllowedLag], limits: Limits
) -> list[Check]:
    """Of each figure the phase that is furthest beyond its limit, or nearest to it; and sends before their time."""
    n_early = sum(one.n_early for one in stimuli)
    advice = "the clock or the schedule of a worker is wrong: please report it with logs/"
    checks = [held_to("sent early", n_early, 0, "count", "number of arrivals sent before their time", advice)]
    workers = [(one.worst_worker, allowed_ns[one.phase].p95_ns) for one in stimuli if one.worst_worker]
    if workers:
        worst, limit_ns = max(workers, key=lambda pair: pair[0].p95_ns / pair[1])
        meaning = "send lag p95 of the worker with the largest"
        advice = f"worker {worst.worker} was late where others may not have been; look at its node"
        name = "send lag of the worst worker"
        checks.append(held_to(name, worst.p95_ns, limit_ns, "ns", meaning, advice))
    drifts = [
        (
            abs(one.end_drift_ns),
            max(allowed_ns[one.phase].p50_ns, round(limits.drift_ratio * one.duration_ns)),
        )
        for one in stimuli
        if one.end_drift_ns is not None
    ]
    if drifts:
        drift_ns, limit_ns = max(drifts, key=lambda drift: drift[0] / drift[1])
        meaning = "change of the median send lag from the first to the last second of a measure phase"
        advice = "the schedule was stretched; add client workers or nodes"
        checks.append(held_to("send lag end drift", drift_ns, limit_ns, "ns", meaning, advice))
    return checks
