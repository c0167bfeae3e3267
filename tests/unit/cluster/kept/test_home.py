"""What a run left on its nodes is brought home: not while it goes on, and nothing of other runs is touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from squall.analysis.storage.store import RunStore
from squall.cluster.kept.home import bring_records
from squall.cluster.kept.keeper import Keeper
from squall.scenarios.errors import ClusterError, StoreError
from tests.unit.analysis.storage.test_kept_parts import NODES, left_on_nodes


def kept_of(tmp_path: Path) -> list[str]:
    return sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("node-*/**/requests/*"))


@pytest.fixture
def left(tmp_path: Path) -> RunStore:
    """Sealed; the folder of each node is called as the run, as a keeper makes it."""
    store = left_on_nodes(tmp_path)
    folders = {node: tmp_path / node / "kept" / store.run for node in NODES}
    for node, folder in folders.items():
        folder.parent.mkdir()
        folder.mkdir()
        (tmp_path / node / node).rename(folder / node)
    manifest = replace(store.manifest, kept={node: str(folder) for node, folder in folders.items()})
    store._write_manifest(manifest)  # as a run of these folders has it
    return RunStore.open(store.run_dir)


def test_all_of_it_comes_and_goes_there(left: RunStore, tmp_path: Path) -> None:
    rows = left.read("requests")
    bring_records(left.run_dir, None)
    home = RunStore.open(left.run_dir)
    assert home.read("requests").equals(rows)
    assert kept_of(tmp_path) == []
    bring_records(left.run_dir, None)  # nothing is left to do
    assert RunStore.open(left.run_dir).manifest == home.manifest


def test_without_one_of_its_nodes_nothing_changes(left: RunStore, tmp_path: Path) -> None:
    (tmp_path / "node-2").rename(tmp_path / "gone")
    before = kept_of(tmp_path)
    with pytest.raises(StoreError, match=r"^node-2 is not reached, which keeps 66 rows of requests"):
        bring_records(left.run_dir, None)
    assert kept_of(tmp_path) == before
    assert RunStore.open(left.run_dir).manifest == left.manifest


def test_a_folder_that_is_not_of_the_run_is_not_removed(left: RunStore, tmp_path: Path) -> None:
    foreign = tmp_path / "node-9" / "documents" / "tables"
    foreign.mkdir(parents=True)
    (foreign / "mine.txt").write_text("mine")
    left._write_manifest(
        replace(left.manifest, kept={**left.manifest.kept, "documents": str(tmp_path / "node-9")})
    )
    bring_records(left.run_dir, None)
    assert (foreign / "mine.txt").read_text() == "mine"


def test_a_keeper_shows_nothing_but_records(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    keeper = Keeper(str(tmp_path / "records"))
    folder = keeper.begin("run-1", "node-0")
    assert keeper.nodes_of("run-1") == {"node-0": folder}
    for asked, name in ((str(tmp_path), "secret"), (folder, "../../secret"), (folder, "/etc/passwd")):
        with pytest.raises(ClusterError, match=r"no folder of records|no file of records"):
            keeper.read(asked, name, 0, 10)
    keeper.forget("run-1", "node-0")
    assert not (tmp_path / "records" / "run-1").exists()
