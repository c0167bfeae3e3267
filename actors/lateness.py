"""How many requests of a worker are late by now, for each limit of a promise, by phase and server.

Counted once a second in the thread that writes the spill file, from the records that it writes: the sends know nothing
of it. A request that has no record yet is late once it is overdue:

    scheduled ────── late_from ──────│ looked at from here on: no record? late, whatever its reply will say
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.analysis.storage.schema import OUTCOMES
from squall.scenarios.plan.plan import Plan
from squall.scenarios.promises import LateLimit
from squall.scenarios.records import Frozen

_OK = OUTCOMES.index("ok")


class LateCounts(Frozen, eq=False):
    """Requests known to be late, and known to be in time: (limits, phases, servers + 1) int64 each. The last server
    stands for those of which the worker had not chosen one. What is in neither is not known yet."""

    n_late: NDArray[np.int64]
    n_in_time: NDArray[np.int64]


class Lateness:
    """Takes the records of one worker as they are written, and looks at the plan for what is overdue.

    All in one thread; `counts` may be read from any.
    """

    def __init__(self, limits: Sequence[LateLimit], plan: Plan, n_targets: int) -> None:
        self._limits = tuple(limits)
        self._plan = plan
        self._start_ns = 0
        self._n_places = n_targets + 1
        shape = (len(self._limits), len(plan.spans) * self._n_places)
        self._n_late = np.zeros(shape, np.int64)
        self._n_in_time = np.zeros(shape, np.int64)
        self._has_ended = np.zeros(len(plan), np.bool_)
        self._n_looked = [0] * len(self._limits)
        self.counts = self._published()

    def begin(self, start_ns: int) -> None:
        """Before the first record: the start instant on the node's clock, on which records are."""
        self._start_ns = start_ns

    def note(self, records: NDArray[np.void]) -> None:
        """Rows as `squall.actors.load.recorder` packs them, each request's once."""
        rows = np.searchsorted(self._plan.seq, records["request_id"])
        cells = records["phase"].astype(np.int64) * self._n_places + records["target"]
        had_ended = self._has_ended[rows]
        for number, limit in enumerate(self._limits):
            is_late = _is_late(limit, records)
            was_overdue = (rows < self._n_looked[number]) & ~had_ended
            self._n_late[number] += self._by_cell(cells[is_late & ~was_overdue])
            self._n_in_time[number] += self._by_cell(cells[~is_late & ~was_overdue])
        self._has_ended[rows] = True

    def look(self, at_ns: int) -> None:
        """Every request that had ended by then, in ns of the node's clock, has been noted."""
        for number, limit in enumerate(self._limits):
            if limit.span == "response" and limit.late_from_ns is not None:
                last_ns = at_ns - self._start_ns - limit.late_from_ns
                end = int(np.searchsorted(self._plan.offset_ns, last_ns, side="right"))
                rows = slice(self._n_looked[number], max(end, self._n_looked[number]))
                self._n_looked[number] = rows.stop
                self._n_late[number] += self._by_cell(self._planned_cells(rows)[~self._has_ended[rows]])
        self.counts = self._published()

    def _planned_cells(self, rows: slice) -> NDArray[np.int64]:
        plan, n_targets = self._plan, self._n_places - 1
        target: Any = n_targets if n_targets > 1 else 0
        if plan.target is not None:
            target = plan.target[rows]
        found: NDArray[np.int64] = plan.phase[rows].astype(np.int64) * self._n_places + target
        return found

    def _by_cell(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.bincount(cells, minlength=self._n_late.shape[1])
        return found

    def _published(self) -> LateCounts:
        shape = (len(self._limits), len(self._plan.spans), self._n_places)
        return LateCounts(self._n_late.reshape(shape).copy(), self._n_in_time.reshape(shape).copy())


def _is_late(limit: LateLimit, records: NDArray[np.void]) -> NDArray[np.bool_]:
    """As `squall.analysis.compare.judged` has it of the same rows."""
    is_ok = records["outcome"] == _OK
    sent_ns, done_ns = records["sent_ns"], records["done_ns"]
    if limit.late_from_ns is None:
        return np.asarray(~is_ok)
    if limit.span == "send_lag":
        return np.asarray((sent_ns < 0) | (sent_ns - records["scheduled_ns"] >= limit.late_from_ns))
    begin_ns = records["scheduled_ns"] if limit.span == "response" else sent_ns
    return np.asarray(~is_ok | (done_ns - begin_ns >= limit.late_from_ns))
