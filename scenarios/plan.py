"""The schedule of a whole run: every arrival with its absolute offset, drawn before anything is sent."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scenarios.arrivals import build_arrivals
from scenarios.load import ClosedArrivals
from scenarios.mix import draw_rows
from scenarios.scenario import PhaseConfig, Scenario

_COLUMNS = {"seq": "<i8", "offset_ns": "<i8", "phase": "<u1", "rows": "<i4", "variant": "<u1"}


@dataclass(frozen=True)
class PhaseSpan:
    """A phase on the run's timeline, [start_ns, end_ns) from the start instant."""

    name: str
    kind: Literal["warmup", "measure", "drain"]
    start_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False)
class Plan:
    """Arrivals of a run, or one worker's part of them: columns of equal length, sorted by offset, then seq.

    22 bytes an arrival. Two plans are the same exactly if their `sha256()` are.
    """

    seq: NDArray[np.int64]  # place in the plan of the whole run, 0..n-1
    offset_ns: NDArray[np.int64]  # from the run's start instant
    phase: NDArray[np.uint8]  # index into `spans`, and into the scenario's phases
    rows: NDArray[np.int32]
    variant: NDArray[np.uint8]  # which of the seeded inputs of that row count
    spans: tuple[PhaseSpan, ...]

    def __post_init__(self) -> None:
        for name, dtype in _COLUMNS.items():
            column = getattr(self, name)
            if column.dtype != np.dtype(dtype) or column.shape != self.seq.shape:
                raise ValueError(f"plan column {name} must be {dtype} of shape {self.seq.shape}")
        if (np.diff(self.offset_ns) < 0).any() or (np.diff(self.seq) <= 0).any():
            raise ValueError("a plan is sorted by offset_ns, and seq rises by row")

    def __len__(self) -> int:
        return int(self.seq.size)

    def sha256(self) -> str:
        """Hex digest of the phases and of every column as little-endian bytes, the same on any machine."""
        digest = hashlib.sha256(f"{len(self)} {[_span_key(span) for span in self.spans]}".encode())
        for name, dtype in _COLUMNS.items():
            digest.update(np.ascontiguousarray(getattr(self, name), dtype=dtype).data)
        return digest.hexdigest()


def plan_scenario(scenario: Scenario, seed: int | None = None) -> Plan:
    """The plan of the whole run, the same for the same scenario and seed; `seed` None means the scenario's.

    Phases are laid end to end. Each phase has its own streams for arrivals, rows and variants, so that a
    change to one moves no other. numpy may change the draws of a distribution between releases (NEP 19):
    plan once, on the driver, and deal; `sha256()` in the manifest shows whether two runs had one schedule.
    Raises ScenarioError for a trace file that cannot be used, ValueError for a closed-loop scenario, which
    has no schedule: `scenarios.closed` plans it.
    """
    seed = scenario.seed if seed is None else seed
    spans = lay_out(scenario.phases)
    parts = [_plan_phase(scenario, seed, index) for index in range(len(spans))]
    counts = [offsets.size for offsets, _, _ in parts]
    return Plan(
        seq=np.arange(sum(counts), dtype=np.int64),
        offset_ns=np.concatenate(
            [offsets + span.start_ns for (offsets, _, _), span in zip(parts, spans, strict=True)]
        ),
        phase=np.repeat(np.arange(len(counts), dtype=np.uint8), counts),
        rows=np.concatenate([rows for _, rows, _ in parts]),
        variant=np.concatenate([variants for _, _, variants in parts]),
        spans=spans,
    )


def deal(plan: Plan, n_workers: int) -> tuple[Plan, ...]:
    """One plan per worker, arrival i of the whole going to worker seq mod `n_workers`."""
    if n_workers < 1:
        raise ValueError(f"a plan is dealt to 1 or more workers, not {n_workers}")
    return tuple(_take(plan, plan.seq % n_workers == worker) for worker in range(n_workers))


def merge(plans: Sequence[Plan]) -> Plan:
    """The whole plan from its parts in any order, byte for byte what `deal` was given.

    Raises ValueError where a seq is missing before the last or there twice, or the phases differ.
    """
    if not plans or any(part.spans != plans[0].spans for part in plans):
        raise ValueError("plans to merge must be one or more, of the same phases")
    columns = {name: np.concatenate([getattr(part, name) for part in plans]) for name in _COLUMNS}
    order = np.argsort(columns["seq"], kind="stable")
    seq = columns["seq"][order]
    if (seq[1:] == seq[:-1]).any():
        raise ValueError(f"seq {int(seq[1:][seq[1:] == seq[:-1]][0])} is in more than one plan")
    gaps = np.flatnonzero(seq != np.arange(seq.size))
    if gaps.size:
        raise ValueError(f"seq {int(gaps[0])} is in no plan")
    return Plan(spans=plans[0].spans, **{name: column[order] for name, column in columns.items()})


def _take(plan: Plan, rows: NDArray[Any]) -> Plan:
    return Plan(spans=plan.spans, **{name: getattr(plan, name)[rows] for name in _COLUMNS})


def lay_out(phases: Sequence[PhaseConfig]) -> tuple[PhaseSpan, ...]:
    """The phases end to end from 0."""
    ends = list(accumulate(phase.duration_ns for phase in phases))
    return tuple(
        PhaseSpan(phase.name, phase.kind, end - phase.duration_ns, end)
        for phase, end in zip(phases, ends, strict=True)
    )


def _plan_phase(
    scenario: Scenario, seed: int, index: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets from the start of the phase, rows and variants of its arrivals; none for a drain."""
    phase, clients = scenario.phases[index], scenario.clients
    offsets = np.empty(0, dtype=np.int64)
    if isinstance(phase.arrivals, ClosedArrivals):
        raise ValueError(f"phase {phase.name!r} is closed-loop: it has no schedule")
    if phase.arrivals is not None:
        arrivals = build_arrivals(phase.arrivals, phase.duration_ns)
        offsets = arrivals.offsets_ns(stream(seed, "arrivals", index), phase.duration_ns)
    rows = draw_rows(clients.rows, stream(seed, "rows", index), offsets.size)
    variants = stream(seed, "variants", index).integers(
        0, clients.payload_variants, offsets.size, dtype=np.uint8
    )
    return offsets, rows, variants


def stream(seed: int, name: str, *place: int) -> np.random.Generator:
    """An independent generator for one use at one place: a phase, or a phase and a user.

    The key is hashed, not counted, so that a new stream leaves the others where they are.
    """
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(key, *place))))


def _span_key(span: PhaseSpan) -> tuple[str, str, int, int]:
    return (span.name, span.kind, span.start_ns, span.end_ns)
