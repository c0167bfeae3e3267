"""What a search found, as `capacity.json` holds it: the answer, its seeds, and what the load at the edge is like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from squall.analysis.compare.figures import BROKEN, INVALID, KEPT
from squall.analysis.report.templates import decision
from squall.analysis.studies.capacity_edge import Edge
from squall.analysis.studies.capacity_probe import BRACKET, LOW, Probe, disorder
from squall.analysis.studies.capacity_rows import Row
from squall.analysis.studies.capacity_search import CONFIDENCE, LEVEL, SHARE, Found, Interval, Safe
from squall.scenarios.plan.rates import Scale
from squall.scenarios.records import Frozen

SCHEMA_VERSION = 1


class Boundary(Frozen):
    """Where the seed that carries least turns: `feasible_max_hz` it kept, `infeasible_min_hz` it did not.

    `boundary_type`: as `kind` of the answer. `first_breach`: the first probe of the search that broke a promise;
    `binding_constraint`: the promise that breaks at the edge.
    """

    boundary_type: str
    feasible_max_hz: float | None
    infeasible_min_hz: float | None
    first_breach: dict[str, Any] | None
    binding_constraint: str


class SeedAnswer(Frozen):
    """A seed: its capacity where it has one, and the loads that bracket it."""

    seed: int
    kind: str
    capacity_hz: float | None
    kept_hz: float | None
    broken_hz: float | None
    n_probes: int


class Feasible(Frozen):
    """Where less load is not kept either: the loads between are. `low_hz` is of the first seed; `cause` in words."""

    low_hz: float | None
    high_hz: float | None
    cause: str


class AtCapacity(Frozen):
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


class Knee(Frozen):
    """Where throughput over mean response time is largest of all that was measured."""

    rate_hz: float
    throughput_hz: float
    response_mean_ns: float


class Settings(Frozen):
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


class Answer(Frozen):
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


def answer_of(variant: str, found: Found, settings: Settings, rows: Sequence[Row], is_done: bool) -> Answer:
    """The answer as far as it is known, of a search and its runs so far."""
    own = [one for one in rows if one.variant == variant]
    counted = [one for one in own if not one.is_replaced]
    edges = [one.rate_hz for one in found.seeds if one.rate_hz is not None]
    capacity_hz = (
        found.interval.rate_hz if found.interval is not None else edges[0] if len(edges) == 1 else None
    )
    if found.kind not in ("found", "searching"):
        capacity_hz = None
    highs = [one.high for one in found.seeds if one.high is not None]
    limit = next((one for one in highs if one.is_invalid), None)  # the first that could not be measured
    near = _nearest(counted, capacity_hz, found.seeds)
    edge_run = near.run if near is not None else None
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
        per_seed=tuple(
            SeedAnswer(one.seed, one.kind, one.rate_hz, one.kept_hz, one.broken_hz, one.n_probes)
            for one in found.seeds
        ),
        feasible=None
        if found.low is None
        else Feasible(found.low.rate_hz, capacity_hz, decision("below", settings.queue_delay_ns)[0]),
        at_capacity=near,
        knee=_knee(counted),
        saturation_hz=min((one.rate_hz for one in counted if one.is_saturated), default=None),
        n_runs=len(own),
        minutes=math.fsum(one.seconds for one in own) / 60.0,
        reason=found.undecided or (limit.reason if limit is not None else ""),
        cause=limit.cause if limit is not None else "",
        notes=notes_of(found, settings.scale, settings.most_reason, counted, edge_run),
    )


def _boundary(found: Found, rows: Sequence[Row]) -> Boundary:
    breach = next((one for one in rows if one.verdict == BROKEN and one.purpose == BRACKET), None)
    weakest = min(found.seeds, key=lambda one: one.kept_hz or math.inf, default=None)
    named = [one.high.binding for one in found.seeds if one.high is not None and one.high.binding]
    return Boundary(
        boundary_type=found.kind,
        feasible_max_hz=None if weakest is None else weakest.kept_hz,
        infeasible_min_hz=None if weakest is None else weakest.broken_hz,
        first_breach=None
        if breach is None
        else {"rate_hz": breach.rate_hz, "seed": breach.seed, "promise": breach.binding, "run": breach.run},
        binding_constraint=max(named, key=named.count, default=""),  # of most seeds, the first of several
    )


def _nearest(rows: Sequence[Row], capacity_hz: float | None, seeds: Sequence[Edge]) -> AtCapacity | None:
    at_hz = capacity_hz or min((one.kept_hz for one in seeds if one.kept_hz is not None), default=None)
    if at_hz is None:
        return None
    near = sorted(
        (one for one in rows if one.purpose != LOW), key=lambda one: abs(math.log(one.rate_hz / at_hz))
    )
    kept = next((one for one in near if one.verdict == KEPT), None)
    if kept is None:
        return None
    broken = next((one for one in near if one.verdict == BROKEN and one.bottleneck), kept)
    own = {one.name: getattr(kept, one.name) for one in fields(AtCapacity)}
    return AtCapacity(**{**own, "bottleneck": broken.bottleneck})


def _knee(rows: Sequence[Row]) -> Knee | None:
    known = [
        (one.throughput_hz / one.response_mean_ns, one.rate_hz, one.throughput_hz, one.response_mean_ns)
        for one in rows
        if one.verdict != INVALID and one.throughput_hz and one.response_mean_ns
    ]
    return Knee(*max(known)[1:]) if known else None


def notes_of(
    found: Found, scale: str, most_reason: str, rows: Sequence[Row], edge_run: str | None
) -> tuple[str, ...]:
    """What is to be said beside the figures, none or more; `most_reason`: as in `Settings`; `edge_run`: the run at the
    capacity."""
    edge = next((one for one in rows if one.run == edge_run), None)
    tried: dict[int, list[Probe]] = {}
    for one in rows:
        if one.purpose == BRACKET:
            tried.setdefault(one.seed, []).append(one.probe)
    worse = [each for seed in sorted(tried) if (each := disorder(tried[seed])) is not None]
    is_noise = scale == "time" and found.low is None  # less load did worse, which no queue makes it do
    noise = max(worse, key=lambda each: each[0], default=None) if is_noise else None
    return tuple(decision("capacity_notes", found, scale, most_reason, edge, noise))


def scaling(answers: Sequence[Answer]) -> dict[str, float]:
    """Capacity of all servers against that of one, C(N) / (N C(1)), of each set of several servers by its name, where
    both are known."""
    known = [(one, one.capacity_hz) for one in answers if one.capacity_hz is not None]
    single_hz = next((hz for one, hz in known if one.n_servers == 1), None)
    if single_hz is None:
        return {}
    return {one.variant: hz / (one.n_servers * single_hz) for one, hz in known if one.n_servers > 1}
