"""Copies of a node's files in a hidden folder of the run directory: piece by piece, checked, and taken up where they
stand, also by another process later.

    .fetched/<site>/spill/requests-0.arrows     as on the node, "/" of a site being "+"
    .fetched/<site>/whole.json                  all of it is there: path, length and sha256 of each file

A piece comes with its CRC-32 and is asked for again where it does not fit; a whole file is held to the SHA-256 that its
node computes. What an earlier process left is held to it first, and begun anew where the node's file begins otherwise.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from squall.analysis.storage.beneath import read_plain
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.spills import NodeFile, sha256_of
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import ClusterError, StoreError
from squall.scenarios.foreign_text import is_beneath, json_of

FETCHED = ".fetched"
LARGE_PIECE_BYTES = 8 * 2**20
"""After the load."""
_WHOLE = "whole.json"
_MOST_ASKED = 3
_SHA256_TIMEOUT_S = 1800.0

PieceBytes = Callable[[], int]
"""How long the next piece is to be, once it may be asked for; 0: none any more."""


def at_once() -> int:
    """As fast as it goes."""
    return LARGE_PIECE_BYTES


@dataclass
class Tally:
    """What fetching from a site took: bytes that came whole, time for them here, pieces asked for again, copies begun
    anew."""

    n_bytes: int = 0
    busy_ns: int = 0
    n_asked_again: int = 0
    n_begun_anew: int = 0


@dataclass
class _Copy:
    """A copy as far as it has come."""

    path: Path
    n_bytes: int
    digest: hashlib._Hash
    sha256: str = ""  # as the node said, of a whole one


class Copies:
    """Of one site. Several threads may call, one at a time gets its turn."""

    def __init__(self, agent: Handle[NodeAgent], folder: Path) -> None:
        self.folder = folder
        self.tally = Tally()
        self.notes: list[str] = []
        self._agent = agent
        self._copies: dict[str, _Copy] = {}
        self._lock = threading.Lock()

    def bring(self, file: NodeFile, piece_bytes: PieceBytes) -> bool:
        """Copies `file` up to its listed length, from where its copy stands; whether all of it is there.

        Raises ClusterError where the node does not give it, StoreError where the disk here takes no more.
        """
        with self._lock:
            try:
                copy = self._taken_up(file)
                while copy.n_bytes < file.n_bytes:
                    wanted = min(piece_bytes(), file.n_bytes - copy.n_bytes)
                    if wanted <= 0:
                        return False
                    begun_ns = time.perf_counter_ns()
                    self._append(copy, self._piece(file, copy.n_bytes, wanted))
                    self.tally.busy_ns += time.perf_counter_ns() - begun_ns
                return True
            except OSError as error:
                self._copies.pop(file.path, None)  # what is on the disk is looked at again
                raise StoreError(f"cannot write {self._place(file)}: {error.strerror or error}") from error

    def finish(self, file: NodeFile, piece_bytes: PieceBytes) -> None:
        """As `bring`, to the end, and holds the whole to what the node says of its own; begun anew once where it is not
        that. Raises as `bring`, and ClusterError where it is not the same then either."""
        for is_last in (False, True):
            if not self.bring(file, piece_bytes):
                raise ClusterError(f"{file.path} was not fetched whole")
            with self._lock:
                copy = self._copies[file.path]
                if copy.sha256 and copy.digest.hexdigest() == copy.sha256:
                    return
                begun_ns = time.perf_counter_ns()
                copy.sha256 = self._sha256(file, file.n_bytes)
                self.tally.busy_ns += time.perf_counter_ns() - begun_ns
                if copy.digest.hexdigest() == copy.sha256:
                    return
                if not is_last:
                    self._begin_anew(file, "is not the file of the node")
        raise ClusterError(f"the copy of {file.path} is not the file of the node")

    def path_of(self, file: NodeFile) -> Path:
        """Where its copy is, as far as it has come."""
        return self._place(file)

    def note_whole(self, files: list[NodeFile]) -> None:
        """All `files` were finished, and the node has no others. Raises StoreError."""
        with self._lock:
            listed = {one.path: [one.n_bytes, self._copies[one.path].sha256] for one in files}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / _WHOLE).write_text(json.dumps(listed), encoding="utf-8")
        except OSError as error:
            raise StoreError(f"cannot write {self.folder}: {error.strerror or error}") from error

    def _place(self, file: NodeFile) -> Path:
        place = self.folder / file.path
        if ".." in place.parts:
            raise ClusterError(f"{file.path} is no file of a node")
        return place

    def _taken_up(self, file: NodeFile) -> _Copy:
        """Its copy, what lies there having been held to the node's file."""
        known = self._copies.get(file.path)
        if known is not None:
            is_longer = known.n_bytes > file.n_bytes
            return self._begin_anew(file, "is longer than the file of the node") if is_longer else known
        path = self._place(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        n_bytes = path.stat().st_size
        digest = sha256_of(path, n_bytes)
        if n_bytes > file.n_bytes or (n_bytes and self._sha256(file, n_bytes) != digest.hexdigest()):
            return self._begin_anew(file, "is not how the file of the node begins")
        self._copies[file.path] = _Copy(path, n_bytes, digest)
        return self._copies[file.path]

    def _begin_anew(self, file: NodeFile, why: str) -> _Copy:
        path = self._place(file)
        path.write_bytes(b"")
        self.tally.n_begun_anew += 1
        self.notes.append(f"the copy of {file.path} {why}: it was fetched anew")
        self._copies[file.path] = _Copy(path, 0, hashlib.sha256())
        return self._copies[file.path]

    def _append(self, copy: _Copy, data: bytes) -> None:
        with copy.path.open("ab", buffering=0) as file:
            n_written = 0
            while n_written < len(data):
                n_written += file.write(data[n_written:])
        copy.digest.update(data)
        copy.n_bytes += len(data)

    def _piece(self, file: NodeFile, offset: int, n_bytes: int) -> bytes:
        for _ in range(_MOST_ASKED):
            try:
                piece = self._agent.call(NodeAgent.piece, file.path, offset, n_bytes)
            except StoreError as error:  # of the node's disk: StoreError stands for the run directory alone
                raise ClusterError(str(error)) from error
            if zlib.crc32(piece.data) == piece.crc32 and len(piece.data) == n_bytes:
                self.tally.n_bytes += len(piece.data)
                return piece.data
            self.tally.n_asked_again += 1
            self.notes.append(f"a piece of {file.path} came torn or damaged, and was asked for again")
        raise ClusterError(f"a piece of {file.path} came torn or damaged {_MOST_ASKED} times")

    def _sha256(self, file: NodeFile, n_bytes: int) -> str:
        try:
            return self._agent.wait(
                self._agent.begin(NodeAgent.sha256, file.path, n_bytes), _SHA256_TIMEOUT_S
            )
        except StoreError as error:
            raise ClusterError(str(error)) from error


def folder_of(run_dir: Path, site: str) -> Path:
    """Of the copies of a site."""
    return run_dir / FETCHED / site.replace("/", "+")


def copied_sites(run_dir: Path) -> dict[str, Path]:
    """The folders with copies that a run has, by site."""
    found = sorted((run_dir / FETCHED).glob("*/spill"))
    sites = {path.parent.name.replace("+", "/"): path.parent for path in found}
    return {site: folder for site, folder in sites.items() if is_beneath(site)}


def is_whole(folder: Path) -> bool:
    """Whether all that a site had is in its folder, as its node said."""
    try:
        listed = json_of(read_plain(folder / _WHOLE))
        return all(
            is_beneath(path)
            and (folder / path).stat().st_size == n_bytes
            and sha256_of(folder / path, n_bytes).hexdigest() == sha256
            for path, (n_bytes, sha256) in listed.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def remove_copies(run_dir: Path) -> None:
    """Of a run that has all in its tables."""
    shutil.rmtree(run_dir / FETCHED, ignore_errors=True)
