"""What the kernel's scheduler gave this thread: time on a CPU, time in wait for one, and how often it was put aside."""

from __future__ import annotations

import time
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_STATUS = Path("/proc/thread-self/status")
_SWITCHES = "nonvoluntary_ctxt_switches:"


def host_share() -> dict[str, int]:
    """Counters of the calling thread: `wall_ns`, `cpu_ns`, `queued_ns` (runnable, without a CPU), `n_put_aside`.

    /proc/PID/schedstat: Documentation/scheduler/sched-stats.rst of the kernel. What it does not tell is left out.
    """
    found = {"wall_ns": time.monotonic_ns()}
    try:
        cpu_ns, queued_ns, _ = map(int, _SCHEDSTAT.read_text(encoding="ascii").split())
        found |= {"cpu_ns": cpu_ns, "queued_ns": queued_ns}
    except (OSError, ValueError):
        pass
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    told = [line for line in lines if line.startswith(_SWITCHES)]
    if told:
        found["n_put_aside"] = int(told[0].split()[1])
    return found


def since(before: dict[str, int]) -> dict[str, int]:
    """What the counters counted since `before`."""
    now = host_share()
    return {name: now[name] - then for name, then in before.items() if name in now}
