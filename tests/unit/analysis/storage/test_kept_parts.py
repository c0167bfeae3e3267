"""Runs whose parts lie in folders of three nodes: read, sealed, judged and derived as any other, and brought home."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.analysis.derive import derive
from squall.analysis.schema import TABLES
from squall.analysis.storage.intact import require_intact
from squall.analysis.storage.kept_parts import as_kept
from squall.analysis.storage.part import table_entry
from squall.analysis.storage.places.local_folder import LocalFolder
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.sealed import SealedFile, SealedTable, SealedVerdict
from squall.scenarios.errors import Sealed, StoreError
from tests.planted_runs import Shape, plant

NODES = ("node-0", "node-1", "node-2")
SHAPE = Shape(seed=5, n_requests=200, servers=("record", "traced"), n_instances=2, n_nodes=2)


def left_on_nodes(tmp_path: Path) -> RunStore:
    """A sealed run: each node has its own rows, and the driver those of `clock_probes` and half of the requests."""
    whole = plant(SHAPE).write(tmp_path / "whole")
    known = whole.manifest
    bare = replace(known, run="", state="open", tables=None, verdict=None, disk_losses=(), unfinished=None)
    store = RunStore.create(tmp_path / "runs", "left", 1_795_250_252_713_561_538, bare)
    store.amend(replace(store.manifest, kept={node: str(tmp_path / node) for node in NODES}))
    raw = [name for name in whole.tables() if not TABLES[name].is_derived]
    for number, node in enumerate(NODES):
        path = tmp_path / node / node
        (path / "tables").mkdir(parents=True)
        (path / "owner.json").write_text(json.dumps({"run": store.run}), encoding="utf-8")
        there = RunStore(path, Manifest(run=store.run), {})
        for name in raw:
            rows = whole.read(name)
            there.append(name, rows.take(pa.array(range(number, len(rows), len(NODES)))))
            there.flush()
            store.keep(name, as_kept(node, table_entry(path, there.path(name)).files))
    store.seal(SealedVerdict(status="VALID"))
    assert not list(store.run_dir.glob("tables/*/*"))
    assert {name: len(store.read(name)) for name in raw} == {name: len(whole.read(name)) for name in raw}
    return RunStore.open(store.run_dir)


def all_rows(store: RunStore) -> dict[str, pa.Table]:
    return {name: store.read(name) for name in store.tables()}


def test_analysis_of_a_run_left_on_three_nodes_is_that_of_the_run_gathered(tmp_path: Path) -> None:
    store = left_on_nodes(tmp_path)
    told = derive(store).to_json()
    left = all_rows(store)
    assert store.verify() == []
    assert len(left["joined"]) == 200
    assert sum(table.rows for table in (store.manifest.tables or {}).values()) == sum(map(len, left.values()))

    store.bring_home()
    for node in NODES:
        shutil.rmtree(tmp_path / node)
    home = RunStore.open(store.run_dir)
    assert home.manifest.kept == {}
    assert home.verify() == []
    assert derive(home).to_json() == told
    found = all_rows(home)
    assert list(found) == list(left)
    assert [name for name, rows in left.items() if not found[name].equals(rows)] == []


@pytest.mark.slow
def test_a_node_that_is_gone_is_named_with_what_it_has(tmp_path: Path) -> None:
    store = left_on_nodes(tmp_path)
    (tmp_path / "node-1").rename(tmp_path / "far")
    store = RunStore.open(store.run_dir)
    with pytest.raises(
        StoreError, match=r"^node-1 is not reached, which keeps 67 rows of requests, .*--ray ADDRESS$"
    ):
        derive(store)
    store.kept.reach({"node-1": LocalFolder(tmp_path / "far")})
    assert len(derive(store).to_json()["verdict"]) > 0
    assert pc.count_distinct(store.read("requests").column("request_id")).as_py() == 200


def test_a_part_that_is_missing_cut_or_changed_is_told(tmp_path: Path) -> None:
    store = left_on_nodes(tmp_path)
    part = tmp_path / "node-2" / "node-2" / "tables" / "requests" / "part-00000.parquet"
    content = part.read_bytes()
    name = "node-2/tables/requests/part-00000.parquet"
    part.write_bytes(content[:-1])
    with pytest.raises(StoreError, match=f"{name} has changed since the seal"):
        require_intact(store)
    part.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    assert store.verify() == [f"{name} has changed since the seal"]
    with pytest.raises(StoreError, match=f"{name} of node-2 has changed since the seal"):
        store.bring_home()
    assert not list(store.run_dir.glob("tables/*/part*"))
    assert RunStore.open(store.run_dir).manifest == store.manifest
    part.unlink()
    with pytest.raises(StoreError, match=f"{name} is missing, which the run was sealed with"):
        require_intact(store)


def test_a_sealed_run_takes_no_more_parts(tmp_path: Path) -> None:
    with pytest.raises(Sealed):
        left_on_nodes(tmp_path).keep("requests", [])


def test_a_part_elsewhere_that_a_manifest_names_is_not_removed(tmp_path: Path) -> None:
    store = plant(SHAPE).write(tmp_path / "runs")
    part = tmp_path / "home" / "letters" / "tables" / "windows" / "part-00000.parquet"
    part.parent.mkdir(parents=True)
    part.write_text("mine")
    file = SealedFile(path="letters/tables/windows/part-00000.parquet", bytes=4, node="letters")
    tables = {**(store.manifest.tables or {}), "windows": SealedTable(files=(file,))}
    store._write_manifest(replace(store.manifest, kept={"letters": str(tmp_path / "home")}, tables=tables))
    store = RunStore.open(store.run_dir)
    assert store.replace_derived("windows", TABLES["windows"].arrow().empty_table()) == 0
    assert part.read_text() == "mine"
    assert RunStore.open(store.run_dir).verify() == []


@pytest.mark.parametrize("said", [None, {"run": "other"}, [], "no JSON"])
def test_a_folder_that_does_not_say_that_it_is_of_the_run_is_not_read(said: object, tmp_path: Path) -> None:
    store = left_on_nodes(tmp_path)
    mark = tmp_path / "node-1" / "node-1" / "owner.json"
    mark.unlink()
    if said is not None:
        mark.write_text(said if isinstance(said, str) else json.dumps(said), encoding="utf-8")
    with pytest.raises(StoreError, match=r"^node-1 is not reached, which keeps 67 rows of requests"):
        RunStore.open(store.run_dir).read("requests")


def test_a_folder_of_a_name_that_no_folder_can_have_is_not_reached(tmp_path: Path) -> None:
    store = left_on_nodes(tmp_path)
    store._write_manifest(replace(store.manifest, kept={**store.manifest.kept, "node-1": f"/{'x' * 5_000}"}))
    with pytest.raises(StoreError, match=r"^node-1 is not reached, which keeps 67 rows of requests"):
        RunStore.open(store.run_dir).read("requests")
