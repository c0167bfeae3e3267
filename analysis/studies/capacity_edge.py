"""The load at which one schedule, faster or slower, stops to keep its promises.

One schedule scaled in time meets a first-come-first-served server with an exactly monotone verdict, so that each seed
has one edge. It is bracketed, then found by false position on ln(figure / limit) against ln(rate), Illinois variant
(Dowell and Jarratt, BIT 11, 1971: an end that stays twice counts half), until kept and broken are within the precision:

    margin            · broken
       0  ------------/----------
              kept ·/
                      ln rate

A step that lands next to an end is put so far beyond the root that the bracket closes with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from squall.analysis.requests.failures import CLIENT
from squall.analysis.studies.capacity_probe import Probe, disorder
from squall.scenarios.records import Frozen

Kind = Literal["found", "nothing passes", "nothing fails", "client limit", "not measured"]

MOST_STEPS = 40
"""Probes of one seed; far more than any search needs: what goes on longer does not end."""
_STEP_UP, _STEP_DOWN = math.log(2.0), math.log(0.5)
_FIRST_SLOPE = 2.0
"""d margin / d ln(rate) where nothing is known: that of an M/D/1 server's p95 from half to four fifths of its load."""
_STEEPEST, _FLATTEST = 200.0, 0.3
_CLIENT_PRECISION = 0.1
"""Where the client's own limit is above, the load it can send is not found closer than this: each try runs twice."""
_MOST_UNMEASURED = 3
"""Levels in a row, each half the one before, that cannot be measured: less load will not help."""
_FLOOR_RATIO = 0.1
"""A search that fails, without a backlog, down to this share of where it began looks above."""
_FLAT_STEPS = 2
"""So many steps down in a row that help next to nothing say that less load will not: one may be the host's noise."""
_BELOW_KEPT = 0.5
"""Where other seeds have edges, less load is known to help: flat steps say something only below this share of those."""
_WITHIN = (0.5, 0.25, 0.75)
"""Where in a bracket it is tried again when the level that was chosen cannot be measured."""


class Edge(Frozen):
    """Where a seed's verdict turns, `rate_hz` by interpolation; else `low` and `high` say how far it was looked.

    `low`: the highest load that was kept, `high`: the lowest above it that was not, or could not be measured (client
    limit). `slope`: d margin / d ln(rate) there, None where not known. `is_in_disorder`: whether less load did much
    worse than more, as no queue does.
    """

    kind: Kind
    low: Probe | None
    high: Probe | None
    rate_hz: float | None
    slope: float | None
    n_probes: int
    is_in_disorder: bool

    @property
    def seed(self) -> int:
        """Of its probes."""
        known = self.low or self.high
        assert known is not None
        return known.seed

    @property
    def kept_hz(self) -> float | None:
        """The highest load that was kept."""
        return self.low.rate_hz if self.low is not None else None

    @property
    def broken_hz(self) -> float | None:
        """The lowest load above it at which a promise was broken."""
        return self.high.rate_hz if self.high is not None and self.high.is_broken else None

    @property
    def is_stopped_by_host(self) -> bool:
        """Whether more load could not be measured for another reason than that the client was full."""
        stop = self.high if self.kind == "client limit" else None
        return stop is not None and stop.cause not in ("", CLIENT)


@dataclass
class _Levels:
    """What a seed has shown so far, and how to ask for more."""

    ask: Callable[[float], Probe]
    most_hz: float
    least_hz: float
    precision: float
    slope: float | None
    kept_hz: float | None = None
    probes: list[Probe] = field(default_factory=list)

    def measure(self, log_rate: float) -> Probe:
        """The level at that ln(rate), within what may be asked for."""
        rate_hz = min(max(math.exp(log_rate), self.least_hz), self.most_hz)
        found = self.ask(rate_hz)
        self.probes.append(found)
        return found

    @property
    def is_spent(self) -> bool:
        return len(self.probes) >= MOST_STEPS


def upper_edge(
    ask: Callable[[float], Probe],
    start_hz: float,
    most_hz: float,
    precision: float,
    slope: float | None = None,
    least_hz: float | None = None,
    kept_hz: float | None = None,
) -> Edge:
    """The highest load that is kept, searched from `start_hz` on up to `most_hz`, to `precision` of itself.

    `slope`: that of another seed at its edge. `least_hz`: nothing is asked for below; a thousandth of the start where
    None. `kept_hz`: the least load that another seed kept, below an edge of its own: down to half of it less load is
    expected to help, however little it seems to, and above the start nothing is to be found.
    """
    levels = _Levels(ask, most_hz, least_hz or start_hz / 1_000.0, precision, slope, kept_hz)
    kept, above = _bracket(levels, math.log(min(start_hz, most_hz)))
    if kept is None:
        is_unknown = all(one.is_invalid for one in levels.probes)
        return _edge(levels, "not measured" if is_unknown else "nothing passes", None, above)
    if above is None:
        return _edge(levels, "nothing fails", kept, None)
    return _closed(levels, kept, above)


def lower_edge(ask: Callable[[float], Probe], below: Probe, kept: Probe, precision: float) -> Edge:
    """The lowest load that is kept, between one that is not and one that is."""
    levels = _Levels(ask, kept.rate_hz, below.rate_hz, precision, None)
    return _closed(levels, kept, below)


def _edge(levels: _Levels, kind: Kind, low: Probe | None, high: Probe | None) -> Edge:
    rate_hz = slope = None
    if kind == "found":
        assert low is not None
        assert high is not None
        rate_hz, slope = _root_hz(low, high), _slope(levels, low, high)
    return Edge(kind, low, high, rate_hz, slope, len(levels.probes), disorder(levels.probes) is not None)


def _bracket(levels: _Levels, start: float) -> tuple[Probe | None, Probe | None]:
    """A level that is kept, and the lowest above it that is not; None each where there is none."""
    first = levels.measure(start)
    if first.is_kept:
        return _climb(levels, first)
    kept, above = _descend(levels, first)
    if kept is not None or levels.kept_hz is not None:
        return kept, above
    kept = _look_above(levels, first)
    if kept is None:
        return None, above
    ceiling = _lowest_above(levels, kept)
    return _climb(levels, kept) if ceiling is None else (kept, ceiling)


def _climb(levels: _Levels, kept: Probe) -> tuple[Probe, Probe | None]:
    """From a level that is kept upwards until one is not; where no slope is known, each step at least doubles."""
    up = 0.25 * levels.precision
    while not levels.is_spent:
        if kept.rate_hz >= levels.most_hz * (1.0 - 1e-6):
            return kept, None
        up = min(max(_reach(levels, kept), (1.0 if levels.slope else 2.0) * up), _STEP_UP)
        found = levels.measure(math.log(kept.rate_hz) + up)
        if not found.is_kept:
            return kept, found
        if found.rate_hz <= kept.rate_hz:
            return kept, None
        kept = found
    return kept, None


def _descend(levels: _Levels, above: Probe) -> tuple[Probe | None, Probe]:
    """From a level that is not kept downwards until one is; None where it is no use: where there is no backlog and the
    figure hardly moves, or a tenth of where a backlog last was is not kept either, or nothing can be measured."""
    top, down, n_flat = above.rate_hz, -0.25 * levels.precision, 0
    while not levels.is_spent and above.rate_hz > levels.least_hz * (1.0 + 1e-6):
        down = max(min(-_reach(levels, above), (1.0 if levels.slope else 2.0) * down), _STEP_DOWN)
        found = levels.measure(math.log(above.rate_hz) + down)
        if found.is_kept:
            return found, above
        if all(one.is_invalid for one in levels.probes) and len(levels.probes) >= _MOST_UNMEASURED:
            return None, found
        n_flat = n_flat + 1 if _is_flat(above, found) else 0
        if found.is_saturated or found.is_invalid:
            top = found.rate_hz
        elif found.is_saturated is False:
            is_no_help = n_flat >= _FLAT_STEPS and found.rate_hz < _BELOW_KEPT * (levels.kept_hz or math.inf)
            if is_no_help or found.rate_hz < _FLOOR_RATIO * top:
                return None, found
        above = found
    return None, above


def _is_flat(above: Probe, found: Probe) -> bool:
    """Whether less load made next to nothing better, as where a delay is what takes the time."""
    if above.margin is None or found.margin is None or above.is_saturated is not False:
        return False
    step = math.log(above.rate_hz / found.rate_hz)
    return step > 0.0 and (above.margin - found.margin) / step < _FLATTEST


def _look_above(levels: _Levels, first: Probe) -> Probe | None:
    """A level above the first that is kept, where less load is no help: by factors of 1.5 up to a backlog, then within
    the last of them. None where there is none."""
    below, at = first, math.log(first.rate_hz)
    ceiling: Probe | None = None
    if first.is_saturated or first.is_invalid:
        return None
    while not levels.is_spent and ceiling is None and math.exp(at) < levels.most_hz * (1.0 - 1e-6):
        at += math.log(1.5)
        found = levels.measure(at)
        if found.is_kept:
            return found
        if found.is_saturated or found.is_invalid:
            ceiling = found
        else:
            below = found
    if ceiling is None:
        return None
    for share in _WITHIN:
        low, high = math.log(below.rate_hz), math.log(ceiling.rate_hz)
        found = levels.measure(low + share * (high - low))
        if found.is_kept:
            return found
    return None


def _lowest_above(levels: _Levels, kept: Probe) -> Probe | None:
    above = [one for one in levels.probes if one.rate_hz > kept.rate_hz and not one.is_kept]
    return min(above, key=lambda one: one.rate_hz, default=None)


def _reach(levels: _Levels, probe: Probe) -> float:
    """How far, in ln(rate), the root may be, and a little further: so that the next probe is beyond it."""
    if probe.margin is None:
        return _STEP_UP
    others = [one for one in levels.probes if one.margin is not None and one is not probe]
    nearest = min(others, key=lambda one: abs(math.log(one.rate_hz / probe.rate_hz)), default=None)
    least, most = (_FIRST_SLOPE, _STEEPEST) if levels.slope is None else (levels.slope / 2, levels.slope * 2)
    slope = levels.slope or _FIRST_SLOPE
    if nearest is not None:
        slope = min(max(_slope_between(nearest, probe), least), most)
    return abs(probe.margin) / slope + 0.45 * levels.precision


def _slope_between(one: Probe, other: Probe) -> float:
    assert one.margin is not None
    assert other.margin is not None
    step = math.log(other.rate_hz / one.rate_hz)
    return 0.0 if step == 0.0 else min((other.margin - one.margin) / step, _STEEPEST)


def _closed(levels: _Levels, kept: Probe, broken: Probe) -> Edge:
    """The bracket of a level that is kept and one that is not, whichever is higher, made as small as the precision."""
    weights = {True: 1.0, False: 1.0}
    n_unmeasured, was_kept = 0, None
    while not levels.is_spent:
        width = abs(math.log(broken.rate_hz / kept.rate_hz))
        if width <= (_CLIENT_PRECISION if broken.is_invalid else levels.precision):
            break
        found = levels.measure(_proposed(kept, broken, weights, levels.precision, n_unmeasured))
        if found.is_invalid and not broken.is_invalid:
            n_unmeasured += 1
            if n_unmeasured >= len(_WITHIN):
                return _edge(levels, "not measured", kept, broken)
            continue
        n_unmeasured = 0
        weights[found.is_kept] = 1.0
        if found.is_kept == was_kept:
            weights[not found.is_kept] /= 2.0
        was_kept = found.is_kept
        kept, broken = (found, broken) if found.is_kept else (kept, found)
    if broken.is_invalid:
        return _edge(levels, "client limit", kept, broken)
    return _edge(levels, "found", kept, broken)


def _proposed(
    kept: Probe, broken: Probe, weights: dict[bool, float], precision: float, n_unmeasured: int
) -> float:
    """The next ln(rate) within the bracket."""
    low, high = sorted((kept, broken), key=lambda one: one.rate_hz)
    begin, end = math.log(low.rate_hz), math.log(high.rate_hz)
    if n_unmeasured or low.margin is None or high.margin is None:
        return begin + _WITHIN[n_unmeasured] * (end - begin)
    at_low, at_high = low.margin * weights[low.is_kept], high.margin * weights[high.is_kept]
    root = begin + (end - begin) * (at_low / (at_low - at_high) if at_low != at_high else 0.5)
    near, step = 0.5 * precision, 0.95 * precision
    if end - begin <= 2.0 * step:  # either half is small enough
        return min(max(root, end - step), begin + step)
    if root - begin < near:
        return begin + step
    return end - step if end - root < near else root


def _root_hz(low: Probe, high: Probe) -> float:
    """Where the margin is 0 between two ends that are within the precision."""
    begin, end = math.log(low.rate_hz), math.log(high.rate_hz)
    if low.margin is None or high.margin is None or low.margin == high.margin:
        return math.exp((begin + end) / 2.0)
    return math.exp(begin + (end - begin) * low.margin / (low.margin - high.margin))


def _slope(levels: _Levels, low: Probe, high: Probe) -> float | None:
    """Of the margin about the edge: over ends that are further apart than the precision where there are such."""
    known = [one for one in (*levels.probes, low, high) if one.margin is not None]
    pairs = [(one, other) for one in known if one.is_kept for other in known if other.is_broken]
    if not pairs:
        return None
    wide = [
        pair for pair in pairs if abs(math.log(pair[1].rate_hz / pair[0].rate_hz)) > 3.0 * levels.precision
    ]
    found = min(wide or pairs, key=lambda pair: abs(math.log(pair[1].rate_hz / pair[0].rate_hz)))
    slope = _slope_between(*found)
    return slope if slope > _FLATTEST else None
