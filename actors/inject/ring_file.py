"""The file of a ring as its reader has it: opened, mapped, and looked at whether it is still whole."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path


class RingError(ValueError):
    """A file that is no ring of ours, not one that this user may trust, or not whole any more."""


class RingFile:
    """Open until `close`. `map`: its bytes, to be read and written; `facts`: of `os.fstat`, when it was opened."""

    def __init__(self, path: Path, least_bytes: int) -> None:
        """Raises RingError where it is no plain file of so many bytes, OSError where it cannot be opened."""
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.facts = os.fstat(self._fd)
            if not stat.S_ISREG(self.facts.st_mode) or self.facts.st_size < least_bytes:
                raise RingError(f"{path}: not a ring")
            self.map = mmap.mmap(self._fd, self.facts.st_size)
        except BaseException:
            os.close(self._fd)
            raise

    def check_whole(self) -> None:
        """Raises RingError where the file was cut since: a byte of the map that it lacks would end this process."""
        if os.fstat(self._fd).st_size < self.facts.st_size:
            raise RingError(f"{self._path}: the ring was cut while it was read")

    def close(self) -> None:
        """Leaves the file as it is. May be called twice. No array or view of the map may be left."""
        if self._fd >= 0:
            self.map.close()
            os.close(self._fd)
            self._fd = -1
