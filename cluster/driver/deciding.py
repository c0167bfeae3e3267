"""Whether the load may end because the outcome of the promises is certain: by what the workers count each second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from squall.actors.lateness import LateCounts
from squall.analysis.compare.certainty import Count, Outcome, outcome
from squall.analysis.limits import LIMITS
from squall.analysis.storage.timeline import MEASURE, RunPhase
from squall.scenarios.arrays import pieces
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.plan.plan import PhaseSpan, Plan
from squall.scenarios.promises import LateLimit, Promise
from squall.scenarios.records import Frozen
from squall.scenarios.run_plan import RunPlan
from squall.scenarios.units import NS_PER_S

MARGIN_NS = NS_PER_S // 5
"""Between the decision and the instant from which on nothing is due: every worker must have heard of it by then."""


def late_limits(scenario: Scenario) -> tuple[LateLimit, ...]:
    """What the workers of a run are to count; empty where nothing ends it before its time."""
    promises = scenario.promises or ()
    if scenario.stop_when is None and not any(one.aborts_on_fail for one in promises):
        return ()
    return tuple(dict.fromkeys(one.late_limit for one in promises if one.is_counted))


class _Watched(Frozen):
    """A promise, and the cells (phases, servers + 1) of the counts that it is about; None: it is judged at the end."""

    promise: Promise
    cells: NDArray[np.bool_] | None
    n: int
    from_ns: int


class Deciding:
    """The promises of a run that may end before its time. `look` may be called with counts that lag behind: what is
    certain of them stays so."""

    def __init__(self, scenario: Scenario, plan: Plan, targets: Sequence[str]) -> None:
        """`targets`: names of the servers, as the plan counts them."""
        self._limits = late_limits(scenario)
        self._stops_when_decided = scenario.stop_when is not None
        n_planned = _planned(plan, len(targets))
        self._watched = [_watched(one, plan, targets, n_planned) for one in scenario.promises or ()]
        measured = [span for span in plan.spans if span.kind == MEASURE]
        self._first_ns, self._end_ns = measured[0].start_ns, measured[-1].end_ns

    def look(self, counts: Sequence[LateCounts], at_ns: int) -> Outcome | None:
        """Why the load may end now, `at_ns` after the start instant; None: it goes on. `counts`: of each worker."""
        if not counts or at_ns < self._first_ns or at_ns + MARGIN_NS >= self._end_ns:
            return None
        found = [self._count(one, counts) for one in self._watched]
        may_abort = [
            at_ns >= one.from_ns and (self._stops_when_decided or one.promise.aborts_on_fail)
            for one in self._watched
        ]
        return outcome([one.promise for one in self._watched], found, may_abort, self._stops_when_decided)

    def _count(self, one: _Watched, counts: Sequence[LateCounts]) -> Count | None:
        if one.cells is None:
            return None
        place, cells = self._limits.index(one.promise.late_limit), one.cells
        return Count(
            one.n,
            sum(int(of_worker.n_late[place][cells].sum()) for of_worker in counts),
            sum(int(of_worker.n_in_time[place][cells].sum()) for of_worker in counts),
        )


def deciding(scenario: Scenario, plan: RunPlan, targets: Sequence[str]) -> Deciding | None:
    """None where nothing ends the load before its time."""
    if not isinstance(plan, Plan) or not late_limits(scenario):
        return None
    return Deciding(scenario, plan, targets)


def clipped(phases: Sequence[RunPhase], end_ns: int) -> tuple[RunPhase, ...]:
    """What is left of phases that end at that instant."""
    return tuple(one._replace(end_ns=min(one.end_ns, end_ns)) for one in phases if one.start_ns < end_ns)


def _planned(plan: Plan, n_targets: int) -> NDArray[np.int64]:
    """Arrivals by phase and server, (phases, servers + 1); of a plan that leaves the choice to the workers all are in
    the last column."""
    n_places = n_targets + 1
    found = np.zeros(len(plan.spans) * n_places, np.int64)
    only = 0 if n_targets == 1 else n_targets
    for part in pieces(len(plan)):
        target = only if plan.target is None else plan.target[part]
        found += np.bincount(plan.phase[part].astype(np.int64) * n_places + target, minlength=len(found))
    return found.reshape(len(plan.spans), n_places)


def _watched(promise: Promise, plan: Plan, targets: Sequence[str], n_planned: NDArray[np.int64]) -> _Watched:
    scope = promise.scope
    own = [
        number
        for number, span in enumerate(plan.spans)
        if span.kind == MEASURE and scope.phase in (None, span.name)
    ]
    from_ns = min((plan.spans[number].start_ns for number in own), default=0) + promise.delay_ns
    cells = np.zeros(n_planned.shape, np.bool_)
    if scope.server is None:
        cells[own] = True
    elif plan.target is not None or len(targets) == 1:
        cells[own, list(targets).index(scope.server)] = True
    n = int(n_planned[cells].sum())
    is_known = (
        promise.is_counted and cells.any() and _has_load(promise, n, [plan.spans[number] for number in own])
    )
    return _Watched(promise, cells if is_known else None, n, from_ns)


def _has_load(promise: Promise, n: int, own: Sequence[PhaseSpan]) -> bool:
    """Whether the plan is of the load at which it is promised: else nothing is promised."""
    if promise.at_hz is None:
        return True
    rate_hz = n * NS_PER_S / sum(span.end_ns - span.start_ns for span in own)
    return rate_hz >= promise.at_hz * (1 - LIMITS.overall_ratio)
