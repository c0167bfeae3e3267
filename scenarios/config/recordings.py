"""The pause that nsys needs between two measured phases: it records one at a time, and a recording takes time to end.

phase one ──────┤ noticed │ stop, with the import of the report │ noticed │ start ├────── phase two
                └─────────────────────── the pause ───────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable

from squall.scenarios.units import NS_PER_S, format_duration

LEAST_PAUSE_NS = 5 * NS_PER_S
"""Without a GPU: 1.5 to 3.0 s of stop for 5, 10 and 20 s of recording at 100 requests/s, 0.2 to 0.3 s of start (nsys
2022.4.2, 2 busy cores, 2026-11-22), and the driver looks once a second."""
_GPU_BASE_NS = 3 * NS_PER_S
_GPU_NUM, _GPU_DEN = 3, 2
"""On a GPU the import grows with what was recorded: 9.0 and 11.1 s of stop for 6 s (docs/results.md)."""


def needed_pause_ns(recorded_ns: int, may_use_gpu: bool) -> int:
    """Between the end of a measured phase of `recorded_ns` and the next one's start, for nsys to record both whole."""
    if not may_use_gpu:
        return LEAST_PAUSE_NS
    return max(LEAST_PAUSE_NS, _GPU_BASE_NS + recorded_ns * _GPU_NUM // _GPU_DEN)


def too_close(phases: Iterable[tuple[str, str, int]], may_use_gpu: bool) -> str:
    """Which two measured phases of (name, kind, duration in ns), end to end, nsys cannot both record; and the mend.

    Empty if it can.
    """
    before, pause_ns = None, 0
    for name, kind, duration_ns in phases:
        if kind != "measure":
            pause_ns += duration_ns
            continue
        if before is not None:
            needed_ns = needed_pause_ns(before[1], may_use_gpu)
            if pause_ns < needed_ns:
                found = f"only {format_duration(pause_ns)} lie" if pause_ns else "no pause lies"
                return (
                    f"nsys would miss the beginning of phase {name!r} or all of it: {found} between it and"
                    f" {before[0]!r}, whose recording takes up to {format_duration(needed_ns)} to end; put a warmup"
                    f" phase of {format_duration(needed_ns)} in all between the two, or set profile.nsys=off"
                )
        before, pause_ns = (name, duration_ns), 0
    return ""
