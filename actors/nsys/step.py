"""One call of an nsys program, held to its deadline: what it printed, how long it took and what CPU time it used."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import psutil

from squall.scenarios.errors import ClusterError
from squall.scenarios.records import Frozen

_NICENESS = 10
"""Of imports and exports, which compute for seconds; the daemon that records is of the server's family."""
_FOLDERS = re.compile(r"(?<![:/\w.])/(?:[^\s/:'\"]+/)+")


class Step(Frozen):
    """A call that ended well. `cpu_s` is of the program itself and the children that it waited for."""

    text: str
    seconds: float
    cpu_s: float


def run_step(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Step:
    """Runs `command` in a session of its own; when the time is over, kills its process group.

    Raises ClusterError, with the program's own last line, where it cannot run, fails or is not done in time.
    """
    name = f"{Path(command[0]).name} {command[1]}"
    begun = time.monotonic()
    with tempfile.TemporaryFile() as output:  # no pipe: a daemon that the program leaves would hold it open
        try:
            process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise ClusterError(f"{name} cannot run: {error.strerror}") from error
        if command[1:2] != ["start"]:  # what follows the load must not take the cores of a phase that goes on
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        is_late = not _ended(process.pid, timeout_s)
        if is_late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace").replace("\r", "\n")
    if is_late:
        raise ClusterError(f"{name} did not end within {timeout_s:g} s and was killed")
    if process.returncode:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        raise ClusterError(f"{name} failed: {without_folders(lines[-1]) if lines else how}")
    return Step(text, time.monotonic() - begun, used.ru_utime + used.ru_stime)


def without_folders(text: str) -> str:
    """`text` with paths cut to their last part: what a node says goes into the manifest, its folders do not."""
    return _FOLDERS.sub("", text)


def _ended(pid: int, timeout_s: float) -> bool:
    try:
        watch = os.pidfd_open(pid)
    except OSError:  # some kernels know none of a process that has ended
        return True
    try:
        return bool(select.select([watch], [], [], timeout_s)[0])
    finally:
        os.close(watch)


class SessionState(Frozen):
    """A row of `nsys sessions list`. `n_launched`: programs that run in the session."""

    name: str
    state: str
    n_launched: int


def sessions_in(text: str) -> tuple[SessionState, ...]:
    """The rows of `nsys sessions list`: columns ID, TIME, STATE, LAUNCH, NAME.

    Of a row in another form only the last word is believed, as the name of a session in which something runs.
    """
    found = []
    for line in text.splitlines():
        words = line.split(maxsplit=4)
        if len(words) == 5 and words[0].isdecimal() and words[3].isdecimal():
            found.append(SessionState(words[4].strip(), words[2], int(words[3])))
        elif words and words[0] != "ID":
            found.append(SessionState(line.split()[-1], "", 1))
    return tuple(found)


class SessionProcesses:
    """The processes of nsys that belong to the session `name`: its agent, and what launched the server."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._agents: list[psutil.Process] = []
        self._launchers: list[psutil.Process] = []

    def cpu_s(self) -> float:
        """CPU time that they have used so far, the agent's importer included; 0 where none can be told.

        What nsys does inside the server's own processes is not in it.
        """
        if not self._agents:
            self._find()
        agents = (_cpu_s(process, with_children=True) for process in self._agents)
        return sum(agents) + sum(_cpu_s(process, with_children=False) for process in self._launchers)

    def agent_pids(self) -> list[int]:
        """Of the agents that run now."""
        self._find()
        return [process.pid for process in self._agents]

    def have_ended(self) -> bool:
        """True where an agent was seen before and none runs any more."""
        had_agents = bool(self._agents)
        return had_agents and not self.agent_pids()

    def kill(self) -> None:
        """Kills the agents: of a session that is ours and does not shut down. Removes what they leave in /dev/shm."""
        known = {process.pid: process for process in self._agents}
        self._find()
        known |= {process.pid: process for process in self._agents}
        for process in known.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for pid in known:
            Path(f"/dev/shm/quadd-agent-instance-{pid}").unlink(missing_ok=True)

    def _find(self) -> None:
        self._agents, self._launchers = [], []
        for process, words in _command_lines():
            if _names(words, "--session-name", self._name):
                self._agents.append(process)
            elif _names(words, "--session-new", self._name) and Path(words[0]).name == "nsys":
                self._launchers.append(process)
                with contextlib.suppress(psutil.Error):
                    children = process.children(recursive=True)
                    self._launchers += [child for child in children if child.name().startswith("nsys-")]


def _names(words: Sequence[str], option: str, name: str) -> bool:
    """Whether a command line gives the option that value: in one word as nsys 2022.4 does, or in two as 2025.3."""
    return f"{option}={name}" in words or (option, name) in pairwise(words)


def _command_lines() -> Iterable[tuple[psutil.Process, list[str]]]:
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words:
            yield process, words


def _cpu_s(process: psutil.Process, with_children: bool) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    children = times.children_user + times.children_system if with_children else 0.0
    return float(times.user + times.system + children)
