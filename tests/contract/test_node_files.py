"""What the driver sees of a node's files, whether it reads them itself or the node's agent sends them."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from squall.cluster.driver.node_files import FilesHere, FilesThere, NodeFiles, arrow_file, pieces_of
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.spills import NodeFile, Spills
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import ClusterError

CONTENT = random.Random(1).randbytes(25_000)
TABLE = pa.table({"request_id": list(range(5_000))})


class AgentHere:
    """The agent's own answers, without the way to another process."""

    def __init__(self, folder: Path) -> None:
        self._files = SimpleNamespace(spills=Spills(folder, "node-0"))

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return method(self, *arguments)

    def begin(self, method: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        return partial(method, self, *arguments)

    def wait(self, reference: Callable[[], Any], _: float) -> Any:
        return reference()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a node, with a spill file of a table and one that Arrow reads."""
    Spills(tmp_path, "node-0")
    (tmp_path / "spill" / "requests-0.arrows").write_bytes(CONTENT)
    with pa.ipc.new_stream(str(tmp_path / "spill" / "requests-1.arrows"), TABLE.schema) as stream:
        stream.write_table(TABLE)
    return tmp_path


@pytest.fixture(params=["here", "there"])
def files(request: pytest.FixtureRequest, folder: Path) -> NodeFiles:
    if request.param == "here":
        return FilesHere(folder, "node-0")
    return FilesThere(cast("Handle[NodeAgent]", AgentHere(folder)), folder / "copies")


def test_files_are_listed_with_path_length_and_table(files: NodeFiles, folder: Path) -> None:
    names = ["requests-0.arrows", "requests-1.arrows"]
    lengths = [(folder / "spill" / name).stat().st_size for name in names]
    assert sorted(files.list()) == [
        NodeFile(f"spill/{name}", length, "requests") for name, length in zip(names, lengths, strict=True)
    ]


def test_a_file_comes_whole_in_pieces_of_any_size_and_from_any_place(files: NodeFiles) -> None:
    first, second = sorted(files.list())
    for one in (first, second):
        files.bring(one, lambda: 1_000)  # has seams
    assert b"".join(pieces_of(files, first)) == CONTENT
    with files.open(first) as opened:
        assert cast(Any, opened).size() == first.n_bytes == len(CONTENT)
        assert opened.tell() == 0
        assert opened.read(1_500) + opened.read(10) == CONTENT[:1_510]
        assert opened.seek(-7, io.SEEK_END) == len(CONTENT) - 7
        assert opened.read() == CONTENT[-7:]
        assert opened.read(5) == b""
        opened.seek(3)
        opened.seek(2, io.SEEK_CUR)
        assert opened.read(4) == CONTENT[5:9]
    with arrow_file(files, second) as data:
        assert pa.ipc.open_stream(data).read_all() == TABLE


def test_a_file_that_is_gone_is_an_error_of_the_cluster(files: NodeFiles, folder: Path) -> None:
    gone = next(iter(files.list()))
    (folder / gone.path).unlink()
    with pytest.raises(ClusterError, match=r"node-0.*No such file"):
        _read(files, gone)


def _read(files: NodeFiles, file: NodeFile) -> bytes:
    files.bring(file)
    return b"".join(pieces_of(files, file))
