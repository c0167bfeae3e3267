"""Scratch folders: each is locked by its process, and the next process sweeps what dead ones left."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

from actors.sweep import hold, sweep

_PREFIX = "squall-tmp-"


class Scratch:
    """A new folder in the node's temporary folder, until `remove` or, after a kill, the next Scratch."""

    def __init__(self) -> None:
        """Sweeps what dead processes left, then makes the folder. Raises OSError where that fails."""
        sweep(Path(tempfile.gettempdir()), f"{_PREFIX}*", partial(shutil.rmtree, ignore_errors=True))
        lock = None
        while lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = hold(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self._lock = lock

    def remove(self) -> None:
        """Removes the folder and all in it, as far as that can be done."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
