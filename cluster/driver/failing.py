"""A load that fails entirely: for how long, and in which words, from what the workers count each second."""

from __future__ import annotations

from collections.abc import Sequence

from squall.actors.client_worker import Progress
from squall.cluster.progress import most_frequent
from squall.scenarios.foreign_text import printable
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

TOLD_AFTER_NS = 3 * NS_PER_S
"""A server that is started again may refuse for as long."""
_LEAST_LOOKS = 3  # one or two failures and silence are no load that fails


class Failing(Frozen):
    """Every request that ended in the `for_ns` up to the last failure failed. `is_new`: it is to be told now."""

    for_ns: int
    n_failed: int
    why: str
    is_new: bool

    @property
    def told(self) -> str:
        """For people."""
        return (
            f"every request that ended in {self.for_ns / NS_PER_S:.0f} s failed ({self.n_failed:,}), most"
            f" with: {printable(self.why)}"
        )


class FailingWatch:
    """`look` once a second. `sends_until_ns`: when the load ends, from the start instant; what ends afterwards
    says nothing of a load."""

    def __init__(self, sends_until_ns: int) -> None:
        self._sends_until_ns = sends_until_ns
        self._n_ok = self._n_failed = 0
        self._last_ns = 0
        self._since_ns: int | None = None
        self._until_ns = 0
        self._n_before = self._n_looks = 0
        self._is_told = False

    def look(self, workers: Sequence[Progress], at_ns: int) -> Failing | None:
        """None while something ends well, nothing ends, or fewer than three looks saw failures; `at_ns` from the start
        instant. Silence after a failure counts for nothing."""
        if at_ns > self._sends_until_ns:
            return None
        n_failed = sum(one.n_failed for one in workers)
        n_ok = sum(one.n_done for one in workers) - n_failed
        has_ok, has_failed = n_ok > self._n_ok, n_failed > self._n_failed
        last_ns, self._last_ns = self._last_ns, at_ns
        n_before, self._n_ok, self._n_failed = self._n_failed, n_ok, n_failed
        if has_ok:
            self._since_ns, self._n_looks, self._is_told = None, 0, False
            return None
        if has_failed:
            if self._since_ns is None:
                self._since_ns, self._n_before = max(0, last_ns), n_before
            self._until_ns = at_ns
            self._n_looks += 1
        if self._since_ns is None or self._n_looks < _LEAST_LOOKS:
            return None
        for_ns = self._until_ns - self._since_ns
        is_new = for_ns >= TOLD_AFTER_NS and not self._is_told
        self._is_told = self._is_told or is_new
        return Failing(for_ns, n_failed - self._n_before, most_frequent(workers) or "no detail", is_new)
