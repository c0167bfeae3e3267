"""A plan from a scenario: the schedule of an open loop, or the users of a closed one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from squall.scenarios.arrays import PIECE_ROWS, Columns
from squall.scenarios.arrivals.kinds import UserArrivals
from squall.scenarios.arrivals.replay import FileState, TraceArrivals, changed
from squall.scenarios.arrivals.scaling import scaled
from squall.scenarios.arrivals.users import ClosedArrivals
from squall.scenarios.config.inputs import IN_SEQUENCE, DrawnOrder, TraceOrder
from squall.scenarios.config.models import ModelScenario
from squall.scenarios.config.rows import TraceRows
from squall.scenarios.config.scenario import PhaseConfig, Scenario
from squall.scenarios.data.drawing import entry_dtype
from squall.scenarios.data.named import named_entries
from squall.scenarios.data.opening import faults_at, open_data
from squall.scenarios.errors import ScenarioError, placed
from squall.scenarios.model_shares import VariantRange, ranges_of
from squall.scenarios.plan.closed import ClosedPhase, ClosedPlan, ModelLoad
from squall.scenarios.plan.deal import PlanRule, affinity_of
from squall.scenarios.plan.growing import grown
from squall.scenarios.plan.mix import request_draws, settled, trace_rows
from squall.scenarios.plan.plan import COLUMNS, PhaseSpan, Plan, stream
from squall.scenarios.sizes import LARGEST_ARRIVAL_COUNT
from squall.scenarios.traces.part import TracePart


def plan_scenario(scenario: Scenario) -> Plan:
    """The plan of the whole run, the same for the same scenario and seed.

    Phases are laid end to end. Each phase has its own streams for arrivals, models, rows and variants, so that a change
    to one moves no other. A phase with a `speed` is drawn as without one, and its instants are divided by it in
    integers. The draws use nothing that depends on CPU or C library (`squall.scenarios.exact`), so that the same
    release of squall plans the same anywhere; `sha256()` in the manifest shows whether two runs had one schedule.

    Raises ScenarioError for a trace file that cannot be used, parameters that do not suit the phase, sessions that are
    not there and a full disk, ValueError for a closed-loop scenario, which has no schedule: `plan_closed` plans it.
    """
    seed, clients, ranges = scenario.seed, scenario.clients, variant_ranges(scenario)
    spans = lay_out(scenario.phases)
    n_lanes = clients.sequences.concurrent if clients.sequences is not None else None
    is_by_session = not n_lanes and (clients.deal == "session" or clients.routing.kind in ("sticky", "trace"))
    types: dict[str, DTypeLike] = {**COLUMNS, "variant": entry_dtype(ranges[-1].stop)}
    if n_lanes or is_by_session:
        types["affinity"] = "<u4"

    def parts() -> Iterator[Columns]:
        named = named_entries(clients.data, ranges[-1].stop) if clients.data is not None else None
        orders = tuple(map(_drawn_order, scenario.models))
        states: dict[str, FileState] = {}
        n_before = 0
        for index, (phase, span) in enumerate(zip(scenario.phases, spans, strict=True)):
            if phase.arrivals is None:
                continue
            loads = model_loads(scenario, phase)
            law = loads[0].rows  # of a trace, where there is one model
            sizes = [law.size] if isinstance(law, TraceRows) else []
            names = named if isinstance(phase.arrivals, TraceArrivals) else None
            if names:
                sizes.append(names.column)
            arrivals = _arrivals(scenario, phase, stream(seed, "arrivals", index), sizes, states)
            if is_by_session and arrivals.session is None and phase.kind == "measure":
                raise _no_sessions(scenario, phase)
            draw = request_draws(seed, (index,), loads, ranges, orders)
            for piece in arrivals.pieces(PIECE_ROWS):  # of a fixed size: it is part of what a seed means
                seq = np.arange(n_before, n_before + len(piece))
                n_before += len(piece)
                lanes = seq % n_lanes if n_lanes else seq
                rows, variants = draw(len(piece))
                if isinstance(law, TraceRows):
                    rows = trace_rows(law, piece.sizes[law.size])
                if names:
                    variants = names.entries(piece.sizes[names.column])
                yield {
                    "seq": seq,
                    "offset_ns": piece.stamp_ns + span.start_ns,
                    "phase": np.full(len(piece), index),
                    "rows": rows,
                    "variant": variants,
                    "affinity": affinity_of(piece.session, seq) if is_by_session else lanes,
                }

    deal: PlanRule = "lane" if n_lanes else clients.deal
    return Plan(spans=spans, deal=deal, models=ranges, **grown(types, parts()))


def _arrivals(
    scenario: Scenario,
    phase: PhaseConfig,
    rng: np.random.Generator,
    sizes: list[str],
    states: dict[str, FileState],
) -> TracePart:
    """The arrivals of a phase from its beginning on, with what their requests carry where they are a trace's. `states`:
    of the traces that were read before."""
    arrivals = phase.arrivals
    if arrivals is None or isinstance(arrivals, UserArrivals):
        raise ValueError(f"phase {phase.name!r} is closed-loop: it has no schedule")
    # what only the whole phase shows: a rate of 0 throughout, too many pieces
    with placed(f"phases.{phase.name}.arrivals", ScenarioError, ValueError):
        if isinstance(arrivals, TraceArrivals):
            replay = arrivals.replay(rng, phase.drawn_ns, sizes, scenario.clients.routing.column)
            if states.setdefault(arrivals.file, replay.state) != replay.state:
                raise changed(Path(arrivals.file))
            part = replay.rows
        else:
            part = TracePart(arrivals.draw(rng, phase.drawn_ns), {})
        part = replace(part, stamp_ns=scaled(part.stamp_ns, 1 / (phase.speed or Fraction(1))))
    if len(part) > LARGEST_ARRIVAL_COUNT:
        raise ScenarioError(
            f"phase {phase.name!r} has more than the {LARGEST_ARRIVAL_COUNT:,} requests that a plan takes; use a"
            " shorter phase or a smaller scale"
        )
    return part


def _no_sessions(scenario: Scenario, phase: PhaseConfig) -> ScenarioError:
    is_dealt = scenario.clients.deal == "session"
    key, others = ("deal", "hash or sequence") if is_dealt else ("routing", "random or round-robin")
    return ScenarioError(
        f"clients.{key}: the arrivals of phase {phase.name!r} have no sessions; use {others}, or a trace with"
        " a column of sessions"
    )


def plan_closed(scenario: Scenario) -> ClosedPlan:
    """The plan of the whole run. Raises ValueError for an open-loop scenario."""
    phases = tuple(_closed_phase(scenario, phase) for phase in scenario.phases)
    n_users = max(phase.n_users for phase in phases if phase is not None)
    return ClosedPlan(
        users=np.arange(n_users, dtype=np.int64),
        n_users=n_users,
        spans=lay_out(scenario.phases),
        phases=phases,
        models=variant_ranges(scenario),
        seed=scenario.seed,
        orders=tuple(map(_drawn_order, scenario.models)),
    )


def variant_ranges(scenario: Scenario) -> tuple[VariantRange, ...]:
    """Which payload variants, or entries of the data, are whose. Raises ScenarioError where these cannot be counted."""
    counts = []
    for one in scenario.models:
        data = one.clients.data
        with faults_at(one):
            counts.append(one.clients.payload_variants if data is None else open_data(data).n_entries)
    return ranges_of(counts)


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


def _closed_phase(scenario: Scenario, phase: PhaseConfig) -> ClosedPhase | None:
    arrivals = phase.arrivals
    if not isinstance(arrivals, ClosedArrivals):
        return None
    rows = settled(phase.rows or scenario.clients.rows)
    return ClosedPhase(arrivals.users, arrivals.think, arrivals.ramp_ns, rows, model_loads(scenario, phase))


def model_loads(scenario: Scenario, phase: PhaseConfig) -> tuple[ModelLoad, ...]:
    """What requests of a phase are to each model."""
    return tuple(
        ModelLoad(share, settled(one.rows_of(phase.rows)))
        for share, one in zip(scenario.shares_of(phase), scenario.models, strict=True)
    )
