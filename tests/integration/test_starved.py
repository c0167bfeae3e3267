"""Real runs beside foreign work, and with a server in a CPU quota: what the first line of the verdict says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.busy import busy_host
from tests.golden.test_starvation import quota_group
from tests.integration.live_runs import Bench, FullRun, scenario_mapping

__all__ = ["quota_group"]


def summary_of(bench: Bench) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((bench.store().run_dir / "summary.json").read_text())
    return summary


@pytest.mark.slow
def test_a_run_beside_work_that_takes_the_cpu_is_invalid_and_says_that_first(alone: Bench) -> None:
    live = alone.start_run(scenario_mapping(), "--verbose")
    live.wait_for("are connected")
    with busy_host():
        live.wait_for("collecting")
    assert live.end() == 3, live.lines
    summary = summary_of(alone)
    verdict = summary["verdict"]
    assert verdict["status"] == "INVALID"
    (cpu,) = summary["cpu"]
    assert cpu["taken"]["others"] > 0.2
    assert cpu["full_ratio"] > 0.5
    assert any("python" in name for name in cpu["programs"])
    assert f"({next(iter(cpu['programs']))} " in verdict["reasons"][0]
    assert cpu["cores"]["others"] > cpu["cores"]["server"] + cpu["cores"]["clients"]
    claim = "Others took the CPU from the load generator: of the "
    if verdict["starvation"] is not None:  # else the loops kept nearly all requests from being sent
        claim = "Others took the CPU: of the "
        assert verdict["starvation"]["starved_by"] == "others"
        assert cpu["consequence_ratio"] > 0.1
        (window,) = [one for one in summary["findings"] if one["level"] == "window"]
        assert window["rule"] == "starved by others"
    assert verdict["reasons"][0].startswith(claim)
    screen = " ".join(alone.stdout().split())
    assert f"INVALID {claim.strip()}" in screen
    assert "CPU of node-0: server " in screen


@pytest.mark.slow
def test_a_server_in_a_quota_is_named_as_throttled_by_it_and_not_as_starved(
    alone: Bench, quota_group: Path
) -> None:
    scenario = scenario_mapping()
    scenario["phases"][1]["arrivals"]["rate"] = "800/s"  # the quota is surely used up
    live = alone.start_run(scenario)
    live.wait_for("are connected")
    servers = [one for one in alone.processes() if one.name().startswith("triton")]
    assert servers
    for one in servers:
        (quota_group / "cgroup.procs").write_text(str(one.pid))
    assert live.end() in (0, 3), live.lines
    summary = summary_of(alone)
    starvation = summary["verdict"]["starvation"]
    assert starvation["starved_by"] == "quota", summary["cpu"]
    assert not any(starvation["sentence"] == reason for reason in summary["verdict"]["reasons"])
    (window,) = [one for one in summary["findings"] if one["level"] == "window"]
    assert "throttled by a CPU quota" in (window["rule"], *window["also"])


def test_who_had_the_cpu_of_a_node_adds_up_to_its_cores(full_run: FullRun) -> None:
    rows = full_run.store.read("cpu_samples").to_pylist()
    groups = ("server_ns", "clients_ns", "squall_ns", "others_ns", "steal_ns", "idle_ns")
    whole = sum(row["interval_ns"] * row["n_cores"] for row in rows)
    assert abs(sum(row[name] or 0 for row in rows for name in groups) - whole) < 0.05 * whole
    measured = [row for row in rows if row["phase"] == "burst"]
    assert sum(row["server_ns"] for row in measured) > 0
    assert sum(row["clients_ns"] for row in measured) > 0
    assert sum(row["squall_ns"] for row in measured) > 0
    threads = full_run.store.read("thread_samples").to_pylist()
    of_threads = sum(row["run_delay_ns"] for row in threads if row["phase"] == "burst")
    # the same kernel's counts, read by two samplers that tick apart
    assert 0 < sum(row["server_wait_ns"] for row in measured) < 2 * of_threads
    facts = full_run.store.manifest.observers["node-0"].samplers["cpu_samples"]
    assert facts.cpu_ns is not None
    assert facts.wall_ns is not None
    assert facts.cpu_ns < 0.02 * facts.wall_ns
    names = {check["name"] for check in full_run.summary["verdict"]["checks"]}
    assert "CPU of the server" in names
