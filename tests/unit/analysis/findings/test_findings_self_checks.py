"""Each self-check is met by a run that is whole, and fails by what breaks it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml

from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.findings.self_checks import (
    TABLES,
    SelfCheckView,
    checks_over,
    unassessed_groups,
    unmet,
    wall_gap,
)
from squall.analysis.storage.collected import CollectorState
from squall.analysis.storage.manifest import Manifest, read_manifest
from squall.analysis.storage.store import RunStore
from tests import regime_runs
from tests.regime_runs import Op, Phase, diagnose, write_regime_run

Copied = tuple[duckdb.DuckDBPyConnection, list[str]]
CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "self_checks.yaml").read_text())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A derived run of two phases whose requests overlap."""
    burst = Phase("burst", (Op(20.0, 1_000_000), *(Op(50.0),) * 4), wait_us=400.0)
    found = write_regime_run(
        tmp_path_factory.mktemp("runs"), [burst, Phase("calm", burst.ops, period_us=600.0)]
    )
    diagnose(found)
    return found


@pytest.fixture(scope="module")
def copies(store: RunStore) -> Iterator[Copied]:
    """A connection with a copy of each table, and their names."""
    names = [name for name in TABLES if store.has(name)]
    with duckdb.connect() as connection:
        for name in names:
            files = [str(path) for path in store.parts(name)]
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM read_parquet($files)", {"files": files})
        connection.execute("CREATE TABLE osrt AS SELECT 1 AS start_ns, 2 AS end_ns")
        yield connection, [*names, "osrt"]


@pytest.fixture
def copied(copies: Copied) -> Iterator[Copied]:
    """The same, to be changed: it is taken back after the test."""
    copies[0].begin()
    yield copies
    copies[0].rollback()


def seen(store: RunStore, **manifest: Any) -> Any:
    """The run with another manifest."""
    return SimpleNamespace(manifest=replace(store.manifest, **manifest), has=store.has, read=store.read)


def checked(copied: Copied, store: RunStore) -> dict[str, SelfCheck]:
    return {one.name: one for one in checks_over(SelfCheckView(*copied, store, None))}


def test_all_are_met_on_a_run_that_is_whole_and_each_has_been_seen_to_fail(
    store: RunStore, copied: Copied
) -> None:
    checks = checked(copied, store)
    assert unmet(list(checks.values())) == []
    assert {name for name, one in checks.items() if one.status == "not assessed"} == {"wall", "report clock"}
    assert checks.keys() - {case["check"] for case in CASES} == {"wall", "clock steps", "report clock"}


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_found_by_its_check(case: dict[str, Any], store: RunStore, copied: Copied) -> None:
    copied[0].execute(case["change"])
    name, expected = case["check"], case["found"]
    told: dict[str, CollectorState] = {}
    if "batches" in case:
        told["batches"] = CollectorState(status=case["batches"], reason="started without SQUALL_BATCHES")
    run = seen(store, collectors={**store.manifest.collectors, **told})
    checks = checked(copied, run)
    assert expected == "unmet" or checks[name].value == (expected and pytest.approx(expected, rel=1e-3))
    assert expected != "unmet" or checks[name].status == expected
    groups = unassessed_groups(list(checks.values()), run)
    reasons = [reason for reason, names in groups.items() if name in names]
    assert reasons == (["no batches: started without SQUALL_BATCHES"] if expected is None else [])


def test_requests_in_flight_are_counted_by_worker(store: RunStore, copied: Copied) -> None:
    connection, _ = copied
    connection.execute("UPDATE requests SET worker = request_id % 5")
    connection.execute(
        "INSERT INTO worker_samples SELECT w.* REPLACE (w.worker + i AS worker) FROM worker_samples w, range(1, 7) t(i)"
    )
    samples = "SELECT worker, t_ns, n_in_flight FROM worker_samples WHERE phase <> ''"
    off = counted = 0
    for worker, t_ns, n in connection.execute(samples).fetchall():
        query = "SELECT count(*) FROM requests WHERE worker = ? AND sent_ns <= ? AND done_ns > ?"
        ((by_rows,),) = connection.execute(query, [worker, t_ns, t_ns]).fetchall()
        off, counted = off + abs(by_rows - n), counted + n
    assert checked(copied, store)["in flight"].value == pytest.approx(off / counted)


def test_a_wall_that_does_not_add_up_and_clocks_that_step_are_found(tmp_path: Path) -> None:
    whole: dict[str, Any] = {"wall_gpu_busy_ratio": 0.5, "wall_head_ratio": 0.1, "wall_body_idle_ratio": 0.1,
                             "wall_tail_ratio": 0.1, "wall_unprofiled_ratio": 0.0, "wall_between_waiting_ratio": 0.1,
                             "wall_between_empty_ratio": 0.05, "wall_edges_ratio": 0.05}  # fmt: skip
    off = {("calm", "server-0/m"): whole, ("burst", "server-0/m"): {**whole, "wall_head_ratio": 0.11}}
    gap, of_instance = wall_gap(off)
    assert gap == pytest.approx(0.01)
    assert of_instance == "burst, server-0/m"
    assert wall_gap({("calm", "server-0/m"): whole})[0] == pytest.approx(0.0, abs=1e-9)
    track = {"at_ns": [0], "offset_ns": [0], "error_ns": [0], "steps": [[1, 2]]}
    reports = {name: {"clock": {"is_assumed": name == "burst"}} for name in ("burst", "calm")}
    stepping = read_manifest({"nodes": {"node-1": {"clock_track": track}}, "nsys": {"reports": reports}})
    for manifest, told in (
        (stepping, [("unmet", "node-1"), ("unmet", "burst")]),
        (Manifest(), [("not assessed", "")] * 2),
    ):
        empty = RunStore.create(tmp_path, f"empty-{len(told[0][1])}", 1, manifest)
        with duckdb.connect() as connection:
            *others, steps, report = checks_over(SelfCheckView(connection, [], empty, None))
        assert [(one.status, one.where) for one in (steps, report)] == told
        assert {one.status for one in others} == {"not assessed"}


def test_kernel_shares_of_a_server_of_two_models_are_assessed_by_its_trace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_table = regime_runs._as_table

    def traced(table: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
        """No record and no ranges; requests go to two models in turn."""
        found = [] if table in ("batches", "nvtx") else list(rows)
        for number, row in enumerate(found):
            if table in ("requests", "triton_traces"):
                row["request_kind" if table == "requests" else "model"] = "mn"[number % 2]
            elif "batch_id" in row:
                row.update(batch_id=None, instance="")
        return as_table(table, found)

    monkeypatch.setattr(regime_runs, "_as_table", traced)
    # the models differ: every other batch has a longer kernel
    store = write_regime_run(tmp_path, [Phase("burst", (Op(50.0),) * 4, slow_every=2)])
    _, checks = diagnose(store)
    assert (checks["kernel shares"].status, checks["kernel shares"].value) == ("met", 0.0)
    costs = store.read("batch_costs").to_pylist()
    assert {row["model"] for row in costs} == {"m", "n"}
    assert len({(row["server"], row["instance"], row["batch_id"]) for row in costs}) == len(costs) == 40
