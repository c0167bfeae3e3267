"""One real run, and the identities that it must keep."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from squall.analysis.requests.capture import trace_of_run
from squall.analysis.storage.store import RunStore
from squall.scenarios.config.loader import load_scenario, scenario_from_mapping
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.plan.plan import deal
from squall.scenarios.traces.writing import write_trace
from tests.integration.live_runs import Bench, FullRun, scenario_mapping
from tests.merged_plans import merge


def _column(store: RunStore, table: str, name: str) -> Any:
    return store.read(table, [name]).column(name).to_numpy()


def _texts(store: RunStore, table: str, name: str) -> Any:
    return store.read(table, [name]).column(name).cast(pa.string()).to_pylist()


def test_every_planned_arrival_has_one_row_at_its_scheduled_instant(full_run: FullRun) -> None:
    store, plan = full_run.store, plan_scenario(load_scenario(full_run.scenario))
    assert store.manifest.plan.sha256 == plan.sha256()
    assert len(plan) > 500
    ids = _column(store, "requests", "request_id")
    assert np.array_equal(np.sort(ids), np.arange(len(plan)))
    expected = store.manifest.start_ns + plan.offset_ns[ids]
    assert np.array_equal(_column(store, "requests", "scheduled_ns"), expected)
    assert np.array_equal(_column(store, "requests", "rows"), plan.rows[ids])
    names = [plan.spans[index].name for index in plan.phase[ids]]
    assert _texts(store, "requests", "phase") == names


def test_the_union_of_the_workers_plans_is_the_plan_for_any_number_of_workers(full_run: FullRun) -> None:
    plan = plan_scenario(load_scenario(full_run.scenario))
    assert [merge(deal(plan, n)).sha256() for n in (1, 2, 5)] == [plan.sha256()] * 3


def test_a_recorded_run_replays_its_own_load_to_the_ns(full_run: FullRun, tmp_path: Path) -> None:
    part = trace_of_run(full_run.store)
    write_trace(tmp_path / "load.parquet", "parquet", [part])
    mapping = scenario_mapping()
    mapping["phases"][1] |= {
        "arrivals": {"kind": "trace", "file": str(tmp_path / "load.parquet")},
        "duration": "6s",
        "rows": {"kind": "trace", "size": "rows", "max": mapping["model"]["max_batch_size"]},
    }
    replayed = plan_scenario(scenario_from_mapping(mapping, "test"))
    measured = replayed.phase == 1
    first = plan_scenario(load_scenario(full_run.scenario))
    expected = first.offset_ns[first.phase == 1]
    start_ns = replayed.spans[1].start_ns
    assert np.array_equal(replayed.offset_ns[measured] - start_ns, expected - expected[0])
    assert np.array_equal(replayed.rows[measured], first.rows[first.phase == 1])


def test_ok_requests_are_exactly_those_that_triton_and_the_batches_count(full_run: FullRun) -> None:
    store = full_run.store
    outcomes = _texts(store, "requests", "outcome")
    assert outcomes.count("ok") == len(outcomes) > 0
    assert _column(store, "triton_samples", "request_count").sum() == len(outcomes)
    assert _column(store, "triton_samples", "execution_count").sum() == store.read("batches").num_rows
    assert _column(store, "batches", "n_requests").sum() == len(outcomes)
    assert _column(store, "batches", "rows").sum() == _column(store, "requests", "rows").sum()
    served = np.concatenate(store.read("batches").column("request_ids").to_pylist())
    assert np.array_equal(np.sort(served), np.arange(len(outcomes)))


def test_every_ok_request_is_joined_to_its_batch_by_id_and_lies_around_it(full_run: FullRun) -> None:
    store = full_run.store
    assert set(_texts(store, "joined", "join_level")) == {"exact"}
    batches = store.read("batches").to_pylist()
    sent, done = (
        dict(zip(_column(store, "requests", "request_id"), _column(store, "requests", name), strict=True))
        for name in ("sent_ns", "done_ns")
    )
    for batch in batches:
        assert batch["start_ns"] <= batch["end_ns"]
        for request in batch["request_ids"]:
            assert sent[request] <= batch["start_ns"]
            assert batch["end_ns"] <= done[request]


def test_the_four_instants_are_in_order(full_run: FullRun) -> None:
    names = ("scheduled_ns", "sent_ns", "first_byte_ns", "done_ns")
    instants = [_column(full_run.store, "requests", name) for name in names]
    assert all((early <= late).all() for early, late in pairwise(instants))


def test_the_run_is_sealed_and_its_checksums_hold(full_run: FullRun) -> None:
    manifest = full_run.store.manifest
    assert manifest.state == "sealed"
    assert manifest.status == {0: "VALID", 3: "INVALID"}[full_run.code]
    assert manifest.losses == ()
    assert full_run.store.verify() == []
    present = {"requests", "batches", "host_samples", "worker_samples", "triton_samples", "windows", "joined"}
    assert present <= set(full_run.store.tables())


def test_the_checksums_do_not_hold_after_a_changed_byte(full_run: FullRun, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(full_run.store.run_dir, copy)
    part = copy / "tables" / "requests" / "part-00000.parquet"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    assert RunStore.open(copy).verify() != []


def test_stdout_is_the_summary_alone_and_its_identities_are_met(full_run: FullRun) -> None:
    assert full_run.summary["run"] == full_run.store.run
    met = {one["name"]: one["is_met"] for one in full_run.summary["identities"]}
    names = ("rows", "triton success", "batch rows", "executions", "joined", "batch costs")
    of_nsys = ("ranges",) if full_run.store.has("nvtx") else ()
    assert met == dict.fromkeys((*names, *of_nsys), True)
    assert all(one["least"] == one["most"] for one in full_run.summary["identities"])


def test_nsys_rows_lie_inside_their_measured_phase(full_run: FullRun) -> None:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not on the PATH")
    store = full_run.store
    phases = {one.name: one for one in store.manifest.phases}
    starts, names = _column(store, "osrt", "start_ns"), _texts(store, "osrt", "phase")
    assert set(names) == {"burst"}
    assert (starts >= phases["burst"].start_ns).all()
    assert (starts < phases["burst"].end_ns).all()


def test_the_report_fetches_nothing(full_run: FullRun) -> None:
    text = (full_run.store.run_dir / "report.html").read_text()
    assert len(text) > 10_000
    assert (
        re.findall(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
        == []
    )
    assert re.findall(r"url\(\s*[\"']?https?:", text) == []


def test_no_secret_of_the_environment_is_in_the_run_directory(full_run: FullRun) -> None:
    files = [path for path in full_run.store.run_dir.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if full_run.secret.encode() in path.read_bytes()] == []


def test_analyze_makes_the_derived_tables_again_equal(full_run: FullRun, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(full_run.store.run_dir, copy)
    for table in ("joined", "windows"):
        shutil.rmtree(copy / "tables" / table)
    (copy / "report.html").unlink()
    live = Bench(tmp_path, tmp_path).start("analyze", copy)
    assert live.end() == 0, live.lines
    again = RunStore.open(copy)
    for table in ("joined", "windows"):
        assert again.read(table).equals(full_run.store.read(table))
    assert again.verify() == []
    assert (copy / "report.html").exists()


@pytest.mark.slow
@pytest.mark.beside
def test_over_grpc_the_same_identities_hold(joined: Bench) -> None:
    mapping = scenario_mapping()
    mapping["clients"] |= {
        "protocol": "grpc",
        "connections": 2,
        "headers": {"x-token": "${SQUALL_TEST_TOKEN}"},
    }
    allowed = ("--allow-env", "SQUALL_TEST_TOKEN")
    live = joined.start_run(mapping, "--json", *allowed, env={"SQUALL_TEST_TOKEN": "not-to-be-kept"})
    assert live.end() in (0, 3), live.lines
    store = joined.store()
    plan = plan_scenario(load_scenario(joined.folder / "scenario.yaml", allow_env=allowed))
    outcomes = _texts(store, "requests", "outcome")
    assert outcomes.count("ok") == len(outcomes) == len(plan) > 100
    assert _column(store, "triton_samples", "request_count").sum() == len(plan)
    assert set(_texts(store, "joined", "join_level")) == {"exact"}
    files = [path for path in store.run_dir.rglob("*") if path.is_file()]
    assert [path for path in files if b"not-to-be-kept" in path.read_bytes()] == []
    joined.wait_until_gone()


@pytest.mark.slow
@pytest.mark.beside
def test_a_closed_loop_reports_service_time_and_counts_what_triton_counts(joined: Bench) -> None:
    mapping = scenario_mapping()
    for phase in mapping["phases"]:
        if "arrivals" in phase:
            phase["arrivals"] = {"kind": "closed", "users": 4, "think": {"kind": "constant", "value": "5ms"}}
    live = joined.start_run(mapping, "--json")
    assert live.end() in (0, 3), live.lines
    store = joined.store()
    n_rows = store.read("requests").num_rows
    assert store.manifest.plan.load == "closed"
    assert store.manifest.plan.n_arrivals == n_rows > 50
    assert store.read("requests").column("scheduled_ns").null_count == n_rows
    n_ok = _texts(store, "requests", "outcome").count("ok")
    assert _column(store, "triton_samples", "request_count").sum() == n_ok > 0
    joined.wait_until_gone()


def test_of_a_run_without_ray_nothing_is_told_that_ray_did(full_run: FullRun) -> None:
    assert [(node.ray, node.ray_watchdogs) for node in full_run.store.manifest.nodes.values()] == [(None, ())]


def test_what_senders_and_server_got_is_in_the_manifest(full_run: FullRun) -> None:
    manifest = full_run.store.manifest
    for worker in manifest.workers:
        got = worker.scheduling
        assert got is not None
        assert (got.policy, got.why_less == "") in (("fifo", True), ("other", False))
        assert worker.n_demotions == 0
    server = manifest.servers["server-0"].scheduling
    assert {"tritonserver"} <= {one.name for one in server.processes}
    assert any(one.name.startswith("triton_python") for one in server.processes)
    assert server.unusual == ()
    up_ns = manifest.servers["server-0"].uptime_ns
    assert up_ns is not None
    assert 0 < up_ns < 600e9, "squall started it for this run"


def test_nothing_is_left_in_the_temporary_folder(full_run: FullRun) -> None:
    assert list(full_run.started.tmp.iterdir()) == []


@pytest.mark.slow
@pytest.mark.beside
def test_a_running_server_is_loaded_as_it_is_and_five_workers_follow_one_plan(
    joined: Bench, own_triton: str
) -> None:
    mapping = scenario_mapping()
    mapping["clients"]["workers_per_node"] = 5
    live = joined.start_run(mapping, "--server", own_triton, "--json")
    assert live.end() in (0, 3), live.lines
    told = [line for line in live.lines if "without batches" in line]
    assert len(told) == 1
    assert "was started without SQUALL_BATCHES; squall inject" in told[0]
    store = joined.store()
    assert "batches" not in store.tables()
    assert store.manifest.collectors["batches"].status == "missing"
    server = store.manifest.servers["server-0"]
    assert server.uptime_ns is not None
    assert server.uptime_ns > 0
    names = [one.name for one in server.scheduling.processes]
    assert "tritonserver" in names
    plan = plan_scenario(load_scenario(joined.folder / "scenario.yaml", [f"server.url={own_triton}"]))
    ids, workers = _column(store, "requests", "request_id"), _column(store, "requests", "worker")
    assert np.array_equal(np.sort(ids), np.arange(len(plan)))
    assert np.array_equal(workers, ids % 5)
    assert set(_texts(store, "joined", "join_level")) == {"none"}
    n_ok = _texts(store, "requests", "outcome").count("ok")
    assert _column(store, "triton_samples", "request_count").sum() == n_ok == len(plan)
    # its processes are found by its port, and its statistics take the place of batches
    assert "tritonserver" in set(_texts(store, "thread_samples", "process_name"))
    measured = [row for row in store.read("cpu_samples").to_pylist() if row["phase"] == "burst"]
    assert sum(row["server_ns"] for row in measured) > 0
    (window,) = [one for one in json.loads(joined.stdout())["findings"] if one["level"] == "window"]
    assert window["rule"] in ("queue-bound", "compute-bound")
    joined.wait_until_gone()
