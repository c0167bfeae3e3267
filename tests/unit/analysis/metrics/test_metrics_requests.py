"""A server and its GPU's samples on runs without a profile, and what is not assessed there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.join.join import write_joined
from squall.analysis.metrics.records import PhaseMetrics
from squall.analysis.metrics.run import run_metrics
from squall.analysis.record import from_json, to_json
from squall.analysis.schema import TABLES
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import MissingTable
from tests.synthetic_runs import MS, START_NS, S, synthesise

KEY = "server-0/seqlen_head_0_0"
FIRST_NS, LAST_NS = START_NS + 2 * S, START_NS + 14 * S


@pytest.fixture(scope="module")
def figures(whole_run: RunStore) -> dict[str, Any]:
    found: dict[str, Any] = to_json(run_metrics(whole_run))["phases"]
    return found


def test_only_measured_phases_have_figures(figures: dict[str, Any]) -> None:
    assert list(figures) == ["burst"]
    burst = figures["burst"]
    assert (burst["start_ns"], burst["end_ns"], burst["covered_ns"]) == (FIRST_NS, LAST_NS, [])
    assert list(burst["instances"]) == [KEY]
    assert burst["gpus"] == {}


def test_without_a_profile_what_it_would_tell_is_not_assessed(figures: dict[str, Any]) -> None:
    instance = figures["burst"]["instances"][KEY]
    assert instance["measures"]["profiled_ratio"] == 0.0
    for name in (
        "body_busy_ratio",
        "issue_interval_ns",
        "foreign_busy_ratio",
        "wall_head_ratio",
        "copy_mean_bytes",
    ):
        assert instance["measures"][name] is None, name
    for name in ("kernels", "launches", "calls", "copies", "os_waits"):
        assert instance[name] is None, name


def test_servers_have_batch_sizes_and_the_parts_of_their_requests(
    whole_run: RunStore, figures: dict[str, Any]
) -> None:
    server = figures["burst"]["servers"]["server-0"]
    batches = [row for row in whole_run.read("batch_costs").to_pylist() if row["phase"] == "burst"]
    assert sum(row["n"] for row in server["batch_rows"]) == len(batches)
    one = server["batch_rows"][0]
    own = [row["end_ns"] - row["start_ns"] for row in batches if row["rows"] == one["rows"]]
    assert (one["n"], one["exec_mean_ns"]) == (len(own), sum(own) / len(own))
    waits = sorted(
        row["wait_ns"]
        for row in whole_run.read("joined").to_pylist()
        if row["phase"] == "burst" and row["outcome"] == "ok" and row["wait_ns"] is not None
    )
    found = server["parts"]["wait"]
    assert [found[f"p{p}_ns"] for p in (50, 95, 99)] == [
        waits[-(-p * len(waits) // 100) - 1] for p in (50, 95, 99)
    ]
    assert server["queue"]["depth_mean"] > 0


def test_executions_that_overlap_leave_the_wall_unassessed(odd: dict[str, Any]) -> None:
    measures = odd["instances"][KEY]["measures"]
    assert all(value is None for name, value in measures.items() if name.startswith("wall_"))
    assert measures["n_batches"] > 0


def test_a_closed_loop_has_no_lag(closed_run: RunStore) -> None:
    figures = run_metrics(closed_run).phases["burst"].instances
    assert [one.measures["client_lag_share_ratio"] for one in figures.values()] == [None]


def sample(at_ms: int, **values: Any) -> dict[str, Any]:
    return {"node": "node-0", "gpu_uuid": "GPU-1", "t_ns": START_NS + at_ms * MS, "interval_ns": 100 * MS, "read_ns": 1,
            "mig_instance": "", "gpm_interval_ns": 100 * MS, **values}  # fmt: skip


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Figures of a run whose executions overlap, and of whose GPU there are a few samples of other lengths."""
    run = synthesise()
    batches = run.tables["batches"]
    batches["end_ns"] = [end + 5 * MS for end in batches["end_ns"]]
    rows = [
        sample(2050, sm_util=0.9, util=0.9, throttle_reasons=4),  # began before the phase
        sample(3000, sm_util=0.2, util=0.5, throttle_reasons=1),
        sample(3300, sm_util=0.6, gpm_interval_ns=300 * MS, util=0.7, throttle_reasons=4),
        sample(3400, sm_util=None, gpm_interval_ns=None, util=None, throttle_reasons=0x102),
        sample(3500, sm_util=float("nan"), util=float("inf")),
    ]
    run.tables["gpu_samples"] = {
        column.name: [row.get(column.name) for row in rows] for column in TABLES["gpu_samples"].columns
    } | {"phase": ["burst"] * len(rows)}
    run.derived = False
    store = run.write(tmp_path_factory.mktemp("odd"))
    write_joined(store)
    found: dict[str, Any] = to_json(run_metrics(store))["phases"]["burst"]
    return found


def test_samples_are_weighted_by_the_time_that_they_cover(odd: dict[str, Any]) -> None:
    gpu = odd["gpus"]["GPU-1"]
    assert gpu["n_samples"] == 4
    assert gpu["sm_util"] == pytest.approx((0.2 * 100 + 0.6 * 300) / 400)
    assert gpu["util"] == pytest.approx(0.6)
    assert gpu["throttled_ratio"] == pytest.approx(1 / 3), "idle and user's clocks are no throttling"
    assert gpu["throttle_reasons"] == 0x107
    assert (gpu["kernel_ratio"], gpu["busy_ratio"]) == (None, None)


def test_figures_without_a_report_are_read_back_as_they_were_written(
    figures: dict[str, Any], odd: dict[str, Any]
) -> None:
    for stored in (figures["burst"], odd):
        read = from_json(PhaseMetrics, json.loads(json.dumps(stored)))
        assert json.dumps(to_json(read)) == json.dumps(stored)


def test_a_run_whose_batch_costs_were_never_written_is_refused(tmp_path: Path) -> None:
    run = synthesise()
    run.derived = False
    with pytest.raises(MissingTable, match="batch_costs"):
        run_metrics(run.write(tmp_path))
