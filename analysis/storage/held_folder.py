"""Folders that a process holds: one that it alone may write, and temporary ones in a run directory, of which the next
analysis sweeps what dead processes left. A lock ends with its process."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from squall.analysis.storage.part import disk_errors
from squall.scenarios.errors import SquallError

_PREFIX = ".spill-"
_LOOK_EVERY_S = 0.2


@contextmanager
def sole_holder(
    folder: Path, refused: SquallError, within_s: float = 0.0, is_shared: bool = False
) -> Iterator[None]:
    """Inside, this process alone holds `folder`; with `is_shared` beside others that share it.

    Raises `refused` where another holds it still after `within_s`, StoreError where it cannot be opened. A file system
    without such locks (NFS has none of folders) refuses nobody.
    """
    with disk_errors(f"cannot open {folder}"):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until_s = time.monotonic() + within_s
    try:
        with suppress(OSError):
            while not _is_locked(lock, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX):
                if time.monotonic() >= until_s:
                    raise refused
                time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        os.close(lock)


def _is_locked(lock: int, how: int) -> bool:
    """Whether the open folder is locked so from now on, not as another process has it. Raises OSError where the file
    system has no such locks."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def held_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent` for what a query spills or tasks share, gone at the end. Raises StoreError where none
    can be made."""
    with disk_errors(f"cannot write to {parent}"):
        # before it is locked a sweep may take it: only that of another process that analyses the same run
        directory = TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)
        lock = os.open(directory.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with directory as path:
            yield Path(path)
    finally:
        os.close(lock)


def sweep_folders(parent: Path) -> None:
    """Removes those in `parent` whose process is gone."""
    for path in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # another process was faster
            continue
        with suppress(OSError):
            if _is_locked(lock, fcntl.LOCK_EX):  # not by its owner, who lives
                shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
