"""How many users Locust was asked for at an instant: change points, and the rate at which it was to get there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from squall.analysis.arrays import Floats
from squall.analysis.storage.locust import AskedUsers, LocustFacts
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.units import NS_PER_S

GRACE_NS = NS_PER_S
"""Locust spawns and stops users once a second, a second's worth at a time (`UsersDispatcher`), and they are counted
once a second: what was asked for within this time, before or behind an instant, may not be there yet, or any more."""
_POINTS = 2_000
"""Instants of a phase at which it is looked at."""


def asked_users(facts: LocustFacts, t_ns: Floats) -> Floats:
    """Users asked for at each of `t_ns`, on the run clock: from each change on towards its number, at its rate."""
    times, levels = _corners(facts.asked)
    if not times:
        return np.zeros(len(t_ns))
    origin_ns = times[0]  # floats hold UTC ns to 256 ns alone
    found = np.interp(t_ns - origin_ns, [one - origin_ns for one in times], levels, left=0.0)
    if facts.ended_ns is not None:
        found[t_ns >= facts.ended_ns] = 0.0
    return np.asarray(found, dtype=np.float64)


def _corners(asked: Sequence[AskedUsers]) -> tuple[list[int], list[float]]:
    """Where the line of users over time bends."""
    times: list[int] = []
    levels: list[float] = []
    level = 0.0
    for place, one in enumerate(asked):
        times.append(one.t_ns)
        levels.append(level)
        step = one.n_users - level
        takes_ns = round(abs(step) / one.spawn_rate_hz * NS_PER_S) if one.spawn_rate_hz > 0 else 0
        until_ns = asked[place + 1].t_ns if place + 1 < len(asked) else None
        if until_ns is None or one.t_ns + takes_ns < until_ns:
            times.append(one.t_ns + takes_ns)
            level = float(one.n_users)
            levels.append(level)
        else:
            level += step * (until_ns - one.t_ns) / takes_ns if takes_ns else step
    return times, levels


def asked_mean(facts: LocustFacts, spans: Sequence[RunPhase], grace_ns: int = 0) -> float | None:
    """Mean users asked for over `spans`; with `grace_ns` the fewest asked for in that time before and behind each
    instant, so that users on their way are not missed. None where nothing was asked, or the phases have no length."""
    whole_ns = sum(span.end_ns - span.start_ns for span in spans)
    if not facts.asked or not whole_ns:
        return None
    total = 0.0
    for span in spans:
        length_ns = span.end_ns - span.start_ns
        t_ns = span.start_ns + (np.arange(_POINTS) + 0.5) * length_ns / _POINTS
        fewest = np.minimum.reduce([asked_users(facts, t_ns + step) for step in (-grace_ns, 0, grace_ns)])
        total += float(fewest.mean()) * length_ns
    return total / whole_ns
