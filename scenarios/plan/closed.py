"""Closed-loop load: users who send, wait for the reply, think, and send again. What they do, not when.

    first_at          reply                   reply
       │──── service ───│──── think ────│─ service ─│── think ──│ …
       send                             send                    send

When a user sends depends on the server, so there is no schedule, no response time and no send lag. What each
user does is seeded and does not depend on how many workers there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.plan import PhaseSpan, kind_code, stream

if TYPE_CHECKING:  # of a file's sections: a worker that has no users starts without them
    from squall.scenarios.arrivals.users import ThinkConfig
    from squall.scenarios.config.inputs import DrawnOrder
    from squall.scenarios.config.rows import RowsConfig

_CHUNK_STEPS = 64
"""Steps drawn at a time: part of what a seed means, since a longer array is drawn differently."""


@dataclass(frozen=True)
class ModelLoad:
    """What the requests of a phase are to one model: its share of them, and their rows."""

    share: float
    rows: RowsConfig


@dataclass(frozen=True)
class ClosedPhase:
    """The users of one span: their number, how long they think, over how long they begin, and what they send."""

    n_users: int
    think: ThinkConfig
    ramp_ns: int
    rows: RowsConfig  # of a model that has none of its own: part of the digest
    loads: tuple[ModelLoad, ...] = field(repr=False)  # of each model


@dataclass(frozen=True)
class Step:
    """What a user does next: thinks for `think_ns`, then sends `rows` rows of that variant."""

    think_ns: int
    rows: int
    variant: int


@dataclass(frozen=True, eq=False)
class ClosedPlan:
    """The users of a closed-loop run, or one worker's part of them.

    Two plans are the same exactly if their `sha256()` are.
    """

    users: NDArray[np.int64]  # numbers of the users here, sorted; 0..n_users-1 over all workers
    n_users: int  # of the whole run: the largest of its phases
    spans: tuple[PhaseSpan, ...]
    phases: tuple[ClosedPhase | None, ...]  # one per span, None for a drain
    models: tuple[VariantRange, ...]  # which variants are whose
    seed: int
    target: NDArray[np.uint8] | None = (
        None  # index of each user's server, (users,), or of its server for each model where some do not serve all,
        # (users, models); None: there is one, or the worker chooses
    )
    orders: tuple[DrawnOrder | None, ...] = (
        None,
    )  # for each model, of the entries of data, where variants are these; None: equally often

    def __post_init__(self) -> None:
        shapes = (self.users.shape, (*self.users.shape, len(self.models)))
        if self.target is not None and (self.target.dtype != np.uint8 or self.target.shape not in shapes):
            raise ValueError(f"target must be uint8 of shape {self.users.shape}, an index for each user")

    def __len__(self) -> int:
        return int(self.users.size)

    @property
    def n_variants(self) -> int:
        """Of all models: payload variants, or entries of the data."""
        return sum(one.n_variants for one in self.models)

    def sha256(self) -> str:
        """Hex digest of users, phases and seed, of the first steps of the first user in each phase, and of the users'
        servers where there are several.

        The steps are there because a law may be drawn differently by another release.
        """
        phases = [(phase, _first_steps(self, index)) for index, phase in enumerate(self.phases)]
        spans = [(span.name, span.kind, span.start_ns, span.end_ns) for span in self.spans]
        stated: tuple[Any, ...] = (self.n_users, spans, phases, self.n_variants, self.seed)
        orders: tuple[Any, ...] = self.orders
        if len(self.models) > 1:
            stated = (*stated, self.models, [phase.loads for phase in self.phases if phase is not None])
            orders = (self.orders,)
        if any(self.orders):
            stated = (*stated, *orders)
        digest = hashlib.sha256(repr(stated).encode())
        digest.update(np.ascontiguousarray(self.users, dtype="<i8").data)
        if self.target is not None:
            digest.update(np.ascontiguousarray(self.target).data)
        return digest.hexdigest()

    def first_at_ns(self, user: int, phase: int) -> int | None:
        """Offset from the run's start at which `user` begins in the phase; None if the phase has no such user.

        Users begin evenly over the ramp; without one all begin at the phase's start.
        """
        closed = self.phases[phase]
        if closed is None or user >= closed.n_users:
            return None
        return self.spans[phase].start_ns + closed.ramp_ns * user // closed.n_users

    def targets_of(self, user: int) -> list[int]:
        """The server of the user at that place for each model, 0 where there is one."""
        n_models = len(self.models)
        if self.target is None:
            return [0] * n_models
        own = self.target[user]
        return own.tolist() if self.target.ndim == 2 else [int(own)] * n_models

    def servers_used(self) -> list[list[int]]:
        """The servers at which some user here asks each model."""
        n_models = len(self.models)
        if self.target is None or self.target.ndim == 1:
            return [[0] if self.target is None else np.unique(self.target).tolist()] * n_models
        return [np.unique(self.target[:, model]).tolist() for model in range(n_models)]

    def steps(self, user: int, phase: int) -> Iterator[Step]:
        """What `user` does in the phase, without end; before the first request nobody thinks.

        Raises ValueError for a phase that has no such user.
        """
        return (
            step
            for chunk in self.step_chunks(user, phase)
            for step in map(Step, *map(np.ndarray.tolist, chunk))
        )

    def step_chunks(self, user: int, phase: int) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """`steps` as arrays: think times in ns, rows, variants; 64 at a time. Raises ValueError as it does."""
        closed = self.phases[phase]
        if closed is None or not 0 <= user < closed.n_users:
            raise ValueError(f"phase {self.spans[phase].name!r} has no user {user}")
        return self._step_chunks(user, phase, closed)

    def _step_chunks(
        self, user: int, phase: int, closed: ClosedPhase
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        from squall.scenarios.plan.mix import request_draws

        rows, variants = request_draws(
            self.seed,
            (phase, user),
            closed.loads,
            self.models,
            self.orders,
            in_turn=(user, closed.n_users),
        )
        think = stream(self.seed, "think", phase, user)
        for chunk in count():
            think_ns = closed.think.draw(think, _CHUNK_STEPS)
            if not chunk:
                think_ns[0] = 0
            yield think_ns, rows(_CHUNK_STEPS), variants(_CHUNK_STEPS)

    def request_kinds(self) -> set[tuple[int, int]]:
        """Every (rows, variant) that `steps` can give, for encoding before the start."""
        return {(rows, variant) for rows, variants in self._sizes() for variant in variants}

    def kind_codes(self) -> NDArray[np.int64]:
        """`request_kinds` as sorted codes: see `squall.scenarios.plan.plan.kind_code`."""
        codes = [
            kind_code(np.int64(rows), np.arange(variants.start, variants.stop, dtype=np.int64))
            for rows, variants in self._sizes()
        ]
        return np.concatenate(codes)

    def _sizes(self) -> list[tuple[int, range]]:
        """Numbers of rows that a request can have, each with the variants that it can have then, sorted."""
        from squall.scenarios.config.rows import possible_rows

        laws: list[tuple[RowsConfig, range]] = []
        for closed in self.phases:
            for load, own in zip(closed.loads, self.models, strict=True) if closed is not None else ():
                if load.share:
                    laws.append((load.rows, range(own.first, own.first + own.n_variants)))
        found = {(rows, variants) for law, variants in laws for rows in possible_rows(law)}
        return sorted(found, key=lambda one: (one[0], one[1].start))


def deal_closed(plan: ClosedPlan, n_workers: int) -> tuple[ClosedPlan, ...]:
    """One plan per worker, user u going to worker u mod `n_workers`."""
    if n_workers < 1:
        raise ValueError(f"a plan is dealt to 1 or more workers, not {n_workers}")
    owner = plan.users % n_workers
    shares = [owner == worker for worker in range(n_workers)]
    return tuple(
        replace(plan, users=plan.users[share], target=None if plan.target is None else plan.target[share])
        for share in shares
    )


def request_id(plan_n_users: int, user: int, index: int) -> int:
    """Id of the user's request number `index` of the whole run, from 0, phases included.

    Unique in the run, and the same for any number of workers.
    """
    return index * plan_n_users + user


def _first_steps(plan: ClosedPlan, phase: int) -> list[Step]:
    """The first chunk of the first user here that the phase has; empty if it has none."""
    if not len(plan) or plan.first_at_ns(int(plan.users[0]), phase) is None:
        return []
    return list(islice(plan.steps(int(plan.users[0]), phase), _CHUNK_STEPS))
