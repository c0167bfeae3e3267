"""What is sent when: the arrivals of a plan in their order, each as a `Due`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np

from squall.actors.load.recorder import NEVER
from squall.actors.messages.packed_templates import ByKey, PackedTemplates
from squall.actors.messages.template import Template, TemplateKey
from squall.scenarios.model_shares import models_of
from squall.scenarios.plan.closed import ClosedPlan, Step, request_id
from squall.scenarios.plan.plan import Plan

NEVER_NS = 2**63 - 1
"""Later than any instant: nothing is due."""
_CHUNK_ROWS = 1_024


class Due(NamedTuple):
    """A request that is to be sent. `token` is the request's id.

    `at_ns`: when, on the node's clock; `scheduled_ns`: the same where a schedule said so, NEVER in a closed loop.
    """

    at_ns: int
    scheduled_ns: int
    token: int
    phase: int
    template: Template


class Pacing(Protocol):
    """Where the engine takes its requests from."""

    @property
    def next_ns(self) -> int:
        """When the next one is due that the engine must send, in ns of the node's clock; NEVER_NS: none."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be sent."""

    def begin(self, start_ns: int) -> None:
        """The run starts at `start_ns`."""

    def take(self) -> Due:
        """The next one; call only while `next_ns` is not NEVER_NS."""

    def n_due_by(self, at_ns: int) -> int:
        """How many were due by then."""

    def ended(self, due: Due, at_ns: int) -> None:
        """A request has ended, well or not."""

    def left_out(self, due: Due) -> None:
        """What was taken is never sent: a user sends the next one in its place."""

    def user_of(self, token: int) -> int:
        """Index of the user who sent it, 0 where there are no users."""

    def cease(self, at_ns: int) -> bool:
        """From now on nothing is due any more, if all that was due by `at_ns` has been taken; whether it has. `rest`
        has what was not."""

    def rest(self) -> Iterator[Due]:
        """All that were never taken."""


class OpenLoop:
    """The arrivals of a plan at their absolute instants, whatever the server does."""

    def __init__(self, plan: Plan, templates: Mapping[TemplateKey, Template]) -> None:
        """`templates[(target, rows, variant)]` holds the pre-encoded requests."""
        self.next_ns = NEVER_NS
        self._plan = plan
        self._templates = templates
        self._start_ns = 0
        self._n_read = 0
        self._chunk: Iterator[Due] = iter(())
        self._next: Due | None = None

    @property
    def is_over(self) -> bool:
        return self.next_ns == NEVER_NS

    def begin(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._advance()

    def take(self) -> Due:
        due = self._next
        assert due is not None
        self._next = following = next(self._chunk, None)
        if following is None:
            self._advance()
        else:
            self.next_ns = following.at_ns
        return due

    def n_due_by(self, at_ns: int) -> int:
        return int(np.searchsorted(self._plan.offset_ns, at_ns - self._start_ns, side="right"))

    def ended(self, due: Due, at_ns: int) -> None:
        del due, at_ns  # the plan does not care

    def left_out(self, due: Due) -> None:
        del due

    def user_of(self, token: int) -> int:
        del token
        return 0

    def cease(self, at_ns: int) -> bool:
        if self.next_ns <= at_ns:
            return False
        self.next_ns = NEVER_NS
        return True

    def rest(self) -> Iterator[Due]:
        while self._next is not None:
            yield self.take()

    def _advance(self) -> None:
        """The next rows of the plan as Python numbers: the whole plan at once would take 20 times its size."""
        plan, first = self._plan, self._n_read
        rows = slice(first, min(first + _CHUNK_ROWS, len(plan)))
        self._n_read = rows.stop
        at_ns = (plan.offset_ns[rows] + self._start_ns).tolist()
        targets = [0] * len(at_ns) if plan.target is None else plan.target[rows].tolist()
        keys = zip(targets, plan.rows[rows].tolist(), plan.variant[rows].tolist(), strict=True)
        self._chunk = map(
            tuple.__new__,
            repeat(Due),
            zip(
                at_ns,
                at_ns,
                plan.seq[rows].tolist(),
                plan.phase[rows].tolist(),
                [self._templates[key] for key in keys],
                strict=True,
            ),
        )
        self._next = next(self._chunk, None)
        self.next_ns = self._next.at_ns if self._next is not None else NEVER_NS


@dataclass
class _User:
    """Where a user stands: phase, what it does next there, its server for each model, how many requests it has sent in
    the run, and the last of its steps."""

    phase: int
    steps: Iterator[Step]
    targets: list[int]
    n_sent: int = 0
    step: Step | None = None


class ClosedLoop:
    """The users of a closed loop: each sends, waits for the end of its request, thinks, and sends again.

    A phase's end lets nobody finish a think time: from the next phase's start on a user does what that phase says,
    as soon as its last request has ended.
    """

    def __init__(self, plan: ClosedPlan, templates: Mapping[TemplateKey, Template]) -> None:
        """`templates[(target, rows, variant)]` holds the pre-encoded requests."""
        self.next_ns = NEVER_NS
        self._plan = plan
        self._templates = templates
        self._start_ns = 0
        self._waiting: list[tuple[int, int, Step]] = []  # heap of (when it sends, user, what)
        self._users: dict[int, _User] = {}
        self._n_taken = 0

    @property
    def is_over(self) -> bool:
        return not self._waiting

    def begin(self, start_ns: int) -> None:
        self._start_ns = start_ns
        plan = self._plan
        for index, user in enumerate(plan.users.tolist()):
            self._users[user] = _User(-1, iter(()), plan.targets[index].tolist())
            self._enter(user, 0, start_ns)
        self._look()

    def take(self) -> Due:
        at_ns, number, step = heappop(self._waiting)
        self._look()
        user = self._users[number]
        token = request_id(self._plan.n_users, number, user.n_sent)
        user.n_sent += 1
        user.step = step
        self._n_taken += 1
        models = self._plan.models
        target = user.targets[int(models_of(step.variant, models))]
        return Due(at_ns, NEVER, token, user.phase, self._templates[target, step.rows, step.variant])

    def n_due_by(self, at_ns: int) -> int:
        """Those taken, and those whose user has thought by then."""
        return self._n_taken + sum(due_ns <= at_ns for due_ns, _, _ in self._waiting)

    def ended(self, due: Due, at_ns: int) -> None:
        number = due.token % self._plan.n_users
        user = self._users[number]
        step = next(user.steps)
        send_ns = at_ns + step.think_ns
        if send_ns < self._start_ns + self._plan.spans[user.phase].end_ns:
            heappush(self._waiting, (send_ns, number, step))
        else:
            self._enter(number, user.phase + 1, at_ns)
        self._look()

    def left_out(self, due: Due) -> None:
        number = due.token % self._plan.n_users
        step = self._users[number].step
        assert step is not None
        heappush(self._waiting, (due.at_ns, number, step))
        self._look()

    def user_of(self, token: int) -> int:
        return int(np.searchsorted(self._plan.users, token % self._plan.n_users))

    def cease(self, at_ns: int) -> bool:
        """Not of users: how many requests they would have sent is not known."""
        del at_ns
        return False

    def rest(self) -> Iterator[Due]:
        """None: what a user would have sent is no arrival."""
        self._waiting.clear()
        self._look()
        return iter(())

    def _enter(self, number: int, first_phase: int, free_ns: int) -> None:
        """Begins in the first phase from `first_phase` on that has the user, once it is free; else it is done."""
        begin, user = begin_of(self._plan, number, first_phase, self._start_ns, free_ns), self._users[number]
        if begin is not None:
            user.phase, send_ns = begin
            user.steps = self._plan.steps(number, user.phase)
            heappush(self._waiting, (send_ns, number, next(user.steps)))

    def _look(self) -> None:
        self.next_ns = self._waiting[0][0] if self._waiting else NEVER_NS


def plain_pacing(
    plan: Plan | ClosedPlan, templates: Mapping[TemplateKey, Template] | PackedTemplates
) -> Pacing:
    """The pacing of a plan, without a lane."""
    templates = ByKey(templates) if isinstance(templates, PackedTemplates) else templates
    return ClosedLoop(plan, templates) if isinstance(plan, ClosedPlan) else OpenLoop(plan, templates)


def begin_of(
    plan: ClosedPlan, number: int, first_phase: int, start_ns: int, free_ns: int
) -> tuple[int, int] | None:
    """(phase, when) of the first from `first_phase` on in which a user that is free at `free_ns` can send."""
    for phase in range(first_phase, len(plan.spans)):
        offset_ns = plan.first_at_ns(number, phase)
        if offset_ns is None:
            continue
        send_ns = max(start_ns + offset_ns, free_ns)
        if send_ns < start_ns + plan.spans[phase].end_ns:
            return phase, send_ns
    return None
