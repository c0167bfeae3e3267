"""What a search found, as `capacity.json` holds it: the answer, its seeds, and what the load at the edge is like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from squall.analysis.compare.figures import BROKEN, INVALID, KEPT
from squall.analysis.record import to_json
from squall.analysis.studies.capacity_notes import cause_below, notes_of
from squall.analysis.studies.capacity_probe import BRACKET, LOW, Probe
from squall.analysis.studies.capacity_rows import Row
from squall.analysis.studies.capacity_search import CONFIDENCE, LEVEL, SHARE, Found, Interval, Safe, SeedEdge
from squall.scenarios.plan.rates import Scale

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Boundary:
    """Where the seed that carries least turns: `feasible_max_hz` it kept, `infeasible_min_hz` it did not.

    `boundary_type`: as `kind` of the answer. `first_breach`: the first probe of the search that broke a promise;
    `binding_constraint`: the promise that breaks at the edge.
    """

    boundary_type: str
    feasible_max_hz: float | None
    infeasible_min_hz: float | None
    first_breach: dict[str, Any] | None
    binding_constraint: str


@dataclass(frozen=True)
class SeedAnswer:
    """A seed: its capacity where it has one, and the loads that bracket it."""

    seed: int
    kind: str
    capacity_hz: float | None
    kept_hz: float | None
    broken_hz: float | None
    n_probes: int


@dataclass(frozen=True)
class Feasible:
    """Where less load is not kept either: the loads between are. `low_hz` is of the first seed; `cause` in words."""

    low_hz: float | None
    high_hz: float | None
    cause: str


@dataclass(frozen=True)
class AtCapacity:
    """The run, kept, that is nearest to the capacity.

    `in_flight_mean_count`: by Little's law, what an autoscaler takes for its target. `bottleneck`: of the nearest run
    that broke a promise, else of this one.
    """

    run: str
    rate_hz: float
    in_flight_mean_count: float | None
    peak_1s_hz: float | None
    peak_100ms_hz: float | None
    throughput_hz: float | None
    response_p95_ns: float | None
    bottleneck: str


@dataclass(frozen=True)
class Knee:
    """Where throughput over mean response time is largest of all that was measured."""

    rate_hz: float
    throughput_hz: float
    response_mean_ns: float


@dataclass(frozen=True)
class Settings:
    """What was asked: `promises` in words; `scale`: time or amplitude; `base_hz`: the scenario's own rate.

    `most_reason`: why no load above `most_hz` can be tried; empty where it can. `schedule_sha256`: of the plan of the
    first seed at the scenario's own rate, which is another where a trace is. `queue_delay_ns`: the longest of the
    servers' batchers; before the first run what the scenario says.
    """

    scenario: str
    scenario_digest: str
    promises: tuple[str, ...]
    scale: Scale
    base_hz: float
    n_seeds: int
    first_seed: int
    precision: float
    start_hz: float
    most_hz: float
    low_ratio: float
    queue_delay_ns: int
    most_reason: str = ""
    schedule_sha256: str = ""


@dataclass(frozen=True)
class Answer:
    """What `capacity.json` holds of one set of servers. `state`: searching or done; `kind`: found, or what is said
    instead. `level` of the interval; the safe load is kept by `share` of bursts with `confidence`."""

    variant: str
    n_servers: int
    state: str
    kind: str
    capacity_hz: float | None
    interval: Interval | None
    level: float
    safe: Safe | None
    share: float
    confidence: float
    boundary_summary: Boundary
    per_seed: tuple[SeedAnswer, ...]
    feasible: Feasible | None
    at_capacity: AtCapacity | None
    knee: Knee | None
    saturation_hz: float | None
    n_runs: int
    minutes: float
    reason: str
    cause: str
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        found: dict[str, Any] = to_json(self)
        return found


def answer_of(variant: str, found: Found, settings: Settings, rows: Sequence[Row], is_done: bool) -> Answer:
    """The answer as far as it is known, of a search and its runs so far."""
    own = [one for one in rows if one.variant == variant]
    counted = [one for one in own if not one.is_replaced]
    edges = [one.edge.rate_hz for one in found.seeds if one.edge.rate_hz is not None]
    capacity_hz = (
        found.interval.rate_hz if found.interval is not None else edges[0] if len(edges) == 1 else None
    )
    if found.kind not in ("found", "searching"):
        capacity_hz = None
    limit = _limit(found)
    near = _nearest(counted, capacity_hz, found.seeds)
    return Answer(
        variant=variant,
        n_servers=next((one.n_servers for one in own if one.n_servers), 1),
        state="done" if is_done else "searching",
        kind=found.kind,
        capacity_hz=capacity_hz,
        interval=found.interval,
        level=LEVEL,
        safe=found.safe,
        share=SHARE,
        confidence=CONFIDENCE,
        boundary_summary=_boundary(found, counted),
        per_seed=tuple(_seed_answer(one) for one in found.seeds),
        feasible=_feasible(found, settings, capacity_hz),
        at_capacity=near,
        knee=_knee(counted),
        saturation_hz=min((one.rate_hz for one in counted if one.is_saturated), default=None),
        n_runs=len(own),
        minutes=math.fsum(one.seconds for one in own) / 60.0,
        reason=found.undecided or (limit.reason if limit is not None else ""),
        cause=limit.cause if limit is not None else "",
        notes=notes_of(
            found, settings.scale, settings.most_reason, counted, near.run if near is not None else None
        ),
    )


def _seed_answer(one: SeedEdge) -> SeedAnswer:
    edge = one.edge
    return SeedAnswer(
        one.seed,
        edge.kind,
        edge.rate_hz,
        edge.low.rate_hz if edge.low is not None else None,
        edge.high.rate_hz if edge.high is not None and edge.high.is_broken else None,
        edge.n_probes,
    )


def _boundary(found: Found, rows: Sequence[Row]) -> Boundary:
    breach = next((one for one in rows if one.verdict == BROKEN and one.purpose == BRACKET), None)
    weakest = min(
        (one for one in found.seeds if one.edge.low is not None),
        key=lambda one: one.edge.low.rate_hz if one.edge.low is not None else math.inf,
        default=None,
    )
    low, high = (None, None) if weakest is None else (weakest.edge.low, weakest.edge.high)
    if weakest is None and found.seeds:
        high = found.seeds[0].edge.high
    return Boundary(
        boundary_type=found.kind,
        feasible_max_hz=low.rate_hz if low is not None else None,
        infeasible_min_hz=high.rate_hz if high is not None and high.is_broken else None,
        first_breach=None
        if breach is None
        else {"rate_hz": breach.rate_hz, "seed": breach.seed, "promise": breach.binding, "run": breach.run},
        binding_constraint=_binding(found),
    )


def _binding(found: Found) -> str:
    """The promise that breaks at the edge of most seeds; the first of several."""
    named = [
        one.edge.high.binding for one in found.seeds if one.edge.high is not None and one.edge.high.binding
    ]
    return max(named, key=named.count, default="")


def _feasible(found: Found, settings: Settings, capacity_hz: float | None) -> Feasible | None:
    if found.low is None:
        return None
    return Feasible(found.low.rate_hz, capacity_hz, cause_below(settings.queue_delay_ns))


def _limit(found: Found) -> Probe | None:
    """The level that could not be measured, of the first seed that met one."""
    highs = [one.edge.high for one in found.seeds if one.edge.high is not None]
    return next((one for one in highs if one.is_invalid), None)


def _nearest(rows: Sequence[Row], capacity_hz: float | None, seeds: Sequence[SeedEdge]) -> AtCapacity | None:
    lows = [one.edge.low.rate_hz for one in seeds if one.edge.low is not None]
    at_hz = capacity_hz or (min(lows) if lows else None)
    kept = [one for one in rows if one.verdict == KEPT and one.purpose != LOW]
    if at_hz is None or not kept:
        return None

    def distance(one: Row) -> float:
        return abs(math.log(one.rate_hz / at_hz))

    near = min(kept, key=distance)
    broken = [one for one in rows if one.verdict == BROKEN and one.purpose != LOW and one.bottleneck]
    told = min(broken, key=distance, default=near)
    return AtCapacity(
        near.run,
        near.rate_hz,
        near.in_flight_mean_count,
        near.peak_1s_hz,
        near.peak_100ms_hz,
        near.throughput_hz,
        near.response_p95_ns,
        told.bottleneck,
    )


def _knee(rows: Sequence[Row]) -> Knee | None:
    known = [
        (one.throughput_hz / one.response_mean_ns, one.rate_hz, one.throughput_hz, one.response_mean_ns)
        for one in rows
        if one.verdict != INVALID and one.throughput_hz and one.response_mean_ns
    ]
    return Knee(*max(known)[1:]) if known else None
