"""Figures of runs that the kernel library recorded in windows, against loops and those of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.metrics.run import run_metrics
from squall.analysis.record import to_json
from squall.analysis.storage.store import RunStore
from tests.many_examples import folder_in
from tests.planted_runs import FEATURES, MS, START_NS, STYLES, US, Shape, plant, shapes
from tests.reference_join import reference
from tests.unit.analysis.metrics.test_planted_metrics import check_metrics, check_run, check_walls
from tests.window_runs import Row, by_library, window, windows_of

S = 1_000_000_000


def made(whole: RunStore, parent: Path, windows: dict[str, list[Row]]) -> tuple[RunStore, RunMetrics]:
    store = by_library(whole, parent, windows)
    write_batch_costs(store)
    write_joined(store)
    return store, run_metrics(store)


def recorded(shape: Shape, parent: Path, on_ns: int, period_ns: int) -> tuple[RunStore, RunMetrics]:
    """The planted run as the library records it, servers some ms apart."""
    windows = {
        f"server-{n}": windows_of(
            START_NS + n * 3 * MS, START_NS + 2 * shape.span_ns, on_ns, period_ns, 20 * US
        )
        for n in range(len(shape.servers))
    }
    return made(plant(shape).write(parent), parent, windows)


@settings(max_examples=1, phases=(Phase.generate,))
@given(shape=shapes(), on_ms=st.integers(5, 90), pause_ms=st.integers(1, 60))
def test_figures_of_any_run_in_windows_are_what_loops_find(
    shape: Shape, on_ms: int, pause_ms: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with folder_in(tmp_path_factory.getbasetemp()) as folder:
        store, found = recorded(shape, folder, on_ms * MS, (on_ms + pause_ms) * MS)
        check_run(store, found, reference(store))


@pytest.mark.slow
def test_figures_of_every_kind_of_server_in_windows_are_what_loops_find(tmp_path: Path) -> None:
    features = frozenset(FEATURES) - {"closed_loop", "partial_profile"}
    shape = Shape(seed=3, n_requests=90, servers=STYLES, n_instances=2, n_nodes=3, features=features)
    store, found = recorded(shape, tmp_path, 60 * MS, 90 * MS)
    check_metrics(to_json(found), reference(store))
    check_walls(found)
    steady = found.phases["steady"]
    assert len(steady.covered_ns) >= 3
    assert all(end - start <= 60 * MS for start, end in steady.covered_ns)
    walls = [one.wall_ns for one in steady.instances.values() if one.measures["wall_head_ratio"] is not None]
    assert walls, "some instance has its wall in parts"


def test_one_window_over_the_run_gives_the_figures_of_a_report(tmp_path: Path) -> None:
    features = frozenset({"blocks", "streams", "graphs"})
    whole = plant(Shape(seed=11, n_requests=80, features=features)).write(tmp_path / "nsys")
    write_batch_costs(whole)
    write_joined(whole)
    expected = run_metrics(whole)
    _, found = made(whole, tmp_path, {"server-0": [window(START_NS - S, START_NS + 20 * S)]})
    for phase, own in expected.phases.items():
        assert found.phases[phase].covered_ns == own.covered_ns == ((own.start_ns, own.end_ns),)
        assert found.phases[phase].gpus == own.gpus
        for key, instance in own.instances.items():
            other = found.phases[phase].instances[key]
            assert (other.kernels, other.n_profiled) == (instance.kernels, instance.n_profiled)
            names = ("body_busy_ratio", "head_tail_of_exec_ratio", "copy_to_kernel_ratio", "attribution_ratio",
                     "copy_exposed_of_body_ratio", "gpu_activity_ratio", "occupancy_ratio",
                     "foreign_busy_ratio")  # fmt: skip
            assert _of(other.measures, names) == pytest.approx(_of(instance.measures, names))
            assert other.measures["issue_interval_ns"] is other.measures["blocked_of_exec_ratio"] is None


def _of(measures: Any, names: tuple[str, ...]) -> dict[str, float]:
    return {name: measures[name] for name in names if measures[name] is not None}


def test_a_pause_of_recording_is_no_gap_of_the_gpu(tmp_path: Path) -> None:
    whole = plant(Shape(seed=12, n_requests=60, features=frozenset())).write(tmp_path)
    first = next(one for one in whole.manifest.phases if one.name == "steady")
    middle = (first.start_ns + first.end_ns) // 2
    windows = [window(first.start_ns, middle - 60 * MS), window(middle + 60 * MS, first.end_ns)]
    _, found = made(whole, tmp_path, {"server-0": windows})
    (gpu,) = found.phases["steady"].gpus.values()
    assert gpu.profiled_ns == first.end_ns - first.start_ns - 120 * MS
    assert gpu.idle_gaps is not None
    assert gpu.busy_ratio is not None
    busy_ns = round(gpu.busy_ratio * gpu.profiled_ns)
    assert gpu.idle_gaps.total_ns == gpu.profiled_ns - busy_ns
