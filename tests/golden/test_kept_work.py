"""Keepers in processes of their own make what is derived of their records; one of them is killed at it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.workplace import Errand
from squall.analysis.tables.sealed import SealedFile
from squall.cluster.kept.fetched import Fetched
from squall.cluster.kept.keeper import Keeper
from squall.cluster.kept.node_folder import NodeFolder
from squall.cluster.remote.spawn import Handle, end_all, spawn
from squall.scenarios.errors import AnalysisError
from tests.golden.told import HERE
from tests.kept_runs import leave_on_nodes, plain
from tests.planted_runs import Shape, plant

NODES = ("node-0", "node-1", "node-2")
SHAPE = Shape(seed=3, n_requests=90, servers=("record", "traced"), n_nodes=3)


@contextmanager
def keepers(store: RunStore) -> Iterator[dict[str, Handle[Keeper]]]:
    """One a node, which reads and works for `store`."""
    folders = store.manifest.kept
    found = {
        node: spawn("keeper", HERE, 4, Keeper, str(Path(folder).parent)) for node, folder in folders.items()
    }
    fetched = Fetched(store.run_dir)
    places = {node: NodeFolder(found[node], folder, node, fetched) for node, folder in folders.items()}
    store.kept.reach(places, {node: place.work for node, place in places.items()})
    try:
        yield found
    finally:
        end_all(found.values())
        fetched.close()


def test_a_keeper_that_is_killed_at_its_work_costs_one_line_and_the_table_of_before_stands(
    tmp_path: Path,
) -> None:
    store = leave_on_nodes(plant(SHAPE).write(tmp_path / "whole"), tmp_path, NODES)
    write_batch_costs(store)
    write_joined(store)
    wanted = {name: plain(store.read(name)) for name in ("batch_costs", "joined")}
    with keepers(store) as found:
        write_batch_costs(store)
        pid, handle = found["node-1"].pid(), found["node-1"]

        def killed(table: str, made: str, number: int, errand: Errand) -> Sequence[SealedFile]:
            asked = handle.begin(
                Keeper.work, store.manifest.kept["node-1"], "node-1", table, made, number, errand
            )
            os.kill(pid, signal.SIGKILL)
            return handle.wait(asked)

        store.kept.reach({}, {"node-1": killed})
        with pytest.raises(
            AnalysisError, match=r"^joined of node-1 cannot be made there: keeper on node-0 is lost: "
        ) as error:
            write_joined(store)
        assert "\n" not in str(error.value)
    again = RunStore.open(store.run_dir)
    assert {name: plain(again.read(name)) for name in wanted} == wanted
    assert again.verify() == []
    with keepers(again):
        write_joined(again)
        assert not again.path("joined")
        assert {name: plain(again.read(name)) for name in wanted} == wanted
    for node, folder in again.manifest.kept.items():
        named = {file.path for file in (again.manifest.tables or {})["joined"].files if file.node == node}
        lying = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("joined/*")}
        assert lying == named
        assert not list(Path(folder).rglob(".scratch-*"))
