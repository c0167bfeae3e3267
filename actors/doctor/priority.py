"""Checks of how a node's workers are scheduled, and of what Ray does to processes there by itself."""

from __future__ import annotations

from squall.actors.doctor.checkup import Finding, Host
from squall.actors.process.priority import MEND
from squall.scenarios.records import RayPriority, SenderScheduling

_WATCHDOG_OFF = "0"
_LEAST_PATIENCE_S = 60.0
_RAY = "before `ray start` on each node"


def sending(got: SenderScheduling) -> Finding:
    """What a worker's sending thread gets here with `clients.priority: auto`."""
    if got.policy == "fifo":
        return Finding("sending", "ok", f"in real time (SCHED_FIFO {got.realtime_priority})")
    what = f"at niceness {got.niceness}, not in real time: {got.why_less}; other work delays sends"
    return Finding("sending", "limited", what, MEND)


def ray_niceness(settled: RayPriority) -> Finding:
    """What Ray gives its processes, and whether they could undo it."""
    given, left = settled.niceness_given, settled.niceness
    if given <= 0:
        return Finding("Ray niceness", "ok", f"{given}")
    if left <= 0:
        return Finding("Ray niceness", "ok", f"{given}; squall's processes set {left} themselves")
    what = f"{left}: workers and observers come after all else here, and may not change it"
    return Finding(
        "Ray niceness", "limited", what, f"RAY_worker_niceness=0 {_RAY}, or CAP_SYS_NICE for its user"
    )


def ray_memory_monitor(host: Host) -> Finding:
    """Whether Ray kills workers when the host's memory is short; its processes pass on its environment."""
    topic = "Ray memory monitor"
    if host.environ("RAY_memory_monitor_refresh_ms") == _WATCHDOG_OFF:
        return Finding(topic, "ok", "off")
    ratio = float(host.environ("RAY_memory_usage_threshold") or 0.95)
    if ratio >= 1:
        return Finding(topic, "ok", "kills at no use of memory")
    what = f"kills its workers where {ratio:.0%} of the host's memory are used, by whomever"
    return Finding(topic, "limited", what, f"RAY_memory_monitor_refresh_ms=0 {_RAY}")


def watchdogs(host: Host) -> list[str]:
    """What Ray may do to its own processes, which a run needs until its own are started; empty where nothing soon."""
    found = ray_memory_monitor(host), ray_health_checks(host)
    return [f"{one.topic.removeprefix('Ray ')}: {one.what}" for one in found if one.status != "ok"]


def ray_health_checks(host: Host) -> Finding:
    """How long a node may be silent before Ray takes it for dead; the head's environment counts."""

    def value(name: str, default: str) -> float:
        return float(host.environ(f"RAY_health_check_{name}") or default)

    n, period_s, timeout_s = (
        value("failure_threshold", "5"), value("period_ms", "3000") / 1e3, value("timeout_ms", "10000") / 1e3
    )  # fmt: skip
    patience_s = n * max(period_s, timeout_s)
    what = f"a node that is silent for {n * period_s:g} to {patience_s:g} s counts as dead"
    if patience_s >= _LEAST_PATIENCE_S:
        return Finding("Ray health checks", "ok", what)
    mend = f"RAY_health_check_failure_threshold=20 RAY_health_check_timeout_ms=60000 {_RAY}"
    return Finding("Ray health checks", "limited", what, mend)
