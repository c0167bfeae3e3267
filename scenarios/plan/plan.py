"""The schedule of a whole run: every arrival with its absolute offset, drawn before anything is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrays import Array, Int64s, pieces
from squall.scenarios.model_shares import ONE_MODEL, VariantRange, models_of
from squall.scenarios.plan.deal import PlanRule, workers_of
from squall.scenarios.records import Frozen

COLUMNS = {"seq": "<i8", "offset_ns": "<i8", "phase": "<u1", "rows": "<i4", "variant": "<u1"}
"""`variant` is wider where there are more than 256, and more than 65,536."""
_AT_ONCE_BYTES = 2**27
"""Of parts made in one sweep: a sweep over the largest plan takes seconds, and one for each worker minutes."""


class PhaseSpan(Frozen):
    """A phase on the run's timeline, [start_ns, end_ns) from the start instant."""

    name: str
    kind: Literal["warmup", "measure", "drain"]
    start_ns: int
    end_ns: int


class Plan(Frozen, eq=False):
    """Arrivals of a run, or one worker's part of them: columns of equal length, sorted by offset, then seq.

    22 bytes an arrival, one more with `target`, one with more than 256 variants and three with more than 65,536; from
    2²⁴ arrivals on in temporary files (`squall.scenarios.plan.growing`). Two plans are the same schedule exactly if
    their `sha256()` are; `deal` and `affinity`, which say who sends what, are not part of it.
    """

    seq: Int64s  # place in the plan of the whole run, 0..n-1
    offset_ns: Int64s  # from the run's start instant
    phase: NDArray[np.uint8]  # index into `spans`, and into the scenario's phases
    rows: NDArray[np.int32]
    variant: NDArray[
        np.unsignedinteger[Any]
    ]  # which of the seeded inputs of that row count, or entry of the data
    spans: tuple[PhaseSpan, ...]
    deal: PlanRule = "sequence"
    affinity: NDArray[np.uint32] | None = (
        None  # hash of the session, where `deal` or the routing is by session; the lane, where `deal` is by lane;
        # parts have none
    )
    target: NDArray[np.uint8] | None = None  # index of the server; None: there is one, or the worker chooses
    models: tuple[VariantRange, ...] = ONE_MODEL  # which variants are whose

    def __post_init__(self) -> None:
        for name, dtype in self.columns.items():
            column = getattr(self, name)
            if column.dtype != np.dtype(dtype) or column.shape != self.seq.shape:
                raise ValueError(f"plan column {name} must be {dtype} of shape {self.seq.shape}")
        for piece in pieces(len(self)):
            rows = slice(max(piece.start - 1, 0), piece.stop)
            if (np.diff(self.offset_ns[rows]) < 0).any() or (np.diff(self.seq[rows]) < 1).any():
                raise ValueError("a plan is sorted by offset_ns, and seq rises by row")

    def __len__(self) -> int:
        return int(self.seq.size)

    @property
    def columns(self) -> dict[str, str]:
        """The columns that the plan has, with their types."""
        columns = {**COLUMNS, "variant": f"<u{min(self.variant.itemsize, 4)}"}
        return columns if self.target is None else {**columns, "target": "<u1"}

    @property
    def n_bytes(self) -> int:
        """Of all columns."""
        return sum(getattr(self, name).nbytes for name in self.columns)

    @property
    def is_whole(self) -> bool:
        """True if no arrival before the last is missing: seq is 0, 1, 2, …"""
        return bool((self.seq[-1:] == len(self) - 1).all())

    def kind_codes(self, target: int | None = None) -> Int64s:
        """The distinct (rows, variant) of all arrivals, or of those for one target: sorted codes, see `kind_code`."""
        found = np.empty(0, np.int64)
        for part in pieces(len(self)):
            codes = kind_code(self.rows[part], self.variant[part])
            if target is not None and self.target is not None:
                codes = codes[self.target[part] == target]
            found = np.union1d(found, codes)
        return found

    def sha256(self) -> str:
        """Hex digest of the schedule, the same on any machine: of the JSON of its phases, its length, the sha256 of
        each column as little-endian bytes, and the models' variants where there are several. The seq of a whole plan
        says nothing more and stands as null.
        """
        digests = {
            name: None if name == "seq" and self.is_whole else _column_sha256(getattr(self, name), dtype)
            for name, dtype in self.columns.items()
        }
        content = {"n": len(self), "spans": [astuple(span) for span in self.spans], "columns": digests}
        if len(self.models) > 1:
            content["models"] = [astuple(one) for one in self.models]
        return hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()


def kind_code(rows: Any, variant: Any) -> Int64s:
    """One number for (rows, variant), sorted as these: rows · 2³² + variant."""
    return np.asarray(rows, np.int64) << 32 | np.asarray(variant, np.int64)


def kinds_of(codes: Int64s) -> tuple[Int64s, Int64s]:
    """Rows and variants of such codes."""
    return codes >> 32, codes & 0xFFFFFFFF


def codes_by_model(codes: Int64s, models: Sequence[VariantRange]) -> tuple[Int64s, ...]:
    """Those of each model, sorted as `codes` are, its variants counted from 0."""
    numbers = models_of(kinds_of(codes)[1], models)
    return tuple(codes[numbers == number] - one.first for number, one in enumerate(models))


def deal(plan: Plan, n_workers: int) -> Iterator[Plan]:
    """One plan per worker, in turn, each made in memory when it is asked for, at most with the next few of them."""
    if n_workers == 1:
        yield replace(plan, affinity=None)
        return
    columns = {name: getattr(plan, name) for name in plan.columns}
    n_at_once = max(1, _AT_ONCE_BYTES * n_workers // max(plan.n_bytes, 1))
    for first in range(0, n_workers, n_at_once):
        workers = range(first, min(first + n_at_once, n_workers))
        parts = {(worker, name): [column[:0]] for worker in workers for name, column in columns.items()}
        for piece in pieces(len(plan)):  # so that the pages of a column in a file are read once
            shares = None if plan.affinity is None else plan.affinity[piece]
            takers = workers_of(plan.deal, plan.seq[piece], shares, n_workers)
            for worker in workers:
                rows = np.flatnonzero(takers == worker)
                for name, column in columns.items():
                    parts[worker, name].append(column[piece][rows])
        for worker in workers:
            part: dict[str, Any] = {name: np.concatenate(parts.pop((worker, name))) for name in columns}
            yield replace(plan, affinity=None, **part)


def stream(seed: int, name: str, *place: int) -> np.random.Generator:
    """An independent generator for one use at one place: a phase, or a phase and a user.

    The key is hashed, not counted, so that a new stream leaves the others where they are.
    """
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(key, *place))))


def _column_sha256(column: Array, dtype: str) -> str:
    digest = hashlib.sha256()
    for piece in pieces(column.size):
        digest.update(np.ascontiguousarray(column[piece], dtype=dtype).data)
    return digest.hexdigest()
