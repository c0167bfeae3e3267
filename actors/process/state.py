"""How a process is scheduled, limited and placed among the kernel's victims, read from /proc: any server's, or ours."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from squall.actors.process.priority import POLICY_NAMES
from squall.scenarios.units import NS_PER_S

_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
_IOPRIO_CLASSES = ("none", "realtime", "best-effort", "idle")
_CLASS_SHIFT = 13
_LOOK_EVERY_S = 0.02
_LIMITS = {
    "Max cpu time": "cpu_s", "Max file size": "file_bytes", "Max data size": "data_bytes",
    "Max stack size": "stack_bytes", "Max resident set": "resident_bytes", "Max processes": "processes",
    "Max open files": "open_files", "Max locked memory": "locked_bytes", "Max address space": "address_bytes",
}  # fmt: skip
_NICE, _START, _RT_PRIORITY, _POLICY = 16, 19, 37, 38
"""Fields of /proc/PID/stat, counted from the state (proc(5): field 3 is 0 here)."""
_ORDINARY: dict[str, tuple[Any, ...]] = {
    "policy": ("other", None), "oom_score_adj": (0, None), "io_class": ("none", "best-effort", None),
}  # fmt: skip
"""Kernels tell the I/O class of who has none as either."""


def wait_until_gone(processes: Iterable[psutil.Process], timeout_s: float) -> None:
    """Returns when all of them have ended, or are zombies, at the latest after `timeout_s`.

    psutil.wait_procs raises FileNotFoundError where a kernel says ENOENT for the pidfd of a process that has ended
    (seen in a sandboxed container).
    """
    until = time.monotonic() + timeout_s
    left = list(processes)
    while left := [one for one in left if _is_there(one)]:
        if time.monotonic() >= until:
            return
        time.sleep(_LOOK_EVERY_S)


def _is_there(process: psutil.Process) -> bool:
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.is_running()
    except (psutil.Error, OSError):
        return False
    with contextlib.suppress(OSError):  # a child of this process
        os.waitpid(process.pid, os.WNOHANG)
    return False


def process_state(pid: int, proc: Path = Path("/proc")) -> dict[str, Any] | None:
    """Its policy, niceness, oom_score_adj, I/O class, cores, soft limits and what its cgroup allows it.

    `autogroup_niceness`: of its session among sessions, within which niceness counts (sched(7)); None: no autogroups.

    None where it is gone; a value is None where it cannot be read. Names no path: a cgroup's has names of users.
    """
    folder = proc / str(pid)
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()
        oom = (folder / "oom_score_adj").read_text()
    except OSError:
        return None
    return {
        "name": stat.partition("(")[2].rpartition(")")[0],
        "policy": POLICY_NAMES.get(int(fields[_POLICY]), fields[_POLICY]),
        "realtime_priority": int(fields[_RT_PRIORITY]),
        "niceness": int(fields[_NICE]),
        "autogroup_niceness": _autogroup(folder / "autogroup"),
        "oom_score_adj": int(oom),
        "io_class": _io_class(pid),
        "n_cores": _n_cores(pid),
        "limits": _limits(folder / "limits"),
        "cgroup": _cgroup(folder / "cgroup"),
    }


def states_of(pids: Iterable[int]) -> list[dict[str, Any]]:
    """Of several processes; those alike once, with `n_processes`."""
    found: list[dict[str, Any]] = []
    for state in filter(None, map(process_state, pids)):
        alike = next((one for one in found if {**one, "n_processes": 0} == {**state, "n_processes": 0}), None)
        if alike is not None:
            alike["n_processes"] += 1
        else:
            found.append({**state, "n_processes": 1})
    return found


def uptime_ns(pids: Iterable[int], proc: Path = Path("/proc")) -> int | None:
    """Age of the oldest of these processes; None without any that can be looked at. To a tick of the kernel, 10 ms."""
    ticks = []
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            ticks.append(int(stat.rpartition(")")[2].split()[_START]))
    if not ticks:
        return None
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - min(ticks) * NS_PER_S // os.sysconf("SC_CLK_TCK")


def what_is_unusual(states: Sequence[dict[str, Any]], niceness: int) -> list[str]:
    """How processes differ from such as nobody has touched, at that niceness: sentences without an end."""
    ordinary = {**_ORDINARY, "niceness": (niceness,), "autogroup_niceness": (niceness, None)}
    found = [
        f"{state['name']} has {name} {state[name]} (wanted: {values[0]})"
        for state in states
        for name, values in ordinary.items()
        if state[name] not in values
    ]
    return list(dict.fromkeys(found))


def listening_pids(port: int) -> list[int]:
    """The processes of this network namespace that listen on a TCP port, and their descendants.

    Empty where nobody does, or only such whose files this user may not look at.
    """
    try:
        sockets = psutil.net_connections("tcp")
    except psutil.Error:
        return []
    owners = {
        one.pid
        for one in sockets
        if one.status == psutil.CONN_LISTEN and one.pid and one.laddr[1:2] == (port,)
    }
    found = set(owners)
    for pid in owners:
        try:
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
        except psutil.Error:
            continue
    return sorted(found)


def _io_class(pid: int) -> str | None:
    number = _IOPRIO_GET.get(platform.machine())
    if number is None:
        return None
    value = ctypes.CDLL(None).syscall(number, 1, pid)
    return (
        _IOPRIO_CLASSES[value >> _CLASS_SHIFT] if 0 <= value >> _CLASS_SHIFT < len(_IOPRIO_CLASSES) else None
    )


def _autogroup(path: Path) -> int | None:
    words = _read(path).split()  # "/autogroup-7 nice 0"
    return int(words[-1]) if len(words) == 3 else None


def _n_cores(pid: int) -> int | None:
    try:
        return len(os.sched_getaffinity(pid))
    except OSError:
        return None


def _limits(path: Path) -> dict[str, int | None] | None:
    """Soft limits by name; None for one that is none, and in place of all where they cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found: dict[str, int | None] = {}
    for line in lines:
        name = next((name for name in _LIMITS if line.startswith(name)), None)
        if name is not None:
            soft = line[len(name) :].split()[0]
            found[_LIMITS[name]] = None if soft == "unlimited" else int(soft)
    return found


def _cgroup(path: Path, mount: Path = Path("/sys/fs/cgroup")) -> dict[str, Any] | None:
    """CPU quota (in CPUs), weight and memory limit of its own cgroup (v2); None where that cannot be read."""
    try:
        line = next((line for line in path.read_text().splitlines() if line.startswith("0::")), None)
    except OSError:
        return None
    if line is None:
        return None
    folder = mount / line[3:].lstrip("/")
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    weight, most = _read(folder / "cpu.weight"), _read(folder / "memory.max")
    return {
        "cpu_quota": int(quota) / int(period) if quota.isdigit() and period.isdigit() else None,
        "cpu_weight": int(weight) if weight.isdigit() else None,
        "memory_max_bytes": int(most) if most.isdigit() else None,
    }


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
