"""A run that is sealed without all that was recorded is taken up again; one that is whole is not."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.analysis.schema import arrow_schema
from squall.analysis.storage.store import RESERVE, RunStore
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.sealed import Unfinished, Verdict
from squall.scenarios.errors import Sealed, StoreError

NOW_NS = 1_795_250_252_713_561_538
ABORTED = Verdict(status="ABORTED", reasons=("no space left on device",))
WHERE = Unfinished(folders={"node-0": "/tmp/squall-tmp-x"}, why={"node-0": "no space"})


def rows(node: str, *starts_ns: int) -> pa.Table:
    n = len(starts_ns)
    columns = {
        field.name: [node] * n if pa.types.is_dictionary(field.type) else list(starts_ns)
        for field in arrow_schema("osrt")
    }
    return pa.table(columns)


def not_of_node_0(_: str, table: pa.Table) -> pa.Table:
    return table.filter(pc.not_equal(table.column("node").cast(pa.string()), "node-0"))


@pytest.fixture
def unfinished(tmp_path: Path) -> RunStore:
    store = RunStore.create(tmp_path, "demo", NOW_NS, Manifest())
    store.append("osrt", rows("node-0", 1, 2))
    store.append("osrt", rows("node-1", 3))
    store.amend(replace(store.manifest, losses=("worker 1 died",)))
    store.replace_derived("windows", arrow_schema("windows").empty_table())
    store.seal(ABORTED, WHERE)
    return RunStore.open(store.run_dir)


def starts(store: RunStore) -> list[int]:
    found: list[int] = store.read("osrt").column("start_ns").to_pylist()
    return found


def test_rows_of_nodes_that_come_again_go_the_others_stay_and_so_does_what_else_it_knows(
    unfinished: RunStore,
) -> None:
    assert unfinished.manifest.unfinished == WHERE
    unfinished.reopen(["osrt", "batches"], not_of_node_0)
    assert not unfinished.is_sealed
    assert starts(unfinished) == [3]
    assert unfinished.tables() == ["osrt"], "what was derived goes"
    document = json.loads((unfinished.run_dir / "manifest.json").read_text())
    assert not {"verdict", "tables", "unfinished"} & set(document)
    assert unfinished.manifest.losses == ("worker 1 died",)
    unfinished.append("osrt", rows("node-0", 1, 2, 4))
    unfinished.seal(Verdict(status="VALID"))
    store = RunStore.open(unfinished.run_dir)
    assert starts(store) == [3, 1, 2, 4]
    assert store.verify() == []
    assert not list(store.run_dir.glob(".*"))
    with pytest.raises(Sealed, match="is sealed and whole"):
        store.reopen([], not_of_node_0)


def test_an_attempt_that_was_broken_off_begins_with_the_same_rows(unfinished: RunStore) -> None:
    unfinished.reopen(["osrt"], not_of_node_0)
    unfinished.append("osrt", rows("node-0", 1))
    unfinished.flush()
    again = RunStore.open(unfinished.run_dir)  # the process that had it is gone
    again.reopen(["osrt"], not_of_node_0)
    assert starts(again) == [3]
    again.append("osrt", rows("node-0", 2))
    again.seal(ABORTED, WHERE, is_broken_off=True)
    RunStore.open(again.run_dir).reopen(["batches"], not_of_node_0)
    assert starts(again) == [1, 2, 3], "also of a table of which nothing comes this time"


def test_what_came_from_one_host_stays_when_the_next_one_takes_the_run_up(unfinished: RunStore) -> None:
    unfinished.reopen(["osrt"], not_of_node_0)
    unfinished.append("osrt", rows("node-0", 1, 2, 4))
    unfinished.seal(ABORTED, Unfinished(folders={"node-2": "/tmp/squall-tmp-y"}, why={"node-2": "not here"}))
    assert not list(unfinished.run_dir.glob(".*"))
    store = RunStore.open(unfinished.run_dir)
    store.reopen(["osrt"], lambda _, table: table)
    store.append("osrt", rows("node-2", 5))
    store.seal(Verdict(status="VALID"))
    assert starts(store) == [3, 1, 2, 4, 5]
    assert not list(store.run_dir.glob(".*"))


def test_what_a_full_disk_did_not_take_is_no_loss_once_it_is_taken_up_again(tmp_path: Path) -> None:
    class Full:
        is_full = False

        def __call__(self, path: Path) -> Any:
            if self.is_full and path.name.endswith(".parquet.open"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return path.open("wb")

    disk = Full()
    store = RunStore.create(tmp_path, "demo", NOW_NS, Manifest(), disk)
    disk.is_full = True
    with pytest.raises(StoreError, match="no space left on device"):
        store.append("osrt", rows("node-0", 1, 2))
    store.amend(replace(store.manifest, losses=("worker 1 died",)))
    store.seal(ABORTED, WHERE)
    assert len(store.manifest.losses) == 2
    disk.is_full = False
    store.reopen(["osrt"], not_of_node_0)
    assert list(store.manifest.losses) == ["worker 1 died"]


def test_a_disk_without_room_leaves_the_run_as_it_was(unfinished: RunStore) -> None:
    def full(_: Path) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = RunStore.open(unfinished.run_dir, full)
    with pytest.raises(StoreError, match="no space left on device"):
        store.reopen(["osrt"], not_of_node_0)
    assert store.is_sealed
    assert starts(store) == [1, 2, 3]
    assert not (store.run_dir / RESERVE).exists()
