"""The folder that Triton's Python backend makes in /tmp, whatever TMPDIR says, and leaves there when it is killed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_PARENT = Path("/tmp")
_PATTERN = "python_env_*"
_SERVER = "tritonserver"
RECORD = "environment-folders"
"""Of a server's folder: what an agent finds that adopts it."""


class EnvironmentFolders:
    """Those of one server. `begin` before it is launched, `settle` once it is ready, `remove` when it has ended.

    Where a server that somebody else launched meanwhile has made its own there, nobody can tell whose is whose, and
    none is taken for ours.
    """

    def __init__(
        self, folder: Path, parent: Path = _PARENT, others: Callable[[float], bool] | None = None
    ) -> None:
        """`folder`: of the server; `others(since)`: whether another server has started since, by the wall clock."""
        self._record = folder / RECORD
        self._parent = parent
        self._others = others or _has_other_server
        self._before: set[Path] = set()
        self._begun_s = 0.0

    def begin(self) -> None:
        """Notes what is there already."""
        self._begun_s = time.time()
        self._before = self._there()

    def settle(self) -> None:
        """Writes down which are the server's."""
        new = sorted(self._there() - self._before)
        if new and not self._others(self._begun_s):
            with contextlib.suppress(OSError), self._record.open("a", encoding="utf-8") as file:
                file.writelines(f"{path}\n" for path in new)

    def remove(self) -> None:
        """Removes those that a killed server left: they are empty, but for an environment that it had unpacked."""
        remove_recorded(self._record.parent)

    def _there(self) -> set[Path]:
        found = set()
        for path in self._parent.glob(_PATTERN):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == os.getuid():
                    found.add(path)
        return found


def remove_recorded(folder: Path) -> None:
    """Those that the server with that folder had, as far as they are empty."""
    with contextlib.suppress(OSError):
        for line in (folder / RECORD).read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(OSError):
                Path(line).rmdir()


def _has_other_server(since_s: float) -> bool:
    """Whether a tritonserver that is none of this process's, in the same /tmp, was started since then."""
    with contextlib.suppress(psutil.Error, OSError):
        own = {child.pid for child in psutil.Process().children(recursive=True)}
        here = _PARENT.stat()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if (
                    process.name() == _SERVER
                    and process.pid not in own
                    and process.create_time() >= since_s - 1
                ):
                    there = os.stat(f"/proc/{process.pid}/root{_PARENT}")
                    if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                        return True
    return False
