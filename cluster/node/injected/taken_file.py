"""Files to which something is appended as long as a server runs, whatever becomes of their folder meanwhile: rings are
taken to such."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO, Protocol

from squall.cluster.node.injected.ring_folder import RingKind


class TakenFile:
    """Made with the first bytes. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def append(self, data: bytes) -> None:
        """Behind what is there. Raises OSError."""
        self._put_back()
        self._file = self._file or self.path.open("ab")
        self._file.write(data)
        self._file.flush()

    def _put_back(self) -> None:
        """Where somebody removed the file: it is made again with all that it held."""
        if self._file is None or os.fstat(self._file.fileno()).st_nlink:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(f"/proc/self/fd/{self._file.fileno()}", self.path)
        self._file.close()
        self._file = self.path.open("ab")

    def close(self) -> None:
        """What cannot be put back then is lost."""
        with contextlib.suppress(OSError):
            self._put_back()
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None


class Ring(Protocol):
    """What a library of ours writes in a process, for its one reader."""

    pid: int

    def drain(self) -> bytes:
        """What came since the last call. Raises ValueError where it cannot be that."""


class TakenRing:
    """A ring and the file that takes what is in it. What cannot be read or written is in `trouble`, a line; nothing is
    tried after that."""

    def __init__(self, ring: Ring, path: Path, kind: RingKind) -> None:
        self.trouble: str | None = None
        self._ring = ring
        self._kind = kind
        self._file = TakenFile(path)

    @property
    def path(self) -> Path:
        """The file's; it is made with the first bytes."""
        return self._file.path

    def skip(self) -> None:
        """Throws away what is in the ring."""
        self._drained()

    def take(self) -> None:
        """To the file."""
        data = self._drained()
        if not data:
            return
        try:
            self._file.append(data)
        except OSError as error:
            self.trouble = f"{self._kind} of process {self._ring.pid} were not kept: {error.strerror}"

    def _drained(self) -> bytes:
        if self.trouble is None:
            try:
                return self._ring.drain()
            except ValueError as error:
                self.trouble = f"{self._kind}: {error}"
        return b""

    def close(self) -> None:
        """The file."""
        self._file.close()
