"""What the batch library of a server records, from its rings to files of this node, while the server runs.

A ring is as long as the server runs and holds a second or more of batches: a thread empties all of them ten times a
second. Whoever reads a ring takes from it, so that a folder of rings has one reader.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from squall.actors.inject.batch_ring import BatchRing, rings
from squall.cluster.node.injected.ring_folder import hold_alone, rings_of, why_unread
from squall.cluster.node.injected.taken_file import TakenRing
from squall.scenarios.errors import ClusterError

_EVERY_S = 0.1
_ENDS_WITHIN_S = 30.0
_TAKEN = "recorded"


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
        self._lock = hold_alone(folder, "batches")
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
            self._losses.append(f"batches: {why_unread(path, error)}")
            return None
        number = self._n_before + len(self._rings)
        return _Taken(ring, self._into / f"{number:04d}-{path.stem}.frames", skips)


def take_left_rings(folder: Path) -> list[str]:
    """What an agent that died had not taken from the rings of a server that it had started; returns what is missing."""
    rings = rings_of(folder, "batches")
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
        self._taken = TakenRing(ring, path, "batches")
        if skips:
            self._taken.skip()
        self._lost_before = ring.lost() if skips else 0

    def take(self) -> None:
        """What cannot be read or written is told by `close`; nothing is tried after that."""
        self._taken.take()

    def close(self) -> list[str]:
        """What is missing."""
        n_lost = self._ring.lost() - self._lost_before
        self._ring.close()
        self._taken.close()
        lost = [f"batches: process {self._ring.pid}: {n_lost} found no room in its ring"] if n_lost else []
        return lost + ([self._taken.trouble] if self._taken.trouble else [])
