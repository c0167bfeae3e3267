"""A worker, the server or the disk that goes away in the middle of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from tests.integration.disks import executed, fill, small_disk
from tests.integration.live_runs import Bench, hosted_ray, scenario_mapping, wait_until

pytestmark = pytest.mark.beside


def _run_of(seconds: int, **changes: Any) -> dict[str, Any]:
    mapping = scenario_mapping(**changes)
    mapping["phases"][1] |= {"duration": f"{seconds}s"}
    mapping["phases"][1]["arrivals"] = {"kind": "poisson", "rate": "150/s"}
    return mapping


def _spill_file(tmp: Path, worker: int) -> Path:
    """The worker's spill file, once it holds rows of several flushes."""

    def found() -> Path | None:
        files = tmp.glob(f"squall-tmp-*/spill/requests-{worker}.arrows")
        return next((path for path in files if path.stat().st_size > 8192), None)

    path: Path = wait_until(found, 60, f"records of worker {worker}")
    return path


def _between_flushes(path: Path) -> psutil.Process:
    """The worker whose spill file that is, some time after a flush: there is one each second."""
    process, n_bytes = _holder_of(path), path.stat().st_size
    wait_until(lambda: path.stat().st_size > n_bytes, 60, "more records")
    time.sleep(0.3)
    return process


def _holder_of(path: Path) -> psutil.Process:
    """The process that has `path` open."""
    for process in psutil.process_iter():
        try:
            if str(path) in {file.path for file in process.open_files()}:
                return process
        except psutil.Error:
            continue
    raise AssertionError(f"nobody has {path} open")


def _requests(bench: Bench) -> dict[str, Any]:
    table = bench.store().read("requests")
    columns = {name: table.column(name).to_numpy() for name in ("request_id", "worker", "scheduled_ns")}
    texts = {name: table.column(name).cast(pa.string()).to_numpy() for name in ("outcome", "detail")}
    return columns | texts


@pytest.mark.slow
def test_a_killed_worker_costs_only_its_unwritten_rows_and_the_run_is_invalid(joined: Bench) -> None:
    assert joined.ray_tmp is not None
    live = joined.start_run(_run_of(5))
    _between_flushes(_spill_file(joined.ray_tmp, 1)).kill()
    assert live.end() == 3, live.lines
    store, rows = joined.store(), _requests(joined)
    n_planned = store.manifest.plan.n_arrivals
    assert np.array_equal(np.sort(rows["request_id"]), np.arange(n_planned))
    lost = np.isin(rows["outcome"], ["lost", "unsent"])
    assert set(rows["worker"][lost]) == {1}
    assert set(rows["outcome"][lost]) == {"lost", "unsent"}
    due = {name: rows["scheduled_ns"][rows["outcome"] == name] for name in ("lost", "unsent")}
    assert due["lost"].max() < due["unsent"].min()
    assert not set(rows["request_id"][rows["outcome"] == "unsent"]) & executed(store)
    assert (rows["outcome"][rows["worker"] == 0] == "ok").all()
    assert (rows["outcome"][rows["worker"] == 1] == "ok").sum() > 20
    assert any("worker 1 on node-0 is lost" in loss for loss in store.manifest.losses)
    assert any(f"{lost.sum()} arrivals have no record" in loss for loss in store.manifest.losses)
    assert store.manifest.status == "INVALID"
    assert store.verify() == []
    joined.wait_until_gone()


@pytest.mark.slow
def test_where_the_scenario_says_so_a_lost_worker_ends_the_load_of_all(joined: Bench) -> None:
    assert joined.ray_tmp is not None
    mapping = _run_of(30)
    mapping["clients"]["on_client_loss"] = "stop"
    live = joined.start_run(mapping)
    _between_flushes(_spill_file(joined.ray_tmp, 1)).kill()
    assert live.end() == 3, live.lines
    assert any("the load stops, as clients.on_client_loss says" in line for line in live.lines)
    store, rows = joined.store(), _requests(joined)
    assert np.array_equal(np.sort(rows["request_id"]), np.arange(store.manifest.plan.n_arrivals))
    other = rows["worker"] == 0
    assert {"ok", "unsent"} <= set(rows["outcome"][other]) <= {"ok", "unsent", "cancelled"}
    unsent = other & (rows["outcome"] == "unsent")
    assert rows["scheduled_ns"][other & (rows["outcome"] == "ok")].max() < rows["scheduled_ns"][unsent].min()
    assert unsent.sum() > (rows["outcome"][other] == "ok").sum(), "long before its end"
    assert store.manifest.status == "INVALID"
    joined.wait_until_gone()


@pytest.mark.slow
def test_a_killed_triton_ends_every_later_request_as_transport_error(joined: Bench) -> None:
    assert joined.ray_tmp is not None
    live = joined.start_run(_run_of(5))
    _spill_file(joined.ray_tmp, 0)
    servers = [one for one in joined.processes() if one.name() == "tritonserver"]
    assert len(servers) == 1
    servers[0].kill()
    assert live.end() == 3, live.lines
    rows = _requests(joined)
    assert np.array_equal(np.sort(rows["request_id"]), np.arange(joined.store().manifest.plan.n_arrivals))
    last = rows["scheduled_ns"] > rows["scheduled_ns"].max() - 2 * 10**9
    assert set(rows["outcome"][last]) == {"transport_error"}
    assert (rows["outcome"] == "ok").sum() > 50
    joined.wait_until_gone()


@pytest.mark.slow
def test_a_full_scratch_disk_ends_the_run_and_keeps_what_was_recorded(alone: Bench) -> None:
    with (
        small_disk(alone.tmp / "scratch", "8m") as disk,
        hosted_ray(alone.tmp, {"TMPDIR": str(disk)}) as address,
    ):
        own = alone.tmp / "driver"
        own.mkdir()
        bench = Bench(alone.folder, own, address, disk)
        live = bench.start_run(_run_of(20))
        _spill_file(disk, 0)
        fill(disk)
        assert live.end() == 1, live.lines
        assert "cannot write its records: No space left on device" in live.error_line()
        store = bench.aborted()
        rows = _requests(bench)
        assert np.array_equal(np.sort(rows["request_id"]), np.arange(store.manifest.plan.n_arrivals))
        assert (rows["outcome"] == "ok").sum() > 50
        (disk / "filler").unlink()
        bench.wait_until_gone()


def test_a_read_only_output_folder_is_refused_in_one_line(joined: Bench) -> None:
    with small_disk(joined.folder / "out", "1m", "ro") as disk:
        live = joined.start_run(scenario_mapping())
        assert live.end() == 1
        assert live.error_line() == f"squall: cannot create the run directory {disk}: read-only file system"
        joined.wait_until_gone()
