"""Scratch folders: each is locked by its process, and the next process sweeps what dead ones left."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

from actors.sweep import hold, share, sweep

_PREFIX = "squall-tmp-"


class Scratch:
    """A new folder in the node's temporary folder, until `remove` or, after a kill, the next Scratch."""

    def __init__(self, adopted: Path | None = None) -> None:
        """Sweeps what dead processes left, then makes the folder; `adopted`: takes on that of a process that died.

        Raises OSError where that fails.
        """
        if adopted is not None:
            lock = share(adopted)
            if lock is None:
                raise OSError(f"the scratch folder of a lost process is gone: {adopted.name}")
            self.path, self._lock = adopted, lock
            return
        sweep(Path(tempfile.gettempdir()), f"{_PREFIX}*", partial(shutil.rmtree, ignore_errors=True))
        held = None
        while held is None:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            held = hold(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self._lock = held

    def put_back(self) -> bool:
        """Makes the folder again where somebody removed it, empty, and holds it; True if so. Raises OSError."""
        if os.fstat(self._lock).st_nlink:
            return False
        self.path.mkdir(exist_ok=True)
        self.path.chmod(0o700)
        held = hold(self.path, os.O_RDONLY | os.O_DIRECTORY)
        if held is None:
            raise FileNotFoundError(errno.ENOENT, "it was swept at once", str(self.path))
        os.close(self._lock)
        self._lock = held
        return True

    def remove(self) -> None:
        """Removes the folder and all in it, as far as that can be done."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
