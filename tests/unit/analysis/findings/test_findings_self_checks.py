from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest

from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.findings.self_checks import (
    CHECKS,
    TABLES,
    SelfCheckView,
    checks_over,
    unassessed_groups,
    unmet,
    wall_gap,
)
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.collected import CollectorState
from squall.analysis.tables.manifest import Manifest, read_manifest
from tests import regime_runs
from tests.regime_runs import Op, Phase, diagnose, write_regime_run

SPOILED = {
    "Little's law": "UPDATE joined SET response_ns = response_ns + 1000 WHERE request_id = 3",
    "Little's law of a lost row": "DELETE FROM joined WHERE request_id = 3",
    "in flight": "UPDATE worker_samples SET n_in_flight = n_in_flight + 1",
    "sent before batch": "UPDATE joined SET sent_ns = batch_start_ns + 1 WHERE request_id = 3",
    "batch before reply": "UPDATE joined SET done_ns = batch_end_ns - 1 WHERE request_id = 3",
    "unjoined": "UPDATE joined SET join_level = 'none' WHERE request_id = 3",
    "parts add up": "UPDATE joined SET queue_ns = queue_ns + 1 WHERE request_id = 3",
    "parts add up of a batch": "UPDATE joined SET head_ns = head_ns + 1 WHERE request_id = 3",
    "residual": "UPDATE joined SET residual_ns = response_ns / 10",
    "kernel shares": "UPDATE joined SET kernel_share_ns = kernel_share_ns + 1 WHERE request_id = 3",
    "launched before run": "UPDATE kernels SET launch_start_ns = start_ns + 10001 WHERE batch_id = 3",
    "operations tied": "UPDATE batch_costs SET n_kernels = 0 WHERE batch_id < 3",
    "calls tied": "UPDATE cuda_api SET batch_id = NULL WHERE batch_id = 3",
    "batches profiled": "UPDATE batch_costs SET tie = 'none' WHERE batch_id = 3",
    "kernel sums": "UPDATE batch_costs SET kernel_ns = kernel_ns + 1 WHERE batch_id = 3",
    "broken events": "UPDATE osrt SET end_ns = start_ns - 1",
}
"""What breaks each check, by its name."""


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
def copies(store: RunStore) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[str]]]:
    """A connection with a copy of each table, and their names."""
    names = [name for name in TABLES if store.has(name)]
    with duckdb.connect() as connection:
        for name in names:
            files = [str(path) for path in store.parts(name)]
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM read_parquet($files)", {"files": files})
        connection.execute("CREATE TABLE osrt AS SELECT 1 AS start_ns, 2 AS end_ns")
        yield connection, [*names, "osrt"]


@pytest.fixture
def copied(
    copies: tuple[duckdb.DuckDBPyConnection, list[str]],
) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[str]]]:
    """The same, to be changed: it is taken back after the test."""
    copies[0].begin()
    yield copies
    copies[0].rollback()


def checked(
    copied: tuple[duckdb.DuckDBPyConnection, list[str]], store: RunStore, **manifest: Any
) -> list[SelfCheck]:
    seen = SimpleNamespace(manifest=replace(store.manifest, **manifest), has=store.has, read=store.read)
    return checks_over(SelfCheckView(*copied, cast(RunStore, seen), None))


def test_all_are_met_on_a_run_that_is_whole(
    store: RunStore, copied: tuple[duckdb.DuckDBPyConnection, list[str]]
) -> None:
    checks = checked(copied, store)
    assert unmet(checks) == []
    assert {one.name for one in checks if one.status == "not assessed"} == {"wall", "report clock"}


@pytest.mark.parametrize("name", list(SPOILED))
def test_a_fault_is_found_by_its_check(
    name: str, store: RunStore, copied: tuple[duckdb.DuckDBPyConnection, list[str]]
) -> None:
    copied[0].execute(SPOILED[name])
    assert name.split(" of a ")[0] in unmet(checked(copied, store))


@pytest.mark.parametrize(("before_ns", "is_met"), [(1, True), (0, False)])
def test_of_a_batch_that_began_before_the_phase_the_report_has_the_rest_and_its_costs_nothing(
    before_ns: int, is_met: bool, store: RunStore, copied: tuple[duckdb.DuckDBPyConnection, list[str]]
) -> None:
    """As that of a warm-up which the measured phase follows at once; one that began with it is whole."""
    start_ns = store.manifest.phases[0].start_ns
    unknown = ", ".join(f"{name} = NULL" for name in ("n_kernels", "kernel_ns", "n_copies"))
    began = f"start_ns = {start_ns - before_ns}, end_ns = {start_ns + 5_000}"
    copied[0].execute(
        f"UPDATE batch_costs SET phase = 'warmup', {began}, {unknown} WHERE batch_id = 3 AND phase = 'burst'"
    )
    assert ("kernel sums" not in unmet(checked(copied, store))) == is_met


@pytest.mark.parametrize(("process", "expected"), [("300", 1.0), ("NULL", 0.5)])
def test_operations_of_a_process_without_batches_need_no_tie(
    process: str, expected: float, store: RunStore, copied: tuple[duckdb.DuckDBPyConnection, list[str]]
) -> None:
    for table in ("kernels", "memcpys"):
        copied[0].execute(
            f"INSERT INTO {table} SELECT * REPLACE ({process} AS process, NULL AS batch_id) FROM {table}"
        )
    values = {one.name: one.value for one in checked(copied, store)}
    assert values["operations tied"] == expected


@pytest.mark.parametrize(
    ("joined_at", "state", "expected"),
    [
        ("", "missing", None),  # nothing could be joined
        ("", "on", 1.0),  # all records of it are lost
        ("here", "missing", 0.0),  # of one of two servers
        ("here", "on", 0.5),
    ],
)
def test_of_a_server_that_records_no_batches_nothing_is_unjoined(
    joined_at: str,
    state: str,
    expected: float | None,
    store: RunStore,
    copied: tuple[duckdb.DuckDBPyConnection, list[str]],
) -> None:
    copied[0].execute("INSERT INTO joined SELECT * REPLACE ('here' AS target) FROM joined")
    copied[0].execute("UPDATE joined SET join_level = 'none' WHERE target <> $at", {"at": joined_at})
    told = {"batches": CollectorState(status=state, reason="started without SQUALL_BATCHES")}
    checks = checked(copied, store, collectors=told)
    (one,) = [one for one in checks if one.name == "unjoined"]
    assert one.value == expected
    groups = unassessed_groups(checks, store.tables(), told, has_report=True)
    assert any("unjoined" in names for names in groups.values()) == (expected is None)
    if expected is None:
        assert "unjoined" in groups["no batches: started without SQUALL_BATCHES"]


def test_requests_in_flight_are_counted_by_worker(
    store: RunStore, copied: tuple[duckdb.DuckDBPyConnection, list[str]]
) -> None:
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
    (found,) = [one.value for one in checked(copied, store) if one.name == "in flight"]
    assert found == pytest.approx(off / counted)


def test_every_check_has_been_seen_to_fail(
    store: RunStore, copied: tuple[duckdb.DuckDBPyConnection, list[str]]
) -> None:
    names = {one.name for one in checked(copied, store)}
    assert names - {name.split(" of a ")[0] for name in SPOILED} == {"wall", "clock steps", "report clock"}


def test_what_is_not_in_the_run_is_not_assessed(tmp_path: Path) -> None:
    empty = RunStore.create(tmp_path, "empty", 1, Manifest())
    with duckdb.connect() as connection:
        assert {one.status for one in checks_over(SelfCheckView(connection, [], empty, None))} == {
            "not assessed"
        }


def test_a_wall_that_does_not_add_up_and_clocks_that_step_are_found(tmp_path: Path) -> None:
    whole: dict[str, Any] = {"wall_gpu_busy_ratio": 0.5, "wall_head_ratio": 0.1, "wall_body_idle_ratio": 0.1,
                             "wall_tail_ratio": 0.1, "wall_unprofiled_ratio": 0.0, "wall_between_waiting_ratio": 0.1,
                             "wall_between_empty_ratio": 0.05, "wall_edges_ratio": 0.05}  # fmt: skip

    assert wall_gap({("burst", "server-0/m"): whole})[0] == pytest.approx(0.0, abs=1e-9)
    gap, where = wall_gap({("burst", "server-0/m"): {**whole, "wall_head_ratio": 0.11}})
    assert gap == pytest.approx(0.01)
    assert where == "burst, server-0/m"
    manifest = {
        "nodes": {
            "node-1": {"clock_track": {"at_ns": [0], "offset_ns": [0], "error_ns": [0], "steps": [[1, 2]]}}
        },
        "nsys": {
            "reports": {"burst": {"clock": {"is_assumed": True}}, "calm": {"clock": {"is_assumed": False}}}
        },
    }
    empty = RunStore.create(tmp_path, "empty", 1, read_manifest(manifest))
    with duckdb.connect() as connection:
        *_, steps, report = checks_over(SelfCheckView(connection, [], empty, None))
    assert [(one.status, one.where) for one in (steps, report)] == [("unmet", "node-1"), ("unmet", "burst")]


def test_a_limit_is_inclusive_and_what_is_unknown_is_not_assessed() -> None:
    most, least = (next(one for one in CHECKS if one.is_least == is_least) for is_least in (False, True))
    for check, beyond in ((most, 1.1), (least, 0.9)):
        values = (check.limit, check.limit * beyond, None)
        assert [check.result(value).status for value in values] == ["met", "unmet", "not assessed"]


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
