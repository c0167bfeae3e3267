"""Records that stay on the nodes that made them: analysed from there, the rows are those of the run gathered."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from squall.actors.inject.library import built_library
from squall.analysis.derive import derive
from squall.analysis.schema import TABLES
from squall.analysis.storage.places.local_folder import LocalFolder
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import StoreError
from tests.integration.disks import fill, small_disk
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping, titled, wait_until
from tests.integration.namespaces import cluster
from tests.integration.test_cluster import NODES, Site
from tests.kept_runs import plain
from tests.null_process import NullProcess

pytestmark = pytest.mark.beside


def rows_by_table(store: RunStore) -> dict[str, pa.Table]:
    """All tables, as they are read."""
    return {name: plain(store.read(name)) for name in store.tables()}


def derived_of(rows: dict[str, pa.Table]) -> dict[str, pa.Table]:
    return {name: table for name, table in rows.items() if TABLES[name].is_derived}


def assert_equal_rows(found: dict[str, pa.Table], wanted: dict[str, pa.Table]) -> None:
    assert list(found) == list(wanted)
    for name, rows in wanted.items():
        assert found[name].equals(rows), name


def figures(store: RunStore) -> dict[str, Any]:
    return derive(store).to_json()


@pytest.mark.long
@pytest.mark.slow
def test_records_kept_on_this_machine_are_analysed_there_brought_home_and_gone_there(alone: Bench) -> None:
    kept = alone.folder / "kept"
    mapping = scenario_mapping(model={"name": "linear_head"})
    mapping["records"] = {"keep": "on-nodes", "folder": str(kept)}
    with NullProcess("--service=constant:1ms") as null:
        live = alone.start_run(mapping, "--server", f"http://127.0.0.1:{null.ports['http']}")
        assert live.end() in (0, 3), live.lines
    store = alone.store()
    assert store.manifest.losses == ()
    assert store.manifest.kept == {"node-0": str(kept / store.run)}
    assert not list((store.run_dir / "tables").glob("requests/*"))
    lying = {path.name for path in (kept / store.run / "node-0" / "tables").iterdir()}
    assert {name for name in lying if not TABLES[name].is_derived} == {
        name for name in store.tables() if not TABLES[name].is_derived and name != "clock_probes"
    }
    assert "joined" in lying
    assert not store.path("joined")
    of_the_run = derived_of(rows_by_table(store))
    assert planned_rows(store)["request_id"]
    assert store.verify() == []
    told = figures(store)
    left = rows_by_table(store)
    assert_equal_rows(derived_of(left), of_the_run)
    assert list((kept / store.run / "node-0" / "tables" / "joined").iterdir())  # only a keeper removes there

    moved = kept.with_name("elsewhere")
    kept.rename(moved)
    with pytest.raises(
        StoreError, match=r"^node-0 is not reached, which keeps \d+ rows of requests, "
    ) as error:
        RunStore.open(store.run_dir).read("requests")
    assert "\n" not in str(error.value)
    assert alone.start("analyze", store.run_dir).end() == 1
    assert alone.start("resume", store.run_dir).end() == 1
    moved.rename(kept)

    assert alone.start("resume", store.run_dir).end() in (0, 3)
    home = alone.store()
    assert home.manifest.kept == {}
    assert home.verify() == []
    assert not list(kept.rglob("*.parquet"))
    shutil.rmtree(kept)
    assert_equal_rows(rows_by_table(home), left)
    assert figures(home) == told
    assert_equal_rows(rows_by_table(alone.store()), left)


@pytest.mark.slow
def test_a_node_without_room_for_its_records_loses_none_once_the_run_is_resumed(alone: Bench) -> None:
    mapping = scenario_mapping(model={"name": "linear_head"})
    with (
        small_disk(alone.folder / "kept", "1m") as disk,
        NullProcess("--service=constant:1ms") as null,
    ):
        fill(disk)
        os.truncate(
            disk / "filler", (disk / "filler").stat().st_size - 4096
        )  # the mark of the folder has room
        mapping["records"] = {"keep": "on-nodes", "folder": str(disk)}
        live = alone.start_run(mapping, "--server", f"http://127.0.0.1:{null.ports['http']}")
        assert live.end() == 3, live.lines
        store = alone.store()
        assert store.manifest.unfinished is not None
        assert store.manifest.unfinished.why["node-0"].startswith("node-0: cannot keep spill/requests-")
        assert "no space left on device" in store.manifest.unfinished.why["node-0"].lower()
        assert set(planned_rows(store)["outcome"]) == {"lost"}

        live = alone.start("resume", store.run_dir)
        assert live.end() in (0, 3), live.lines
        assert not list(disk.rglob("*.parquet*"))
    home = alone.store()
    assert (home.manifest.unfinished, home.manifest.kept) == (None, {})
    assert home.verify() == []
    assert set(planned_rows(home)["outcome"]) == {"ok"}


@pytest.mark.long
@pytest.mark.slow
def test_a_keeper_that_is_killed_costs_no_row_once_the_run_is_resumed(alone: Bench) -> None:
    kept = alone.folder / "kept"
    mapping = scenario_mapping(model={"name": "linear_head"})
    mapping["records"] = {"keep": "on-nodes", "folder": str(kept)}
    with NullProcess("--service=constant:1ms") as null:
        live = alone.start_run(mapping, "--server", f"http://127.0.0.1:{null.ports['http']}")
        wait_until(lambda: list(kept.rglob("*.parquet")), 90, "the first part that is kept")
        (keeper,) = titled(alone.processes(), "served Keeper")
        keeper.kill()
        assert live.end() in (1, 3), live.lines
    store = alone.store()
    assert store.is_sealed
    assert store.manifest.unfinished is not None, live.lines
    live = alone.start("resume", store.run_dir)
    assert live.end() in (0, 1, 3), live.lines
    home = alone.store()
    assert (home.manifest.unfinished, home.manifest.kept) == (None, {})
    assert home.verify() == []
    assert set(planned_rows(home)["outcome"]) == {"ok"}
    assert not list(kept.rglob("*.parquet*"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with cluster(tmp_path_factory.mktemp("cluster"), "gpu0", "client0") as made, made.triton("gpu0") as url:
        yield Site(made, url)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(built_library("batches") is None, reason="the batch library was not built: no C compiler")
def test_a_run_left_on_three_hosts_is_analysed_to_the_rows_of_the_run_gathered_on_one(
    site: Site, tmp_path: Path
) -> None:
    kept = site.cluster.tmp / "kept"
    bench = Bench(tmp_path, site.cluster.tmp, site.cluster.ray, within=site.cluster.head.within)
    mapping = site.scenario(3, kind="poisson", rate="150/s")
    mapping["records"] = {"keep": "on-nodes", "folder": str(kept)}
    live = bench.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    store = bench.store()
    nodes = {name: NODES[name] for name in ("head", "gpu0", "client0")}
    assert store.manifest.losses == ()
    assert store.manifest.kept == {label: str(kept / store.run) for label in nodes.values()}
    for name, label in nodes.items():
        lying = site.host(name).seen(kept / store.run)
        assert [path.name for path in lying.iterdir()] == [label]
        assert ("requests" in {path.name for path in (lying / label / "tables").iterdir()}) == (
            name != "gpu0"
        )
        assert ("batches" in {path.name for path in (lying / label / "tables").iterdir()}) == (name == "gpu0")
    assert not list((store.run_dir / "tables").glob("requests/*"))

    def derived() -> dict[str, pa.Table]:
        """Read past the keepers, from the disk of each host."""
        opened = bench.store()
        places = {label: LocalFolder(site.host(name).seen(kept / store.run)) for name, label in nodes.items()}
        opened.kept.reach(places)
        assert opened.verify() == []
        return derived_of(rows_by_table(opened))

    def lying_at(table: str) -> dict[str, int]:
        """Parts of a derived table: on each host, and in the run directory."""
        folders = {
            name: site.host(name).seen(kept / store.run) / label / "tables" for name, label in nodes.items()
        }
        folders["here"] = store.run_dir / "tables"
        return {name: n for name, path in folders.items() if (n := len(list((path / table).glob("*"))))}

    of_the_run, told = derived(), json.loads((store.run_dir / "summary.json").read_text())
    assert {"joined", "windows", "batch_costs"} <= set(of_the_run)
    assert told["join"]["n_by_level"].get("exact"), told["join"]
    assert lying_at("batch_costs") == {"gpu0": 1}
    assert lying_at("joined") == {"head": 1, "client0": 1}
    live = bench.start("analyze", store.run_dir)
    assert live.end() == 1, live.lines
    line = live.error_line()
    assert all(f"{label} is not reached, which keeps " in line for label in list(nodes.values())[1:]), line
    assert "node-0 is not" not in line
    live = bench.start("analyze", store.run_dir, "--ray", site.cluster.ray)
    assert live.end() == 0, live.lines
    left = derived()
    assert_equal_rows(left, of_the_run)
    assert (lying_at("batch_costs"), lying_at("joined")) == ({"gpu0": 1}, {"head": 1, "client0": 1})

    live = bench.start("resume", store.run_dir, "--ray", site.cluster.ray)
    assert live.end() in (0, 3), live.lines
    home = bench.store()
    assert home.manifest.kept == {}
    assert home.verify() == []
    assert planned_rows(home)["request_id"]
    assert not any(list(site.host(name).seen(kept).rglob("*.parquet")) for name in nodes)
    assert_equal_rows(derived_of(rows_by_table(home)), left)
    assert json.loads((store.run_dir / "summary.json").read_text()) == told
    assert figures(home) == told
    levels = rows_by_table(home)["joined"].column("join_level").cast(pa.string()).to_pylist()
    assert levels.count("exact") == told["join"]["n_by_level"]["exact"]
