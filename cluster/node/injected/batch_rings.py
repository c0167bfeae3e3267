"""What the batch library of a server records, or the hook in its Python models, from rings to files of this node, while
the server runs.

A ring is as long as the server runs and holds a second or more of batches: a thread empties all of them ten times a
second. Whoever reads a ring takes from it, so that a folder of rings has one reader. Where both record, the hook's
rings are left: the library has the same batches, of all models, with more instants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from squall.actors.inject.batch_ring import BatchRing, Writer, rings
from squall.cluster.node.injected.ring_folder import HeldRings, hold_alone, rings_of, why_unread
from squall.cluster.node.injected.taken_file import TakenRing
from squall.scenarios.errors import ClusterError

_EVERY_S = 0.1
_ENDS_WITHIN_S = 30.0
_TAKEN = "recorded"


def taken_files(folder: Path) -> list[Path]:
    """What was taken from rings into the server's folder, in the order in which the rings were found."""
    return sorted((folder / _TAKEN).glob("*.frames"))


class BatchRings:
    """Takes batches from all rings of some folders to a file for each below the server's folder, until `stop`.

    `begins_anew`: what the rings hold already is of others, and is thrown away. `is_ours`: whether a ring is of the
    server; it is asked once of each.
    """

    def __init__(
        self,
        folders: Sequence[HeldRings],
        server_folder: Path,
        begins_anew: bool = False,
        is_ours: Callable[[Path], bool] = lambda _: True,
    ) -> None:
        """Takes once at once. Lets go of `folders` in `stop`, and at once where it raises ClusterError: no files can be
        made."""
        self._folders = folders
        self._into = server_folder / _TAKEN
        self._is_ours = is_ours
        self._rings: dict[Path, _Taken | None] = {}
        self._n_left = 0
        self._losses: list[str] = []
        self._ends = threading.Event()
        try:
            self._into.mkdir(parents=True, exist_ok=True)
            self._n_before = len(taken_files(server_folder))
        except OSError as error:
            self._let_go()
            raise ClusterError(f"batches: {error.strerror or error}") from error
        self._look(skips=begins_anew)
        self._thread = threading.Thread(target=self._run, name="batch rings", daemon=True)
        self._thread.start()

    @property
    def writer(self) -> Writer | None:
        """Whose batches are taken; None: nobody's so far."""
        found = {one.writer for one in list(self._rings.values()) if one is not None}
        return "library" if "library" in found else next(iter(found), None)

    @property
    def notes(self) -> list[str]:
        """What is left out, and is no loss."""
        if not self._n_left:
            return []
        return [
            f"batches: the hook in {self._n_left} processes is left unread: the batch library has them too"
        ]

    def stop(self) -> list[str]:
        """Takes what is left, once; returns what is missing, the second time nothing."""
        if self._ends.is_set():
            return []
        self._ends.set()
        self._thread.join(_ENDS_WITHIN_S)
        self._look()
        for taken in filter(None, self._rings.values()):
            self._losses += taken.close()
        self._let_go()
        return self._losses

    def _let_go(self) -> None:
        for folder in self._folders:
            folder.let_go()

    def _run(self) -> None:
        while not self._ends.wait(_EVERY_S):
            self._look()

    def _look(self, skips: bool = False) -> None:
        found = [(path, ring) for path in self._new() if (ring := self._open(path)) is not None]
        for path, ring in sorted(found, key=lambda one: one[1].writer != "library"):
            self._rings[path] = self._begin(path, ring, skips)
        for taken in filter(None, self._rings.values()):
            taken.take()

    def _new(self) -> list[Path]:
        """None where somebody removed the folders: rings that are open are taken from all the same."""
        try:
            found = [path for folder in self._folders for path in rings(folder.path)]
        except OSError:
            return []
        return [path for path in found if path not in self._rings]

    def _open(self, path: Path) -> BatchRing | None:
        """None where it is not of the server; and a loss where it is no ring, or not for us."""
        self._rings[path] = None
        if not self._is_ours(path):
            return None
        try:
            return BatchRing(path)
        except (ValueError, OSError) as error:
            self._losses.append(f"batches: {why_unread(path, error)}")
            return None

    def _begin(self, path: Path, ring: BatchRing, skips: bool) -> _Taken | None:
        """None where the library has its batches."""
        if ring.writer == "hook" and self.writer == "library":
            ring.close()
            self._n_left += 1
            return None
        number = self._n_before + len(self._rings)
        return _Taken(ring, self._into / f"{number:04d}-{path.stem}.frames", skips)


def take_left_rings(folder: Path) -> tuple[list[str], list[str]]:
    """What an agent that died had not taken from the rings of a server that it had started; returns what is missing,
    and notes."""
    rings = rings_of(folder, "batches")
    if rings is None:
        return [], []
    try:
        left = BatchRings([hold_alone(rings, "batches")], folder)
    except ClusterError as error:
        return [str(error)], []
    return left.stop(), left.notes


class _Taken:
    """One ring and its file, which is made with its first batch."""

    def __init__(self, ring: BatchRing, path: Path, skips: bool) -> None:
        self.writer = ring.writer
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
