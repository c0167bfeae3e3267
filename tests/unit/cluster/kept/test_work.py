"""What is derived of a run that lies on its nodes is made there, and is what is made where all lies in one place."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from squall.analysis.derive import derive, is_derived
from squall.analysis.join import batch_slices, join
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.windows import write_windows
from squall.analysis.schema import TABLES
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.workplace import Errand
from squall.analysis.tables.sealed import SealedFile
from squall.scenarios.errors import AnalysisError, ClusterError, LostActor
from tests.kept_runs import Colleague, leave_on_nodes, plain, set_to_work
from tests.plain_runs import plain_run
from tests.planted_runs import STYLES, Shape, plant

NODES = ("node-0", "node-1", "node-2")
KEYS = [(name, "ascending") for name in ("request_id", "sent_ns", "done_ns", "worker")]


@pytest.fixture(autouse=True)
def _many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slices, "MOST_EVENTS", 150)
    monkeypatch.setattr(join, "_LEAST_ROWS", 30)
    monkeypatch.setattr(join, "_MOST_ROWS", 30)


def planted(tmp_path: Path, workers_here: Sequence[int] = (), n_twice: int = 0) -> RunStore:
    """Three nodes, each with a client and servers."""
    shape = Shape(seed=11, n_requests=120, servers=STYLES, n_instances=2, n_nodes=3)
    whole = plant(shape).write(tmp_path / "whole")
    return leave_on_nodes(whole, tmp_path, NODES, dict.fromkeys(workers_here, ""), n_twice)


def derived(store: RunStore) -> dict[str, pa.Table]:
    return {name: plain(store.read(name)) for name in store.tables() if TABLES[name].is_derived}


def assert_same(found: dict[str, pa.Table], wanted: dict[str, pa.Table]) -> None:
    assert list(found) == list(wanted)
    assert [name for name, rows in wanted.items() if not found[name].equals(rows)] == []


def kept_files(store: RunStore, table: str) -> dict[str, int]:
    """Files of a table on each node, whether the manifest names them or not."""
    return {
        node: len(list(Path(folder).glob(f"{node}/tables/{table}/*")))
        for node, folder in store.manifest.kept.items()
    }


def made(store: RunStore) -> dict[str, pa.Table]:
    """Its derived tables, made again."""
    write_batch_costs(store)
    write_joined(store)
    write_windows(store)
    return derived(store)


def opened(store: RunStore) -> RunStore:
    """The run again, whose folders are on this machine: nobody else works on it."""
    return RunStore.open(store.run_dir)


def n_done(colleagues: dict[str, Colleague], table: str) -> dict[str, int]:
    """Slices that each node worked on."""
    return {node: sum(name == table for name, _ in one.done) for node, one in colleagues.items()}


@pytest.mark.parametrize(
    "workers_here",
    [pytest.param((), marks=pytest.mark.slow), (1,)],
    ids=["all on nodes", "some requests here"],
)
def test_rows_are_those_of_the_run_worked_on_in_one_place(
    tmp_path: Path, workers_here: Sequence[int]
) -> None:
    store = planted(tmp_path, workers_here=workers_here)
    wanted = made(opened(store))
    colleagues = set_to_work(store := opened(store))
    assert_same(made(store), wanted)
    assert store.verify() == []
    assert all(
        n >= 3 or (node == "node-1" and workers_here) for node, n in n_done(colleagues, "joined").items()
    )
    assert sum(n_done(colleagues, "batch_costs").values()) >= 3
    assert store.path("batch_costs") == []
    assert bool(store.path("joined")) == bool(workers_here)
    tables = store.manifest.tables or {}
    assert tables["joined"].rows == len(wanted["joined"])
    assert sum(kept_files(store, "joined").values()) == sum(
        bool(file.node) for file in tables["joined"].files
    )

    assert_same(derived(opened(store)), wanted)
    lying = kept_files(store, "joined")
    assert_same(made(opened(store)), wanted)
    here = opened(store).manifest.tables or {}
    assert not any(file.node for file in here["joined"].files)
    assert kept_files(store, "joined") == lying  # a manifest's word alone removes nothing


@pytest.mark.slow
def test_figures_are_those_of_the_run_worked_on_in_one_place_and_of_the_run_at_home(tmp_path: Path) -> None:
    store = planted(tmp_path, workers_here=(1,))
    told = derive(opened(store)).to_json()
    set_to_work(store := opened(store))
    assert derive(store).to_json() == told
    wanted = derived(store)
    store.bring_home()
    shutil.rmtree(tmp_path / "kept")
    home = opened(store)
    assert not home.has("joined")
    assert not is_derived(home)
    assert home.verify() == []
    assert derive(home).to_json() == told
    assert is_derived(home)
    assert_same(derived(home), wanted)


def of_two_models() -> dict[str, list[dict[str, Any]]]:
    """A request that passed both."""
    spans = {"a": (10, 20), "b": (30, 40)}
    batches = [
        {"model": name, "instance": name, "start_ns": start, "end_ns": end, "request_ids": [1]}
        for name, (start, end) in spans.items()
    ]
    return {"requests": [{"request_id": 1, "rows": 1}], "batches": batches}


def test_steps_are_made_where_their_requests_lie(tmp_path: Path) -> None:
    whole = plain_run(tmp_path / "whole", of_two_models())
    store = leave_on_nodes(whole, tmp_path, ["node-0"])
    wanted = made(opened(store))
    assert len(wanted["steps"])
    (one,) = set_to_work(store := opened(store)).values()
    assert_same(made(store), wanted)
    assert {table for table, _ in one.done} == {"joined", "steps"}


@pytest.mark.slow
def test_requests_that_stand_on_two_nodes_are_joined_together_here(tmp_path: Path) -> None:
    store = planted(tmp_path, n_twice=7)
    report = write_joined(opened(store))
    assert report.n_repeated_rows == 7
    store = opened(store)
    wanted = plain(store.read("joined"))
    colleagues = set_to_work(store)
    assert write_joined(store) == report
    assert plain(store.read("joined")).sort_by(KEYS).equals(wanted.sort_by(KEYS))
    assert set(n_done(colleagues, "joined").values()) == {0}


class Broken:
    """A workplace whose process goes with its second errand, which it leaves half done."""

    def __init__(self, store: RunStore, node: str) -> None:
        self._own = set_to_work(store)[node]
        self._tables = Path(store.manifest.kept[node]) / node / "tables"
        self.n_asked = 0

    def work(self, table: str, made: str, number: int, errand: Errand) -> Sequence[SealedFile]:
        self.n_asked += 1
        if self.n_asked == 1:
            return self._own.work(table, made, number, errand)
        (self._tables / table / f"part-{number:05d}-{made}.parquet.open").write_bytes(b"half")
        raise LostActor("keeper on node-1 is lost: its process has ended")


def test_a_node_that_dies_leaves_what_was_and_nothing_half_written_counts(tmp_path: Path) -> None:
    store = planted(tmp_path)
    set_to_work(store)
    wanted, before = made(store), store.manifest
    broken = Broken(store, "node-1")
    store.kept.reach({}, {"node-1": broken.work})
    with pytest.raises(
        AnalysisError,
        match=r"^joined of node-1 cannot be made there: keeper on node-1 is lost: its process has ended$",
    ):
        write_joined(store)
    assert broken.n_asked >= 2
    found = opened(store)
    assert found.manifest == before
    assert_same(derived(found), wanted)
    assert found.verify() == []
    assert not list(store.run_dir.glob(".new-*"))
    assert list(Path(store.manifest.kept["node-1"]).rglob("*.open"))
    set_to_work(found)
    assert_same(made(found), wanted)
    assert not list((tmp_path / "kept").rglob("*.open"))
    assert not list((tmp_path / "kept").rglob(".scratch-*"))


@pytest.mark.slow
def test_an_analysis_that_was_killed_as_it_put_a_table_in_place_leaves_no_table(tmp_path: Path) -> None:
    store = planted(tmp_path, workers_here=(1,))
    set_to_work(store)
    wanted = made(store)
    for part in store.path("joined"):  # the folders have changed places, the manifest was not written
        part.rename(part.with_name("part-00000-abcd0123.parquet"))
    found = opened(store)
    assert not found.has("joined")
    assert any("is missing" in line for line in found.verify())
    set_to_work(found)
    assert_same(made(found), wanted)


def test_a_keeper_makes_derived_tables_of_its_own_records_alone(tmp_path: Path) -> None:
    store = planted(tmp_path)
    one = set_to_work(store)["node-1"]
    folder = store.manifest.kept["node-1"]
    for asked in (
        (folder, "node-1", "requests"),
        (folder, "node-2", "joined"),
        (str(tmp_path), "node-1", "joined"),
    ):
        with pytest.raises(ClusterError):
            one.keeper.work(*asked, "made", 0, lambda _: None)


def test_a_run_that_is_not_sealed_is_worked_on_here(tmp_path: Path) -> None:
    store = planted(tmp_path)
    set_to_work(store)
    assert set(store.workplaces) == set(NODES)
    store._manifest = type(store.manifest)(**{**vars(store.manifest), "state": "open"})
    assert list(store.workplaces) == []
