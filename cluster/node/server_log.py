"""Logs of servers and of Locust as they go into the run directory: without names of this node's folders."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from squall.cluster.node.triton_home import cache_dir


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
