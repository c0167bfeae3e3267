"""The leases of a run's workers by the driver's clock, and the arrivals of those that are lost, dealt to the others.

worker    sends ─────────────────┤ lease ends, by its clock      ┊
driver    renew  renew  (nothing comes back)  ├ surely over ── margin ──┤ dealt anew from here on
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from squall.analysis.clocks.track import ClockTrack
from squall.analysis.tables.deployed import RedealFacts
from squall.scenarios.plan.deal import Redeal
from squall.scenarios.plan.plan import Plan, deal_again
from squall.scenarios.units import NS_PER_S

MARGIN_NS = 2 * NS_PER_S
"""Between the decision and the first arrival that is dealt anew: the takers have it, and their connections, by then."""
_NS_PER_ROW = 100
"""More of it, for each arrival that is looked at."""
_AT_ONCE_S = 0.3


def redeals_of(facts: Sequence[RedealFacts]) -> tuple[Redeal, ...]:
    """From the manifest."""
    return tuple(Redeal(one.worker, one.from_ns, one.takers) for one in facts)


def told_of_redeal(facts: RedealFacts) -> str:
    """One line for the screen and the notes."""
    takers = ", ".join(map(str, facts.takers))
    return (
        f"{facts.n_arrivals} arrivals of worker {facts.worker} due from {facts.from_ns / NS_PER_S:.3f} s on are dealt"
        f" to worker{'s' * (len(facts.takers) != 1)} {takers}"
    )


@dataclass(frozen=True)
class Dealt:
    """What a redeal gives to each taker, by number."""

    facts: RedealFacts
    parts: Mapping[int, Plan]


class Redealer:
    """`begin` once, then `until_ns` for each renewal; `redeal` what is lost, `ready` gives what is to be delivered.

    Parts are computed in a thread: of a large plan that takes seconds, in which leases must be renewed.
    """

    def __init__(
        self,
        plan: Plan,
        n_workers: int,
        lease_ns: int,
        clocks: Callable[[], Mapping[str, ClockTrack]],
        anchor_ns: int,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`clocks`: of each node to the run clock, as known now; `anchor_ns`: the run clock minus `now_ns`, which is
        the driver's monotonic clock."""
        self._plan = plan
        self._n_workers = n_workers
        self._lease_ns = lease_ns
        self._clocks = clocks
        self._anchor_ns = anchor_ns
        self._now_ns = now_ns
        self._start_ns = 0
        self._node_starts_ns: Mapping[str, int] = {}
        self._redeals: list[Redeal] = []
        self._pool = ThreadPoolExecutor(1, "squall-redeal")
        self._under_way: list[tuple[str, int, Future[dict[int, Plan]]]] = []
        self._n_given = 0

    def begin(self, start_ns: int, node_starts_ns: Mapping[str, int]) -> None:
        """`start_ns`: the start instant on the run clock; `node_starts_ns`: as each node's workers are told it."""
        self._start_ns, self._node_starts_ns = start_ns, node_starts_ns

    @property
    def offset_ns(self) -> int:
        """Now, after the start instant."""
        return self.offset_of(self._now_ns())

    def offset_of(self, monotonic_ns: int) -> int:
        """An instant of the driver's monotonic clock, after the start instant."""
        return monotonic_ns + self._anchor_ns - self._start_ns

    def until_ns(self, node: str) -> int:
        """The end of a lease that is given now, on the clock of the node; before the start as of that."""
        return self._node_starts_ns[node] + max(0, self.offset_ns) + self._lease_ns

    def surely_over_ns(self, node: str, until_ns: int) -> int | None:
        """From when on, after the start instant, a lease to `until_ns` of the node's clock is over, whatever that
        clock's error; None while it may not be."""
        if self.offset_ns < until_ns - self._node_starts_ns[node]:
            return None  # not by far: the clocks need not be looked at
        clock = self._clocks()[node]
        error_ns = int(clock.error_at(np.array([until_ns], np.int64))[0])
        over_ns = clock.target_ns(until_ns) + error_ns - self._start_ns
        return over_ns if over_ns <= self.offset_ns else None

    def redeal(self, worker: int, why: str, lost_ns: int, takers: Sequence[int]) -> bool:
        """Begins to deal what `worker` has from some instant after now on; False where nothing is due by then.

        `lost_ns`: from when on it is known to have sent nothing, after the start instant, not after now.
        """
        now_ns = max(self.offset_ns, lost_ns)
        offsets_ns = self._plan.offset_ns
        n_left = len(self._plan) - int(np.searchsorted(offsets_ns, now_ns))
        from_ns = now_ns + MARGIN_NS + n_left * _NS_PER_ROW
        if not takers or not n_left or int(offsets_ns[-1]) < from_ns:
            return False
        self._redeals.append(Redeal(worker, from_ns, tuple(takers)))
        future = self._pool.submit(deal_again, self._plan, self._n_workers, tuple(self._redeals))
        self._under_way.append((why, lost_ns, future))
        with suppress(FutureTimeout):
            future.exception(_AT_ONCE_S)
        return True

    def ready(self) -> list[Dealt]:
        """What has been computed since the last call, in order."""
        found = []
        while self._under_way and self._under_way[0][2].done():
            why, lost_ns, future = self._under_way.pop(0)
            parts, one = future.result(), self._redeals[self._n_given]
            self._n_given += 1
            facts = RedealFacts(
                worker=one.worker, why=why, lost_ns=lost_ns, from_ns=one.from_ns, takers=one.takers,
                n_arrivals=sum(map(len, parts.values())),
            )  # fmt: skip
            found.append(Dealt(facts, parts))
        return found

    def close(self) -> None:
        """What is under way is not delivered any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
