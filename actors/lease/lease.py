"""Until when a worker may send. Its driver renews that; a worker that is not heard of stops by its own clock.

    driver   renew ──── renew ──── renew ─ ✗ (link down, driver killed, worker stopped)
    worker   … sends … until ──── until ──── until │ sends nothing any more

An arrival is begun only while the lease lasts, so only one that was due before its end: who deals anew what is due
after that end has none sent twice, however late the worker comes back.
"""

from __future__ import annotations

from collections.abc import Callable

FOR_EVER_NS = 2**63 - 1
"""Of a worker that needs no lease."""


class Lease:
    """`until_ns`, an instant of the node's monotonic clock, is read before each send and moved from any other thread.

    One thread at a time moves it.
    """

    def __init__(self, until_ns: int = FOR_EVER_NS) -> None:
        self.until_ns = until_ns
        self._listeners: list[Callable[[int], None]] = []

    def tell(self, listener: Callable[[int], None]) -> None:
        """`listener` hears `until_ns` now and whenever it moves."""
        self._listeners.append(listener)
        listener(self.until_ns)

    def begin(self, until_ns: int) -> None:
        """The first stretch, before anything is sent."""
        self._move(until_ns)

    def renew(self, until_ns: int) -> None:
        """A later end; an earlier one, of a renewal that was long on its way, changes nothing."""
        if until_ns > self.until_ns:
            self._move(until_ns)

    def _move(self, until_ns: int) -> None:
        self.until_ns = until_ns
        for listener in self._listeners:
            listener(until_ns)
