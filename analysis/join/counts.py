"""How many requests are joined to what served them, counted in place: `joined` is never held in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.store import RunStore
from squall.scenarios.records import Frozen

_BY_ID = "outcome = 'ok' AND join_level IN ('exact', 'batch')"
_COUNTS = f"""
SELECT phase, target, request_kind, count(*), count(*) FILTER (outcome = 'ok'),
    histogram(join_level) FILTER (outcome = 'ok'), max(clock_error_ns) FILTER ({_BY_ID})
FROM joined GROUP BY ALL ORDER BY ALL
"""
LEVELS_BY_ID = ("exact", "batch")
"""Join levels of requests that are joined to their batch by id."""


class JoinCounts(NamedTuple):
    """Rows of `joined` in a phase of a server and model that they ask: all, those that ended ok, and these by level.

    `clock_error_max_ns`: the largest of those joined by id; None where none is known.
    """

    target: str
    model: str
    n: int
    n_ok: int
    n_ok_by_level: Mapping[str, int]
    clock_error_max_ns: int | None

    @property
    def n_ok_joined(self) -> int:
        """Joined by id, exact or batch."""
        return sum(self.n_ok_by_level.get(level, 0) for level in LEVELS_BY_ID)


class Part(Frozen):
    """A part of the latency, or all of it; `p95_ns` by nearest rank."""

    mean_ns: int
    p95_ns: int


class Accounting(Frozen):
    """Where the latency of `n` of `n_of` joined requests went, in parts as fine as `level`: device, server or batch.

    `parts`: by name, the latency itself first. `bands`: by name the mean of each of `accounting.BANDS` in ns, None of
    an empty one. `residual_p50_ratio`: median of |residual| over latency, None at level batch.
    """

    level: str
    n: int
    n_of: int
    parts: Mapping[str, Part]
    bands: Mapping[str, tuple[float | None, ...]]
    residual_p50_ratio: float | None


class JoinFigures(Frozen):
    """How many requests of some phases are joined to their batch by id, and where the time of those went."""

    n: int
    n_ok: int
    n_ok_joined: int
    joined_ratio: float | None
    clock_error_max_ns: int | None
    accounting: Accounting | None


def join_counts(
    store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> dict[str, tuple[JoinCounts, ...]] | None:
    """The counts by phase, of each server and model that requests of it ask; None if the run has no table `joined`."""
    if not store.has("joined"):
        return None
    with connect(store, ["joined"], memory_limit_bytes) as connection:
        rows = connection.execute(_COUNTS).fetchall()
    found: dict[str, list[JoinCounts]] = {}
    for phase, target, model, n, n_ok, levels, error_ns in rows:
        found.setdefault(phase, []).append(JoinCounts(target, model, n, n_ok, levels or {}, error_ns))
    return {phase: tuple(counts) for phase, counts in found.items()}


def join_figures(
    counts: Mapping[str, Sequence[JoinCounts]] | None, phases: Sequence[str], account: Accounting | None
) -> JoinFigures | None:
    """Share of the ok requests of `phases` that are joined to their batch by id, and where their time went:
    `accounting`. None without `counts`."""
    if counts is None:
        return None
    own = [one for phase in dict.fromkeys(phases) for one in counts.get(phase, ())]
    n_ok, n_ok_joined = sum(one.n_ok for one in own), sum(one.n_ok_joined for one in own)
    errors_ns = [one.clock_error_max_ns for one in own if one.clock_error_max_ns is not None]
    return JoinFigures(
        n=sum(one.n for one in own),
        n_ok=n_ok,
        n_ok_joined=n_ok_joined,
        joined_ratio=n_ok_joined / n_ok if n_ok else None,
        clock_error_max_ns=max(errors_ns, default=None),
        accounting=account,
    )
