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
from dataclasses import astuple, field, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrays import Array, Int64s
from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.plan import PhaseSpan, kind_code, stream
from squall.scenarios.records import Frozen

if TYPE_CHECKING:  # of a file's sections: a worker that has no users starts without them
    from squall.scenarios.arrivals.users import ThinkConfig
    from squall.scenarios.config.inputs import DrawnOrder
    from squall.scenarios.config.rows import RowsConfig

_CHUNK_STEPS = 64
"""Steps drawn at a time: part of what a seed means, since a longer array is drawn differently."""


class ModelLoad(Frozen):
    """What the requests of a phase are to one model: its share of them, and their rows."""

    share: float
    rows: RowsConfig


class ClosedPhase(Frozen):
    """The users of one span: their number, how long they think, over how long they begin, and what they send."""

    n_users: int
    think: ThinkConfig
    ramp_ns: int
    rows: RowsConfig  # of a model that has none of its own: part of the digest
    loads: tuple[ModelLoad, ...] = field(repr=False)  # of each model


class Step(Frozen):
    """What a user does next: thinks for `think_ns`, then sends `rows` rows of that variant."""

    think_ns: int
    rows: int
    variant: int


class ClosedPlan(Frozen, eq=False):
    """The users of a closed-loop run, or one worker's part of them.

    Two plans are the same exactly if their `sha256()` are.
    """

    users: Int64s  # numbers of the users here, sorted; 0..n_users-1 over all workers
    n_users: int  # of the whole run: the largest of its phases
    spans: tuple[PhaseSpan, ...]
    phases: tuple[ClosedPhase | None, ...]  # one per span, None for a drain
    models: tuple[VariantRange, ...]  # which variants are whose
    seed: int
    target: NDArray[np.uint8] | None = (
        None  # index of each user's server, (users, 1), or of its server for each model where some do not serve all,
        # (users, models); None: there is one, or the worker chooses
    )
    orders: tuple[DrawnOrder | None, ...] = (
        None,
    )  # for each model, of the entries of data, where variants are these; None: equally often

    def __len__(self) -> int:
        return int(self.users.size)

    def sha256(self) -> str:
        """Hex digest of users, phases and seed, of the first steps of the first user in each phase, and of the users'
        servers where there are several.

        The steps are there because a law may be drawn differently by another release.
        """
        first = self.users[:1].tolist()
        phases = [
            (phase, [step for user in first for step in islice(self.steps(user, index), _CHUNK_STEPS)])
            for index, phase in enumerate(self.phases)
        ]
        spans = [astuple(span) for span in self.spans]
        stated: tuple[Any, ...] = (self.n_users, spans, phases, self.models[-1].stop, self.seed)
        if len(self.models) > 1:
            stated += (self.models, [phase.loads for phase in self.phases if phase is not None])
        if any(self.orders):
            stated += self.orders if len(self.models) == 1 else (self.orders,)
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

    @property
    def targets(self) -> NDArray[np.uint8]:
        """The server of each user for each model, (users, models); 0 where there is one."""
        target = np.zeros((1, 1), np.uint8) if self.target is None else self.target
        return np.broadcast_to(target, (len(self), len(self.models)))

    def steps(self, user: int, phase: int) -> Iterator[Step]:
        """What `user` does in the phase, without end, and nothing where that has no such user; before the first request
        a user does not think."""
        return (
            step
            for chunk in self.step_chunks(user, phase)
            for step in map(Step, *map(np.ndarray.tolist, chunk))
        )

    def step_chunks(self, user: int, phase: int) -> Iterator[tuple[Array, Array, Array]]:
        """`steps` as arrays: think times in ns, rows, variants; 64 at a time."""
        closed = self.phases[phase]
        if closed is None or user >= closed.n_users:
            return iter(())
        from squall.scenarios.plan.mix import request_draws

        turn = user, closed.n_users
        draw = request_draws(self.seed, (phase, user), closed.loads, self.models, self.orders, turn)
        rng = stream(self.seed, "think", phase, user)

        def chunk(number: int) -> tuple[Array, Array, Array]:
            think_ns = closed.think.draw(rng, _CHUNK_STEPS)
            if not number:
                think_ns[0] = 0
            return think_ns, *draw(_CHUNK_STEPS)

        return map(chunk, count())

    def kind_codes(self, target: int | None = None) -> Int64s:
        """The distinct (rows, variant) that `steps` of all users can give, or what one target can be asked: sorted
        codes, see `kind_code`."""
        from squall.scenarios.config.rows import possible_rows

        kinds = {
            (rows, own)
            for closed in self.phases
            if closed is not None
            for load, own, servers in zip(closed.loads, self.models, self.targets.T, strict=True)
            if load.share and (target is None or self.target is None or (servers == target).any())
            for rows in possible_rows(load.rows)
        }
        codes = [kind_code(rows, np.arange(own.first, own.stop)) for rows, own in kinds]
        return np.sort(np.concatenate([np.empty(0, np.int64), *codes]))


def deal_closed(plan: ClosedPlan, n_workers: int) -> tuple[ClosedPlan, ...]:
    """One plan per worker, user u going to worker u mod `n_workers`."""
    shares = (plan.users % n_workers == worker for worker in range(n_workers))
    return tuple(
        replace(plan, users=plan.users[share], target=None if plan.target is None else plan.target[share])
        for share in shares
    )


def request_id(plan_n_users: int, user: int, index: int) -> int:
    """Id of the user's request number `index` of the whole run, from 0, phases included.

    Unique in the run, and the same for any number of workers.
    """
    return index * plan_n_users + user
