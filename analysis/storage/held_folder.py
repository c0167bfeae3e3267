"""Folders that a process holds: one that it alone may write, and temporary ones in a run directory, of which the next
analysis sweeps what dead processes left. A lock ends with its process."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from squall.analysis.storage.part import error_reason
from squall.scenarios.errors import SquallError, StoreError

PREFIXES = (".scratch-", ".spill-")
_LOOK_EVERY_S = 0.2


@contextmanager
def sole_holder(
    folder: Path, refused: SquallError, within_s: float = 0.0, is_shared: bool = False
) -> Iterator[None]:
    """Inside, this process alone holds `folder`; with `is_shared` beside others that share it.

    Raises `refused` where another holds it still after `within_s`, StoreError where it cannot be opened. A file system
    without such locks (NFS has none of folders) refuses nobody.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"cannot open {folder}: {error_reason(error)}") from error
    until_s = time.monotonic() + within_s
    try:
        while True:
            try:
                fcntl.flock(lock, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= until_s:
                    raise refused from error
            except OSError:
                break
            else:
                break
            time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        os.close(lock)


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
