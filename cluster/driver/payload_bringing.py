"""The file of encoded requests on its way to the clients' nodes: one on each disk, for all workers there."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from squall.cluster.driver.node_files import FilesHere
from squall.cluster.driver.nodes import Nodes
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.scratch import Scratch
from squall.cluster.node.spills import Piece
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import ClusterError

_PIECE_BYTES = 8 * 2**20


@contextmanager
def packing_place() -> Iterator[Path]:
    """A folder where the driver writes such files, in its temporary one; removed at the end. Raises ClusterError."""
    try:
        scratch = Scratch()
    except OSError as error:
        raise ClusterError(f"no scratch folder for encoded requests: {error.strerror or error}") from error
    try:
        yield scratch.path
    finally:
        scratch.remove()


def bring(path: Path, nodes: Nodes, labels: Iterable[str]) -> dict[str, str]:
    """Puts the file into the scratch folder of each node, under its name; its path there, by label. Raises
    ClusterError.

    Where that folder is on a disk of this machine it is linked, or copied from disk to disk; else it is sent in pieces.
    """
    found = {}
    for label in dict.fromkeys(labels):
        target = Path(nodes.folders[label]) / path.name
        if isinstance(nodes.files[label], FilesHere):
            _link(path, target, label)
        else:
            _send(path, nodes.hosts[label])
        found[label] = str(target)
    return found


def _link(path: Path, target: Path, label: str) -> None:
    try:
        try:
            os.link(path, target)
        except OSError:  # another file system, or one without links
            shutil.copyfile(path, target)
    except OSError as error:
        raise ClusterError(f"{label}: no room for encoded requests: {error.strerror or error}") from error


def _send(path: Path, agent: Handle[NodeAgent]) -> None:
    offset = 0
    with path.open("rb") as file:
        while data := file.read(_PIECE_BYTES):
            agent.call(NodeAgent.take_in, path.name, offset, Piece(data, zlib.crc32(data)))
            offset += len(data)
