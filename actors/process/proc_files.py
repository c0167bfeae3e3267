"""Files of /proc and /sys that are read again and again: kept open, one read each."""

from __future__ import annotations

import os
import time

_ROOM_BYTES = 1 << 18


class ProcFile:
    """One such file: `read` gives its content now, None where it is not there or says nothing.

    A pseudo file makes its content anew for every read from its start (seq_file, kernfs), so that it need not be
    opened again. `is_missing` once a read found nothing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_missing = False
        self._fd: int | None = None

    def read(self) -> bytes | None:
        """The whole content."""
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            data = b""
            while piece := os.pread(
                self._fd, _ROOM_BYTES, len(data)
            ):  # seq_file gives a page of records at a time
                data += piece
        except OSError:
            self.is_missing = True
            return None
        return data

    def close(self) -> None:
        """Frees the descriptor; a read after it opens the file again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class OpenFiles:
    """Small files of /proc by path, kept open up to `most` of them: a read costs a sixth of one that opens, too.

    A file of a thread that ended reads as an error for ever, also when another thread has its id: then it is opened
    again, once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._fds: dict[str, int] = {}

    def read(self, path: str) -> bytes | None:
        """Up to 4 KiB; None where it is not there any more."""
        fd = self._fds.get(path)
        if fd is not None:
            try:
                if data := os.pread(fd, 4_096, 0):
                    return data
            except OSError:
                pass
            self.drop(path)
        if len(self._fds) < self._most:
            try:
                self._fds[path] = fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return os.pread(fd, 4_096, 0) or None
            except OSError:
                self.drop(path)
                return None
        return read_once(path)

    def drop(self, path: str) -> None:
        """Closes a file, if it is open."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Closes all."""
        for path in tuple(self._fds):
            self.drop(path)


def read_once(path: str) -> bytes | None:
    """The content of a small file of /proc, up to 16 KiB; None where it is not there any more."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 16_384)
    except OSError:  # the thread ended between the two calls
        return None
    finally:
        os.close(fd)


def process_cpu_ns(pid: int) -> int | None:
    """CPU time of a process so far, its ended threads included; None where it has ended.

    Its CPU clock, which any process may read: the id is ~pid << 3 | 2 (clock_getcpuclockid(3); CPUCLOCK_SCHED in
    linux/posix-timers.h). Exact, where /proc/PID/stat counts in ticks of 10 ms.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return None


def waited_ns(pid: int) -> int | None:
    """How long the threads of a process that live now were ready to run so far and did not.

    None where it has ended or the kernel does not count it. Second field of schedstat (sched-stats in Linux's docs).
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    texts = [read_once(f"/proc/{pid}/task/{thread}/schedstat") for thread in threads]
    waits = [int(text.split()[1]) for text in texts if text]
    return sum(waits) if waits else None


def stolen_ns() -> int:
    """What a hypervisor has taken from all cores so far, in ticks; 0 where that is not counted. Eighth field of `cpu`
    in /proc/stat (proc_stat(5))."""
    fields = (read_once("/proc/stat") or b"").split(maxsplit=9)
    return int(fields[8]) * (1_000_000_000 // os.sysconf("SC_CLK_TCK")) if len(fields) > 8 else 0


def gained(now: int | None, then: int | None) -> int | None:
    """What a counter gained; None where either reading is unknown, 0 where it went back."""
    return None if now is None or then is None else max(0, now - then)
