"""The bursts of a planned load, and how much of each was sent when it was due."""

from __future__ import annotations

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.limits import Limits
from squall.analysis.requests.burst_spans import find_bursts
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.records import Frozen

MOST_LISTED = 10
"""Largest bursts that are listed one by one; the figures are of all."""


class Burst(Frozen):
    """A maximal run of windows with at least `burst_factor` times the mean planned count.

    `offset_ns`: its start from that of the phase. `n_missed`: how many more or fewer were sent within it than
    planned, beyond what a stall at its edge explains.
    """

    offset_ns: int
    duration_ns: int
    n_planned: int
    n_sent: int
    n_missed: int


class Bursts(Frozen):
    """All bursts of a phase, in windows of `window_ns`; `largest` in order of time."""

    window_ns: int
    n: int
    n_planned: int
    n_sent: int
    difference_ratio: float
    largest: tuple[Burst, ...]


def compare_bursts(planned: Int64s, sent: Int64s, span: RunPhase, limits: Limits) -> Bursts | None:
    """The plan's bursts and what was sent within each; both series sorted.

    The bursts are those of `burst_spans.find_bursts`, which is None for the same phases. `difference_ratio`: of all
    arrivals planned in bursts, the share that is `missed`.
    """
    found = find_bursts(planned, span, limits)
    if found is None:
        return None
    begins_ns, ends_ns = found.begins_ns, found.ends_ns
    n_planned, n_sent = count_within(planned, begins_ns, ends_ns), count_within(sent, begins_ns, ends_ns)
    n_missed = missed(planned, sent, begins_ns, ends_ns, limits)
    columns = np.stack([begins_ns - span.start_ns, ends_ns - begins_ns, n_planned, n_sent, n_missed], axis=1)
    listed = np.sort(np.argsort(n_planned, kind="stable")[-MOST_LISTED:])
    return Bursts(
        window_ns=found.window_ns,
        n=len(columns),
        n_planned=int(n_planned.sum()),
        n_sent=int(n_sent.sum()),
        difference_ratio=float(n_missed.sum() / n_planned.sum()),
        largest=tuple(Burst(*row) for row in columns[listed].tolist()),
    )


def missed(planned: Int64s, sent: Int64s, begins_ns: Int64s, ends_ns: Int64s, limits: Limits) -> Int64s:
    """How many more or fewer were sent in each [begin, end) than planned, beyond what a stall explains; both sorted.

    Sends are late, never early: what is missing was planned before the end, what is on top before the beginning. A
    stall of `stall_ns` explains those planned within it before that edge, and `window_edge_count` in any case.
    """
    n_more = count_within(sent, begins_ns, ends_ns) - count_within(planned, begins_ns, ends_ns)
    crossed_ns = np.where(n_more < 0, ends_ns, begins_ns)
    n_near = count_within(planned, crossed_ns - limits.stall_ns, crossed_ns)
    unexplained = np.abs(n_more) - np.maximum(n_near, limits.window_edge_count)
    return np.asarray(np.maximum(unexplained, 0), dtype=np.int64)


def count_within(times_ns: Int64s, start_ns: Int64s | int, end_ns: Int64s | int) -> Int64s:
    """How many of the sorted instants lie in [start_ns, end_ns), for each pair of ends."""
    return np.asarray(np.searchsorted(times_ns, end_ns) - np.searchsorted(times_ns, start_ns), dtype=np.int64)
