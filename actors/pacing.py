"""What is sent when: the arrivals of a plan in their order, each as a `Due`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np

from actors.client import Template
from scenarios.plan import Plan

NEVER_NS = 2**63 - 1
"""Later than any instant: nothing is due."""
_CHUNK_ROWS = 1_024


class Due(NamedTuple):
    """A request that is to be sent. `scheduled_ns` on the node's clock; `token` is the request's id."""

    scheduled_ns: int
    token: int
    phase: int
    template: Template


class Pacing(Protocol):
    """Where the engine takes its requests from."""

    next_ns: int
    """When the next one is due, in ns of the node's clock; NEVER_NS when none is left."""

    def begin(self, start_ns: int) -> None:
        """The run starts at `start_ns`."""

    def take(self) -> Due:
        """The next one; call only while `next_ns` is not NEVER_NS."""

    def n_due_by(self, at_ns: int) -> int:
        """How many were due by then."""

    def rest(self) -> Iterator[Due]:
        """All that were never taken."""


class OpenLoop:
    """The arrivals of a plan at their absolute instants, whatever the server does."""

    def __init__(self, plan: Plan, templates: Mapping[tuple[int, int], Template]) -> None:
        """`templates[(rows, variant)]` holds the pre-encoded requests."""
        self.next_ns = NEVER_NS
        self._plan = plan
        self._templates = templates
        self._start_ns = 0
        self._n_read = 0
        self._chunk: Iterator[Due] = iter(())
        self._next: Due | None = None

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
            self.next_ns = following.scheduled_ns
        return due

    def n_due_by(self, at_ns: int) -> int:
        return int(np.searchsorted(self._plan.offset_ns, at_ns - self._start_ns, side="right"))

    def rest(self) -> Iterator[Due]:
        while self._next is not None:
            yield self.take()

    def _advance(self) -> None:
        """The next rows of the plan as Python numbers: the whole plan at once would take 20 times its size."""
        plan, first = self._plan, self._n_read
        rows = slice(first, min(first + _CHUNK_ROWS, len(plan)))
        self._n_read = rows.stop
        kinds = zip(plan.rows[rows].tolist(), plan.variant[rows].tolist(), strict=True)
        self._chunk = map(
            tuple.__new__,
            repeat(Due),
            zip(
                (plan.offset_ns[rows] + self._start_ns).tolist(),
                plan.seq[rows].tolist(),
                plan.phase[rows].tolist(),
                [self._templates[kind] for kind in kinds],
                strict=True,
            ),
        )
        self._next = next(self._chunk, None)
        self.next_ns = self._next.scheduled_ns if self._next is not None else NEVER_NS
