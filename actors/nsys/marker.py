"""Runs a command, and beside it a process whose calls tie an nsys report to this node's clock.

    python -I -S nsys_marker.py FILE SLEEP_NS NVTX_LIBRARY OUTPUT -- COMMAND ...

Inside a profiled tree: the mark process is spawned (fork and exec: nsys follows no plain forks), then this process
becomes the command. About 4 times a second the mark process does `a = clock; nanosleep; b = clock`, an OS-runtime
event of the report on a thread called squall-clock, and appends the line `a b pid tid` to FILE (ns of
CLOCK_MONOTONIC). SLEEP_NS is to lie above nsys's threshold for such calls. With an NVTX_LIBRARY (empty: without) it
also opens a range `squall-clock|<clock_ns>`. It dies with the command (PR_SET_PDEATHSIG, prctl(2)). What both write
goes to the end of the file OUTPUT. Stdlib only: it runs by its path.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

THREAD_NAME = "squall-clock"
PERIOD_S = 0.25
_LOOP = "--marks"
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_NS_PER_S = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _range_functions(path: str) -> tuple[Callable[[bytes], Any], Callable[[], Any]] | None:
    """nvtxRangePushA and nvtxRangePop of the library at `path`, or None."""
    if not path:
        return None
    try:
        library = ctypes.CDLL(path)
        push, pop = library.nvtxRangePushA, library.nvtxRangePop
    except (OSError, AttributeError):
        return None
    push.argtypes, pop.argtypes = (ctypes.c_char_p,), ()
    return push, pop


def mark(path: str, sleep_ns: int, nvtx_path: str, parent: int) -> None:
    """The loop of the mark process; ends when `parent` is no longer its parent."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    libc = ctypes.CDLL(None)  # not time.sleep: a symbol of libc that the profiler has replaced by its own
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, THREAD_NAME.encode(), 0, 0, 0)
    span = ctypes.byref(_Timespec(*divmod(sleep_ns, _NS_PER_S)))
    nanosleep, clock, who = libc.nanosleep, time.monotonic_ns, f"{os.getpid()} {threading.get_native_id()}\n"
    ranges = _range_functions(nvtx_path)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    while os.getppid() == parent:
        before_ns = clock()
        nanosleep(span, None)
        after_ns = clock()
        os.write(file, f"{before_ns} {after_ns} {who}".encode())
        if ranges is not None:
            ranges[0](b"squall-clock|%d" % clock())
            ranges[1]()
        time.sleep(PERIOD_S)


def main(arguments: Sequence[str]) -> int:
    """Spawns the mark process and becomes the command. Without a mark process the command runs all the same."""
    if arguments[0] == _LOOP:
        path, sleep_ns, nvtx_path, parent = arguments[1:]
        mark(path, int(sleep_ns), nvtx_path, int(parent))
        return 0
    split = arguments.index("--")
    *options, output = arguments[:split]
    command = arguments[split + 1 :]
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    own = [sys.executable, "-I", "-S", os.path.abspath(__file__), _LOOP, *options, str(os.getpid())]
    try:
        os.posix_spawn(sys.executable, own, os.environ)
    except OSError as error:
        print(f"no clock marks: {error}", file=sys.stderr, flush=True)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
