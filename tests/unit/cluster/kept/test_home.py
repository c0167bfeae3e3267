"""What a run left on its nodes is brought home: not while it goes on, and nothing of other runs is touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from squall.analysis.storage.store import RunStore
from squall.cluster.kept.home import bring_records
from squall.cluster.kept.keeper import Keeper
from squall.cluster.node.scratch import claim, this_place
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
        (folder / node).chmod(0o700)
        claim(folder / node, store.run, node, str(store.run_dir.resolve()), this_place())
    manifest = replace(store.manifest, kept={node: str(folder) for node, folder in folders.items()})
    store._write_manifest(manifest)  # as a run of these folders has it
    return RunStore.open(store.run_dir)


def test_all_of_it_comes_and_goes_there(left: RunStore, tmp_path: Path) -> None:
    rows = left.read("requests")
    assert bring_records(left.run_dir, None) == []
    home = RunStore.open(left.run_dir)
    assert home.read("requests").equals(rows)
    assert kept_of(tmp_path) == []
    assert [path.name for path in (tmp_path / "node-0" / "kept").iterdir()] == []
    assert bring_records(left.run_dir, None) == []  # nothing is left to do
    assert RunStore.open(left.run_dir).manifest == home.manifest


def test_without_one_of_its_nodes_nothing_changes(left: RunStore, tmp_path: Path) -> None:
    (tmp_path / "node-2").rename(tmp_path / "gone")
    before = kept_of(tmp_path)
    with pytest.raises(StoreError, match=r"^node-2 is not reached, which keeps 66 rows of requests"):
        bring_records(left.run_dir, None)
    assert kept_of(tmp_path) == before
    assert RunStore.open(left.run_dir).manifest == left.manifest


def of_another_run_directory(folder: Path) -> None:
    claim(folder, folder.parent.name, folder.name, "/elsewhere", this_place())


def open_to_others(folder: Path) -> None:
    folder.chmod(0o777)


def a_link(folder: Path) -> None:
    folder.symlink_to(folder.rename(folder.with_name("aside")))


@pytest.mark.parametrize("change", [of_another_run_directory, open_to_others, a_link])
def test_a_folder_without_a_mark_for_this_run_stays_and_is_told(
    left: RunStore, change: Callable[[Path], None]
) -> None:
    folder = Path(left.manifest.kept["node-1"]) / "node-1"
    change(folder)
    before = list((folder / "tables" / "requests").iterdir())
    told = "stays: nothing there says that this user's squall made it for this run, or more lies there"
    assert bring_records(left.run_dir, None) == [f"{folder} {told}"]
    assert list((folder / "tables" / "requests").iterdir()) == before
    assert RunStore.open(left.run_dir).manifest.kept == {}


def test_a_folder_without_any_mark_is_neither_read_nor_removed(left: RunStore, tmp_path: Path) -> None:
    (Path(left.manifest.kept["node-1"]) / "node-1" / "owner.json").unlink()
    before = kept_of(tmp_path)
    with pytest.raises(StoreError, match=r"^node-1 is not reached, which keeps 67 rows of requests"):
        bring_records(left.run_dir, None)
    assert kept_of(tmp_path) == before


def test_of_a_marked_folder_only_what_a_keeper_made_is_removed(left: RunStore) -> None:
    folder = Path(left.manifest.kept["node-1"]) / "node-1"
    (folder / "tables" / "mine").mkdir()
    (folder / "tables" / "mine" / "letter.txt").write_text("mine")
    (line,) = bring_records(left.run_dir, None)
    assert line.startswith(f"{folder} stays: ")
    assert (folder / "tables" / "mine" / "letter.txt").read_text() == "mine"
    assert not (folder / "tables" / "requests").exists()


@pytest.mark.parametrize("named", ["as the run", "otherwise"])
def test_a_folder_that_is_not_of_the_run_is_not_removed(left: RunStore, tmp_path: Path, named: str) -> None:
    foreign = tmp_path / (left.run if named == "as the run" else "home")
    (foreign / "documents" / "tables").mkdir(parents=True)
    mine = foreign / "documents" / "tables" / "mine.txt"
    mine.write_text("mine")
    left._write_manifest(replace(left.manifest, kept={**left.manifest.kept, "documents": str(foreign)}))
    (line,) = bring_records(left.run_dir, None)
    assert line.startswith(f"{foreign / 'documents'} stays: ")
    assert mine.read_text() == "mine"


def test_a_link_in_a_folder_that_the_manifest_names_is_not_read_through(left: RunStore) -> None:
    part = next(Path(left.manifest.kept["node-1"]).glob("node-1/tables/requests/*"))
    part.symlink_to(part.rename(part.parents[4] / "aside"))
    with pytest.raises(StoreError, match=f"{part} is a link"):
        bring_records(left.run_dir, None)


def test_a_keeper_shows_nothing_but_records(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    keeper = Keeper(str(tmp_path / "records"))
    folder = keeper.begin("run-1", "node-0", "/runs/run-1", this_place())
    assert keeper.nodes_of("run-1") == {"node-0": folder}
    for asked, name in ((str(tmp_path), "secret"), (folder, "../../secret"), (folder, "/etc/passwd")):
        with pytest.raises(ClusterError, match=r"no folder of records|no file of records"):
            keeper.read(asked, name, 0, 10)
    assert not keeper.forget("run-1", "node-0", "/another/run-1")
    assert keeper.forget("run-1", "node-0", "/runs/run-1")
    assert not (tmp_path / "records" / "run-1").exists()
