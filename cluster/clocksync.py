"""The run clock, and each node's offset to it with a bound.

The run clock is the driver's CLOCK_MONOTONIC plus one anchor, read once at the start, that makes it UTC.
Processes that share the driver's kernel share its monotonic clock: their offset is the anchor, exactly. For
another node the offset comes from four time stamps of a probe (Cristian 1989; RFC 5905 section 8): with t1,
t4 at the driver around the call and the node's clock read once in between, offset =
(t1 + t4) / 2 - node, true within (t4 - t1) / 2; the probe with the least delay is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from analysis.timeline import ClockMap

_ANCHOR_READS = 100
_PROBES = 64


def clock_domain() -> str:
    """Names the monotonic clock that this process sees: equal on two processes exactly if they share it.

    The kernel's boot id, and the time namespace, which may shift the clock (time_namespaces(7)).
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:  # kernels before 5.6 have no time namespaces
        return boot


def utc_minus_monotonic_ns() -> int:
    """CLOCK_REALTIME - CLOCK_MONOTONIC of this node now, from the tightest of 100 bracketed reads."""
    best = None
    for _ in range(_ANCHOR_READS):
        before = time.monotonic_ns()
        utc = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, utc - (before + after) // 2)
    assert best is not None
    return best[1]


def probe(anchor_ns: int, read_node_ns: Callable[[], int]) -> ClockMap:
    """The map of a node whose clock `read_node_ns` returns, from 64 calls; raises what the call raises."""
    best: ClockMap | None = None
    for _ in range(_PROBES):
        sent = time.monotonic_ns()
        node = read_node_ns()
        received = time.monotonic_ns()
        error = (received - sent + 1) // 2
        if best is None or error < best.error_ns:
            best = ClockMap((sent + received) // 2 - node + anchor_ns, error)
    assert best is not None
    return best
