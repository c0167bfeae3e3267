"""When the next piece of a file may be asked for: never in a measured phase unless told so, never above a bandwidth."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from squall.scenarios.config.records import RecordsConfig
from squall.scenarios.units import NS_PER_S

MARGIN_NS = NS_PER_S
"""Before a measured phase nothing is begun: a piece on a slow link needs its time. Nor after it: replies still come."""
PIECE_BYTES = 2**20
"""While the load runs: 0.84 s at 10 Mbit/s."""
_LEAST_PIECE_BYTES = 2**12
_PIECES_A_SECOND = 4


class Span(NamedTuple):
    """A measured phase, [start, end) on the driver's monotonic clock."""

    start_ns: int
    end_ns: int


class Pace:
    """One for all nodes; may be asked from several threads."""

    def __init__(self, config: RecordsConfig, measured: Sequence[Span]) -> None:
        self._config = config
        self._measured = [Span(one.start_ns - MARGIN_NS, one.end_ns + MARGIN_NS) for one in sorted(measured)]
        self._free_ns = 0
        self._lock = threading.Lock()

    def wait_ns(self, now_ns: int, n_bytes: int) -> int:
        """0: a piece of `n_bytes` may be asked for now, and is counted. Else after how long to ask here again."""
        with self._lock:
            bandwidth = self._config.bandwidth
            span = self._span_at(now_ns)
            if span is not None:
                if not self._config.bandwidth_measured:
                    return span.end_ns - now_ns
                bandwidth = self._config.bandwidth_measured
            if bandwidth is None:
                return 0
            if now_ns < self._free_ns:
                left_ns = self._free_ns - now_ns
                return min(left_ns, span.end_ns - now_ns) if span is not None else left_ns
            self._free_ns = now_ns + n_bytes * NS_PER_S // bandwidth
            return 0

    def piece_bytes(self, now_ns: int, most_bytes: int = PIECE_BYTES) -> int:
        """How long a piece is to be: a quarter of a second at the bandwidth that holds now."""
        known = self._config.bandwidth
        if self._span_at(now_ns) is not None:
            known = self._config.bandwidth_measured or known
        if known is None:
            return most_bytes
        return min(most_bytes, max(_LEAST_PIECE_BYTES, known // _PIECES_A_SECOND))

    def _span_at(self, now_ns: int) -> Span | None:
        """The measured phase that lasts, with its margins."""
        for span in self._measured:
            if span.start_ns <= now_ns < span.end_ns:
                return span
        return None
