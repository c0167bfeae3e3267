"""Locust's files in the run directory, also where that takes no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.store import RunStore
from squall.cluster.driver.locust_outputs import kept_logs, kept_outputs
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.server_log import locust_logs
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import LostActor


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "runs", "try", 0, Manifest())


def test_its_outputs_lie_in_a_folder_of_their_own(store: RunStore) -> None:
    files = {"shop_stats.csv": b"a,b\n", "../../report.html": b"<html>"}
    assert kept_outputs(store, files) == (("shop_stats.csv", "report.html"), [])
    assert (store.run_dir / "locust" / "shop_stats.csv").read_bytes() == b"a,b\n"
    assert (store.run_dir / "locust" / "report.html").exists()


def test_what_the_disk_does_not_take_is_a_note_and_the_rest_is_kept(store: RunStore) -> None:
    (store.run_dir / "locust" / "shop_stats.csv").mkdir(parents=True)
    kept, notes = kept_outputs(store, {"shop_stats.csv": b"a", "shop_failures.csv": b"b"})
    assert kept == ("shop_failures.csv",)
    assert [note.split(":")[0] for note in notes] == ["Locust's shop_stats.csv is not kept"]


class _Agent:
    def __init__(self, logs: dict[str, bytes] | LostActor) -> None:
        self._logs = logs

    def call(self, _: object) -> dict[str, bytes]:
        if isinstance(self._logs, LostActor):
            raise self._logs
        return self._logs


def test_the_logs_of_every_node_come_and_a_node_that_is_gone_is_noted(store: RunStore) -> None:
    agents: dict[str, Any] = {
        "node-0": _Agent(LostActor("agent on node-0 is lost")), "node-1": _Agent({"locust-worker-1.log": b"hi\xff\n"})
    }  # fmt: skip
    notes = kept_logs(store, cast("dict[str, Handle[NodeAgent]]", agents))
    assert notes == ["Locust's logs of node-0 are not kept: agent on node-0 is lost"]
    assert (store.run_dir / "logs" / "locust-worker-1.log").read_text() == "hi\ufffd\n"


def test_a_nodes_logs_are_those_of_locust_without_the_names_of_its_folders(tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    (tmp_path / "spill" / "locust-master.log").write_text(f"wrote {tmp_path}/spill/x\n")
    (tmp_path / "spill" / "requests-0.arrows").write_text("rows")
    assert locust_logs(tmp_path / "spill", tmp_path) == {"locust-master.log": b"wrote <scratch>/spill/x\n"}
