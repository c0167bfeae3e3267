"""Figures and windows of planted runs against loops over plain rows, and against what was planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import example, given, settings

from squall.analysis.findings.find import find
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.metrics.run import run_metrics
from squall.analysis.metrics.windows import write_windows
from squall.analysis.record import from_json, to_json
from squall.analysis.storage.store import RunStore
from tests.many_examples import folder_in
from tests.planted_runs import FEATURES, MS, STYLES, Planted, PlantedBatch, Shape, plant, shapes
from tests.reference_join import Reference, Row, key, reference
from tests.reference_metrics import (
    BY_OPERATION,
    call_classes,
    disagreements,
    gpu_metrics,
    instance_metrics,
    instance_name,
)
from tests.reference_windows import of_windows, window_rows

WALL = ("gpu_busy", "head", "body_idle", "tail", "unprofiled", "between_waiting", "between_empty", "edges")
SMALL = 64 * 1024**2


def derived(planted: Planted, parent: Path) -> RunStore:
    store = planted.write(parent)
    write_batch_costs(store)
    write_joined(store)
    return store


def check_metrics(found: dict[str, Any], expected: Reference) -> None:
    instances = {
        (phase, name): one for phase, own in found["phases"].items() for name, one in own["instances"].items()
    }
    wanted = instance_metrics(expected)
    assert instances.keys() == wanted.keys()
    wrong = {name: differing(instances[name], name, wanted[name], expected) for name in wanted}
    assert not {name: one for name, one in wrong.items() if one}, "(found, expected)"
    gpus = gpu_metrics(expected)
    activity = {one: disagreements(found["phases"][one[0]]["gpus"][one[1]], gpus[one]) for one in gpus}
    assert not {name: one for name, one in activity.items() if one}, "(found, expected)"


def differing(found: dict[str, Any], name: tuple[str, str], wanted: Row, expected: Reference) -> Row:
    """What differs; measures of single operations may be None where these bear no batch."""
    ties = {one["tie"] for one in expected.batch_costs.values() if (one["phase"], instance_name(one)) == name}
    if "window" in ties:  # of these it is known how many of a batch's operations there are, not which
        wanted = {**wanted, "attribution_ratio": ..., "foreign_busy_ratio": ...}
    has_copies = any(op["kind"] == "copy" for op in expected.tables.ops)
    unknown = BY_OPERATION if "window" in ties else () if has_copies else ("copy_to_kernel_ratio",)
    wrong = disagreements(found["measures"], wanted, unknown)
    if found["calls"] is not None and "window" not in ties:
        within = {row["call_class"]: (row["n"], row["ns"]) for row in found["calls"]["classes"] if row["n"]}
        classes = call_classes(expected, *name)
        wrong |= {} if within == classes else {"calls": (within, classes)}
    return wrong


def check_walls(found: RunMetrics) -> None:
    """Where the wall goes adds up to all of it, wherever every part is known."""
    for measures in found.measures.values():
        parts = [measures[f"wall_{name}_ratio"] for name in WALL]
        whole = [one for one in parts if one is not None]
        if len(whole) == len(parts):
            assert sum(whole) == pytest.approx(1, abs=0.0011), "executions overlap by 0.1 % at most"


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


def check_findings(store: RunStore, found: RunMetrics, expected: Reference) -> None:
    """Each instance has its two findings, and the batches that these are about are its own, of that phase, and all."""
    costs = {key(one): one for one in expected.batch_costs.values()}
    wanted = set(found.measures)
    seen = []
    for one in find(store, found):
        name = instance_name({**vars(one.scope), "model": ""})
        if one.level == "tail" or (one.scope.phase, name) not in wanted:
            continue  # of requests, or of an instance that began no batch
        seen.append((one.scope.phase, name, one.level))
        if one.rows is not None and one.rows.table == "batch_costs":
            files = [str(path) for path in store.parts("batch_costs")]
            rows = duckdb.read_parquet(files).filter(one.rows.where).to_arrow_table().to_pylist()
            own = {k for k, c in costs.items() if (c["phase"], instance_name(c)) == (one.scope.phase, name)}
            assert {key(row) for row in rows} == own
            assert len(rows) == len(own) > 0
    assert sorted(seen) == sorted((*one, level) for one in wanted for level in ("body", "window"))


def check_run(store: RunStore, found: RunMetrics, expected: Reference) -> None:
    check_metrics(to_json(found), expected)
    check_walls(found)
    check_findings(store, found, expected)
    write_windows(store)
    windows = store.read("windows").to_pylist()
    assert not of_windows(windows, window_rows(store, expected)), "column: (found, expected)"


@settings(max_examples=1)
@given(shape=shapes())
@example(  # kernels of one configuration, and batches of one group, whose numbers had one hash with those of another
    shape=Shape(
        seed=0, n_requests=49, servers=("record", "record"), n_instances=2, most_runs=1, most_batch=1,
        span_ns=150 * MS, features=frozenset(),
    )
)  # fmt: skip
@example(  # two servers, each with an instance m_0_0 on either of two GPUs
    shape=Shape(
        seed=3,
        n_requests=30,
        servers=("record", "traced"),
        n_instances=2,
        features=frozenset({"alike_names", "blocks"}),
    )
)
def test_every_figure_and_window_is_what_loops_over_all_rows_find(shape: Shape, parent: Path) -> None:
    with folder_in(parent) as folder:
        store = derived(plant(shape), folder)
        check_run(store, run_metrics(store), reference(store))


@pytest.fixture(scope="module")
def every_kind(parent: Path) -> tuple[RunStore, RunMetrics]:
    """A run with every kind of server, and its figures."""
    features = frozenset(FEATURES) - {"closed_loop", "partial_profile"}
    shape = Shape(seed=3, n_requests=90, servers=STYLES, n_instances=2, n_nodes=3, features=features)
    store = derived(plant(shape), parent)
    return store, run_metrics(store)


@pytest.mark.slow
def test_figures_of_a_run_with_every_kind_of_server_are_what_loops_find(
    every_kind: tuple[RunStore, RunMetrics],
) -> None:
    store, found = every_kind
    check_run(store, found, reference(store))


def test_figures_are_read_back_as_they_were_written(every_kind: tuple[RunStore, RunMetrics]) -> None:
    _, made = every_kind
    stored = json.loads(json.dumps(to_json(made), allow_nan=False))
    assert from_json(RunMetrics, stored) == made
    assert json.dumps(to_json(from_json(RunMetrics, stored))) == json.dumps(stored)
    own = [one for phase in made.phases.values() for one in phase.instances.values()]
    assert all(any(getattr(one, name) for one in own) for name in ("kernels", "launches", "calls", "copies"))


def batches_in(planted: Planted, phase: str) -> list[PlantedBatch]:
    return [
        one for one in planted.batches
        if planted.phase_at(one.work.start_ns + planted.clock_ns[one.server.node]) == phase
    ]  # fmt: skip


def test_sums_over_the_batches_of_a_phase_are_those_that_were_planted(parent: Path) -> None:
    features = frozenset(FEATURES) - {
        "alike_names", "partial_profile", "lost_ranges", "lost_batches", "open_ranges"
    }  # fmt: skip
    planted = plant(Shape(seed=11, n_requests=60, n_nodes=2, features=features))
    store = derived(planted, parent)
    found = run_metrics(store)
    for phase in ("steady", "burst"):
        costs = [one.work.costs() for one in batches_in(planted, phase)]
        measures = found.measures[phase, "server-0/m0_0_0@gpu0"]
        length = sum(one.work.end_ns - one.work.start_ns for one in batches_in(planted, phase))

        def total(*names: str, own: list[dict[str, int]] = costs) -> int:
            return sum(one[name] for one in own for name in names)

        body = total("kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns")
        planted_ratios = {
            "n_batches": len(costs),
            "head_tail_of_exec_ratio": total("head_ns", "tail_ns") / length,
            "body_busy_ratio": total("kernel_busy_ns", "copy_exposed_ns") / body,
            "blocked_of_exec_ratio": total("blocked_ns") / length,
            "blocked_gpu_busy_ratio": total("blocked_busy_ns") / total("blocked_ns"),
            "mid_blocks_per_batch": total("n_mid_blocks") / len(costs),
            "launches_per_batch": total("n_launches") / len(costs),
        }
        assert {name: measures[name] for name in planted_ratios} == pytest.approx(planted_ratios)


def test_the_share_of_operations_without_a_batch_is_the_one_that_was_lost(parent: Path) -> None:
    features = frozenset({"blocks", "streams", "graphs", "lost_launches", "lost_ranges", "clock"})
    planted = plant(Shape(seed=7, n_requests=60, n_nodes=2, features=features))
    measures = run_metrics(derived(planted, parent)).measures["steady", "server-0/m0_0_0@gpu0"]
    first, last = next(
        (one["start_ns"], one["end_ns"]) for one in planted.manifest["phases"] if one["name"] == "steady"
    )
    error_ns = planted.clock_ns[planted.servers[0].node]
    ops = [
        op.is_orphan or not one.has_range
        for one in planted.batches
        if one.is_profiled
        for op in one.work.ops
        if first <= op.start_ns + error_ns < last
    ]
    assert 0 < sum(ops) < len(ops)
    assert measures["attribution_ratio"] == pytest.approx(1 - sum(ops) / len(ops))


def test_less_memory_changes_no_figure(every_kind: tuple[RunStore, RunMetrics]) -> None:
    store, figures = every_kind
    assert run_metrics(store, memory_limit_bytes=SMALL) == figures
