"""Whether a server has a library of ours in it, or the hook in its Python models, and where these record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from squall.actors.inject.batch_ring import BatchRing, Writer, rings
from squall.actors.inject.kernel_library import find_rings
from squall.actors.inject.library import (
    FOLDER_VARIABLE,
    INJECTION_VARIABLE,
    KERNEL_FOLDER_VARIABLE,
    PRELOAD_VARIABLE,
)
from squall.cluster.node.injected.ring_folder import RingKind, why_unread
from squall.scenarios.records import Frozen


class Library(Frozen):
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


_HELD = re.compile(r"^(?:\S+ +){5}(/.*/batches-\d+-[0-9a-f]{32}\.ring)$", re.MULTILINE)
"""A line of /proc/PID/maps."""
_TOLD = re.compile(
    r"(?<=squall: batches are not recorded: ).+|(?<=ERROR: ld.so: )object '[^']+' from LD_PRELOAD cannot be preloaded.+"
)
"""The library's own words, and the loader's."""


class Injected(Frozen):
    """`folders`: where the rings of the server are; empty where nothing is recorded, and `reason` says why.

    `writer`: of batches, who records them.
    """

    folders: tuple[Path, ...] = ()
    reason: str = ""
    writer: Writer = "library"

    @property
    def folder(self) -> Path | None:
        """The first; a library has but one."""
        return next(iter(self.folders), None)


def injected(pids: Iterable[int], kind: RingKind = "batches", proc: Path = Path("/proc")) -> Injected:
    """Of the server whose processes are `pids`, those that listen among them. Names no path in its reasons but that of
    the rings.
    """
    seen = list(pids)
    found = [_of_process(proc / str(pid), LIBRARIES[kind]) for pid in seen]
    if not found:
        return Injected(reason="no process of the server can be seen from this user's session on its node")
    one = next((one for one in found if one.folder is not None), found[0])
    return _of_hooks(held_rings(seen, proc)) or one if kind == "batches" and one.folder is None else one


def held_rings(pids: Iterable[int], proc: Path = Path("/proc")) -> list[Path]:
    """Rings of batches that these processes have mapped, by the names that they see; those that were removed are not.

    So a hook's are found without a variable: its file may name the folder.
    """
    found: dict[Path, None] = {}
    for pid in pids:
        try:
            maps = (proc / str(pid) / "maps").read_text(errors="replace")
        except OSError:
            continue
        found.update({Path(name): None for name in _HELD.findall(maps)})
    return list(found)


def _of_hooks(held: Sequence[Path]) -> Injected | None:
    """None where there is none; a reason where none of them is here or for this user."""
    reason = ""
    folders: dict[Path, None] = {}
    for ring in held:
        try:
            BatchRing(ring).close()
        except FileNotFoundError:
            reason = f"the server records into {ring.parent}, which is not what this node has under that name"
        except (OSError, ValueError) as error:
            reason = why_unread(ring, error)
        else:
            folders[ring.parent] = None
    return Injected(tuple(folders), reason, "hook") if held else None


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
        return Injected(reason=f"the server's process cannot be looked into: {error.strerror}")
    folder = environment.get(library.variable)
    if not folder:
        return Injected(reason=f"the server was started without {library.variable}")
    if library.is_at_start:
        if not any(library.file in line.rpartition("/")[2] for line in maps.splitlines() if ".so" in line):
            reason = f"the server has {library.variable}, but the library of {library.loader} is not in it"
            return Injected(reason=reason)
    elif library.file not in environment.get(library.loader, "").rpartition("/")[2]:
        return Injected(
            reason=f"the server has {library.variable}, but {library.loader} does not name the library"
        )
    path = Path(folder)
    if not path.is_dir():
        return Injected(reason=f"the server records into {path}, which is no folder here")
    if library.is_at_start and not library.rings(path):
        return Injected(reason=f"the library records nothing into {path}: the server's log says why")
    return Injected((path,))
