"""The files of a node as the driver sees them: read here where they lie on a disk of this machine, else from copies."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from squall.cluster.driver.records.copies import Copies, PieceBytes, at_once
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.scratch import Owner, owner_of
from squall.cluster.node.spills import NodeFile, Spills
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import ClusterError

_PIECE_BYTES = 2**20


class NodeFiles(Protocol):
    """What a node keeps for the driver. All raise ClusterError; StoreError stands for the run directory alone."""

    def list(self) -> list[NodeFile]:
        """See `Spills.files`."""

    def bring(self, file: NodeFile, piece_bytes: PieceBytes = at_once) -> None:
        """All of it to where it can be read; StoreError where the run directory takes no more."""

    def open(self, file: NodeFile) -> io.RawIOBase:
        """For reading, with a `size`: as far as it was brought."""


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

    def bring(self, file: NodeFile, piece_bytes: PieceBytes = at_once) -> None:
        """See `NodeFiles`: it is read where it lies."""

    def open(self, file: NodeFile) -> io.RawIOBase:
        """See `NodeFiles`."""
        try:
            return _FileHere(str(self._folder / file.path), "rb")
        except OSError as error:
            raise ClusterError(f"{self._node}: cannot read {file.path}: {error.strerror or error}") from error


class FilesThere:
    """Of a node whose agent sends them in pieces, into copies in `folder` of the run directory."""

    def __init__(self, agent: Handle[NodeAgent], folder: Path) -> None:
        self._agent = agent
        self.copies = Copies(agent, folder)

    def list(self) -> list[NodeFile]:
        """See `NodeFiles`."""
        return self._agent.call(NodeAgent.files)

    def bring(self, file: NodeFile, piece_bytes: PieceBytes = at_once) -> None:
        """See `NodeFiles`; as fast as `piece_bytes` lets it."""
        self.copies.finish(file, piece_bytes)

    def open(self, file: NodeFile) -> io.RawIOBase:
        """See `NodeFiles`."""
        try:
            return _FileHere(str(self.copies.path_of(file)), "rb")
        except OSError as error:
            raise ClusterError(f"nothing of {file.path} was fetched") from error


def files_seen(
    folder: str, owner: Owner | None, node: str, agent: Handle[NodeAgent], copies: Path
) -> FilesHere | FilesThere:
    """Those in `folder` of the node: here, if this machine has that folder under that path, as its mark proves.

    `copies`: the folder for those that are not here.
    """
    if owner is not None and owner_of(Path(folder)) == owner:
        return FilesHere(Path(folder), node)
    return FilesThere(agent, copies)


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
