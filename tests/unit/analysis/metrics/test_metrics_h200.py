"""Every figure on a real run of an H200 equals what SQL over the nsys export gives, to the printed digits.

M1 to M14 were computed on the SQLite export itself, by other queries than ours.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.metrics.measures import NAMES
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.metrics.run import run_metrics
from squall.analysis.nsys.report import NsysReport
from squall.analysis.record import to_json
from squall.analysis.storage.store import RunStore
from tests.h200_runs import write_h200_run
from tests.known import known

GPU = "GPU-63ea5d6e-fa85-65d4-eeb7-3e723952ba5d"
INSTANCES = {"linear_head": "m_575", "seqlen_head": "m_576"}

# Name: path below the phase ("@" stands for the instance, "#" for the GPU), scale, decimals, linear_head, seqlen_head.
FIGURES = {
    "M1 any op": ("gpus/#/busy_ratio", 100, 3, 2.694, 26.604),
    "M1 kernels": ("gpus/#/kernel_ratio", 100, 3, 2.336, 26.123),
    "M2 launch of exec": ("@/calls/classes/launch/of_exec_ratio", 100, 2, 7.56, 7.48),
    "M2 copies of exec": ("@/calls/classes/async copy/of_exec_ratio", 100, 2, 1.15, 15.14),
    "M2 sync of exec": ("@/calls/classes/blocking sync/of_exec_ratio", 100, 2, 0.15, 0.11),
    "M2 launch": ("@/calls/classes/launch/ns", 1e-6, 2, 125.98, 153.34),
    "M2 copies": ("@/calls/classes/async copy/ns", 1e-6, 2, 19.23, 310.52),
    "M2 launch of all calls": ("@/calls/classes/launch/of_api_ratio", 100, 1, 79.1, 31.2),
    "M2 copies of all calls": ("@/calls/classes/async copy/of_api_ratio", 100, 1, 12.1, 63.2),
    "M2 sync of all calls": ("@/calls/classes/blocking sync/of_api_ratio", 100, 1, 1.5, 0.4),
    "launch of wall": ("@/calls/classes/launch/of_wall_ratio", 100, 1, 4.2, 5.1),
    "M3 explicit": ("@/calls/explicit_wait_of_exec_ratio", 100, 2, 0.15, 0.11),
    "M3 hidden": ("@/calls/pageable_copy_of_exec_ratio", 100, 2, 0.63, 14.78),
    "M3b blocked": ("@/blocked_ns", 1e-6, 2, 12.98, 305.27),
    "M3b GPU busy": ("@/measures/blocked_gpu_busy_ratio", 100, 1, 7.0, 91.5),
    "M3b mid batch": ("@/measures/mid_blocks_per_batch", 1, 0, 0, 0),
    "M4 issue interval": ("@/measures/issue_interval_ns", 1e-3, 2, 21.77, 19.80),
    "M4 host gap": ("@/launches/host_gap_p50_ns", 1e-3, 2, 17.31, 15.60),
    "M4 call": ("@/launches/call_p50_ns", 1e-3, 2, 4.37, 4.29),
    "M4 op": ("@/measures/op_median_ns", 1e-3, 3, 1.472, 16.96),
    "M4 ratio": ("@/measures/issue_to_op_ratio", 1, 2, 14.79, 1.17),
    "M5 busy": ("@/measures/wall_gpu_busy_ratio", 100, 1, 2.7, 26.6),
    "M5 head": ("@/measures/wall_head_ratio", 100, 1, 33.2, 31.3),
    "M5 body idle": ("@/measures/wall_body_idle_ratio", 100, 1, 15.6, 7.2),
    "M5 tail": ("@/measures/wall_tail_ratio", 100, 1, 3.8, 3.3),
    "M5 between": ("@/measures/wall_between_ratio", 100, 1, 44.6, 31.7),
    "M5 body busy": ("@/measures/body_busy_ratio", 100, 1, 14.7, 78.7),
    "M5 exec": ("@/measures/exec_mean_ns", 1e-3, 0, 2934, 4194),
    "M5 head mean": ("@/mean_ns/head", 1e-3, 0, 1762, 1919),
    "M5 tail mean": ("@/mean_ns/tail", 1e-3, 0, 202, 202),
    "M6 host wait": ("@/launches/body_idle_by_cause/host_wait/ns", 1e-6, 1, 465.7, 159.7),
    "M6 host wait share": ("@/measures/host_wait_of_idle_ratio", 100, 0, 99, 74),
    "M6 other": ("@/launches/body_idle_by_cause/other/ns", 1e-6, 1, 0.1, 22.2),
    "M6 back to back": ("@/launches/body_idle_by_cause/back_to_back/ns", 1e-6, 1, 0.0, 18.2),
    "M6 back to back n": ("@/launches/body_idle_by_cause/back_to_back/n", 1, 0, 0, 15_504),
    "M6 launch in flight": ("@/launches/body_idle_by_cause/launch_in_flight/ns", 1e-6, 1, 4.0, 15.5),
    "M7 p50": ("@/launches/launch_to_start/p50_ns", 1e-3, 1, 6.7, 99.6),
    "M7 p95": ("@/launches/launch_to_start/p95_ns", 1e-3, 0, 10, 1124),
    "M7 p99": ("@/launches/launch_to_start/p99_ns", 1e-3, 0, 18, 1935),
    "M7 max": ("@/launches/launch_to_start/max_ns", 1e-3, 0, 424, 2907),
    "M7 queued": ("@/launches/launch_to_start/queued_ratio", 100, 2, 99.75, 99.91),
    "M8 max": ("@/launches/launch_depth/max", 1, 0, 1, 43),
    "M8 mean": ("@/launches/launch_depth/mean", 1, 2, 0.06, 3.12),
    "M8 nonempty": ("@/launches/launch_depth/nonempty_ratio", 100, 1, 6.0, 26.9),
    "M8 when nonempty": ("@/measures/launch_depth_nonempty_mean", 1, 1, 1.0, 11.6),
    "M9 median": ("@/kernels/median_ns", 1e-3, 3, 1.408, 20.319),
    "M9 mean": ("@/kernels/mean_ns", 1e-3, 3, 2.880, 25.853),
    "M9 p95": ("@/kernels/p95_ns", 1e-3, 3, 5.056, 58.687),
    "M9 below 10 us": ("@/kernels/below_10us_ratio", 100, 1, 100, 27.2),
    "M10 n": ("gpus/#/idle_gaps/n", 1, 0, 25_561, 37_472),
    "M10 idle": ("gpus/#/idle_gaps/total_ns", 1e-6, 1, 2929.3, 2202.3),
    "M10 below 10 us": ("gpus/#/idle_gaps/classes/below_10us/time_ratio", 100, 1, 2.5, 2.8),
    "M10 to 100 us": ("gpus/#/idle_gaps/classes/10us_to_100us/time_ratio", 100, 1, 13.2, 6.7),
    "M10 from 1 ms": ("gpus/#/idle_gaps/classes/1ms_or_more/time_ratio", 100, 1, 83.5, 89.7),
    "M10 n from 1 ms": ("gpus/#/idle_gaps/classes/1ms_or_more/n", 1, 0, 548, 473),
    "M10 max": ("gpus/#/idle_gaps/max_ns", 1e-6, 1, 16.1, 13.7),
    "M10 p50": ("gpus/#/idle_gaps/p50_ns", 1e-3, 1, 20.4, 1.6),
    "M11 copies": ("gpus/#/copy_ns", 1e-6, 2, 10.77, 9.06),
    "M11 hidden": ("gpus/#/copy_overlap_ratio", 100, 1, 0.0, 0.0),
    "M12 H2D bytes": ("@/copies/HtoD/mean_bytes", 1, 0, 398_408, 391_574),
    "M12 H2D rate": ("@/copies/HtoD/bytes_per_s", 1e-9, 2, 22.97, 23.11),
    "M12 H2D time": ("@/copies/HtoD/device_mean_ns", 1e-3, 1, 17.3, 16.9),
    "M12 D2H bytes": ("@/copies/DtoH/mean_bytes", 1, 0, 778, 765),
    "M12 D2H call": ("@/copies/DtoH/call_mean_ns", 1e-3, 1, 18.5, 619.8),
    "M12 D2H time": ("@/copies/DtoH/device_mean_ns", 1e-3, 1, 1.6, 1.6),
    "M14 occupancy": ("@/measures/occupancy_ratio", 100, 2, 31.84, 59.78),
    "M14 sub-wave": ("@/measures/sub_wave_time_ratio", 100, 1, 100, 4.4),
    "M14 capped by grid": ("@/kernels/grid_occupancy_ratio", 100, 1, 10.5, 59.1),
    "M14 SM cover": ("@/measures/sm_cover_ratio", 1, 2, 0.65, 0.99),
    "attribution": ("@/measures/attribution_ratio", 1, 6, 1, 1),
    "head and tail of exec": ("@/measures/head_tail_of_exec_ratio", 100, 0, 67, 51),
    "copies of body": ("@/measures/copy_exposed_of_body_ratio", 100, 1, 2.0, 1.4),
    "foreign": ("@/measures/foreign_busy_ratio", 1, 6, 0, 0),
    "streams": ("gpus/#/streams_mean", 1, 6, 1, 1),
}


def figure(metrics: RunMetrics, phase: str, path: str) -> Any:
    """The figure at `path`; rows of a list are found by their class or kind."""
    found: Any = to_json(metrics.phases[phase])
    for step in path.replace("@", f"instances/server-0|{INSTANCES[phase]}").replace("#", GPU).split("/"):
        if isinstance(found, list):
            found = next(row for row in found if step in (row.get("call_class"), row.get("copy_kind")))
        else:
            found = found[step.replace("|", "/")]
    return found


@pytest.mark.parametrize("phase", INSTANCES)
@pytest.mark.parametrize("name", FIGURES)
def test_figures_equal_those_of_the_export(name: str, phase: str, two_heads_metrics: RunMetrics) -> None:
    path, scale, decimals, *expected = FIGURES[name]
    found = figure(two_heads_metrics, phase, path) * scale
    assert round(found, decimals) == pytest.approx(expected[list(INSTANCES).index(phase)], abs=1e-9), found


def test_every_measure_is_there_and_the_wall_adds_up(two_heads_metrics: RunMetrics) -> None:
    for phase, instance in INSTANCES.items():
        measures = figure(two_heads_metrics, phase, "@/measures")
        assert tuple(measures) == NAMES
        parts = ("gpu_busy", "head", "body_idle", "tail", "unprofiled", "between", "edges")
        assert sum(measures[f"wall_{part}_ratio"] for part in parts) == pytest.approx(1.0, abs=1e-12)
        assert measures["wall_between_waiting_ratio"] is None, f"{instance} has no requests"


WITHOUT = {
    *(one for one in NAMES if one.startswith(("queue_", "client_lag_"))), "compute_mean_ns",
    *(one for one in NAMES if re.fullmatch("gpu_.*util_ratio", one)), "throttled_ratio", "n_throttle_samples",
    "wall_between_empty_ratio", "wall_between_waiting_ratio",
}  # fmt: skip
"""Measures of what this export does not hold: requests, and samples of the GPU."""


def test_every_other_measure_has_a_value(two_heads_metrics: RunMetrics) -> None:
    every = [figure(two_heads_metrics, phase, "@/measures") for phase in INSTANCES]
    assert {name for name in NAMES if all(measures[name] is None for measures in every)} == WITHOUT


def test_os_calls_of_serving_threads_lie_outside_their_ranges(two_heads_metrics: RunMetrics) -> None:
    rows = [row for phase in INSTANCES for row in figure(two_heads_metrics, phase, "@/os_waits")]
    inside = [row for row in rows if row["inside_ns"]]
    assert {row["name"] for row in inside} == {"pthread_cond_signal"}
    assert sum(row["n_inside"] for row in inside) == 19
    assert round(sum(row["inside_ns"] for row in inside) / 1e6, 1) == 0.2
    assert {row["name"] for row in rows if row["of_wall_ratio"] > 0.05} == {"sem_wait", "sem_timedwait"}


def test_kernels_are_listed_by_name_and_grid_with_exact_medians(
    two_heads: RunStore, two_heads_metrics: RunMetrics
) -> None:
    columns = ["instance", "full_name", "grid_x", "grid_y", "grid_z", "start_ns", "end_ns"]
    lengths: dict[tuple[Any, ...], list[int]] = {}
    for row in two_heads.read("kernels", columns).to_pylist():
        if row["instance"] == "m_576":
            key = row["full_name"], row["grid_x"], row["grid_y"], row["grid_z"]
            lengths.setdefault(key, []).append(row["end_ns"] - row["start_ns"])
    expected = sorted(lengths, key=lambda key: -sum(lengths[key]))[:20]
    found = figure(two_heads_metrics, "seqlen_head", "@/kernels/top")
    assert [(row["full_name"], *row["grid"]) for row in found] == expected
    for row, key in zip(found, expected, strict=True):
        own = lengths[key]
        wanted = [len(own), sum(own), median(own), min(own), max(own)]
        assert [row[name] for name in ("n", "total_ns", "median_ns", "min_ns", "max_ns")] == wanted


def test_memory_does_not_matter(two_heads: RunStore, two_heads_metrics: RunMetrics) -> None:
    assert run_metrics(two_heads, 128 * 1024**2) == two_heads_metrics


def test_without_a_report_what_an_sm_holds_is_not_assessed(
    two_heads: RunStore, two_heads_metrics: RunMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squall.analysis.metrics.run.read_device_limits", lambda _store: {})
    measures = figure(run_metrics(two_heads), "seqlen_head", "@/measures")
    assert measures["sub_wave_time_ratio"] is None
    assert measures["sm_cover_ratio"] is None
    known = figure(two_heads_metrics, "seqlen_head", "@/measures")
    assert measures["occupancy_ratio"] == known["occupancy_ratio"], "ingest wrote it to the table"


def test_a_graph_is_one_launch(cuda_graphs: NsysReport, tmp_path: Path) -> None:
    """143 batches, each with a graph of ten kernels among its launches: 3,003 kernels in all."""
    store = write_h200_run(tmp_path, cuda_graphs)
    write_batch_costs(store)
    ((_, instance),) = run_metrics(store).phases["m_0"].instances.items()
    measures, launches = instance.measures, known(instance.launches)
    assert known(instance.kernels).n == 3_003
    assert launches.launch_to_start.n == 143 * known(measures["launches_per_batch"]) == 1_716
    assert launches.launch_depth.max == 1
    assert measures["launch_depth_nonempty_mean"] == 1.0
    assert measures["issue_to_op_ratio"] == pytest.approx(7.06, abs=0.01)
