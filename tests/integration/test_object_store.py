"""Runs that go to an object store: a real S3-compatible server, here and there the same, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from squall.analysis.report.derive import derive
from squall.analysis.run import open_run
from squall.analysis.storage import object_folder
from squall.analysis.storage.mirror import Mirror
from squall.analysis.storage.object_folder import ObjectFolder
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import StoreError
from tests.integration.live_runs import Bench, Live, planned_rows, scenario_mapping, wait_until
from tests.null_process import NullProcess
from tests.object_store import BUCKET, ObjectStore, object_store
from tests.planted_runs import Shape, plant

pytestmark = pytest.mark.beside


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ObjectStore]:
    with object_store(tmp_path / "objects") as started:
        yield started


@pytest.fixture
def known(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The server, for this process too."""
    _make_known(server, monkeypatch)
    return server


def _make_known(server: ObjectStore, patch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        patch.setenv(name, value)
    object_folder._file_system.cache_clear()


ADDRESS = f"s3://{BUCKET}/runs"
_OVER_RAY = """
import json, os, sys, threading
from dataclasses import replace
from pathlib import Path

import squall.analysis.join.join as join
import squall.analysis.storage.object_folder as object_folder
from squall.analysis.report.derive import derive
from squall.analysis.storage.store import RunStore
from squall.cluster.remote.session import Session
from squall.cluster.remote.spread import TaskSpread

def outcome(address, **access):
    spread = TaskSpread(address)
    spread._access = replace(spread._access, **access)
    try:
        return spread(abs, [1, 2])
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def files():
    return [Path(folder, name) for folder, _, names in os.walk(os.environ["TMPDIR"]) for name in names]

def watch():
    while not done.wait(0.01):
        tables.update(path.name for path in files() if "parquet" in path.name)

environment, address = json.loads(sys.argv[1]), sys.argv[2]
tables, done = set(), threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
with Session("local"):  # whose workers know of no object store
    os.environ.update(environment)
    object_folder._file_system.cache_clear()
    n_parts, summaries = [], []
    join._ROW_BYTES = 2**40
    for join._LEAST_ROWS in (400, 150, 60):
        store = RunStore.open(address)
        summaries.append(json.dumps(derive(store, 256 * 1024**2, TaskSpread(address)).to_json()))
        n_parts.append(len(store.parts("joined")))
    logs = [path.read_bytes() for path in files() if path.is_file()]
    found = {
        "n_parts": n_parts,
        "summaries": [json.loads(one) for one in {*summaries}],
        "told": sum(environment["AWS_SECRET_ACCESS_KEY"].encode() in content for content in logs),
        "denied": outcome(address, keys=("somebody", "else", "")),
        "unreachable": outcome(address, endpoint="http://127.0.0.1:9"),
        "absent": outcome(address + "/none"),
    }
done.set()
watcher.join()
print(json.dumps({**found, "tables": sorted(tables)}))
"""


def _planted_there(folder: Path, n_requests: int = 300) -> RunStore:
    """A run of this folder of which a copy lies at `ADDRESS`."""
    shape = Shape(seed=5, n_requests=n_requests, servers=("record", "traced"), n_instances=2, n_nodes=2)
    here = plant(shape).write(folder)
    Mirror(here.run_dir, ObjectFolder(f"{ADDRESS}/{here.run}")).finish("manifest.json")
    return here


def _files_of(server: ObjectStore, run: str) -> list[str]:
    """Its objects that are not empty: one that is is as none."""
    root = server.folder / BUCKET
    return [name for name in server.objects(f"runs/{run}") if (root / name).stat().st_size]


def _assert_alike(there: RunStore, here: RunStore) -> None:
    assert there.verify() == []
    for name in TABLES:
        assert there.has(name) == here.has(name), name
        if here.has(name):
            assert there.read(name).equals(here.read(name)), name


@pytest.mark.slow
def test_over_ray_the_rows_there_are_those_of_analysis_here_and_no_table_comes_to_this_disk(
    known: ObjectStore, tmp_path: Path
) -> None:
    here = _planted_there(tmp_path / "runs")
    address = f"{ADDRESS}/{here.run}"
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    words = [sys.executable, "-c", _OVER_RAY, json.dumps(known.environment()), address]
    with TemporaryDirectory(prefix="t") as temporary:  # whose name is short: Ray has its sockets there
        environment = {**bare, "TMPDIR": temporary, "AWS_EC2_METADATA_DISABLED": "true"}
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["summaries"] == [json.loads(json.dumps(derive(here).to_json()))]
    _assert_alike(RunStore.open(address), here)
    assert found["n_parts"] == [1, 2, 5]
    assert (found["tables"], found["told"]) == ([], 0)
    named = [
        file.path for table in (RunStore.open(address).manifest.tables or {}).values() for file in table.files
    ]
    left = [name.partition(f"{here.run}/")[2] for name in _files_of(known, here.run)]
    assert sorted(name for name in left if "tables/" in name or name[0] == ".") == sorted(named)
    cannot = f"ClusterError: a node of Ray ({socket.gethostname()}) cannot read {address}"
    assert found["denied"].startswith(f"{cannot}: access is denied: see that AWS_ACCESS_KEY_ID")
    assert found["unreachable"].startswith(f"{cannot}: the object store cannot be reached")
    assert found["absent"] == f"{cannot}/none: no such file or directory"


@pytest.mark.slow
def test_ctrl_c_of_an_analysis_over_ray_leaves_there_the_old_tables_or_the_new_and_nothing_else(
    alone: Bench, known: ObjectStore, tmp_path: Path
) -> None:
    here = _planted_there(tmp_path / "made")
    derive(here)
    address = f"{ADDRESS}/{here.run}"
    env = known.environment()
    live = alone.start("analyze", address, "--ray", "local", env=env, cwd=alone.folder)
    wait_until(lambda: any(".spill-" in name for name in known.objects()), 90, "what the tasks share")
    live.interrupt()
    assert live.end() == 1, live.lines
    assert live.error_line() == "squall: interrupted by SIGINT"
    assert not [name for name in _files_of(known, here.run) if ".spill-" in name]
    there = RunStore.open(address)
    assert there.verify() == []
    for name in there.tables():
        assert there.read(name).equals(here.read(name)), name
    live = alone.start("analyze", address, "--json", env=env, cwd=alone.folder)
    assert live.end() == 0, live.lines
    _assert_alike(RunStore.open(address), here)


def _start(bench: Bench, null: NullProcess, env: dict[str, str], *options: str) -> Live:
    mapping = scenario_mapping(model={"name": "linear_head"})
    url = f"http://127.0.0.1:{null.ports['http']}"
    path = bench.write(mapping)
    return bench.start("run", path, "--out", ADDRESS, "--server", url, *options, env=env, cwd=bench.folder)


def _here(bench: Bench) -> list[Path]:
    return list((bench.folder / "runs").iterdir())


@pytest.mark.slow
def test_analysis_there_gives_the_rows_of_analysis_here(known: ObjectStore, tmp_path: Path) -> None:
    here = _planted_there(tmp_path / "runs")
    address = f"{ADDRESS}/{here.run}"
    there = RunStore.open(address)
    ours, theirs = derive(here).to_json(), derive(there).to_json()
    assert json.dumps(theirs) == json.dumps(ours)
    _assert_alike(RunStore.open(address), here)
    assert open_run(address).summary.to_json() == open_run(here.run_dir).summary.to_json()
    derive(RunStore.open(address))  # made anew, once more
    last = RunStore.open(address)
    assert last.verify() == []
    assert last.read("joined").equals(here.read("joined"))
    assert not [name for name in known.objects() if name.endswith((".open", ".new"))]
    report = known.folder / BUCKET / "runs" / here.run / "report.html"
    assert report.read_bytes()[:15] == (here.run_dir / "report.html").read_bytes()[:15]


def _has_begun(bench: Bench) -> bool:
    """Whether the start instant is known."""
    return any(
        RunStore.open(path.parent).manifest.phases for path in bench.folder.glob("runs/*/manifest.json")
    )


@pytest.mark.slow
def test_a_run_goes_there_leaves_nothing_here_and_is_analysed_there(alone: Bench, known: ObjectStore) -> None:
    env = known.environment()
    with NullProcess("--service=constant:1ms") as null:
        live = _start(alone, null, env, "--json")
        assert live.end() in (0, 3), live.lines
    assert _here(alone) == []
    (name,) = {one.split("/")[1] for one in known.objects()}
    store = RunStore.open(f"{ADDRESS}/{name}")
    assert store.verify() == []
    assert planned_rows(store)["request_id"]
    assert store.manifest.copied_to == store.where
    secrets = [value for key, value in env.items() if "KEY" in key]
    for path in (known.folder / BUCKET).rglob("*"):
        assert path.is_dir() or not any(one.encode() in path.read_bytes() for one in secrets), path
    first = json.loads(alone.stdout())
    live = alone.start("analyze", store.where, "--json", env=env, cwd=alone.folder)
    assert live.end() == 0, live.lines
    assert json.loads(alone.stdout()) == first
    live = alone.start("report", store.where, env=env, cwd=alone.folder)
    assert live.end() == 0, live.lines
    assert alone.stdout() == f"{store.where}/report.html\n"
    live = alone.start("resume", store.where, "--json", env=env, cwd=alone.folder)
    assert live.end() in (0, 3), live.lines


@pytest.mark.slow
def test_a_store_killed_in_the_middle_leaves_the_run_whole_here_and_resume_brings_it_there(
    alone: Bench, tmp_path: Path
) -> None:
    with NullProcess("--service=constant:1ms") as null, object_store(tmp_path / "objects") as server:
        live = _start(alone, null, server.environment())
        wait_until(lambda: _has_begun(alone), 90, "the load")
        server.kill()
        assert live.end() == 1, live.lines
        (run_dir,) = _here(alone)
        line = live.error_line()
        assert line.startswith(f"squall: cannot write to {ADDRESS}/{run_dir.name}: "), line
        assert line.endswith(
            f"the run is whole in runs/{run_dir.name}: "
            f"squall resume runs/{run_dir.name} --out {ADDRESS} brings it there"
        )
        store = RunStore.open(run_dir)
        assert store.verify() == []
        rows = store.read("requests")
        assert store.has_file("report.html")
    with object_store(tmp_path / "objects") as server:
        words = ("resume", f"runs/{run_dir.name}")
        live = alone.start(*words, env=server.environment(), cwd=alone.folder)
        assert live.end() in (0, 3), live.lines
        stays = f"squall resume {run_dir.resolve()} --out {ADDRESS} brings it to object storage"
        assert any(stays in line for line in live.lines), live.lines
        assert _here(alone) == [run_dir]
        live = alone.start(*words, "--out", ADDRESS, env=server.environment(), cwd=alone.folder)
        assert live.end() in (0, 3), live.lines
        assert _here(alone) == []
        with pytest.MonkeyPatch.context() as patch:
            _make_known(server, patch)
            store = RunStore.open(f"{ADDRESS}/{run_dir.name}")
            assert store.verify() == []
            assert store.read("requests").equals(rows)


@pytest.mark.long
@pytest.mark.slow
def test_a_driver_killed_under_load_left_there_what_it_had_and_is_resumed_by_its_address(
    alone: Bench, known: ObjectStore
) -> None:
    with NullProcess("--service=constant:1ms") as null:
        live = _start(alone, null, known.environment())
        wait_until(lambda: _has_begun(alone), 90, "the load")
        time.sleep(1.5)
        os.killpg(live.process.pid, signal.SIGKILL)
        live.end()
    (name,) = {one.split("/")[1] for one in known.objects()}
    address = f"{ADDRESS}/{name}"
    assert not RunStore.open(address).is_sealed
    wait_until(lambda: not alone.processes(), 60, "the run's processes end")
    live = alone.start("resume", address, env=known.environment(), cwd=alone.folder)
    assert live.end() in (0, 3), live.lines
    store = RunStore.open(address)
    assert store.is_sealed
    assert store.verify() == []
    assert planned_rows(store)["request_id"]
    assert _here(alone) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "told"),
    [
        pytest.param("the load", "aborted run: ", marks=pytest.mark.long),
        ("joining and judging", "sealed, without join and report: squall analyze "),
    ],
)
def test_ctrl_c_tells_at_last_where_the_run_lies_there(
    alone: Bench, known: ObjectStore, moment: str, told: str
) -> None:
    with NullProcess("--service=constant:1ms") as null:
        live = _start(alone, null, known.environment())
        if moment == "the load":
            wait_until(lambda: _has_begun(alone), 90, moment)
        else:
            live.wait_for(moment)
        live.interrupt()
        assert live.end() == 1, live.lines
    assert live.error_line() == "squall: interrupted by SIGINT"
    assert _here(alone) == []
    (name,) = {one.split("/")[1] for one in known.objects()}
    address = f"{ADDRESS}/{name}"
    assert live.lines[-2] == f"squall {told}{address}"
    pointing = [line for line in live.lines if f" runs/{name}" in line]
    assert pointing == [f"squall bringing it to {address}; until all is there it is in runs/{name}"]
    store = RunStore.open(address)
    assert store.verify() == []
    assert planned_rows(store)["request_id"]
    live = alone.start("analyze", address, env=known.environment(), cwd=alone.folder)
    assert live.end() == 0, live.lines
    assert RunStore.open(address).has_file("report.html")


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_while_a_run_is_brought_there_leaves_it_here_and_says_how_to_go_on(
    alone: Bench, known: ObjectStore
) -> None:
    with NullProcess("--service=constant:1ms") as null:
        live = _start(alone, null, known.environment())
        live.wait_for("joining and judging")
        known.process.send_signal(signal.SIGSTOP)
        live.wait_for("bringing it to")
        live.interrupt()
        known.process.send_signal(signal.SIGCONT)
        assert live.end() == 1, live.lines
    assert live.error_line() == "squall: interrupted by SIGINT"
    (run_dir,) = _here(alone)
    here = f"runs/{run_dir.name}"
    address = f"{ADDRESS}/{run_dir.name}"
    told = f"not all of it is in {address}: squall resume {here} --out {ADDRESS} brings it there"
    assert live.lines[-2] == f"squall {told}"
    assert RunStore.open(run_dir).verify() == []
    live = alone.start("resume", here, "--out", ADDRESS, env=known.environment(), cwd=alone.folder)
    assert live.end() in (0, 3), live.lines
    assert _here(alone) == []
    assert RunStore.open(address).verify() == []


@pytest.mark.parametrize(
    ("address", "secret", "reason"),
    [
        pytest.param(ADDRESS, "another secret", "access is denied", marks=pytest.mark.slow),
        ("s3://nobodys/runs", None, "there is no such bucket"),
        pytest.param(
            "s3://Key:Secret@bucket/runs",
            None,
            "object storage is named as s3://BUCKET/PREFIX",
            marks=pytest.mark.slow,
        ),
        ("gs://bucket/runs", None, "object storage is known as s3://BUCKET/PREFIX alone"),
    ],
)
def test_what_cannot_be_written_there_is_one_line_before_anything_starts(
    alone: Bench, server: ObjectStore, address: str, secret: str | None, reason: str
) -> None:
    env = server.environment() if secret is None else server.environment(secret)
    path = alone.write(scenario_mapping())
    live = alone.start("run", path, "--out", address, env=env, cwd=alone.folder)
    assert live.end() == 1, live.lines
    line = live.error_line()
    assert reason in line
    assert "Secret" not in line
    assert not list(alone.folder.glob("runs/*"))


@pytest.mark.slow
def test_what_cannot_be_read_there_is_one_line(known: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"s3://loads/none is not a run directory: .*no such file") as caught:
        RunStore.open(f"s3://{BUCKET}/none")
    assert "\n" not in str(caught.value)
    here = plant(Shape(seed=5, n_requests=50)).write(tmp_path / "runs")
    address = f"{ADDRESS}/{here.run}"
    Mirror(here.run_dir, ObjectFolder(address)).finish("manifest.json")
    store = RunStore.open(address)
    known.kill()
    with pytest.raises(StoreError, match=r"the object store cannot be reached") as caught:
        derive(store)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_resume_takes_no_folder_of_the_users_that_a_run_in_a_bucket_names(
    alone: Bench, known: ObjectStore, tmp_path: Path
) -> None:
    here = plant(Shape(seed=5, n_requests=50)).write(tmp_path / "made")
    manifest = here.run_dir / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "run": "precious"}))
    Mirror(here.run_dir, ObjectFolder(f"{ADDRESS}/evil")).finish("manifest.json")
    objects = known.objects()
    file = alone.folder / "runs" / "precious" / "thesis.tex"
    file.parent.mkdir(parents=True)
    file.write_text("a user's")
    live = alone.start("resume", f"{ADDRESS}/evil", env=known.environment(), cwd=alone.folder)
    assert live.end() == 1, live.lines
    assert live.error_line().endswith(
        f"runs/precious has files of something else than {ADDRESS}/evil: move it away"
    )
    assert [path.name for path in file.parent.iterdir()] == ["thesis.tex"]
    assert file.read_text() == "a user's"
    assert known.objects() == objects


@pytest.mark.slow
def test_a_sealed_run_of_a_bucket_is_resumed_and_sent_once_more(
    alone: Bench, known: ObjectStore, tmp_path: Path
) -> None:
    here = plant(Shape(seed=5, n_requests=50)).write(tmp_path / "made")
    address = f"{ADDRESS}/{here.run}"
    Mirror(here.run_dir, ObjectFolder(address)).finish("manifest.json")
    left = alone.folder / "runs" / here.run  # as a killed process leaves it
    (left / "tables").mkdir(parents=True)
    (left / ".brought").write_text(address)
    for state in ("to be derived", "as it is there", "with a summary of an older squall"):
        if state.endswith("older squall"):
            store = RunStore.open(address)
            summary = json.loads(store.read_text("summary.json"))
            store.write_text(
                "summary.json", json.dumps({key: summary[key] for key in summary if key != "self_checks"})
            )
        live = alone.start("resume", address, env=known.environment(), cwd=alone.folder)
        assert live.end() in (0, 3), live.lines
        assert _here(alone) == []
        store = RunStore.open(address)
        assert store.verify() == []
        assert store.has_file("report.html")
        assert "self_checks" in json.loads(store.read_text("summary.json"))
