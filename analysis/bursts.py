"""The bursts of a planned load, and how much of each was sent when it was due."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.limits import Limits
from analysis.requests import Int64s
from analysis.timeline import RunPhase
from scenarios.burstiness import window_counts
from scenarios.units import NS_PER_S

WINDOWS_NS = (NS_PER_S // 10, NS_PER_S, 10 * NS_PER_S)
MOST_LISTED = 10
"""Largest bursts that are listed one by one; the figures are of all."""


@dataclass(frozen=True)
class Burst:
    """A maximal run of windows with at least `burst_factor` times the mean planned count.

    `offset_ns`: its start from that of the phase. `n_missed`: how many more or fewer were sent within it than
    planned, beyond what a stall at its edge explains.
    """

    offset_ns: int
    duration_ns: int
    n_planned: int
    n_sent: int
    n_missed: int


@dataclass(frozen=True)
class Bursts:
    """All bursts of a phase, in windows of `window_ns`; `largest` in order of time."""

    window_ns: int
    n: int
    n_planned: int
    n_sent: int
    difference_ratio: float
    largest: tuple[Burst, ...]


def compare_bursts(planned: Int64s, sent: Int64s, span: RunPhase, limits: Limits) -> Bursts | None:
    """The plan's bursts and what was sent within each; both series sorted.

    Windows are the shortest of 0.1, 1 and 10 s with `window_least_count` planned arrivals on average: enough that
    chance alone makes no burst (Poisson with mean 20 reaches 40 once in 19,000 windows). A burst is a maximal run of
    windows of at least `burst_factor` times the mean; where there is none, the busiest window. None for a phase
    without such a window. `difference_ratio`: of all arrivals planned in bursts, the share that is `missed`.
    """
    start_ns, end_ns = span.start_ns, span.end_ns
    for window_ns in WINDOWS_NS:
        counts = window_counts(planned, window_ns, start_ns, end_ns)
        if counts.sum() >= max(1, counts.size) * limits.window_least_count:
            break
    else:
        return None
    edges_ns = start_ns + window_ns * _run_edges(counts, limits.burst_factor)
    begins_ns, ends_ns = edges_ns[::2], edges_ns[1::2]
    n_planned, n_sent = count_within(planned, begins_ns, ends_ns), count_within(sent, begins_ns, ends_ns)
    n_missed = missed(planned, sent, begins_ns, ends_ns, limits)
    columns = np.stack([begins_ns - start_ns, ends_ns - begins_ns, n_planned, n_sent, n_missed], axis=1)
    listed = np.sort(np.argsort(n_planned, kind="stable")[-MOST_LISTED:])
    return Bursts(
        window_ns=window_ns,
        n=len(columns),
        n_planned=int(n_planned.sum()),
        n_sent=int(n_sent.sum()),
        difference_ratio=float(n_missed.sum() / n_planned.sum()),
        largest=tuple(Burst(*row) for row in columns[listed].tolist()),
    )


def _run_edges(counts: Int64s, factor: float) -> Int64s:
    """First window and the one behind the last of each maximal run of high windows, in turn; else of the busiest."""
    is_high = counts >= factor * counts.mean()
    if not is_high.any():
        is_high = np.arange(counts.size) == counts.argmax()
    return np.flatnonzero(np.diff(is_high.astype(np.int8), prepend=0, append=0))


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
