"""A scratch folder that somebody removes while it is in use, as cleaners of /tmp do, costs no record, and is told."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest

from squall.actors.load.worker import LoadWorker
from squall.actors.process.sweep import sweep
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.scratch import Scratch
from squall.cluster.node.spills import save_deleted
from tests.fakes import StubTriton
from tests.golden.driving import (
    MS,
    REPLY_BYTES,
    S,
    assert_one_row_each,
    column,
    plan_of,
    run_worker,
    settings_of,
    spilled,
)


def test_a_worker_whose_folder_is_removed_loses_no_row(tmp_path: Path) -> None:
    plan = plan_of([i * 10 * MS for i in range(230)], 10 * S)
    folder = tmp_path / "scratch" / "spill"
    folder.mkdir(parents=True)

    def remove(_: LoadWorker) -> None:
        deadline = time.monotonic() + 20  # until rows are in the file: the first flush
        while (folder / "requests-0.arrows").stat().st_size < 1000 and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        shutil.rmtree(folder.parent)

    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        settings = settings_of(folder, stub.port)
        rows = run_worker(settings, plan, meanwhile=remove)
    assert_one_row_each(rows, plan)
    assert set(column(rows, "outcome")) == {"ok"}
    assert sum(map(len, spilled(settings, "worker_samples"))) >= 2


def test_a_removed_scratch_folder_is_made_again_and_no_sweep_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch = Scratch()
    assert not scratch.put_back()
    shutil.rmtree(scratch.path)
    assert scratch.put_back()
    assert not scratch.put_back()
    sweep(tmp_path, "squall-tmp-*", shutil.rmtree)
    assert scratch.path.is_dir()
    scratch.remove()
    assert not scratch.path.exists()


def test_an_agent_tells_once_that_its_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    agent = NodeAgent("r", "node-0")
    assert agent.heartbeat() == []
    shutil.rmtree(agent.folder())
    (told,) = agent.heartbeat()
    assert told.startswith("the scratch folder of node-0 was deleted")
    assert agent.heartbeat() == []
    assert Path(agent.folder()).is_dir()
    agent.close()
    assert list(tmp_path.iterdir()) == []


def test_batch_records_that_a_server_still_writes_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "server-0" / "batches" / "head_0.jsonl"
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        file.write(json.dumps({"instance": "head_0"}) + "\n")
        file.flush()
        shutil.rmtree(tmp_path / "server-0")
        assert save_deleted(tmp_path / "server-1", [os.getpid()]) == []
        assert save_deleted(tmp_path / "server-0", [os.getpid()]) == [path]
    assert json.loads(path.read_text()) == {"instance": "head_0"}
