"""What the batch library of a server records, from its rings to files of this node, while the server runs.

A ring is as long as the server runs and holds a second or more of batches: a thread empties all of them ten times a
second. Whoever reads a ring takes from it, so that a folder of rings has one reader.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import BinaryIO

from squall.actors.inject.batch_ring import BatchRing, rings
from squall.actors.process.sweep import sweep
from squall.scenarios.errors import ClusterError

_EVERY_S = 0.1
_ENDS_WITHIN_S = 30.0
_MEMORY = Path("/dev/shm")
_PREFIX = "squall-rings-"
_TAKEN = "recorded"


def make_ring_folder(folder: Path) -> Path:
    """A new folder for the rings of a server whose own is `folder`, for this user alone; `rings_of` finds it again.

    In memory where there is room for it: a server that writes to a mapped file of a disk may wait for the disk. What
    dead agents left is swept. Raises OSError.
    """
    sweep(_MEMORY, f"{_PREFIX}*", partial(shutil.rmtree, ignore_errors=True))
    for path in _places(folder):
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700)
            return path
    raise OSError(f"no folder for the rings of {folder.name} can be made")


def rings_of(folder: Path) -> Path | None:
    """What `make_ring_folder` made for it; None if nothing is there."""
    return next((path for path in _places(folder) if path.is_dir()), None)


def remove_rings(folder: Path) -> None:
    """Removes it, if it is there."""
    for path in _places(folder):
        shutil.rmtree(path, ignore_errors=True)


def _places(folder: Path) -> tuple[Path, Path]:
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    return _MEMORY / f"{_PREFIX}{name}", folder / "rings"


def taken_files(folder: Path) -> list[Path]:
    """What was taken from rings into the server's folder, in the order in which the rings were found."""
    return sorted((folder / _TAKEN).glob("*.frames"))


class BatchRings:
    """Takes batches from all rings of a folder to a file for each below the server's folder, until `stop`.

    `begins_anew`: what the rings hold already is of others, and is thrown away.
    """

    def __init__(self, folder: Path, server_folder: Path, begins_anew: bool = False) -> None:
        """Takes once at once. Raises ClusterError where somebody else reads them, or the folder cannot be read."""
        self._folder = folder
        self._into = server_folder / _TAKEN
        self._rings: dict[Path, _Taken | None] = {}
        self._losses: list[str] = []
        self._ends = threading.Event()
        self._lock = _hold_alone(folder)
        try:
            self._into.mkdir(parents=True, exist_ok=True)
            self._n_before = len(taken_files(server_folder))
        except OSError as error:
            os.close(self._lock)
            raise ClusterError(f"batches: {error.strerror or error}") from error
        self._look(skips=begins_anew)
        self._thread = threading.Thread(target=self._run, name="batch rings", daemon=True)
        self._thread.start()

    def stop(self) -> list[str]:
        """Takes what is left, once; returns what is missing, the second time nothing."""
        if self._ends.is_set():
            return []
        self._ends.set()
        self._thread.join(_ENDS_WITHIN_S)
        self._look()
        for taken in filter(None, self._rings.values()):
            self._losses += taken.close()
        os.close(self._lock)
        return self._losses

    def _run(self) -> None:
        while not self._ends.wait(_EVERY_S):
            self._look()

    def _look(self, skips: bool = False) -> None:
        for path in self._found():
            if path not in self._rings:
                self._rings[path] = self._open(path, skips)
        for taken in filter(None, self._rings.values()):
            taken.take()

    def _found(self) -> list[Path]:
        """None where somebody removed the folder: rings that are open are taken from all the same."""
        try:
            return rings(self._folder)
        except OSError:
            return []

    def _open(self, path: Path, skips: bool) -> _Taken | None:
        """None, and a loss, where it is no ring, or not for us."""
        try:
            ring = BatchRing(path)
        except (ValueError, OSError) as error:
            self._losses.append(f"batches: {error}")
            return None
        number = self._n_before + len(self._rings)
        return _Taken(ring, self._into / f"{number:04d}-{path.stem}.frames", skips)


def take_left_rings(folder: Path) -> list[str]:
    """What an agent that died had not taken from the rings of a server that it had started; returns what is missing."""
    rings = rings_of(folder)
    if rings is None:
        return []
    try:
        return BatchRings(rings, folder).stop()
    except ClusterError as error:
        return [str(error)]


class _Taken:
    """One ring and its file, which is made with its first batch."""

    def __init__(self, ring: BatchRing, path: Path, skips: bool) -> None:
        self._ring = ring
        self._path = path
        self._file: BinaryIO | None = None
        self._trouble: str | None = None
        if skips:
            self._drained()
        self._lost_before = ring.lost() if skips else 0

    def take(self) -> None:
        """What cannot be read or written is told by `close`; nothing is tried after that."""
        data = self._drained()
        if not data:
            return
        try:
            self._put_back()
            self._file = self._file or self._path.open("ab")
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self._trouble = f"batches of process {self._ring.pid} were not kept: {error.strerror}"

    def _put_back(self) -> None:
        """Where somebody removed the file: it is made again with all that it held."""
        if self._file is None or os.fstat(self._file.fileno()).st_nlink:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(f"/proc/self/fd/{self._file.fileno()}", self._path)
        self._file.close()
        self._file = self._path.open("ab")

    def _drained(self) -> bytes:
        """Nothing after a trouble."""
        if self._trouble is None:
            try:
                return self._ring.drain()
            except ValueError as error:
                self._trouble = f"batches: {error}"
        return b""

    def close(self) -> list[str]:
        """What is missing."""
        n_lost = self._ring.lost() - self._lost_before
        self._ring.close()
        with contextlib.suppress(OSError):
            self._put_back()
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        lost = [f"batches: process {self._ring.pid}: {n_lost} found no room in its ring"] if n_lost else []
        return lost + ([self._trouble] if self._trouble else [])


def _hold_alone(folder: Path) -> int:
    """A descriptor of `folder` that no other reader has. Raises ClusterError."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ClusterError(f"{folder}, where batches are recorded: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ClusterError(f"another run reads the batches in {folder}") from error
    return lock
