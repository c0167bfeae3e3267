"""The processes of one run, found from its driver down, with the part that each plays."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

ROLES = {
    "raylet": "/raylet/raylet ",
    "gcs_server": "/gcs/gcs_server ",
    "dashboard agent": "/dashboard/agent.py",
    "runtime env agent": "/runtime_env/agent/main.py",
    "worker": "LoadWorker",
    "agent": "NodeAgent",
    "observer": "served Observer",
    "forker": "squall.cluster.remote.forker",
    "supervisor": "/supervisor.py ",
    "tritonserver": "/tritonserver --",
    "stub": "triton_python_backend_stub ",
}
"""What the command line of each has, and no other's."""
_AGENTS = {"ray::DashboardAgent": "dashboard agent", "ray::RuntimeEnvAgent": "runtime env agent"}


@dataclass(frozen=True, order=True)
class Process:
    """A process, so that its pid cannot mean another later: `started` is in clock ticks after boot."""

    started: int
    pid: int

    def is_alive(self) -> bool:
        """Not for a zombie."""
        found = _stat(self.pid)
        return found is not None and found[2] == self.started and found[0] != "Z"


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start of a process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], int(words[1]), int(words[19])


def command_of(pid: int) -> str:
    """Its command line, words parted by a space; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def mount_space(pid: int) -> str:
    """Name of its mount namespace; empty if it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def role_of(command: str) -> str | None:
    """Which part of a run has that command line; None for any other."""
    for title, role in _AGENTS.items():
        if command.startswith(title):
            return role
    return next((role for role, words in ROLES.items() if words in command), None)


@dataclass
class Tree:
    """What descends from `driver`, with all that was ever seen there and, where it has one, in its mount namespace.

    `keeper`: pid of the process that keeps the namespace, and is none of the run's.
    """

    driver: Process
    space: str = ""
    temporary: str = ""
    keeper: int = -1
    seen: set[Process] = field(default_factory=set)

    def refresh(self) -> None:
        """Looks at /proc once."""
        stats = {
            int(name): found for name in os.listdir("/proc") if name.isdigit() and (found := _stat(int(name)))
        }
        known = {
            one.pid for one in (*self.seen, self.driver) if stats.get(one.pid, ("", 0, -1))[2] == one.started
        }
        for pid, (state, _, started) in stats.items():
            if state == "Z" or pid in (os.getpid(), self.keeper) or pid in known:
                continue
            above, path = pid, []
            while above in stats and above not in known:
                path.append(above)
                above = stats[above][1]
            if above in known:
                known.update(path)
            elif not self._is_ours(pid):
                continue
            self.seen.add(Process(started, pid))

    def _is_ours(self, pid: int) -> bool:
        """Of a process that came away from its parent."""
        if self.space:
            return mount_space(pid) == self.space
        if not self.temporary:
            return False
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            return False
        folder = next((one[7:].decode() for one in variables if one.startswith(b"TMPDIR=")), "")
        return f"{folder}/".startswith(f"{self.temporary}/")

    def alive(self) -> list[Process]:
        """Those but the driver that live, oldest first."""
        return sorted(one for one in self.seen if one != self.driver and one.is_alive())

    def having(self, role: str) -> list[Process]:
        """Those that play `role` now, oldest first. The supervisor is the inner of its two processes."""
        if role == "driver":
            return [self.driver] if self.driver.is_alive() else []
        found = [one for one in self.alive() if role_of(command_of(one.pid)) == role]
        if role == "supervisor":
            pids = {one.pid for one in found}
            found = [one for one in found if (stat := _stat(one.pid)) and stat[1] in pids]
        return found

    def describe(self, process: Process) -> str:
        """Pid and part, or the beginning of its command line."""
        command = command_of(process.pid)
        return f"{role_of(command) or command[:60].strip() or '?'}"

    def kill(self) -> None:
        """Ends all that still lives, by pid."""
        import signal

        self.refresh()
        for one in (*self.alive(), self.driver):
            if one.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)


def process_of(pid: int) -> Process:
    """The one that has `pid` now. Raises ProcessLookupError."""
    found = _stat(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return Process(found[2], pid)
