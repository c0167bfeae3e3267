"""Latency within the bursts of the planned load, and outside of them: a pooled quantile hides which it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from analysis.burst_spans import BurstSpans, find_bursts
from analysis.bursts import MOST_LISTED
from analysis.latency import quantiles
from analysis.limits import LIMITS, Limits
from analysis.requests import Bools, Int64s, Requests
from analysis.timeline import RunPhase


class _Rows(NamedTuple):
    """Response times of a phase, and which did not end ok, in order of the schedule, (n,) each."""

    response_ns: Int64s
    is_failed: Bools


def by_burst(
    measured: Requests, spans: Sequence[RunPhase], qs: Sequence[float], limits: Limits = LIMITS
) -> dict[str, dict[str, Any] | None] | None:
    """For each phase: response time of the requests scheduled within its bursts, outside, and in each burst.

    A request belongs to where it was scheduled: those that wait behind a burst's backlog, but were due after it, are
    outside. `inside` and `outside` are series of rows laid end to end, in order of time. Intervals by the same rule
    as over the whole run, so that a single burst seldom has one. `largest`: the bursts with most requests, in order
    of time. A phase without bursts (`burst_spans.find_bursts`) is None; so is a closed loop, which plans none.
    """
    if not measured.is_open:
        return None
    return {span.name: _phase_figures(measured.in_phases([span.name]), span, qs, limits) for span in spans}


def _phase_figures(
    own: Requests, span: RunPhase, qs: Sequence[float], limits: Limits
) -> dict[str, Any] | None:
    at_ns = own.scheduled_ns
    is_in_time = bool((at_ns[1:] >= at_ns[:-1]).all())
    in_time: slice | Int64s = slice(None) if is_in_time else np.argsort(at_ns, kind="stable")
    at_ns = at_ns[in_time]
    found = find_bursts(at_ns, span, limits)
    if found is None or not found.is_burst:
        return None
    firsts, ends = (np.searchsorted(at_ns, edge) for edge in (found.begins_ns, found.ends_ns))
    is_inside = np.zeros(len(own) + 1, dtype=np.int64)
    np.add.at(is_inside, firsts, 1)
    np.add.at(is_inside, ends, -1)
    inside = is_inside.cumsum()[:-1] > 0
    rows = _Rows(own.response_ns[in_time], ~own.is_ok[in_time])
    listed = np.sort(np.argsort(ends - firsts, kind="stable")[-MOST_LISTED:])
    return {
        "window_ns": found.window_ns,
        "n_bursts": len(firsts),
        "inside": _figures(rows, inside, qs),
        "outside": _figures(rows, ~inside, qs),
        "largest": [_burst(rows, found, k, slice(firsts[k], ends[k]), span, qs) for k in listed.tolist()],
    }


def _burst(
    rows: _Rows, found: BurstSpans, k: int, own: slice, span: RunPhase, qs: Sequence[float]
) -> dict[str, Any]:
    return {
        "offset_ns": int(found.begins_ns[k] - span.start_ns),
        "duration_ns": int(found.ends_ns[k] - found.begins_ns[k]),
        **_figures(rows, own, qs),
    }


def _figures(rows: _Rows, which: Bools | slice, qs: Sequence[float]) -> dict[str, Any]:
    is_failed = rows.is_failed[which]
    return {
        "n": len(is_failed),
        "n_failed": int(is_failed.sum()),
        "quantiles": [asdict(one) for one in quantiles(rows.response_ns[which], qs, is_failed)],
    }
