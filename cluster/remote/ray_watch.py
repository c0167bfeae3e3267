"""What ends a local Ray whose driver was killed: `python -m squall.cluster.remote.ray_watch FOLDER`, as long as its
stdin is open.

Ray's own agents outlive a driver that ends without a word. FOLDER is the session's: whatever of Ray has its log there,
or names it in its command line, is killed when stdin ends, and the folder removed. A byte on stdin: all went well.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from squall.actors.process.watch import WatchProcess

_MODULE = "squall.cluster.remote.ray_watch"
_QUIET_S = 1.0
"""Nothing of it for so long: all has ended. Whoever is killed may just have started another."""
_AT_MOST_S = 15.0
_LOOK_EVERY_S = 0.1
_WELL = b"."
_ENDS_WITHIN_S = 2.0


class RayWatch:
    """The driver's side."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where it cannot start."""
        self._process = WatchProcess(_MODULE, str(folder))

    def dismiss(self) -> None:
        """Ray has ended; so does the watch."""
        self._process.dismiss(_WELL, _ENDS_WITHIN_S)


def belongs(folder: Path, files: Sequence[str], command: Sequence[str]) -> bool:
    """Whether a process is Ray's of the session in `folder`: what names it, or has Ray's title and a file open there.

    Our own processes, which Ray's launchers started, have files open there too, but no such title; the watch is ours.
    """
    if _MODULE in command:
        return False
    if any(f"{folder}/" in f"{word}/" for word in command):
        return True
    return command[:1] != [] and command[0].startswith("ray::") and any(f"{folder}/" in one for one in files)


def of_session(folder: Path) -> list[psutil.Process]:
    """The processes of Ray there."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if belongs(folder, _open_files(process.pid), process.cmdline()):
                found.append(process)
    return found


def _open_files(pid: int) -> list[str]:
    found = []
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found


def end_session(folder: Path) -> None:
    """Kills what there is of it until nothing comes any more, and removes the folder."""
    latest = time.monotonic() + _AT_MOST_S
    quiet_since = time.monotonic()
    while time.monotonic() < min(latest, quiet_since + _QUIET_S):
        found = of_session(folder)
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        if found:
            quiet_since = time.monotonic()
        time.sleep(_LOOK_EVERY_S)
    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Waits for what stdin says."""
    if os.read(sys.stdin.fileno(), 1) != _WELL:
        end_session(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
