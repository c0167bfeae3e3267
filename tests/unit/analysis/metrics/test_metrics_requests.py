"""A server and its GPU's samples on runs without a profile, and what is not assessed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.join.join import write_joined
from squall.analysis.metrics.measures import instance_key, instance_of, server_of
from squall.analysis.metrics.run import run_metrics
from squall.analysis.record import to_json
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import MissingTable
from tests.synthetic_runs import MS, START_NS, S, synthesise

KEY = "server-0/seqlen_head_0_0"


def test_a_run_without_a_profile_has_figures_of_its_requests_alone(whole_run: RunStore) -> None:
    """Of measured phases; what a profile would tell is not assessed."""
    ((phase, burst),) = to_json(run_metrics(whole_run))["phases"].items()
    span = [burst[name] for name in ("start_ns", "end_ns", "covered_ns")]
    assert (phase, span) == ("burst", [START_NS + 2 * S, START_NS + 14 * S, []])
    ((key, instance),) = burst["instances"].items()
    assert (key, burst["gpus"], instance["measures"]["profiled_ratio"]) == (KEY, {}, 0.0)
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
    server = burst["servers"]["server-0"]
    batches = [row for row in whole_run.read("batch_costs").to_pylist() if row["phase"] == "burst"]
    assert sum(row["n"] for row in server["batch_rows"]) == len(batches)
    first = server["batch_rows"][0]
    own = [row["end_ns"] - row["start_ns"] for row in batches if row["rows"] == first["rows"]]
    assert (first["n"], first["exec_mean_ns"]) == (len(own), sum(own) / len(own))
    waits = sorted(
        row["wait_ns"]
        for row in whole_run.read("joined").to_pylist()
        if row["phase"] == "burst" and row["outcome"] == "ok" and row["wait_ns"] is not None
    )
    found = {percent: server["parts"]["wait"][f"p{percent}_ns"] for percent in (50, 95, 99)}
    assert found == {percent: waits[-(-percent * len(waits) // 100) - 1] for percent in found}
    assert server["queue"]["depth_mean"] > 0


def test_executions_that_overlap_and_odd_samples_of_a_gpu(tmp_path: Path) -> None:
    """The wall is not assessed; samples are weighted by the time that they cover."""
    run = synthesise()
    batches = run.tables["batches"]
    batches["end_ns"] = [end + 5 * MS for end in batches["end_ns"]]
    nan, inf = float("nan"), float("inf")
    names = ("t_ns", "interval_ns", "gpm_interval_ns", "sm_util", "util", "throttle_reasons")
    samples = [
        (2050, 100, 100, 0.9, 0.9, 4),  # began before the phase
        (3000, 100, 100, 0.2, 0.5, 1),
        (3300, 100, 300, 0.6, 0.7, 4),
        (3400, 100, None, None, None, 0x102),
        (3500, 100, 100, nan, inf, None),
    ]
    rows: list[dict[str, Any]] = [
        {"phase": "burst", "node": "node-0", "gpu_uuid": "GPU-1", "read_ns": 1, "mig_instance": "",
         **dict(zip(names, (START_NS + t * MS, n * MS, g and g * MS, *others), strict=True))}
        for t, n, g, *others in samples
    ]  # fmt: skip
    run.tables["gpu_samples"] = {
        column.name: [row.get(column.name) for row in rows] for column in TABLES["gpu_samples"].columns
    } | {"phase": ["burst"] * len(rows)}
    run.derived = False
    store = run.write(tmp_path)
    with pytest.raises(MissingTable, match="batch_costs"):
        run_metrics(store)
    write_joined(store)
    phase = to_json(run_metrics(store))["phases"]["burst"]
    measures, gpu = phase["instances"][KEY]["measures"], phase["gpus"]["GPU-1"]
    assert all(value is None for name, value in measures.items() if name.startswith("wall_"))
    assert measures["n_batches"] > 0
    assert gpu["n_samples"] == 4
    assert gpu["sm_util"] == pytest.approx((0.2 * 100 + 0.6 * 300) / 400)
    assert gpu["util"] == pytest.approx(0.6)
    assert gpu["throttled_ratio"] == pytest.approx(1 / 3), "idle and user's clocks are no throttling"
    assert gpu["throttle_reasons"] == 0x107
    assert (gpu["kernel_ratio"], gpu["busy_ratio"]) == (None, None)


@given(
    server=st.sampled_from(("server-0", "server-12")),
    name=st.text("abc_0:.-@gpu").filter(lambda name: "@gpu" not in name),
    device=st.integers(-1, 12),
)
def test_the_key_of_an_instance_says_its_server_name_and_device(server: str, name: str, device: int) -> None:
    """Without a name the model stands in it."""
    key = instance_key(server, name, device, "model")
    assert (server_of(key), *instance_of(key)) == (server, name or "model", device)
