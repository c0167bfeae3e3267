"""The files of a node as the driver sees them: read here where they lie on a disk of this machine, else fetched."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.scratch import Owner, owner_of
from squall.cluster.node.spills import NodeFile, Spills
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import ClusterError, StoreError

_CHUNK_BYTES = 8 * 1024**2
_PIECE_BYTES = 2**20


class NodeFiles(Protocol):
    """What a node keeps for the driver. Both raise ClusterError; StoreError stands for the run directory alone."""

    def list(self) -> list[NodeFile]:
        """See `Spills.files`."""

    def open(self, file: NodeFile) -> io.RawIOBase:
        """For reading, with a `size`."""


class FilesHere:
    """In a folder on this machine: whoever wrote them need not live, nor Ray."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder = folder
        self._node = node

    def list(self) -> list[NodeFile]:
        """See `NodeFiles`."""
        try:
            return Spills(self._folder, self._node).files()
        except OSError as error:
            raise ClusterError(
                f"{self._node}: cannot read {self._folder}: {error.strerror or error}"
            ) from error

    def open(self, file: NodeFile) -> io.RawIOBase:
        """See `NodeFiles`."""
        try:
            return _FileHere(str(self._folder / file.path), "rb")
        except OSError as error:
            raise ClusterError(f"{self._node}: cannot read {file.path}: {error.strerror or error}") from error


class FilesThere:
    """Of a node whose agent sends them in pieces of 8 MiB."""

    def __init__(self, agent: Handle[NodeAgent]) -> None:
        self._agent = agent

    def list(self) -> list[NodeFile]:
        """See `NodeFiles`."""
        return self._agent.call(NodeAgent.files)

    def open(self, file: NodeFile) -> io.RawIOBase:
        """See `NodeFiles`."""
        return RemoteFile(self._agent, file.path, file.n_bytes)


def files_seen(folder: str, owner: Owner | None, node: str, agent: Handle[NodeAgent]) -> NodeFiles:
    """Those in `folder` of the node: here, if this machine has that folder under that path, as its mark proves."""
    if owner is not None and owner_of(Path(folder)) == owner:
        return FilesHere(Path(folder), node)
    return FilesThere(agent)


def pieces_of(files: NodeFiles, file: NodeFile) -> Iterator[bytes]:
    """Its bytes, a MiB at a time."""
    with closing(files.open(file)) as opened:
        while piece := opened.read(_PIECE_BYTES):
            yield piece


def arrow_file(files: NodeFiles, file: NodeFile) -> pa.PythonFile:
    """The file as Arrow reads it."""
    return pa.PythonFile(files.open(file), mode="r")


class _FileHere(io.FileIO):
    def size(self) -> int:
        """Length in bytes now."""
        at = self.tell()
        n_bytes = self.seek(0, io.SEEK_END)
        self.seek(at)
        return n_bytes


class RemoteFile(io.RawIOBase):
    """A file on a node, read through its agent in pieces of 8 MiB."""

    def __init__(self, agent: Handle[NodeAgent], name: str, n_bytes: int) -> None:
        self._agent = agent
        self._name = name
        self._n_bytes = n_bytes
        self._at = 0
        self._piece = b""
        self._piece_at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._n_bytes}[whence]
        self._at = base + offset
        return self._at

    def size(self) -> int:
        """Length in bytes when it was listed."""
        return self._n_bytes

    def read(self, n_bytes: int | None = -1) -> bytes:
        left = self._n_bytes - self._at
        wanted = left if n_bytes is None or n_bytes < 0 else min(n_bytes, left)
        parts = []
        while wanted > 0:
            start = self._at - self._piece_at
            if not 0 <= start < len(self._piece):
                self._piece = self._fetch()
                self._piece_at, start = self._at, 0
                if not self._piece:
                    break
            part = self._piece[start : start + wanted]
            parts.append(part)
            self._at += len(part)
            wanted -= len(part)
        return b"".join(parts)

    def _fetch(self) -> bytes:
        """The piece from here on. Raises ClusterError; StoreError stands for the run directory alone."""
        try:
            return self._agent.call(NodeAgent.read_file, self._name, self._at, _CHUNK_BYTES)
        except StoreError as error:
            raise ClusterError(str(error)) from error
