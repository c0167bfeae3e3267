"""A load that fails entirely: for how long, and in which words, from what the workers count each second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from squall.actors.client_worker import Progress
from squall.cluster.progress import most_frequent
from squall.scenarios.foreign_text import printable
from squall.scenarios.units import NS_PER_S

TOLD_AFTER_NS = 3 * NS_PER_S
"""A server that is started again may refuse for as long."""


@dataclass(frozen=True)
class Failing:
    """Every request that ended in the last `for_ns` failed. `is_new`: it is to be told now."""

    for_ns: int
    n_failed: int
    why: str
    is_new: bool

    @property
    def told(self) -> str:
        """For people."""
        return (
            f"every request that ended in the last {self.for_ns / NS_PER_S:.0f} s failed ({self.n_failed:,}), most"
            f" with: {printable(self.why)}"
        )


class FailingWatch:
    """`look` once a second."""

    def __init__(self) -> None:
        self._n_ok = self._n_failed = 0
        self._last_ns = 0
        self._since_ns: int | None = None
        self._n_before = 0
        self._is_told = False

    def look(self, workers: Sequence[Progress], at_ns: int) -> Failing | None:
        """None while something ends well, or nothing ends; `at_ns` from the start instant."""
        n_failed = sum(one.n_failed for one in workers)
        n_ok = sum(one.n_done for one in workers) - n_failed
        has_ok, has_failed = n_ok > self._n_ok, n_failed > self._n_failed
        last_ns, self._last_ns = self._last_ns, at_ns
        n_before, self._n_ok, self._n_failed = self._n_failed, n_ok, n_failed
        if has_ok:
            self._since_ns, self._is_told = None, False
            return None
        if self._since_ns is None:
            if not has_failed:
                return None
            self._since_ns, self._n_before = max(0, last_ns), n_before
        for_ns = at_ns - self._since_ns
        is_new = for_ns >= TOLD_AFTER_NS and not self._is_told
        self._is_told = self._is_told or is_new
        return Failing(for_ns, n_failed - self._n_before, most_frequent(workers) or "no detail", is_new)
