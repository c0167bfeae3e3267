"""The schedule of a whole run: every arrival with its absolute offset, drawn before anything is sent."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrivals.process import Arrivals
from squall.scenarios.config.arrivals import ClosedArrivals
from squall.scenarios.config.rows import RowsConfig, TraceRows
from squall.scenarios.config.scenario import LARGEST_ARRIVAL_COUNT, PhaseConfig, Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.build import build_arrivals
from squall.scenarios.plan.deal import DealRule, affinity_of, workers_of
from squall.scenarios.plan.growing import PIECE_ROWS, Column, blank, pieces
from squall.scenarios.plan.mix import draw_rows, settled, trace_rows
from squall.scenarios.plan.replay import TraceReplay
from squall.scenarios.plan.window import Drawn, FileState, changed

_COLUMNS = {"seq": "<i8", "offset_ns": "<i8", "phase": "<u1", "rows": "<i4", "variant": "<u1"}
_AT_ONCE_BYTES = 2**27
"""Of parts made in one sweep: a sweep over the largest plan takes seconds, and one for each worker minutes."""


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

    22 bytes an arrival, in temporary files from 2²⁴ arrivals on (`squall.scenarios.plan.growing`). Two plans are the
    same schedule exactly if their `sha256()` are; `deal` and `affinity`, which say who sends what, are not part of
    it.
    """

    seq: NDArray[np.int64]  # place in the plan of the whole run, 0..n-1
    offset_ns: NDArray[np.int64]  # from the run's start instant
    phase: NDArray[np.uint8]  # index into `spans`, and into the scenario's phases
    rows: NDArray[np.int32]
    variant: NDArray[np.uint8]  # which of the seeded inputs of that row count
    spans: tuple[PhaseSpan, ...]
    deal: DealRule = "sequence"
    affinity: NDArray[np.uint32] | None = (
        None  # hash of the session, where `deal` is by session; parts have none
    )

    def __post_init__(self) -> None:
        for name, dtype in _COLUMNS.items():
            column = getattr(self, name)
            if column.dtype != np.dtype(dtype) or column.shape != self.seq.shape:
                raise ValueError(f"plan column {name} must be {dtype} of shape {self.seq.shape}")
        if not (_rises(self.offset_ns, np.greater_equal) and _rises(self.seq, np.greater)):
            raise ValueError("a plan is sorted by offset_ns, and seq rises by row")

    def __len__(self) -> int:
        return int(self.seq.size)

    @property
    def n_bytes(self) -> int:
        """Of all columns."""
        return sum(getattr(self, name).nbytes for name in _COLUMNS)

    @property
    def is_whole(self) -> bool:
        """True if no arrival before the last is missing: seq is 0, 1, 2, …"""
        return len(self) == 0 or (int(self.seq[0]) == 0 and int(self.seq[-1]) == len(self) - 1)

    def sha256(self) -> str:
        """Hex digest of the schedule, the same on any machine: of the JSON of its phases, its length, and the sha256 of
        each column as little-endian bytes. The seq of a whole plan says nothing more and stands as null.
        """
        digests = {
            name: None if name == "seq" and self.is_whole else _column_sha256(getattr(self, name), dtype)
            for name, dtype in _COLUMNS.items()
        }
        content = {"n": len(self), "spans": [_span_key(span) for span in self.spans], "columns": digests}
        return hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()


def plan_scenario(scenario: Scenario, seed: int | None = None, folder: Path | None = None) -> Plan:
    """The plan of the whole run, the same for the same scenario and seed; `seed` None means the scenario's.

    Phases are laid end to end. Each phase has its own streams for arrivals, rows and variants, so that a change to
    one moves no other. The draws use nothing that depends on CPU or C library (`squall.scenarios.exact`), so that the
    same release of squall plans the same anywhere; `sha256()` in the manifest shows whether two runs had one
    schedule. `folder` takes the temporary files of a plan that is kept in files; None: the system's temporary folder.
    Raises ScenarioError for a trace file that cannot be used, parameters that do not suit the phase, sessions that
    are not there and a full disk, ValueError for a closed-loop scenario, which has no schedule:
    `squall.scenarios.plan.closed` plans it.
    """
    spans = lay_out(scenario.phases)
    draft = _Draft(scenario, scenario.seed if seed is None else seed, folder)
    for index, span in enumerate(spans):
        draft.add_phase(index, span.start_ns)
    return draft.plan(spans)


def deal(plan: Plan, n_workers: int) -> Iterator[Plan]:
    """One plan per worker, in turn, each made in memory when it is asked for, at most with the next few of them."""
    if n_workers < 1:
        raise ValueError(f"a plan is dealt to 1 or more workers, not {n_workers}")
    n_at_once = max(1, _AT_ONCE_BYTES * n_workers // max(plan.n_bytes, 1))
    for first in range(0, n_workers, n_at_once):
        parts = _parts_of(plan, range(first, min(first + n_at_once, n_workers)), n_workers)
        while parts:
            yield parts.pop(0)


def _parts_of(plan: Plan, workers: range, n_workers: int) -> list[Plan]:
    """The parts of some workers, in one sweep over the plan."""
    if n_workers == 1:
        return [replace(plan, affinity=None)]
    columns = {name: getattr(plan, name) for name in _COLUMNS}
    affinity, in_turn = plan.affinity, plan.deal == "sequence" and plan.is_whole
    parts = [
        {name: Column(dtype, most_rows_in_memory=len(plan)) for name, dtype in _COLUMNS.items()}
        for _ in workers
    ]
    for piece in pieces([*columns.values(), *([] if affinity is None else [affinity])]):
        shares = None if affinity is None else affinity[piece]
        takers = None if in_turn else workers_of(plan.deal, plan.seq[piece], shares, n_workers)
        for worker, part in zip(workers, parts, strict=True):
            rows: Any = slice((worker - piece.start) % n_workers, None, n_workers)
            if takers is not None:
                rows = np.flatnonzero(takers == worker)
            for name, column in columns.items():
                part[name].append(column[piece][rows])
    return [
        Plan(spans=plan.spans, deal=plan.deal, **{name: column.join() for name, column in part.items()})
        for part in parts
    ]


def merge(plans: Iterable[Plan], n_rows: int | None = None, folder: Path | None = None) -> Plan:
    """The whole plan from its parts in any order, byte for byte what `deal` was given.

    With `n_rows`, the length of the whole, one part is held at a time. Raises ValueError where a seq is missing before
    the last or there twice, or the phases differ.
    """
    if n_rows is None:
        plans = list(plans)
        n_rows = max((int(part.seq[-1]) + 1 for part in plans if len(part)), default=0)
    whole = {name: blank(dtype, n_rows, folder) for name, dtype in _COLUMNS.items()}
    is_there = np.zeros(n_rows, bool)
    first: Plan | None = None
    for part in plans:
        first = first or part
        if part.spans != first.spans:
            raise ValueError("plans to merge must be one or more, of the same phases")
        _put(part, whole, is_there)
    if first is None:
        raise ValueError("plans to merge must be one or more, of the same phases")
    if not is_there.all():
        raise ValueError(f"seq {int(is_there.argmin())} is in no plan")
    return Plan(spans=first.spans, deal=first.deal, **whole)


def _put(part: Plan, whole: dict[str, NDArray[Any]], is_there: NDArray[np.bool_]) -> None:
    """Writes the rows of a part to their places."""
    if len(part) and int(part.seq[-1]) >= is_there.size:
        raise ValueError(f"seq {int(part.seq[-1])} is beyond the {is_there.size} rows of the whole plan")
    bounds = np.searchsorted(part.seq, np.arange(0, is_there.size + PIECE_ROWS, PIECE_ROWS))
    for piece, (low, high) in zip(pieces(list(whole.values())), pairwise(bounds.tolist()), strict=False):
        seq = part.seq[low:high]
        if is_there[seq].any():
            raise ValueError(f"seq {int(seq[is_there[seq]][0])} is in more than one plan")
        is_there[seq] = True
        for name, column in whole.items():
            column[piece][seq - piece.start] = getattr(part, name)[low:high]


def lay_out(phases: Sequence[PhaseConfig]) -> tuple[PhaseSpan, ...]:
    """The phases end to end from 0."""
    ends = list(accumulate(phase.duration_ns for phase in phases))
    return tuple(
        PhaseSpan(phase.name, phase.kind, end - phase.duration_ns, end)
        for phase, end in zip(phases, ends, strict=True)
    )


class _Draft:
    """The columns of a plan as its phases are drawn."""

    def __init__(self, scenario: Scenario, seed: int, folder: Path | None) -> None:
        self._scenario = scenario
        self._seed = seed
        self._columns = {name: Column(dtype, folder) for name, dtype in _COLUMNS.items()}
        self._affinity = Column("<u4", folder) if scenario.clients.deal == "session" else None
        self._states: dict[Path, FileState] = {}

    def add_phase(self, index: int, start_ns: int) -> None:
        """Draws the arrivals of a phase, then their rows and variants; a drain has none."""
        phase = self._scenario.phases[index]
        if phase.arrivals is None:
            return
        if isinstance(phase.arrivals, ClosedArrivals):
            raise ValueError(f"phase {phase.name!r} is closed-loop: it has no schedule")
        rows = settled(self._scenario.rows_of(phase))
        size = rows.size if isinstance(rows, TraceRows) else None
        try:
            arrivals = build_arrivals(phase.arrivals, phase.duration_ns, size)
            parts = _parts(arrivals, stream(self._seed, "arrivals", index), phase.duration_ns, start_ns)
        except (
            ValueError
        ) as error:  # what only the whole phase shows: a rate of 0 throughout, too many pieces
            raise ScenarioError(f"phases.{phase.name}.arrivals: {error}") from error
        n_before = len(self._columns["offset_ns"])
        for part in parts:
            if isinstance(rows, TraceRows):
                self._columns["rows"].append(trace_rows(rows, part.sizes[rows.size]))
            self._add(phase, part)
            self._refuse_too_many(phase, len(self._columns["offset_ns"]) - n_before)
        if isinstance(arrivals, TraceReplay):
            self._refuse_change(arrivals)
        self._draw(index, rows, len(self._columns["offset_ns"]) - n_before)

    def plan(self, spans: tuple[PhaseSpan, ...]) -> Plan:
        """The plan; the draft is empty afterwards."""
        columns = {name: column.join() for name, column in self._columns.items()}
        affinity = None if self._affinity is None else self._affinity.join()
        return Plan(spans=spans, deal=self._scenario.clients.deal, affinity=affinity, **columns)

    def _add(self, phase: PhaseConfig, part: Drawn) -> None:
        """Offsets on the timeline of the run, and what deals them."""
        first = len(self._columns["offset_ns"])
        self._columns["offset_ns"].append(part.offset_ns)
        if self._affinity is None:
            return
        if part.session is None and phase.kind == "measure":
            raise ScenarioError(
                f"clients.deal: the arrivals of phase {phase.name!r} have no sessions; use hash or sequence, or a trace"
                " with a column of sessions"
            )
        for start in range(0, len(part), PIECE_ROWS):
            stop = min(start + PIECE_ROWS, len(part))
            seq = np.arange(first + start, first + stop, dtype=np.int64)
            session = None if part.session is None else part.session[start:stop]
            self._affinity.append(affinity_of(session, seq))

    def _draw(self, index: int, rows: RowsConfig, count: int) -> None:
        """What does not depend on the instants, in pieces of a fixed size: it is part of what a seed means."""
        columns, n_variants = self._columns, self._scenario.clients.payload_variants
        of_rows, of_variants = stream(self._seed, "rows", index), stream(self._seed, "variants", index)
        if not isinstance(rows, TraceRows):
            columns["rows"].fill(count, lambda n: draw_rows(rows, of_rows, n))
        columns["variant"].fill(count, lambda n: of_variants.integers(0, n_variants, n, dtype=np.uint8))
        columns["phase"].fill(count, lambda n: np.full(n, index, np.uint8))
        numbers = itertools.count(len(columns["seq"]), PIECE_ROWS)
        columns["seq"].fill(count, lambda n: np.arange(first := next(numbers), first + n, dtype=np.int64))

    def _refuse_too_many(self, phase: PhaseConfig, count: int) -> None:
        if count > LARGEST_ARRIVAL_COUNT:
            raise ScenarioError(
                f"phase {phase.name!r} has more than the {LARGEST_ARRIVAL_COUNT:.0e} requests that a plan takes; use a"
                " shorter phase or a smaller scale"
            )

    def _refuse_change(self, replay: TraceReplay) -> None:
        state = replay.state
        assert state is not None
        if self._states.setdefault(replay.path, state) != state:
            raise changed(replay.path)


def stream(seed: int, name: str, *place: int) -> np.random.Generator:
    """An independent generator for one use at one place: a phase, or a phase and a user.

    The key is hashed, not counted, so that a new stream leaves the others where they are.
    """
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(key, *place))))


def _parts(arrivals: Arrivals, rng: np.random.Generator, horizon_ns: int, start_ns: int) -> Iterator[Drawn]:
    """The arrivals of a phase on the timeline of the run: those of a trace in parts, others at once, where they are."""
    if isinstance(arrivals, TraceReplay):
        parts = arrivals.parts(rng, horizon_ns)
        return (replace(part, offset_ns=part.offset_ns + start_ns) for part in parts)
    offsets = arrivals.offsets_ns(rng, horizon_ns)
    offsets += start_ns
    return iter([Drawn(offsets)])


def _rises(column: NDArray[Any], holds: np.ufunc) -> bool:
    """True if `holds(later, earlier)` for all neighbours."""
    before: Any = None
    for piece in pieces([column]):
        rows = column[piece]
        if before is not None and not holds(rows[0], before):
            return False
        if not holds(rows[1:], rows[:-1]).all():
            return False
        before = rows[-1]
    return True


def _column_sha256(column: NDArray[Any], dtype: str) -> str:
    digest = hashlib.sha256()
    for piece in pieces([column]):
        digest.update(np.ascontiguousarray(column[piece], dtype=dtype).data)
    return digest.hexdigest()


def _span_key(span: PhaseSpan) -> tuple[str, str, int, int]:
    return (span.name, span.kind, span.start_ns, span.end_ns)
