"""Logs of servers and of Locust as they go into the run directory: without names of this node's folders."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from squall.analysis.storage.beneath import MOST_SMALL_BYTES
from squall.cluster.node.triton_home import cache_dir
from squall.scenarios.foreign_file import plain_opener


def without_own_folders(log: bytes, scratch: Path) -> bytes:
    """`log` with words for squall's own folders, this environment's and the user's home, whose names tell of the user.

    What a model prints itself is left as it is.
    """
    named = {
        scratch: "<scratch>", cache_dir(): "<cache>", Path(tempfile.gettempdir()): "<tmp>",
        Path(sys.prefix): "<python>", Path(sys.base_prefix): "<python>", Path.home(): "~",
    }  # fmt: skip
    for folder in sorted(named, key=lambda path: -len(str(path))):
        if len(folder.parts) > 1:
            log = log.replace(os.fsencode(folder), named[folder].encode())
    return log


def locust_logs(spill_dir: Path, scratch: Path) -> dict[str, bytes]:
    """What Locust's processes wrote there, by name of the file; see `without_own_folders`."""
    found = sorted(spill_dir.glob("locust-*.log"))
    return {path.name: without_own_folders(path.read_bytes(), scratch) for path in found}


def end_of_log(path: Path, most_bytes: int = MOST_SMALL_BYTES) -> tuple[bytes, int]:
    """The last `most_bytes` of a file, which is read through no link, and how many bytes are before them. Raises
    OSError, also of what is no file."""
    with open(path, "rb", opener=plain_opener) as file:
        n_before = max(0, os.fstat(file.fileno()).st_size - most_bytes)
        file.seek(n_before)
        return file.read(most_bytes), n_before
