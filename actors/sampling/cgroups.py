"""CPU quotas of a process: which of its control groups have one, and how much of the time they were held back by it.

A quota may stand at any level of the path from a process's group up to the mount, and in either version: v2 has cpu.max
and cpu.stat (`throttled_usec`), v1 cpu.cfs_quota_us and cpu.stat (`throttled_time`, in ns).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from squall.actors.process.proc_files import read_once
from squall.scenarios.records import Frozen

_NS_PER_US = 1_000


class Quota(Frozen):
    """The quota of a group: `cores` that it may use on average, `folder` the group's, `is_v2` how it tells of it."""

    folder: str
    cores: float
    is_v2: bool


def groups_of(pid: int, proc: str = "/proc") -> list[tuple[str, bool]]:
    """Folders of the process's groups that can have a CPU quota, innermost first, each with whether it is v2's.

    Empty where no cpu controller is mounted, or the process has ended. In a container whose cgroup file system is
    its own the path in /proc is relative to that; otherwise to the host's, and the mount's root is taken off it.
    """
    mounts = _mounts(proc)
    found = []
    for line in (read_once(f"{proc}/{pid}/cgroup") or b"").decode(errors="replace").splitlines():
        _, controllers, path = line.split(":", 2)
        is_v2 = not controllers
        mount = mounts.get("v2" if is_v2 else "v1" if "cpu" in controllers.split(",") else "")
        if mount is not None:
            found += [(folder, is_v2) for folder in _upwards(*mount, path)]
    return found


def _mounts(proc: str) -> dict[str, tuple[str, str]]:
    """Mount point and root of the cgroup file systems that have the CPU's controller, by version."""
    found: dict[str, tuple[str, str]] = {}
    text = b""
    try:
        with open(f"{proc}/self/mountinfo", "rb") as file:  # can be longer than one read of a small file
            text = file.read()
    except OSError:
        return found
    for line in text.decode(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.split()
        if kind[:1] == ["cgroup2"]:
            found["v2"] = (words[4], words[3])
        elif kind[:1] == ["cgroup"] and "cpu" in kind[-1].split(","):
            found["v1"] = (words[4], words[3])
    return found


def _upwards(mount: str, root: str, path: str) -> Iterator[str]:
    inside = PurePosixPath(path)
    if root != "/" and inside.is_relative_to(root):
        inside = "/" / inside.relative_to(root)
    if ".." in inside.parts:  # a group outside of what this namespace shows
        return
    while True:
        yield mount if inside == PurePosixPath("/") else f"{mount}{inside}"
        if inside.parent == inside:
            return
        inside = inside.parent


def tightest_quota(pid: int, proc: str = "/proc") -> Quota | None:
    """The least quota of the process's groups; None where there is none."""
    quotas = [
        Quota(folder, cores, is_v2)
        for folder, is_v2 in groups_of(pid, proc)
        if (cores := _cores(folder, is_v2)) is not None
    ]
    return min(quotas, key=lambda one: one.cores, default=None)


def _cores(folder: str, is_v2: bool) -> float | None:
    if is_v2:
        words = (read_once(f"{folder}/cpu.max") or b"").split()
    else:
        words = [*(read_once(f"{folder}/cpu.cfs_{name}_us") or b"" for name in ("quota", "period"))]
    try:
        quota_us, period_us = (int(word) for word in words)
    except ValueError:  # max, or no such file
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def throttling(quota: Quota) -> tuple[int, int, int] | None:
    """Of the group since it was made: periods with something to run, those held back, and for how long, ns; None where
    it is gone."""
    found = {
        name: int(count)
        for name, count in (
            line.split() for line in (read_once(f"{quota.folder}/cpu.stat") or b"").splitlines()
        )
    }
    if b"nr_throttled" not in found:
        return None
    held_ns = found.get(b"throttled_usec", 0) * _NS_PER_US if quota.is_v2 else found.get(b"throttled_time", 0)
    return found.get(b"nr_periods", 0), found[b"nr_throttled"], held_ns


def pressure_file(pid: int, proc: str = "/proc") -> str | None:
    """Path of the CPU pressure of the process's own v2 group; None where that is the root's, or there is none."""
    folders = [folder for folder, is_v2 in groups_of(pid, proc) if is_v2]
    return f"{folders[0]}/cpu.pressure" if len(folders) > 1 else None
