"""Figures and windows of planted runs, recorded as a whole or in windows, against loops over plain rows, and against
what was planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.metrics.run import run_metrics
from squall.analysis.metrics.windows import write_windows
from squall.analysis.record import from_json, to_json
from squall.analysis.storage.store import RunStore
from tests.many_examples import folder_in
from tests.planted_runs import FEATURES, MS, START_NS, STYLES, US, Planted, PlantedBatch, Shape, plant, shapes
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
from tests.regime_runs import found_in
from tests.window_runs import by_library, window, windows_of

WALL = ("gpu_busy", "head", "body_idle", "tail", "unprofiled", "between_waiting", "between_empty", "edges")
SMALL = 64 * 1024**2
S = 1_000_000_000
ALL = frozenset(FEATURES)
EVERY_KIND = Shape(
    seed=3, n_requests=90, servers=STYLES, n_instances=2, n_nodes=3, features=ALL - {"closed_loop", "partial_profile"}
)  # fmt: skip


def derived(store: RunStore) -> RunStore:
    write_batch_costs(store)
    write_joined(store)
    return store


def recorded(whole: RunStore, parent: Path, windows: dict[str, list[Row]]) -> RunStore:
    """The run as the kernel library records it."""
    return derived(by_library(whole, parent, windows))


def by_periods(shape: Shape, parent: Path, on_ns: int, period_ns: int) -> RunStore:
    """The planted run, recorded at the beginning of each period, servers some ms apart."""
    end_ns = START_NS + 2 * shape.span_ns
    windows = {
        f"server-{n}": windows_of(START_NS + n * 3 * MS, end_ns, on_ns, period_ns, 20 * US)
        for n in range(len(shape.servers))
    }
    return recorded(plant(shape).write(parent), parent, windows)


def check_metrics(found: dict[str, Any], expected: Reference) -> None:
    instances = {
        (phase, name): one for phase, own in found["phases"].items() for name, one in own["instances"].items()
    }
    wanted = instance_metrics(expected)
    assert instances.keys() == wanted.keys()
    wrong = {name: differing(instances[name], name, wanted[name], expected) for name in wanted}
    gpus = gpu_metrics(expected)
    wrong |= {one: disagreements(found["phases"][one[0]]["gpus"][one[1]], gpus[one]) for one in gpus}
    assert not {name: one for name, one in wrong.items() if one}, "(found, expected)"


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


def check_findings(store: RunStore, found: RunMetrics, expected: Reference) -> None:
    """Each instance has its two findings, and the batches that these are about are its own, of that phase, and all."""
    costs = {key(one): one for one in expected.batch_costs.values()}
    wanted = set(found.measures)
    seen = []
    for one in found_in(store, found, None, []):
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


def check_windows(store: RunStore, expected: Reference) -> list[Row]:
    write_windows(store)
    rows: list[Row] = store.read("windows").to_pylist()
    assert not of_windows(rows, window_rows(store, expected)), "column: (found, expected)"
    return rows


def check_run(store: RunStore, found: RunMetrics, expected: Reference) -> None:
    check_metrics(to_json(found), expected)
    check_walls(found)
    check_findings(store, found, expected)
    check_windows(store, expected)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


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
        seed=3, n_requests=30, servers=("record", "traced"), n_instances=2,
        features=frozenset({"alike_names", "blocks"}),
    )
)  # fmt: skip
def test_every_figure_and_window_is_what_loops_over_all_rows_find(shape: Shape, parent: Path) -> None:
    with folder_in(parent) as folder:
        store = derived(plant(shape).write(folder))
        check_run(store, run_metrics(store), reference(store))


@settings(max_examples=1, phases=(Phase.generate,))
@given(shape=shapes(), on_ms=st.integers(5, 90), pause_ms=st.integers(1, 60))
def test_figures_of_any_run_in_windows_are_what_loops_find(
    shape: Shape, on_ms: int, pause_ms: int, parent: Path
) -> None:
    with folder_in(parent) as folder:
        store = by_periods(shape, folder, on_ms * MS, (on_ms + pause_ms) * MS)
        check_run(store, run_metrics(store), reference(store))


@pytest.fixture(scope="module")
def every_kind(parent: Path) -> tuple[RunStore, RunMetrics]:
    """A run with every kind of server, and its figures."""
    store = derived(plant(EVERY_KIND).write(parent))
    return store, run_metrics(store)


@pytest.mark.slow
def test_figures_of_a_run_with_every_kind_of_server_are_what_loops_find(
    every_kind: tuple[RunStore, RunMetrics],
) -> None:
    store, found = every_kind
    check_run(store, found, reference(store))


def test_figures_are_read_back_as_they_were_written_and_need_little_memory(
    every_kind: tuple[RunStore, RunMetrics],
) -> None:
    store, made = every_kind
    stored = json.loads(json.dumps(to_json(made), allow_nan=False))
    assert from_json(RunMetrics, stored) == made
    assert json.dumps(to_json(from_json(RunMetrics, stored))) == json.dumps(stored)
    own = [one for phase in made.phases.values() for one in phase.instances.values()]
    assert all(any(getattr(one, name) for one in own) for name in ("kernels", "launches", "calls", "copies"))
    assert run_metrics(store, memory_limit_bytes=SMALL) == made


@pytest.mark.slow
def test_figures_of_every_kind_of_server_in_windows_are_what_loops_find(tmp_path: Path) -> None:
    store = by_periods(EVERY_KIND, tmp_path, 60 * MS, 90 * MS)
    found = run_metrics(store)
    check_metrics(to_json(found), reference(store))
    check_walls(found)
    steady = found.phases["steady"]
    assert len(steady.covered_ns) >= 3
    assert all(end - start <= 60 * MS for start, end in steady.covered_ns)
    walls = [one.wall_ns for one in steady.instances.values() if one.measures["wall_head_ratio"] is not None]
    assert walls, "some instance has its wall in parts"


def batches_in(planted: Planted, phase: str) -> list[PlantedBatch]:
    return [
        one for one in planted.batches
        if planted.phase_at(one.work.start_ns + planted.clock_ns[one.server.node]) == phase
    ]  # fmt: skip


def test_sums_over_the_batches_of_a_phase_are_those_that_were_planted(parent: Path) -> None:
    features = ALL - {"alike_names", "partial_profile", "lost_ranges", "lost_batches", "open_ranges"}
    planted = plant(Shape(seed=11, n_requests=60, n_nodes=2, features=features))
    found = run_metrics(derived(planted.write(parent)))
    for phase in ("steady", "burst"):
        works = [one.work for one in batches_in(planted, phase)]
        costs = [work.costs() for work in works]
        total = {name: sum(one[name] for one in costs) for name in costs[0]}
        length = sum(work.end_ns - work.start_ns for work in works)
        busy = total["kernel_busy_ns"] + total["copy_exposed_ns"]
        expected = {
            "n_batches": len(costs),
            "head_tail_of_exec_ratio": (total["head_ns"] + total["tail_ns"]) / length,
            "body_busy_ratio": busy / (busy + total["sync_wait_ns"] + total["launch_idle_ns"]),
            "blocked_of_exec_ratio": total["blocked_ns"] / length,
            "blocked_gpu_busy_ratio": total["blocked_busy_ns"] / total["blocked_ns"],
            "mid_blocks_per_batch": total["n_mid_blocks"] / len(costs),
            "launches_per_batch": total["n_launches"] / len(costs),
        }
        measures = found.measures[phase, "server-0/m0_0_0@gpu0"]
        assert {name: measures[name] for name in expected} == pytest.approx(expected)


def test_the_share_of_operations_without_a_batch_is_the_one_that_was_lost(parent: Path) -> None:
    features = frozenset({"blocks", "streams", "graphs", "lost_launches", "lost_ranges", "clock"})
    planted = plant(Shape(seed=7, n_requests=60, n_nodes=2, features=features))
    found = run_metrics(derived(planted.write(parent)))
    measures = found.measures["steady", "server-0/m0_0_0@gpu0"]
    first, last = found.phases["steady"].start_ns, found.phases["steady"].end_ns
    error_ns = planted.clock_ns[planted.servers[0].node]
    lost = [
        op.is_orphan or not one.has_range
        for one in planted.batches
        if one.is_profiled
        for op in one.work.ops
        if first <= op.start_ns + error_ns < last
    ]
    assert 0 < sum(lost) < len(lost)
    assert measures["attribution_ratio"] == pytest.approx(1 - sum(lost) / len(lost))


def test_windows_of_a_long_run_add_up_to_the_run(parent: Path) -> None:
    planted = plant(Shape(
        seed=5, n_requests=150, servers=("record", "bare", "blind"), n_nodes=2, span_ns=1500 * MS,
        features=ALL - {"partial_profile"},
    ))  # fmt: skip
    store = derived(planted.write(parent))
    rows = check_windows(store, reference(store))
    done = [one for one in planted.requests if one.outcome == "ok"]
    assert sum(row["n_done"] for row in rows) == len(done) > 100
    assert rows[-1]["in_flight"] == rows[-1]["queue_depth"] == 0
    assert sum(row["gpu_kernel_ratio"] is not None for row in rows) >= 8, "the phases that were recorded"


SAME = (
    "body_busy_ratio", "head_tail_of_exec_ratio", "copy_to_kernel_ratio", "attribution_ratio",
    "copy_exposed_of_body_ratio", "gpu_activity_ratio", "occupancy_ratio", "foreign_busy_ratio",
)  # fmt: skip


def test_one_window_over_the_run_gives_the_figures_of_a_report(tmp_path: Path) -> None:
    shape = Shape(seed=11, n_requests=80, features=frozenset({"blocks", "streams", "graphs"}))
    whole = derived(plant(shape).write(tmp_path / "nsys"))
    held = recorded(whole, tmp_path, {"server-0": [window(START_NS - S, START_NS + 20 * S)]})
    expected, found = run_metrics(whole), run_metrics(held)
    for phase, own in expected.phases.items():
        assert found.phases[phase].covered_ns == own.covered_ns == ((own.start_ns, own.end_ns),)
        assert found.phases[phase].gpus == own.gpus
        for instance_key, instance in own.instances.items():
            other = found.phases[phase].instances[instance_key]
            assert (other.kernels, other.n_profiled) == (instance.kernels, instance.n_profiled)
            assert not disagreements(dict(other.measures), {name: instance.measures[name] for name in SAME})
            assert other.measures["issue_interval_ns"] is other.measures["blocked_of_exec_ratio"] is None


def test_a_pause_of_recording_is_no_gap_of_the_gpu(tmp_path: Path) -> None:
    whole = plant(Shape(seed=12, n_requests=60, features=frozenset())).write(tmp_path)
    first = next(one for one in whole.manifest.phases if one.name == "steady")
    middle = (first.start_ns + first.end_ns) // 2
    windows = [window(first.start_ns, middle - 60 * MS), window(middle + 60 * MS, first.end_ns)]
    found = run_metrics(recorded(whole, tmp_path, {"server-0": windows}))
    (gpu,) = found.phases["steady"].gpus.values()
    assert gpu.profiled_ns == first.end_ns - first.start_ns - 120 * MS
    assert gpu.idle_gaps is not None
    assert gpu.busy_ratio is not None
    assert gpu.idle_gaps.total_ns == gpu.profiled_ns - round(gpu.busy_ratio * gpu.profiled_ns)
