"""The monotonic clock of a node, and a timer that wakes an event loop at an instant of it."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import struct
import time
from pathlib import Path
from typing import Protocol

from squall.scenarios.units import NS_PER_S

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = 0o4000
_TFD_CLOEXEC = 0o2000000
_TFD_TIMER_ABSTIME = 1


class Clock(Protocol):
    """Where time comes from: the real node or a test."""

    def monotonic_ns(self) -> int:
        """ns of the node's monotonic clock; only differences and comparisons on one node have a meaning."""
        ...


class SystemClock:
    """CLOCK_MONOTONIC of this node, shared by all its processes."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


_ITIMERSPEC = struct.Struct("llll")
"""struct itimerspec: seconds and ns of the interval, then of the instant."""


class Alarm:
    """A timerfd: readable from an absolute instant on. Register `fd` with the event loop.

    An event loop's own timers are rounded to whole milliseconds (libuv) or to epoll's; a timerfd fires on the
    kernel's high-resolution timer. Not thread-safe. Linux only; `os.timerfd_create` exists from Python 3.13.
    """

    def __init__(self) -> None:
        libc = ctypes.PyDLL(
            ctypes.util.find_library("c")
        )  # without errno and GIL to hand over: a third of the cost
        self._spec = ctypes.create_string_buffer(_ITIMERSPEC.size)
        self._at = ctypes.c_void_p(ctypes.addressof(self._spec))
        self._settime = libc.timerfd_settime
        self.fd = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self.fd < 0:
            raise OSError("the system gives no timer: too many open files?")

    def arm(self, at_ns: int) -> None:
        """Become readable at `at_ns`, at once if that is past; replaces what was armed before."""
        _ITIMERSPEC.pack_into(self._spec, 0, 0, 0, *divmod(max(at_ns, 1), NS_PER_S))
        if self._settime(self.fd, _TFD_TIMER_ABSTIME, self._at, None):
            raise OSError("the system does not set the timer")

    def clear(self) -> None:
        """Take the expiry, so that `fd` is readable no more until the next `arm`."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:  # armed anew between the loop's poll and this call
            return

    def close(self) -> None:
        """Frees the descriptor; remove it from the event loop first."""
        os.close(self.fd)


_ANCHOR_READS = 100


def clock_domain() -> str:
    """Names the monotonic clock that this process sees: equal on two processes exactly if they share it.

    The kernel's boot id, and the time namespace, which may shift the clock (time_namespaces(7)).
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:  # kernels before 5.6 have no time namespaces
        return boot


def utc_minus_monotonic_ns() -> int:
    """CLOCK_REALTIME - CLOCK_MONOTONIC of this node now, from the tightest of 100 bracketed reads."""
    best = None
    for _ in range(_ANCHOR_READS):
        before = time.monotonic_ns()
        utc = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, utc - (before + after) // 2)
    assert best is not None
    return best[1]
