"""Becomes a command that is scheduled as one that nobody has touched, whatever its ancestors are.

    python ordinary.py NICENESS CORES COMMAND ...

SCHED_OTHER at NICENESS, oom_score_adj 0, the default I/O priority, default limits, and the kernel's usual slack of
timers; CORES (0,1,2) are those it may run on, `-` leaves them. What is measured is what people deploy: a server that
inherits niceness and the first place among the kernel's victims from Ray is neither. What the system does not allow
stays as near as it can be had; `squall.actors.process.state` says what a process has. Stdlib only: it runs by its path.
"""

import contextlib
import ctypes
import os
import platform
import resource
import sys
from collections.abc import Callable

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_PR_SET_TIMERSLACK = 29
_STACK_BYTES = 8 * 2**20
_UNLIMITED = ("CPU", "FSIZE", "DATA", "AS", "RSS")
"""What no login and no container limits."""
_NONE = ("NICE", "RTPRIO")


def become_ordinary(niceness: int, cores: set[int]) -> None:
    """All of it for this process, which has one thread; `cores` empty: as they are. Refusals are passed over."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    _renice(niceness)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("0")
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, 0)  # IOPRIO_CLASS_NONE: by niceness
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 0)
    if cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)
    for name in _UNLIMITED:
        _limit(name, lambda _, hard: hard, resource.RLIM_INFINITY)
    _limit(
        "STACK", lambda _, hard: _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
    )
    _limit("NOFILE", lambda _, hard: hard)  # as container runtimes do
    for name in _NONE:
        _limit(name, lambda _soft, _hard: 0)


def _renice(niceness: int) -> None:
    """Towards a better one the kernel takes a step or refuses it."""
    now = os.getpriority(os.PRIO_PROCESS, 0)
    for value in range(niceness, now, 1 if now > niceness else -1):
        try:
            os.setpriority(os.PRIO_PROCESS, 0, value)
        except OSError:
            continue
        return


def _limit(name: str, soft_of: Callable[[int, int], int], wanted_hard: int | None = None) -> None:
    number = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(number)
    if wanted_hard is not None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, (wanted_hard, wanted_hard))
            return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(number, (soft_of(soft, hard), hard))


def main() -> None:
    """Never returns; 127 where the command is not there, as a shell has it."""
    cores = {int(core) for core in sys.argv[2].split(",")} if sys.argv[2] != "-" else set()
    become_ordinary(int(sys.argv[1]), cores)
    try:
        os.execvp(sys.argv[3], sys.argv[3:])
    except OSError as error:
        print(f"{sys.argv[3]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
