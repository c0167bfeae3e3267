"""Temporary folders in a run directory: each is locked by its process; the next analysis sweeps what dead ones left."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PREFIXES = (".scratch-", ".spill-")


@contextmanager
def held_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, gone at the end; `prefix` is one of `PREFIXES`. Raises OSError where none can be."""
    assert prefix in PREFIXES
    # before it is locked a sweep may take it: only that of another process that analyses the same run
    directory = TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    lock = os.open(directory.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with directory as path:
            yield Path(path)
    finally:
        os.close(lock)


def sweep_folders(parent: Path) -> None:
    """Removes those in `parent` whose process is gone."""
    for path in (path for prefix in PREFIXES for path in parent.glob(f"{prefix}*")):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # another process was faster
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:  # its owner lives
            continue
        finally:
            os.close(lock)
