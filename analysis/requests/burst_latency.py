"""Latency within the bursts of the planned load, and outside of them: a pooled quantile hides which it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.limits import LIMITS, Limits
from squall.analysis.requests.burst_spans import find_bursts
from squall.analysis.requests.bursts import MOST_LISTED
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.latency import Quantile, quantiles
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.records import Frozen


class ResponseFigures(Frozen):
    """Response time of `n` requests, of which `n_failed` count as infinitely slow."""

    n: int
    n_failed: int
    quantiles: tuple[Quantile, ...]


class BurstResponse(ResponseFigures):
    """The requests scheduled within a burst; `offset_ns` is its start from that of the phase."""

    offset_ns: int
    duration_ns: int


class BurstLatency(Frozen):
    """A phase with bursts, found in windows of `window_ns`: those within and those outside them.

    `largest`: the bursts with most requests, in order of time.
    """

    window_ns: int
    n_bursts: int
    inside: ResponseFigures
    outside: ResponseFigures
    largest: tuple[BurstResponse, ...]


class _Rows(NamedTuple):
    """Response times of a phase, and which did not end ok, in order of the schedule, (n,) each."""

    response_ns: Int64s
    is_failed: Bools


def by_burst(
    measured: Requests, spans: Sequence[RunPhase], qs: Sequence[float], limits: Limits = LIMITS
) -> dict[str, BurstLatency | None] | None:
    """For each phase: response time of the requests scheduled within its bursts, outside, and in each burst.

    A request belongs to where it was scheduled: those that wait behind a burst's backlog, but were due after it, are
    outside. `inside` and `outside` are series of rows laid end to end, in order of time. Intervals by the same rule
    as over the whole run, so that a single burst seldom has one. A phase without bursts (`burst_spans.find_bursts`)
    is None; so is a closed loop, which plans none.
    """
    if not measured.is_open:
        return None
    return {span.name: _phase_figures(measured.in_phases([span.name]), span, qs, limits) for span in spans}


def _phase_figures(own: Requests, span: RunPhase, qs: Sequence[float], limits: Limits) -> BurstLatency | None:
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
    return BurstLatency(
        window_ns=found.window_ns,
        n_bursts=len(firsts),
        inside=_figures(rows, inside, qs),
        outside=_figures(rows, ~inside, qs),
        largest=tuple(
            BurstResponse(
                **vars(_figures(rows, slice(firsts[k], ends[k]), qs)),
                offset_ns=int(found.begins_ns[k] - span.start_ns),
                duration_ns=int(found.ends_ns[k] - found.begins_ns[k]),
            )
            for k in listed.tolist()
        ),
    )


def _figures(rows: _Rows, which: Bools | slice, qs: Sequence[float]) -> ResponseFigures:
    is_failed = rows.is_failed[which]
    found = quantiles(rows.response_ns[which], qs, is_failed)
    return ResponseFigures(len(is_failed), int(is_failed.sum()), tuple(found))
