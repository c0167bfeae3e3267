"""Notices that the Python process of a model died while Triton loads it: Triton waits, and says nothing of it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping

import psutil

from squall.scenarios.records import Frozen

_STUB = "triton_python_b"
"""Names of processes have 15 characters at most."""
_UNREAPED_S = 1.0
"""So long a dead one stays unless Triton deals with it; one that has served its turn is gone at once."""
_ABSENT_S = 5.0
"""Between two of one model, one that completes its configuration and one that serves, there is less than that."""


class Stub(Frozen):
    """One such process; `status` is its wait status once it is dead and nobody has asked for it, else None."""

    pid: int
    status: int | None


def stubs_below(pid: int) -> list[Stub]:
    """Those among the descendants of `pid`."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if child.name().startswith(_STUB):
                    found.append(Stub(child.pid, _wait_status(child.pid)))
    return found


def _wait_status(pid: int) -> int | None:
    """Of a zombie (proc_pid_stat(5), field 52)."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        words = file.read().rpartition(")")[2].split()
    return int(words[49]) if words[0] == "Z" else None


class StubWatch:
    """`look` again and again while a server starts. `is_expected`: that the model has such a process, and only it."""

    def __init__(self, is_expected: bool) -> None:
        self._is_expected = is_expected
        self._dead_s: dict[int, float] = {}
        self._absent_s: float | None = None

    def look(self, stubs: list[Stub], now_s: float) -> str | None:
        """How one ended, in a few words; None while all is well. `now_s` is of any monotonic clock."""
        badly = {stub.pid: stub.status for stub in stubs if stub.status}
        self._dead_s = {pid: self._dead_s.get(pid, now_s) for pid in badly}
        for pid, since_s in self._dead_s.items():
            if now_s - since_s >= _UNREAPED_S:
                return _words(badly, pid)
        if stubs:
            self._absent_s = now_s
        if self._is_expected and self._absent_s is not None and now_s - self._absent_s >= _ABSENT_S:
            return "has ended and no other came"
        return None


def _words(status: Mapping[int, int | None], pid: int) -> str:
    found = status[pid]
    assert found is not None
    if os.WIFSIGNALED(found):
        name = signal.Signals(os.WTERMSIG(found)).name
        return f"was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
    return f"ended with exit code {os.waitstatus_to_exitcode(found)}"
