"""Whether a server that somebody else started has a library of ours in it, and where that records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from squall.actors.inject.batch_ring import BatchRing, rings
from squall.actors.inject.kernel_library import find_rings
from squall.actors.inject.library import (
    FOLDER_VARIABLE,
    INJECTION_VARIABLE,
    KERNEL_FOLDER_VARIABLE,
    PRELOAD_VARIABLE,
)
from squall.cluster.node.injected.ring_folder import RingKind, why_unread


@dataclass(frozen=True)
class Library:
    """A library as a server's processes show it. `file`: part of its name, in whatever installation of squall."""

    variable: str
    file: str
    loader: str
    """The variable that has it loaded."""
    rings: Callable[[Path], Sequence[Path]]
    is_at_start: bool
    """Whether it is in each process from its start on, with a ring; else from its first use of CUDA on, if any."""


LIBRARIES: dict[RingKind, Library] = {
    "batches": Library(FOLDER_VARIABLE, "batches", PRELOAD_VARIABLE, rings, True),
    "kernels": Library(KERNEL_FOLDER_VARIABLE, "_kernels", INJECTION_VARIABLE, find_rings, False),
}


_TOLD = re.compile(
    r"(?<=squall: batches are not recorded: ).+|(?<=ERROR: ld.so: )object '[^']+' from LD_PRELOAD cannot be preloaded.+"
)
"""The library's own words, and the loader's."""


@dataclass(frozen=True)
class Injected:
    """`folder`: where the rings of the server are; None where nothing is recorded, and `reason` says why."""

    folder: Path | None
    reason: str = ""


def injected(pids: Iterable[int], kind: RingKind = "batches", proc: Path = Path("/proc")) -> Injected:
    """Of the server whose processes are `pids`, those that listen among them. Names no path in its reasons but that of
    the rings.
    """
    found = [_of_process(proc / str(pid), LIBRARIES[kind]) for pid in pids]
    if not found:
        return Injected(None, "no process of the server can be seen from this user's session on its node")
    return next((one for one in found if one.folder is not None), found[0])


def why_silent(folder: Path, log: str) -> str | None:
    """Why a server that was started with the batch library, and is ready, leaves nothing in `folder` that this user can
    read; None if it does. `log`: what it wrote."""
    for ring in rings(folder):
        try:
            BatchRing(ring).close()
        except (OSError, ValueError) as error:
            return why_unread(ring, error)
        return None
    told = _TOLD.search(log)
    return (
        told[0].strip() if told else "the library is not in effect in the server, whose log does not say why"
    )


def started_with(process: Path) -> dict[str, str]:
    """The environment that a process, a folder of /proc, was started with. Raises OSError."""
    entries = (process / "environ").read_bytes().split(b"\0")
    return dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries)


def _of_process(process: Path, library: Library) -> Injected:
    try:
        environment = started_with(process)
        maps = (process / "maps").read_text(errors="replace")
    except OSError as error:
        return Injected(None, f"the server's process cannot be looked into: {error.strerror}")
    folder = environment.get(library.variable)
    if not folder:
        return Injected(None, f"the server was started without {library.variable}")
    if library.is_at_start:
        if not any(library.file in line.rpartition("/")[2] for line in maps.splitlines() if ".so" in line):
            reason = f"the server has {library.variable}, but the library of {library.loader} is not in it"
            return Injected(None, reason)
    elif library.file not in environment.get(library.loader, "").rpartition("/")[2]:
        return Injected(
            None, f"the server has {library.variable}, but {library.loader} does not name the library"
        )
    path = Path(folder)
    if not path.is_dir():
        return Injected(None, f"the server records into {path}, which is no folder here")
    if library.is_at_start and not library.rings(path):
        return Injected(None, f"the library records nothing into {path}: the server's log says why")
    return Injected(path)
