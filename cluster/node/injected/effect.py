"""Whether a server that somebody else started has the batch library in it, and where that records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from squall.actors.inject.batch_ring import rings
from squall.actors.inject.library import FOLDER_VARIABLE

_LIBRARY = "batches"
"""Part of the name of the library's file, in whatever installation of squall."""


@dataclass(frozen=True)
class Injected:
    """`folder`: where the rings of the server are; None where nothing is recorded, and `reason` says why."""

    folder: Path | None
    reason: str = ""


def injected(pids: Iterable[int], proc: Path = Path("/proc")) -> Injected:
    """Of the server whose processes are `pids`, those that listen among them. Names no path in its reasons but that of
    the rings.
    """
    found = [_of_process(proc / str(pid)) for pid in pids]
    if not found:
        return Injected(None, "no process of the server can be seen from this user's session on its node")
    return next((one for one in found if one.folder is not None), found[0])


def _of_process(process: Path) -> Injected:
    try:
        entries = (process / "environ").read_bytes().split(b"\0")
        maps = (process / "maps").read_text(errors="replace")
    except OSError as error:
        return Injected(None, f"the server's process cannot be looked into: {error.strerror}")
    environment = dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries)
    folder = environment.get(FOLDER_VARIABLE)
    if not folder:
        return Injected(None, f"the server was started without {FOLDER_VARIABLE}")
    if not any(_LIBRARY in line.rpartition("/")[2] for line in maps.splitlines() if ".so" in line):
        return Injected(None, f"the server has {FOLDER_VARIABLE}, but the library of LD_PRELOAD is not in it")
    path = Path(folder)
    if not path.is_dir():
        return Injected(None, f"the server records into {path}, which is no folder here")
    if not rings(path):
        return Injected(None, f"the library records nothing into {path}: the server's log says why")
    return Injected(path)
