"""Folders that somebody else may have made: run directories, and those of decisions. No link leads out of them."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from squall.scenarios.errors import StoreError
from squall.scenarios.foreign_file import plain_opener

FileOpener = Callable[[Path], BinaryIO]
"""Makes the file at a path, where nothing may lie yet, for binary writing. Handed in so that a test can fill the
disk."""
MOST_SMALL_BYTES = 256 * 1024**2
"""No document of a run, its log among them, is larger: it is held in memory."""
_KINDS = {"l": "a link", "p": "a pipe", "s": "a socket"}
"""By the first letter of what `ls -l` shows of it."""


def refuse_ways_out(folder: Path) -> None:
    """Raises StoreError, in one line, where anything in `folder` is neither a file nor a folder, or cannot be looked
    at. `folder` itself may be reached by a link: the user named it. One that is not there passes."""
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if stat.S_ISDIR(mode):
                        waiting.append(Path(entry.path))
                    elif not stat.S_ISREG(mode):
                        kind = _KINDS.get(stat.filemode(mode)[0], "a device")
                        raise StoreError(
                            f"{entry.path} is {kind}, which squall leaves in no folder: remove it"
                        )
        except (FileNotFoundError, NotADirectoryError):  # gone meanwhile, as what another process spills
            continue
        except OSError as error:
            raise StoreError(f"cannot look at {error.filename}: {error.strerror}") from error


def read_plain(path: Path, most_bytes: int = MOST_SMALL_BYTES) -> bytes:
    """The content of a file, which is read through no link and waits for nobody. Raises OSError; of a file that is
    none, or larger than `most_bytes`, with a reason in words."""
    if path.is_symlink():
        raise OSError(errno.EINVAL, "it is a link")
    with open(path, "rb", opener=plain_opener) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise too_large(most_bytes)
    return content


def too_large(most_bytes: int) -> OSError:
    """Of a file that is to be held in memory."""
    return OSError(errno.EFBIG, f"it has more than {most_bytes / 1024**2:.4g} MiB")


def new_file(path: Path) -> BinaryIO:
    """The file at `path` for binary writing: made here. Raises OSError where anything bears that name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, 0o666), "wb")


def passing_name(path: Path, ending: str) -> Path:
    """A name beside `path` that nobody can foresee, for a file that takes its place when it is whole."""
    return path.with_name(f"{secrets.token_hex(8)}-{path.name}{ending}")


def write_atomically(path: Path, pieces: Iterable[bytes], open_file: FileOpener = new_file) -> None:
    """Puts `pieces`, one after another, at `path`: the old file or the whole new one, at every instant. Raises
    OSError, and what the pieces raise."""
    temporary = passing_name(path, ".new")
    try:
        with open_file(temporary) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
