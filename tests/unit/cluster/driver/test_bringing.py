"""The file of encoded requests comes to a node whole, linked, copied or piece by piece, or it is told."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.cluster.driver import payload_bringing as bringing
from squall.cluster.driver.node_files import FilesHere
from squall.cluster.driver.nodes import Nodes
from squall.cluster.driver.payload_bringing import bring, packing_place
from squall.cluster.node.spills import Piece, Spills
from squall.scenarios.errors import ClusterError

CONTENT = bytes(range(256)) * 10
NAME = "requests-1.packed"


class Agent:
    """A node's files, asked as over a handle."""

    def __init__(self, folder: Path) -> None:
        self.spills = Spills(folder, "node-1")
        self.n_calls = 0

    def call(self, method: Any, *arguments: Any) -> None:
        assert method.__name__ == "take_in"
        self.n_calls += 1
        self.spills.take_in(*arguments)


def nodes(here: Path | None, there: Agent | None) -> Nodes:
    """Those of a run: one that shares the driver's disk, one that does not."""
    files = {"node-0": FilesHere(here, "node-0")} if here is not None else {}
    return cast(
        Nodes,
        SimpleNamespace(
            folders={"node-0": str(here), "node-1": str(there and there.spills._folder)},
            files=files | {"node-1": None},
            hosts={"node-1": there},
        ),
    )


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(CONTENT)
    return path


def test_a_node_with_the_drivers_disk_has_the_same_file(tmp_path: Path, packed: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    found = bring(packed, nodes(here, None), ["node-0", "node-0"])
    assert found == {"node-0": str(here / NAME)}
    assert (here / NAME).samefile(packed)


def test_where_there_are_no_links_it_is_copied(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    here = tmp_path / "here"
    here.mkdir()
    bring(packed, nodes(here, None), ["node-0"])
    assert (here / NAME).read_bytes() == CONTENT
    with pytest.raises(ClusterError, match="node-0: no room for encoded requests"):
        bring(packed, nodes(tmp_path / "gone", None), ["node-0"])


def test_a_node_of_its_own_gets_it_in_pieces(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing, "_PIECE_BYTES", 700)
    (tmp_path / "there").mkdir()
    agent = Agent(tmp_path / "there")
    assert bring(packed, nodes(None, agent), ["node-1"]) == {"node-1": str(tmp_path / "there" / NAME)}
    assert (tmp_path / "there" / NAME).read_bytes() == CONTENT
    assert agent.n_calls == 4


def test_a_piece_that_is_damaged_or_finds_no_room_is_told(tmp_path: Path) -> None:
    spills = Spills(tmp_path, "node-1")
    with pytest.raises(ClusterError, match="node-1: a piece of x came damaged"):
        spills.take_in("x", 0, Piece(b"one", zlib.crc32(b"two")))
    (tmp_path / "x").mkdir()
    with pytest.raises(ClusterError, match="node-1: no room for x"):
        spills.take_in("x", 0, Piece(b"one", zlib.crc32(b"one")))


def test_the_place_of_the_file_goes_when_it_was_brought() -> None:
    with packing_place() as folder:
        (folder / NAME).write_bytes(CONTENT)
    assert not folder.exists()
