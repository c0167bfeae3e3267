"""A plan from a scenario: the schedule of an open loop, or the users of a closed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

import numpy as np

from squall.scenarios.arrivals.kinds import OpenArrivals, UserArrivals
from squall.scenarios.arrivals.replay import FileState, TraceArrivals, changed
from squall.scenarios.arrivals.scaling import scaled
from squall.scenarios.arrivals.users import ClosedArrivals
from squall.scenarios.config.inputs import IN_SEQUENCE, DrawnOrder, TraceOrder
from squall.scenarios.config.models import ModelScenario
from squall.scenarios.config.rows import TraceRows
from squall.scenarios.config.scenario import PhaseConfig, Scenario
from squall.scenarios.data.drawing import entry_dtype
from squall.scenarios.data.named import named_entries
from squall.scenarios.data.opening import count_entries, faults_at
from squall.scenarios.errors import ScenarioError
from squall.scenarios.model_shares import VariantRange, ranges_of
from squall.scenarios.plan.closed import ClosedPhase, ClosedPlan, ModelLoad
from squall.scenarios.plan.deal import PlanRule, affinity_of
from squall.scenarios.plan.growing import Column, pieces
from squall.scenarios.plan.mix import request_draws, settled, trace_rows
from squall.scenarios.plan.plan import COLUMNS, VARIANT_TYPES, PhaseSpan, Plan, stream
from squall.scenarios.sizes import LARGEST_ARRIVAL_COUNT
from squall.scenarios.traces.parts.part import TracePart


def plan_scenario(scenario: Scenario, seed: int | None = None) -> Plan:
    """The plan of the whole run, the same for the same scenario and seed; `seed` None means the scenario's.

    Phases are laid end to end. Each phase has its own streams for arrivals, models, rows and variants, so that a change
    to one moves no other. A phase with a `speed` is drawn as without one, and its instants are divided by it in
    integers. The draws use nothing that depends on CPU or C library (`squall.scenarios.exact`), so that the same
    release of squall plans the same anywhere; `sha256()` in the manifest shows whether two runs had one schedule.

    Raises ScenarioError for a trace file that cannot be used, parameters that do not suit the phase, sessions that are
    not there and a full disk, ValueError for a closed-loop scenario, which has no schedule: `plan_closed` plans it.
    """
    spans = lay_out(scenario.phases)
    draft = _Draft(scenario, scenario.seed if seed is None else seed)
    for index, span in enumerate(spans):
        draft.add_phase(index, span.start_ns)
    return draft.plan(spans)


def is_closed(scenario: Scenario) -> bool:
    """Whether the scenario is closed-loop; all its phases with load are, or none is."""
    return any(isinstance(phase.arrivals, ClosedArrivals) for phase in scenario.phases)


def plan_closed(scenario: Scenario, seed: int | None = None) -> ClosedPlan:
    """The plan of the whole run; `seed` None means the scenario's. Raises ValueError for an open-loop scenario."""
    phases = tuple(_closed_phase(index, scenario) for index in range(len(scenario.phases)))
    if not is_closed(scenario):
        raise ValueError(f"scenario {scenario.name!r} is open-loop: `plan_scenario` plans it")
    n_users = max(phase.n_users for phase in phases if phase is not None)
    return ClosedPlan(
        users=np.arange(n_users, dtype=np.int64),
        n_users=n_users,
        spans=lay_out(scenario.phases),
        phases=phases,
        models=variant_ranges(scenario),
        seed=scenario.seed if seed is None else seed,
        orders=tuple(map(_drawn_order, scenario.models)),
    )


def variant_ranges(scenario: Scenario) -> tuple[VariantRange, ...]:
    """Which payload variants, or entries of the data, are whose. Raises ScenarioError where these cannot be counted."""
    return ranges_of([_n_payloads_of(one) for one in scenario.models])


def _n_payloads_of(one: ModelScenario) -> int:
    if one.clients.data is None:
        return one.clients.payload_variants
    with faults_at(one):
        return count_entries(one.clients.data)


def _drawn_order(one: ModelScenario) -> DrawnOrder | None:
    """Of entries that no trace names; None of variants that squall makes."""
    data = one.clients.data
    if data is None:
        return None
    return IN_SEQUENCE if isinstance(data.order, TraceOrder) else data.order


def lay_out(phases: Sequence[PhaseConfig]) -> tuple[PhaseSpan, ...]:
    """The phases end to end from 0."""
    ends = list(accumulate(phase.duration_ns for phase in phases))
    return tuple(
        PhaseSpan(phase.name, phase.kind, end - phase.duration_ns, end)
        for phase, end in zip(phases, ends, strict=True)
    )


class _Draft:
    """The columns of a plan as its phases are drawn."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._seed = seed
        clients = scenario.clients
        self._ranges = variant_ranges(scenario)
        self._orders = tuple(map(_drawn_order, scenario.models))
        n_payloads = sum(one.n_variants for one in self._ranges)
        self._of_variant = np.dtype(entry_dtype(n_payloads))
        types = {**COLUMNS, "variant": VARIANT_TYPES[self._of_variant]}
        self._columns = {name: Column(dtype) for name, dtype in types.items()}
        is_by_session = clients.deal == "session" or clients.routing.kind in ("sticky", "trace")
        self._n_lanes = clients.sequences.concurrent if clients.sequences is not None else None
        self._affinity = Column("<u4") if is_by_session or self._n_lanes else None
        self._named = named_entries(clients.data, n_payloads) if clients.data is not None else None
        self._states: dict[str, FileState] = {}

    def add_phase(self, index: int, start_ns: int) -> None:
        """Draws the arrivals of a phase, then their rows and variants; a drain has none."""
        phase = self._scenario.phases[index]
        if phase.arrivals is None:
            return
        if isinstance(phase.arrivals, UserArrivals):
            raise ValueError(f"phase {phase.name!r} is closed-loop: it has no schedule")
        loads = model_loads(self._scenario, phase)
        rows = loads[0].rows  # of a trace, where there is one model
        named = self._named if isinstance(phase.arrivals, TraceArrivals) else None
        sizes = {rows.size} if isinstance(rows, TraceRows) else set()
        sizes |= {named.column} if named is not None else set()
        try:
            part = self._arrivals(phase.arrivals, phase, stream(self._seed, "arrivals", index), sorted(sizes))
        except (
            ValueError
        ) as error:  # what only the whole phase shows: a rate of 0 throughout, too many pieces
            raise ScenarioError(f"phases.{phase.name}.arrivals: {error}") from error
        if len(part) > LARGEST_ARRIVAL_COUNT:
            raise ScenarioError(
                f"phase {phase.name!r} has more than the {LARGEST_ARRIVAL_COUNT:,} requests that a plan takes; use a"
                " shorter phase or a smaller scale"
            )
        part.stamp_ns[:] += start_ns
        if isinstance(rows, TraceRows):
            self._columns["rows"].append(trace_rows(rows, part.sizes[rows.size]))
        if named is not None:
            entries = named.entries(part.sizes[named.column])
            self._columns["variant"].append(entries.astype(self._of_variant))
        self._add(phase, part)
        self._draw(index, loads, len(part), named is not None)

    def _arrivals(
        self, arrivals: OpenArrivals, phase: PhaseConfig, rng: np.random.Generator, sizes: list[str]
    ) -> TracePart:
        """The arrivals of a phase from its beginning on, with what their requests carry where they are a trace's."""
        if isinstance(arrivals, TraceArrivals):
            replay = arrivals.replay(rng, phase.drawn_ns, sizes, self._scenario.clients.routing.column)
            if self._states.setdefault(arrivals.file, replay.state) != replay.state:
                raise changed(Path(arrivals.file))
            rows = replay.rows
        else:
            rows = TracePart(arrivals.draw(rng, phase.drawn_ns), {})
        return replace(rows, stamp_ns=scaled(rows.stamp_ns, 1 / (phase.speed or Fraction(1))))

    def plan(self, spans: tuple[PhaseSpan, ...]) -> Plan:
        """The plan; the draft is empty afterwards."""
        columns = {name: column.join() for name, column in self._columns.items()}
        affinity = None if self._affinity is None else self._affinity.join()
        deal: PlanRule = "lane" if self._n_lanes else self._scenario.clients.deal
        return Plan(spans=spans, deal=deal, affinity=affinity, models=self._ranges, **columns)

    def _add(self, phase: PhaseConfig, part: TracePart) -> None:
        """Offsets on the timeline of the run, their numbers, and what deals them."""
        if self._affinity is not None and self._n_lanes is None and part.session is None:
            self._refuse_no_sessions(phase)
        first = len(self._columns["seq"])
        self._columns["offset_ns"].append(part.stamp_ns)
        for piece in pieces([part.stamp_ns]):
            seq = np.arange(first + piece.start, first + piece.stop, dtype=np.int64)
            self._columns["seq"].append(seq)
            if self._affinity is None:
                continue
            if self._n_lanes is not None:
                self._affinity.append((seq % self._n_lanes).astype(np.uint32))
            else:
                self._affinity.append(affinity_of(None if part.session is None else part.session[piece], seq))

    def _draw(self, index: int, loads: Sequence[ModelLoad], count: int, are_named: bool) -> None:
        """What does not depend on the instants, in pieces of a fixed size: it is part of what a seed means."""
        rows, variants = request_draws(self._seed, (index,), loads, self._ranges, self._orders)
        if not isinstance(loads[0].rows, TraceRows):
            self._columns["rows"].fill(count, rows)
        if not are_named:
            self._columns["variant"].fill(count, variants)
        self._columns["phase"].fill(count, lambda n: np.full(n, index, np.uint8))

    def _refuse_no_sessions(self, phase: PhaseConfig) -> None:
        if phase.kind == "measure":
            is_dealt = self._scenario.clients.deal == "session"
            key, others = ("deal", "hash or sequence") if is_dealt else ("routing", "random or round-robin")
            raise ScenarioError(
                f"clients.{key}: the arrivals of phase {phase.name!r} have no sessions; use {others}, or a trace with"
                " a column of sessions"
            )


def model_loads(scenario: Scenario, phase: PhaseConfig) -> tuple[ModelLoad, ...]:
    """What requests of a phase are to each model."""
    return tuple(
        ModelLoad(share, settled(one.rows_of(phase.rows)))
        for share, one in zip(scenario.shares_of(phase), scenario.models, strict=True)
    )


def _closed_phase(index: int, scenario: Scenario) -> ClosedPhase | None:
    phase = scenario.phases[index]
    arrivals = phase.arrivals
    if not isinstance(arrivals, ClosedArrivals):
        return None
    rows = settled(phase.rows or scenario.clients.rows)
    return ClosedPhase(arrivals.users, arrivals.think, arrivals.ramp_ns, rows, model_loads(scenario, phase))
