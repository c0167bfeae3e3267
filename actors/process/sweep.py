"""Files and folders that go with their process: it locks each, and the next process sweeps what dead ones left."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def hold(path: Path, flags: int) -> int | None:
    """A locked descriptor of what is at `path`, or is made there for this user alone; None: a sweep came between."""
    lock = os.open(path, flags | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # waits for a sweep under way
    if path.exists():
        fcntl.flock(lock, fcntl.LOCK_SH)
        return lock
    os.close(lock)
    return None


def share(folder: Path) -> int | None:
    """Holds `folder` beside its owner, so that it outlives it: a locked descriptor; None if it is gone or not ours."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # a sweep is removing it
        os.close(lock)
        return None
    return lock


def sweep(parent: Path, pattern: str, remove: Callable[[Path], object]) -> None:
    """Calls `remove` for what `pattern` names in `parent` and nobody holds; a lock goes with its process."""
    for path in parent.glob(pattern):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # gone meanwhile, or another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
        except OSError:  # its owner lives
            continue
        finally:
            os.close(lock)
