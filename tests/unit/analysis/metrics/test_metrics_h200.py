"""Every figure on a real run of an H200 equals what SQL over the nsys export gives, to the printed digits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.metrics.measures import NAMES
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.metrics.run import run_metrics
from squall.analysis.nsys.report import NsysReport
from squall.analysis.record import to_json
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from tests.h200_runs import write_h200_run
from tests.known import known

GPU = "GPU-63ea5d6e-fa85-65d4-eeb7-3e723952ba5d"
INSTANCES = {"linear_head": "m_575", "seqlen_head": "m_576"}

FIGURES: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("h200.yaml").read_text())


def figure(metrics: RunMetrics, phase: str, path: str) -> Any:
    """The figure at `path`; rows of a list are found by their class or kind."""
    found: Any = to_json(metrics.phases[phase])
    for step in path.replace("@", f"instances/server-0|{INSTANCES[phase]}").replace("#", GPU).split("/"):
        if isinstance(found, list):
            found = next(row for row in found if step in (row.get("call_class"), row.get("copy_kind")))
        else:
            found = found[step.replace("|", "/")]
    return found


@pytest.mark.parametrize("name", FIGURES)
def test_figures_equal_those_of_the_export(name: str, two_heads_metrics: RunMetrics) -> None:
    path, scale, decimals, *expected = FIGURES[name]
    found = [round(figure(two_heads_metrics, phase, path) * scale, decimals) for phase in INSTANCES]
    assert found == pytest.approx(expected, abs=1e-9)


WITHOUT = {
    *(one for one in NAMES if one.startswith(("queue_", "client_lag_"))), "compute_mean_ns",
    *(one for one in NAMES if re.fullmatch("gpu_.*util_ratio", one)), "throttled_ratio", "n_throttle_samples",
    "wall_between_empty_ratio", "wall_between_waiting_ratio",
}  # fmt: skip
"""Measures of what this export does not hold: requests, and samples of the GPU."""


def test_every_other_measure_has_a_value_and_the_wall_adds_up(two_heads_metrics: RunMetrics) -> None:
    every = [figure(two_heads_metrics, phase, "@/measures") for phase in INSTANCES]
    assert {name for name in NAMES if all(measures[name] is None for measures in every)} == WITHOUT
    parts = ("gpu_busy", "head", "body_idle", "tail", "unprofiled", "between", "edges")
    for measures in every:
        assert tuple(measures) == NAMES
        assert sum(measures[f"wall_{part}_ratio"] for part in parts) == pytest.approx(1.0, abs=1e-12)


def test_os_calls_of_serving_threads_lie_outside_their_ranges(two_heads_metrics: RunMetrics) -> None:
    rows = [row for phase in INSTANCES for row in figure(two_heads_metrics, phase, "@/os_waits")]
    inside = [row for row in rows if row["inside_ns"]]
    assert {row["name"] for row in inside} == {"pthread_cond_signal"}
    assert sum(row["n_inside"] for row in inside) == 19
    assert round(sum(row["inside_ns"] for row in inside) / 1e6, 1) == 0.2
    assert {row["name"] for row in rows if row["of_wall_ratio"] > 0.05} == {"sem_wait", "sem_timedwait"}


LONGEST_KERNELS = """
SELECT full_name, [grid_x, grid_y, grid_z], count(*), sum(end_ns - start_ns) AS total, median(end_ns - start_ns),
    min(end_ns - start_ns), max(end_ns - start_ns)
FROM kernels WHERE instance = 'm_576' GROUP BY ALL ORDER BY total DESC LIMIT 20
"""


def test_kernels_are_listed_by_name_and_grid_with_exact_medians(
    two_heads: RunStore, two_heads_metrics: RunMetrics
) -> None:
    with connect(two_heads, ["kernels"]) as connection:
        expected = [list(row) for row in connection.sql(LONGEST_KERNELS).fetchall()]
    names = ("full_name", "grid", "n", "total_ns", "median_ns", "min_ns", "max_ns")
    found = figure(two_heads_metrics, "seqlen_head", "@/kernels/top")
    assert [[row[name] for name in names] for row in found] == expected


def test_without_a_report_what_an_sm_holds_is_not_assessed(
    two_heads: RunStore, two_heads_metrics: RunMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squall.analysis.metrics.run.read_device_limits", lambda _store: {})
    measures, known = (
        figure(metrics, "seqlen_head", "@/measures")
        for metrics in (run_metrics(two_heads), two_heads_metrics)
    )
    assert measures["sub_wave_time_ratio"] is measures["sm_cover_ratio"] is None
    assert measures["occupancy_ratio"] == known["occupancy_ratio"], "ingest wrote it to the table"


def test_a_graph_is_one_launch(cuda_graphs: NsysReport, tmp_path: Path) -> None:
    """143 batches, each with a graph of ten kernels among its launches: 3,003 kernels in all."""
    store = write_h200_run(tmp_path, cuda_graphs)
    write_batch_costs(store)
    (instance,) = run_metrics(store).phases["m_0"].instances.values()
    measures, launches = instance.measures, known(instance.launches)
    assert known(instance.kernels).n == 3_003
    assert launches.launch_to_start.n == 143 * known(measures["launches_per_batch"]) == 1_716
    assert launches.launch_depth.max == 1
    assert measures["launch_depth_nonempty_mean"] == 1.0
    assert measures["issue_to_op_ratio"] == pytest.approx(7.06, abs=0.01)
