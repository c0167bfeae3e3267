"""Which line of readings belongs to which sleep in a report, where either may lack some of the other's.

    lines    |a b|      |a b|   |a b|      |a b|  |a b|        the node's clock: before, during and after the collection
    events               [s e]             [s e]               the report's clock: one lost in between

A shift fits a line and an event if it puts the event between the two readings: it lies in [a - s, b - e]. Shifts that
fit many events, with room for drift, are candidates: besides the true one, where lines come at a nearly fixed period,
those by whole periods. Two pairs (a, s, b, e) that are right cannot differ in a - s by more than the wider of their two
intervals and the drift in between. The candidate with the fewest neighbours that do is taken; of several that are
equally good the one near the offset that nsys's own UTC start gives, and without such a hint none: no guess is made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from squall.analysis.arrays import Int64s

_NEAR_NS = 100_000_000
"""How far from nsys's UTC start the offset may lie to be hinted at by it."""
_MOST_SLACK_NS = 20_000_000
"""By how much drift may move the offset within a collection: 60 ppm of 5 minutes."""
_DRIFT_RATIO = 200e-6
"""Drift between neighbours that is not taken for a wrong pair."""
_MOST_EVENTS = 32
"""Events that candidates are looked for with, spread over the collection."""
_MOST_CANDIDATES = 64
_LEAST_SHARE = 0.5
"""Of the events that must find a line."""
_MOST_ODD_SHARE = 0.1
"""Of the pairs that may differ from the one before: a step of a clock makes one."""


class _Pairing(NamedTuple):
    odd_share: float
    offset_ns: int
    line: Int64s
    event: Int64s


def pair_sleeps(
    before_ns: Int64s, after_ns: Int64s, start_ns: Int64s, end_ns: Int64s, near_ns: int | None
) -> tuple[Int64s, Int64s]:
    """Rows of lines and rows of events that belong together, in order of time; none where that is not certain.

    Lines (readings before and after) and events may come in any order. `near_ns` is the offset (line's clock - event's)
    as far as it is known.
    """
    none = np.zeros(0, np.int64)
    if not len(before_ns) or not len(start_ns):
        return none, none
    lines, events = np.argsort(before_ns, kind="stable"), np.argsort(start_ns, kind="stable")
    before, after, start, end = before_ns[lines], after_ns[lines], start_ns[events], end_ns[events]
    slack = _MOST_SLACK_NS
    if len(before) > 1:
        slack = min(slack, max(int(np.diff(before).min()) // 8, 1))
    offsets = _candidates(before, after, start, end, near_ns, slack)
    pairings = [_paired(before, after, start, end, offset, slack) for offset in offsets]
    chosen = _chosen(
        [
            pairing
            for pairing in pairings
            if len(pairing.event) >= _LEAST_SHARE * len(start) and pairing.odd_share <= _MOST_ODD_SHARE
        ],
        near_ns,
    )
    return (none, none) if chosen is None else (lines[chosen.line], events[chosen.event])


def _candidates(
    before: Int64s, after: Int64s, start: Int64s, end: Int64s, near_ns: int | None, slack: int
) -> list[int]:
    """Shifts that fit many of some events within the slack: the best of each span of twice the slack."""
    picked = np.unique(np.linspace(0, len(start) - 1, min(_MOST_EVENTS, len(start))).astype(np.int64))
    is_possible = ((after - before)[:, None] >= (end - start)[picked]).ravel()
    lows = (before[:, None] - start[picked]).ravel()[is_possible] - slack
    highs = (after[:, None] - end[picked]).ravel()[is_possible] + slack
    edges = np.concatenate([lows, highs])
    steps = np.repeat(np.array([1, -1], np.int64), len(lows))
    order = np.lexsort((-steps, edges))
    edges, n_open = edges[order], np.cumsum(steps[order])
    best_first = np.argsort(-n_open, kind="stable")
    best_first = best_first[n_open[best_first] > 0]
    _, firsts = np.unique(edges[best_first] // (2 * slack), return_index=True)
    peaks = best_first[np.sort(firsts)]
    offsets = (edges[peaks] + edges[np.minimum(peaks + 1, len(edges) - 1)]) // 2
    kept = np.arange(len(offsets)) < _MOST_CANDIDATES
    if near_ns is not None:
        kept |= np.abs(offsets - near_ns) <= _NEAR_NS
    return [int(offset) for offset in offsets[kept]]


def _paired(before: Int64s, after: Int64s, start: Int64s, end: Int64s, offset: int, slack: int) -> _Pairing:
    """For each event the line nearest to it under the shift, where it can hold the event and no other claims it."""
    wanted = start + offset
    right = np.clip(np.searchsorted(before, wanted), 0, len(before) - 1)
    left = np.maximum(right - 1, 0)
    line = np.where(np.abs(before[left] - wanted) <= np.abs(before[right] - wanted), left, right)
    is_held = (np.abs(before[line] - wanted) <= 3 * slack) & (after[line] - before[line] >= end - start)
    claims = np.bincount(line[is_held], minlength=len(before))
    event = np.flatnonzero(is_held & (claims[line] == 1))
    line = line[event]
    low = before[line] - start[event]
    width = after[line] - end[event] - low
    allowed = np.maximum(width[1:], width[:-1]) + _DRIFT_RATIO * np.diff(start[event])
    odd = np.abs(np.diff(low)) > allowed
    median = int(np.median(low)) if len(low) else offset
    return _Pairing(float(odd.mean()) if len(odd) else 0.0, median, line, event)


def _chosen(pairings: list[_Pairing], near_ns: int | None) -> _Pairing | None:
    """The least odd; of several the one near the hint; None where nothing tells them apart."""
    if not pairings:
        return None
    least = min(pairing.odd_share for pairing in pairings)
    best = {p.event.tobytes() + p.line.tobytes(): p for p in pairings if p.odd_share == least}
    if near_ns is not None:
        nearest = min(best.values(), key=lambda pairing: abs(pairing.offset_ns - near_ns))
        if abs(nearest.offset_ns - near_ns) <= _NEAR_NS:
            return nearest
    return next(iter(best.values())) if len(best) == 1 else None
