"""A file to which something is appended as long as a server runs, whatever becomes of its folder meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO


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
