"""Real runs against several servers under one schedule: shares, joins, one of them killed, a driver killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from squall.analysis.storage.store import RunStore
from tests.integration.live_runs import Bench, scenario_mapping, titled, wait_until
from tests.null_process import NullProcess

pytestmark = pytest.mark.beside
SHARED = "request_id", "target", "outcome", "worker", "scheduled_ns", "node"


def rows_of(store: RunStore) -> dict[str, Any]:
    table = store.read("requests", list(SHARED))
    texts = {name: table.column(name).cast(pa.string()).to_numpy() for name in ("target", "outcome")}
    return {name: table.column(name).to_numpy() for name in ("request_id", "worker", "scheduled_ns")} | texts


def planned_alone(store: RunStore, rows: dict[str, Any]) -> None:
    """Every arrival of the plan has one row."""
    n_planned = store.manifest.plan.n_arrivals
    assert np.array_equal(np.sort(rows["request_id"]), np.arange(n_planned))


def test_two_servers_share_one_schedule_and_each_request_is_joined_on_its_own(alone: Bench) -> None:
    mapping = scenario_mapping(
        servers=[{"weight": 3}, {}],
        clients={"workers_per_node": 2, "timeout": "10s", "routing": {"kind": "weighted"}, "deal": "hash"},
    )
    live = alone.start_run(mapping, "--json")
    assert live.end() in (0, 3), live.lines
    alone.wait_until_gone()
    store = alone.store()
    rows = rows_of(store)
    planned_alone(store, rows)
    assert set(rows["outcome"]) == {"ok"}
    shares = {name: float(np.mean(rows["target"] == name)) for name in ("server-0", "server-1")}
    assert sum(shares.values()) == 1
    assert abs(shares["server-0"] - 0.75) < 5 * np.sqrt(0.75 * 0.25 / len(rows["target"])), "as asked"
    for worker in (0, 1):
        assert set(rows["target"][rows["worker"] == worker]) == set(shares), "each worker sends to both"
    found = store.read("joined", ["target", "server", "join_level"]).to_pylist()
    assert {row["join_level"] for row in found} == {"exact"}
    assert all(row["server"] == row["target"] for row in found)
    facts = store.manifest.servers
    assert {name: (one.node, one.model) for name, one in facts.items()} == dict.fromkeys(
        ("server-0", "server-1"), ("node-0", "seqlen_head")
    )
    for table in ("triton_samples", "thread_samples"):
        assert set(store.read(table, ["server"]).column("server").to_pylist()) == set(facts)
    assert {path.name for path in (store.run_dir / "logs").iterdir()} >= {"server-0.log", "server-1.log"}


@pytest.mark.long
@pytest.mark.slow
def test_one_seed_sends_the_same_arrivals_to_one_server_and_to_two(alone: Bench, tmp_path: Path) -> None:
    found = {}
    with NullProcess("--service=constant:1ms") as first, NullProcess("--service=constant:1ms") as second:
        urls = [{"url": f"http://127.0.0.1:{one.ports['http']}"} for one in (first, second)]
        for name, servers in (("one", urls[:1]), ("two", urls)):
            bench = Bench(tmp_path / name, alone.tmp)
            bench.folder.mkdir()
            live = bench.start_run(scenario_mapping(model={"name": "linear_head"}, servers=servers))
            assert live.end() in (0, 3), live.lines
            found[name] = bench.store()
    one, two = (rows_of(found[name]) for name in ("one", "two"))
    single, shared = (
        np.sort(rows["scheduled_ns"]) - (found[name].manifest.start_ns or 0)
        for name, rows in (("one", one), ("two", two))
    )
    assert np.array_equal(single, shared), "routing moves no arrival"
    assert np.array_equal(two["target"] == "server-1", two["request_id"] % 2 == 1), "in turn"
    summary = json.loads((found["two"].run_dir / "summary.json").read_text())
    assert summary["verdict"]["status"] in ("VALID", "INVALID")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["round-robin", "least-in-flight"])
def test_a_server_that_dies_takes_its_own_requests_and_no_others(alone: Bench, kind: str) -> None:
    with NullProcess("--service=constant:1ms") as first, NullProcess("--service=constant:1ms") as second:
        mapping = scenario_mapping(
            model={"name": "linear_head"},
            servers=[{"url": f"http://127.0.0.1:{one.ports['http']}"} for one in (first, second)],
            clients={"workers_per_node": 2, "timeout": "10s", "routing": {"kind": kind}},
        )
        live = alone.start_run(mapping)
        alone.wait_for_phase("burst", 0.7)
        second.kill()
        assert live.end() in (0, 3), live.lines
    alone.wait_until_gone()
    store = alone.store()
    rows = rows_of(store)
    planned_alone(store, rows)
    failed = rows["outcome"] != "ok"
    assert failed.sum() > 10
    assert set(rows["target"][failed]) == {"server-1"}
    assert set(rows["outcome"][rows["target"] == "server-0"]) == {"ok"}
    assert store.manifest.status == "INVALID", "what was asked of the server that is gone was not delivered"
    assert "server-1 was not there" in store.manifest.reasons[0]


@pytest.mark.long
@pytest.mark.slow
def test_what_two_servers_of_a_killed_driver_recorded_is_gathered_by_resume(alone: Bench) -> None:
    mapping = scenario_mapping(servers={"count": 2})
    mapping["phases"][1] |= {"duration": "30s", "arrivals": {"kind": "poisson", "rate": "100/s"}}
    live = alone.start_run(mapping)
    alone.wait_for_phase("burst", 2.5)
    os.kill(live.process.pid, signal.SIGKILL)
    live.end()
    wait_until(lambda: not titled(alone.processes(), "tritonserver"), 60, "the end of both servers")
    wait_until(lambda: not alone.processes(), 90, "the end of every process")
    again = alone.start("resume", alone.store().run_dir)
    assert again.end() in (0, 3), again.lines
    store = alone.store()
    rows = rows_of(store)
    planned_alone(store, rows)
    ok = rows["outcome"] == "ok"
    assert {name: int((rows["target"][ok] == name).sum()) > 20 for name in ("server-0", "server-1")} == {
        "server-0": True,
        "server-1": True,
    }
    batches = store.read("batches", ["server"]).column("server").to_pylist()
    assert {name: batches.count(name) > 20 for name in ("server-0", "server-1")} == {
        "server-0": True,
        "server-1": True,
    }
    alone.wait_until_gone()
