"""The monotonic clock of a node, and a timer that wakes an event loop at an instant of it."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import time
from typing import Protocol

from scenarios.units import NS_PER_S

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


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class Alarm:
    """A timerfd: readable from an absolute instant on. Register `fd` with the event loop.

    An event loop's own timers are rounded to whole milliseconds (libuv) or to epoll's; a timerfd fires on the
    kernel's high-resolution timer. Not thread-safe. Linux only; `os.timerfd_create` exists from Python 3.13.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
        self.fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self.fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._spec = _Itimerspec()

    def arm(self, at_ns: int) -> None:
        """Become readable at `at_ns`, at once if that is past; replaces what was armed before."""
        value = self._spec.it_value
        value.tv_sec, value.tv_nsec = divmod(max(at_ns, 1), NS_PER_S)
        if self._libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def clear(self) -> None:
        """Take the expiry, so that `fd` is readable no more until the next `arm`."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:  # armed anew between the loop's poll and this call
            return

    def close(self) -> None:
        """Frees the descriptor; remove it from the event loop first."""
        os.close(self.fd)
