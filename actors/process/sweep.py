"""Files and folders that go with their process: it locks each, and the next process sweeps what dead ones left.

They lie where other users may write too: what another user made, or may change, or a link, is none of them.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path


def is_own_folder(path: Path) -> bool:
    """Whether it is a folder, and no link to one, that this user alone may look into and write to."""
    try:
        found = path.lstat()
    except (OSError, ValueError):  # a NUL in its name
        return False
    return stat.S_ISDIR(found.st_mode) and _is_own(found)


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


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
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _is_own(os.fstat(lock)):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return lock
    except OSError:  # a sweep is removing it
        pass
    os.close(lock)
    return None


def sweep(parent: Path, pattern: str, remove: Callable[[Path], object]) -> None:
    """Calls `remove` for what `pattern` names in `parent`, this user's, that nobody holds; a lock goes with its
    process."""
    for path in parent.glob(pattern):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # gone meanwhile, a link, or another user's
            continue
        try:
            if not _is_own(os.fstat(lock)):
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
        except OSError:  # its owner lives
            continue
        finally:
            os.close(lock)
