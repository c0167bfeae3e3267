"""A folder of a node as a `Place`: its files are read through a process of ours there."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from squall.analysis.storage.workplace import Errand
from squall.analysis.tables.sealed import SealedFile
from squall.cluster.kept.fetched import Fetched
from squall.cluster.kept.keeper import Keeper
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import SquallError

_PIECE_BYTES = 8 * 1024**2
_WORK_TIMEOUT_S = 24 * 3600.0
"""A slice takes seconds; whoever is silent or gone is found out long before."""


@dataclass(frozen=True)
class NodeFolder:
    """The files under `folder` of the node of `keeper`. For the process that has the handle: it does not pickle."""

    keeper: Handle[Keeper]
    folder: str
    node: str
    fetched: Fetched | None = field(default=None, compare=False)
    """Keeps what was read, if it is there."""

    @property
    def address(self) -> str:
        return f"{self.folder} of {self.node}"

    def sizes(self, under: str = "") -> dict[str, int]:
        with _Told():
            return self.keeper.call(Keeper.sizes, self.folder, under)

    def open(self, name: str) -> pa.NativeFile:
        with _Told():
            size = self.keeper.call(Keeper.size, self.folder, name)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return pa.PythonFile(_FileThere(self, name, size), mode="r")

    def write(self, name: str, content: bytes) -> None:
        with _Told():
            self.keeper.call(Keeper.write, self.folder, name, content)

    def send(self, name: str, path: Path) -> None:
        self.write(name, path.read_bytes())

    def remove(self, name: str) -> None:
        with _Told():
            self.keeper.call(Keeper.remove, self.folder, name)

    def work(self, table: str, made: str, number: int, errand: Errand) -> Sequence[SealedFile]:
        """A `Workplace`. Raises SquallError: it waits as long as the process of the node lives."""
        asked = self.keeper.begin(Keeper.work, self.folder, self.node, table, made, number, errand)
        return self.keeper.wait(asked, _WORK_TIMEOUT_S)


class _FileThere(io.RawIOBase):
    """A file of a node, of which what is asked for is fetched."""

    def __init__(self, place: NodeFolder, name: str, n_bytes: int) -> None:
        self._place, self._name, self._n_bytes = place, name, n_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._n_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._n_bytes}[whence] + offset
        return self._at

    def read(self, n_bytes: int | None = -1) -> bytes:
        left = max(0, self._n_bytes - self._at)
        wanted = left if n_bytes is None or n_bytes < 0 else min(n_bytes, left)
        if wanted <= 0:
            return b""
        kept = self._place.fetched
        if kept is None:
            found = self._fetch(self._at, wanted)
        else:
            found = kept.read(f"{self._place.folder}/{self._name}", self._at, wanted, self._fetch)
        self._at += len(found)
        return found

    def _fetch(self, start: int, n_bytes: int) -> bytes:
        """So many bytes of the file on its node. Raises OSError."""
        pieces: list[bytes] = []
        while n_bytes > 0:
            with _Told():
                piece = self._place.keeper.call(
                    Keeper.read, self._place.folder, self._name, start, min(n_bytes, _PIECE_BYTES)
                )
            if not piece:
                raise OSError(errno.EIO, f"{self._name} of {self._place.node} has become shorter")
            pieces.append(piece)
            start += len(piece)
            n_bytes -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Told:
    """Makes OSError of what a handle raises: a place has no other."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SquallError):
            raise OSError(errno.EIO, str(error)) from error
