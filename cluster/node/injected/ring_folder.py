"""Folders in which libraries of ours record inside a server: made for it, found again, read by one reader, removed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from squall.actors.process.sweep import hold, is_own_folder, sweep
from squall.analysis.storage.beneath import read_plain
from squall.scenarios.errors import ClusterError
from squall.scenarios.records import Frozen

RingKind = Literal["batches", "kernels"]
"""Whose rings: each library has a folder of its own, as each folder has one reader."""
_MEMORY = Path("/dev/shm")
_PREFIX = "squall-rings-"
_OF, _MOST_PATH_BYTES = "of", 4096
"""File of a folder in memory: where the server's own folder is."""
_NAMES: dict[RingKind, tuple[str, str]] = {"batches": ("", "rings"), "kernels": ("-kernels", "kernel-rings")}
"""By kind: how the name in memory ends, and the name in the server's own folder."""


class HeldRings(Frozen):
    """A folder of rings, and the descriptor by which its one reader holds it: no sweep takes it."""

    path: Path
    lock: int

    def let_go(self) -> None:
        os.close(self.lock)


def make_ring_folder(folder: Path, kind: RingKind) -> HeldRings:
    """A new folder for the rings of a server whose own is `folder`, for this user alone, held; `rings_of` finds it
    again.

    In memory where there is room for it: a server that writes to a mapped file of a disk may wait for the disk. What
    dead agents left is swept once the server's own folder is gone, until then who comes after may want it; also by an
    agent of this machine that starts at the same time: what it takes before it is held is made again. Raises OSError.
    """
    places = _places(folder, kind)

    sweep_rings(places)
    for path in places:
        with contextlib.suppress(OSError):
            return _make_held(path, folder)
    raise OSError(f"no folder for the rings of {folder.name} can be made")


def sweep_rings(also: Sequence[Path] = ()) -> None:
    """Removes what dead agents left in memory once the server's own folder is gone; `also`: whether it is or not."""

    def remove(rings: Path) -> None:
        if rings in also or not _is_wanted(rings):
            shutil.rmtree(rings, ignore_errors=True)

    sweep(_MEMORY, f"{_PREFIX}*", remove)


def _is_wanted(rings: Path) -> bool:
    try:
        return Path(os.fsdecode(read_plain(rings / _OF, _MOST_PATH_BYTES))).is_dir()
    except OSError:  # it was never held
        return False


def _make_held(path: Path, folder: Path) -> HeldRings:
    while True:
        path.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):  # swept before it was opened
            lock = hold(path, os.O_RDONLY | os.O_DIRECTORY)
            if lock is not None:
                try:
                    (path / _OF).write_bytes(os.fsencode(folder))
                except OSError:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(lock)
                    raise
                return HeldRings(path, lock)


def rings_of(folder: Path, kind: RingKind) -> Path | None:
    """What `make_ring_folder` made for it; None if nothing is there, or what another user put into its place."""
    return next((path for path in _places(folder, kind) if is_own_folder(path)), None)


def remove_rings(folder: Path, kind: RingKind) -> None:
    """Removes it, if it is there."""
    for path in _places(folder, kind):
        shutil.rmtree(path, ignore_errors=True)


def _places(folder: Path, kind: RingKind) -> tuple[Path, Path]:
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    in_memory, on_disk = _NAMES[kind]
    return _MEMORY / f"{_PREFIX}{name}{in_memory}", folder / on_disk


def why_unread(ring: Path, error: Exception) -> str:
    """Why a ring that is there cannot be read, in a line."""
    if not isinstance(error, PermissionError):
        return str(error)
    try:
        owner = str(ring.stat().st_uid)
    except OSError:
        owner = "another"
    return (
        f"the rings are of user {owner}, and this is user {os.geteuid()}: run squall as root, or the server as"
        " this user (podman without root does)"
    )


def hold_alone(folder: Path, kind: RingKind) -> HeldRings:
    """A folder that is there, which no other reader has. Raises ClusterError."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ClusterError(f"{folder}, where {kind} are recorded: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ClusterError(f"another run reads the {kind} in {folder}") from error
    return HeldRings(folder, lock)


def hold_all(folders: Sequence[Path], kind: RingKind) -> list[HeldRings]:
    """All of them or none. Raises ClusterError."""
    with contextlib.ExitStack() as held:
        found = []
        for folder in folders:
            found.append(hold_alone(folder, kind))
            held.callback(found[-1].let_go)
        held.pop_all()
    return found
