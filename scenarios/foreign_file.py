"""Files that lie where another program may have put anything."""

from __future__ import annotations

import os
import stat


def plain_opener(path: str, flags: int) -> int:
    """For `open(…, opener=…)`. Raises OSError for a link, and for what is no file."""
    return file_opener(path, flags | os.O_NOFOLLOW)


def read_within(path: str | os.PathLike[str], most_bytes: int) -> bytes | None:
    """What the file holds; None where that is more, of which no more is read. Raises OSError as `file_opener`."""
    with open(path, "rb", opener=file_opener) as file:
        content = file.read(most_bytes + 1)
    return content if len(content) <= most_bytes else None


def file_opener(path: str, flags: int) -> int:
    """For `open(…, opener=…)`. Raises OSError for what is no file: a pipe would be waited for."""
    opened = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(0, "it is no file", path)
    return opened
