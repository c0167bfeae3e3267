"""Scratch folders: each is locked by its process, and the next process sweeps what dead ones left."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "squall-tmp-"


class Scratch:
    """A new folder in the node's temporary folder, until `remove` or, after a kill, the next Scratch."""

    def __init__(self) -> None:
        """Sweeps what dead processes left, then makes the folder. Raises OSError where that fails."""
        _sweep(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._lock)  # a sweep came between folder and lock

    def remove(self) -> None:
        """Removes the folder and all in it, as far as that can be done."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _sweep(parent: Path) -> None:
    """Removes scratch folders in `parent` whose lock nobody holds: the kernel drops it with its process."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, or another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its owner lives
            continue
        finally:
            os.close(lock)
