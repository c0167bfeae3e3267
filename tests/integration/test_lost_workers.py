"""Runs that lost a worker, or their driver, held to what the server saw.

A null server's own record says what came: no arrival twice, none that a row calls unsent, and nothing once the driver
is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from squall.analysis.storage.store import RunStore
from squall.cluster.driver.ingest import RECORD_GONE, WORKER_GONE
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.plan.deal import workers_of
from squall.scenarios.plan.plan import Plan
from squall.scenarios.run_plan import plan_run
from tests.integration.live_runs import Bench, scenario_mapping, titled, wait_until
from tests.null_process import NullProcess

pytestmark = [pytest.mark.slow, pytest.mark.beside]
S = 1_000_000_000


def run_of(url: str, seconds: int, **clients: Any) -> dict[str, Any]:
    mapping = scenario_mapping(model={"name": "linear_head"}, server={"url": url})
    mapping["clients"] |= {"workers_per_node": 3, "deal": "hash", **clients}
    mapping["phases"][1] |= {"duration": f"{seconds}s", "arrivals": {"kind": "poisson", "rate": "200/s"}}
    return mapping


class Record:
    """A null server that writes down what came."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "record.npz"
        self.server = NullProcess("--service=constant:1ms", f"--record={self.path}")

    def arrived(self) -> list[int]:
        """Ids of the requests, in the order in which they came; ends the server."""
        self.server.__exit__()
        wait_until(self.path.exists, 20, "the server's record")
        with np.load(self.path) as saved:
            assert int(saved["n_over"]) == int(saved["n_rejected"]) == 0
            found: list[int] = saved["request_id"].tolist()
        return found


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    made = Record(tmp_path)
    with made.server:
        yield made


def worker_of(bench: Bench, number: int) -> psutil.Process:
    """The process that has the worker's spill file open."""
    assert bench.ray_tmp is not None
    tmp = bench.ray_tmp

    def found() -> psutil.Process | None:
        for path in tmp.glob(f"squall-tmp-*/spill/requests-{number}.arrows"):
            for process in titled(psutil.process_iter(), "served LoadWorker"):
                if str(path) in {file.path for file in process.open_files()}:
                    return process
        return None

    process: psutil.Process = wait_until(found, 60, f"worker {number}")
    return process


def rows_of(store: RunStore, arrived: list[int]) -> dict[str, Any]:
    """Columns of `requests` by arrival, after the checks that hold whatever was lost."""
    table = store.read("requests").sort_by("request_id")
    texts = {name: table.column(name).cast(pa.string()).to_numpy() for name in ("outcome", "detail")}
    rows = {
        name: table.column(name).to_numpy() for name in ("request_id", "worker", "scheduled_ns", "sent_ns")
    }
    n_planned = store.manifest.plan.n_arrivals
    assert np.array_equal(rows["request_id"], np.arange(n_planned)), "planned is the sum over the outcomes"
    came = [one for one in arrived if one >= 0]
    assert len(came) == len(set(came)), "no arrival came twice"
    assert not set(came) & set(rows["request_id"][texts["outcome"] == "unsent"])
    assert set(rows["request_id"][texts["outcome"] == "ok"]) <= set(came)
    return rows | texts


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.long)])
def test_what_a_killed_worker_had_left_is_sent_by_nobody(
    joined: Bench, record: Record, protocol: str
) -> None:
    url = f"http://127.0.0.1:{record.server.ports['http']}"
    mapping = run_of(url, 8, protocol=protocol)
    if protocol == "grpc":
        mapping["server"]["grpc_port"] = record.server.ports["grpc"]
    live = joined.start_run(mapping)
    worker = worker_of(joined, 1)
    joined.wait_for_phase("burst", 1.2)
    worker.kill()
    assert live.end() == 3, live.lines
    store = joined.store()
    rows = rows_of(store, record.arrived())
    scenario = scenario_from_mapping(mapping, "test")
    plan = plan_run(scenario, scenario.servers)
    assert isinstance(plan, Plan)
    assert np.array_equal(rows["worker"], workers_of(plan.deal, plan.seq, plan.affinity, 3))
    of_lost = rows["worker"] == 1
    assert set(rows["outcome"][~of_lost]) == {"ok"}
    assert {"ok", "unsent"} <= set(rows["outcome"][of_lost]) <= {"ok", "lost", "unsent"}
    lost, unsent = (rows["outcome"] == outcome for outcome in ("lost", "unsent"))
    assert set(rows["detail"][lost]) <= {RECORD_GONE}
    assert set(rows["detail"][unsent]) == {WORKER_GONE}
    assert rows["scheduled_ns"][unsent].min() > rows["scheduled_ns"][of_lost & ~unsent].max()
    n_missing = np.count_nonzero(lost | unsent)
    told = f"{n_missing} arrivals have no record: {np.count_nonzero(lost)} are lost and may have been sent"
    assert any(told in loss for loss in store.manifest.losses), store.manifest.losses
    assert store.manifest.status == "INVALID"
    assert store.verify() == []
    joined.wait_until_gone()


@pytest.mark.long
def test_without_its_driver_every_worker_ends_its_load_and_resume_brings_the_rest(
    joined: Bench, record: Record
) -> None:
    mapping = run_of(f"http://127.0.0.1:{record.server.ports['http']}", 40)
    live = joined.start_run(mapping)
    worker = worker_of(joined, 1)
    joined.wait_for_phase("burst", 1.2)
    worker.kill()
    joined.wait_for_phase("burst", 5)
    live.process.kill()
    live.end()
    assert joined.ray_tmp is not None
    again = Bench(joined.folder, joined.ray_tmp).start("resume", joined.store().run_dir)
    assert again.end(90) == 3, again.lines
    store = joined.store()
    rows = rows_of(store, record.arrived())
    assert set(rows["outcome"]) <= {"ok", "unsent", "cancelled", "lost"}
    assert store.manifest.start_ns is not None
    last_ns = np.nanmax(rows["sent_ns"].astype(float)) - store.manifest.start_ns
    assert last_ns < 30 * S, "the load is 40 s long"
    assert store.manifest.status == "INVALID"
    joined.wait_until_gone()
