"""`squall analyze` of one run directory: here and over Ray, byte for byte the same, and what cannot be done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.report.derive import derive
from squall.analysis.storage.store import RunStore
from tests.command import Command
from tests.planted_runs import Shape, plant

TABLES = ("batch_costs", "joined")
_OVER_RAY = """
import json, os, sys

import squall.analysis.join.join as join
from squall.analysis.report.derive import derive
from squall.analysis.storage.store import RunStore
from squall.cluster.remote.session import Session
from squall.cluster.remote.spread import TaskSpread
from squall.scenarios.errors import AnalysisError

def outcome(function, run_dir=None):
    try:
        return TaskSpread(run_dir or store.where)(function, [1, 2])
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def refuse(number):
    raise AnalysisError("no such batch")

def fail(number):
    raise ZeroDivisionError("of all things")

join._LEAST_ROWS, join._ROW_BYTES = 50, 2**40
store = RunStore.open(sys.argv[1])
with Session("local"):
    summary = derive(store, 256 * 1024**2, TaskSpread(store.where)).to_json()
    print(json.dumps({
        "join": summary["join"],
        "order": outcome(lambda number: number * 10),
        "of none": TaskSpread(store.where)(abs, []),
        "died": outcome(os._exit),
        "ours": outcome(refuse),
        "foreign": outcome(fail),
        "unseen": outcome(abs, sys.argv[2]),
    }))
"""


def _parts(store: RunStore) -> dict[str, list[bytes]]:
    folders = {table: store.run_dir / "tables" / table for table in TABLES}
    return {table: [path.read_bytes() for path in sorted(of.iterdir())] for table, of in folders.items()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    shape = Shape(seed=5, n_requests=300, servers=("record", "traced"), n_instances=2, n_nodes=2)
    return plant(shape).write(tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
@pytest.mark.beside
def test_over_ray_the_rows_are_byte_for_byte_those_of_one_process_and_failures_are_one_line(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squall.analysis.join.join._LEAST_ROWS", 50)  # so that a small run has several slices
    monkeypatch.setattr("squall.analysis.join.join._ROW_BYTES", 2**40)
    summary = derive(store, 256 * 1024**2).to_json()
    parts = _parts(store)
    assert len(parts["joined"]) > 4
    words = [sys.executable, "-c", _OVER_RAY, str(store.run_dir), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # Ray itself tells of the task that died
    assert _parts(store) == parts
    assert found["join"] == summary["join"]
    assert found["join"]["n_requests"] == 300
    assert (found["order"], found["of none"]) == ([10, 20], [])
    assert found["died"].startswith("ClusterError: a task of the analysis died: ")
    assert found["ours"] == "AnalysisError: no such batch"
    assert found["foreign"] == "ClusterError: a task of the analysis failed: ZeroDivisionError: of all things"
    assert found["unseen"].startswith(
        f"ClusterError: a node of Ray does not see {tmp_path}: put the run directory"
    )
    assert not [name for name, text in found.items() if "\n" in str(text)]


@pytest.mark.beside
def test_two_gpus_whose_instances_have_one_name_are_told_apart_on_the_screen(
    tmp_path: Path, command: Command
) -> None:
    """Triton 2.51 names the instances of both GPUs alike, and both count their batches from 0."""
    shape = Shape(
        seed=5, n_requests=200, n_instances=2, features=frozenset({"alike_names", "blocks", "streams"})
    )
    planted = plant(shape)
    run_dir = planted.write(tmp_path).run_dir
    code, text, _ = command("analyze", run_dir)
    assert code == 0
    assert "steady, m_0_0 on GPU 0: " in text
    assert "steady, m_0_0 on GPU 1: " in text
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["join"]["n_by_level"] == {"exact": 200}
    for phase in ("steady", "burst"):
        counts = Counter(
            batch.instance.instance_device
            for batch in planted.batches
            if planted.phase_at(batch.work.start_ns) == phase
        )
        instances = summary["metrics"]["phases"][phase]["instances"]
        assert {name: one["measures"]["n_batches"] for name, one in instances.items()} == {
            f"server-0/m_0_0@gpu{device}": n for device, n in counts.items()
        }
        assert len(counts) == 2
    assert "m_0_0 on GPU 1" in (run_dir / "report.html").read_text()


@pytest.mark.beside
@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (["--memory", "4"], 2, "--memory: '4' has no unit, write a size such as 64 MiB or 1 KB"),
        (["--memory", "1MiB"], 2, "--memory: 1MiB is too little, give at least 64 MiB"),
        (["--ray", "127.0.0.1:1"], 1, "cannot join Ray at 127.0.0.1:1: Connection refused"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    store: RunStore,
    command: Command,
    options: list[str],
    exit_code: int,
    words: str,
) -> None:
    assert command("analyze", store.run_dir, *options) == (exit_code, "", f"squall: {words}\n")
