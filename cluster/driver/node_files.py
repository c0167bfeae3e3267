"""The files of a node as the driver sees them: read here where they lie on a disk of this machine, else from copies."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from squall.analysis.storage.schema import TABLES
from squall.cluster.driver.copies import Copies, PieceBytes, at_once
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.scratch import Owner, owner_of
from squall.cluster.node.spills import NodeFile, Spills
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import ClusterError
from squall.scenarios.foreign_file import plain_opener
from squall.scenarios.foreign_text import is_beneath, printable

_PIECE_BYTES = 2**20


class NodeFiles(Protocol):
    """What a node keeps for the driver. All raise ClusterError; StoreError stands for the run directory alone."""

    def list(self) -> list[NodeFile]:
        """See `Spills.files`. Raises ClusterError for a file that no node of ours has."""

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
        for place in ("spill", "reports"):
            if (self._folder / place).is_symlink():
                raise ClusterError(f"{self._folder / place} is a link, which squall makes none: remove it")
        try:
            return _checked(Spills(self._folder, self._node).files(), self._node)
        except OSError as error:
            raise ClusterError(
                f"{self._node}: cannot read {self._folder}: {error.strerror or error}"
            ) from error

    def bring(self, file: NodeFile, piece_bytes: PieceBytes = at_once) -> None:
        """See `NodeFiles`: it is read where it lies."""

    def open(self, file: NodeFile) -> io.RawIOBase:
        """See `NodeFiles`."""
        try:
            return _FileHere(self._folder / file.path)
        except OSError as error:
            raise ClusterError(f"{self._node}: cannot read {file.path}: {error.strerror or error}") from error


class FilesThere:
    """Of a node whose agent sends them in pieces, into copies in `folder` of the run directory."""

    def __init__(self, agent: Handle[NodeAgent], folder: Path) -> None:
        self._agent = agent
        self.copies = Copies(agent, folder)

    def list(self) -> list[NodeFile]:
        """See `NodeFiles`."""
        return _checked(self._agent.call(NodeAgent.files), "a node")

    def bring(self, file: NodeFile, piece_bytes: PieceBytes = at_once) -> None:
        """See `NodeFiles`; as fast as `piece_bytes` lets it."""
        self.copies.finish(file, piece_bytes)

    def open(self, file: NodeFile) -> io.RawIOBase:
        """See `NodeFiles`."""
        try:
            return _FileHere(self.copies.path_of(file))
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


def _checked(files: Sequence[NodeFile], whose: str) -> list[NodeFile]:
    """`files`, the names of which become paths in the run directory. Raises ClusterError where one cannot."""
    for file in files:
        is_of_table = file.table in TABLES and not TABLES[file.table].is_derived
        if not is_beneath(file.path) or (file.table and not is_of_table):
            name = printable(str(file.path))
            raise ClusterError(f"{whose} has a file that squall does not write there, {name}: remove it")
    return [*files]


class _FileHere(io.FileIO):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb", opener=plain_opener)

    def size(self) -> int:
        """Length in bytes now."""
        at = self.tell()
        n_bytes = self.seek(0, io.SEEK_END)
        self.seek(at)
        return n_bytes
