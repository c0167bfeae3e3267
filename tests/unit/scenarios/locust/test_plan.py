"""The plan of a run whose load is Locust's: its digest, its end, and that routing leaves it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.locust.plan import LocustPlan
from squall.scenarios.plan.rates import mean_rate_hz, scaled_scenario
from squall.scenarios.run_plan import plan_run, routed
from squall.scenarios.units import NS_PER_S


def scenario_of(folder: Path, more: dict[str, Any] | None = None, **locust: Any) -> Scenario:
    path = folder / "locustfile.py"
    folder.mkdir(exist_ok=True)
    if not path.exists():
        path.write_text("x = 1\n")
    load = {"locust": {"file": str(path), "run_time": "5s", **locust}}
    mapping = {"name": "x", "seed": 1, "model": {"name": "m"}, "load": load, **(more or {})}
    return scenario_from_mapping(mapping, "test")


def plan_of(folder: Path, more: dict[str, Any] | None = None, **locust: Any) -> LocustPlan:
    plan = plan_run(scenario_of(folder, more, **locust), None)
    assert isinstance(plan, LocustPlan)
    return plan


def test_its_digest_is_of_what_is_sent_and_not_of_where_files_lie(tmp_path: Path) -> None:
    digest = plan_of(tmp_path / "a").sha256()
    assert plan_of(tmp_path / "b").sha256() == digest
    assert plan_of(tmp_path / "a", html=True).sha256() == digest
    assert plan_of(tmp_path / "a", web={}).sha256() == digest
    changes: list[dict[str, Any]] = [
        {"users": 2},
        {"spawn_rate": 3},
        {"run_time": "6s"},
        {"tags": ["a"]},
        {"exclude_tags": ["a"]},
        {"user_classes": ["A"]},
        {"host": "http://x"},
        {"stop_timeout": "1s"},
        {"options": ["--own"]},
    ]
    assert len({digest, *(plan_of(tmp_path / "a", **one).sha256() for one in changes)}) == len(changes) + 1
    (tmp_path / "a" / "locustfile.py").write_text("x = 2\n")
    assert plan_of(tmp_path / "a").sha256() != digest


def test_stated_phases_and_those_that_run_time_implies_are_one_plan(tmp_path: Path) -> None:
    implied = scenario_of(tmp_path)
    phases = implied.to_mapping()["phases"]
    load = {"locust": {"file": str(tmp_path / "locustfile.py")}}
    stated = scenario_of(tmp_path, {"phases": phases, "load": load})
    assert plan_run(stated, None).sha256() == plan_run(implied, None).sha256()


def test_users_have_what_is_left_of_the_run_to_end_unless_it_says_otherwise(tmp_path: Path) -> None:
    phases = [
        {"name": "warm", "kind": "warmup", "duration": "1s"},
        {"name": "main", "kind": "measure", "duration": "2s"},
        {"name": "end", "kind": "drain", "duration": "4s"},
    ]
    file = {"file": str(tmp_path / "locustfile.py")}
    plan = plan_of(tmp_path, {"phases": phases, "load": {"locust": file}})
    assert (plan.load_end_ns, plan.stop_timeout_ns) == (3 * NS_PER_S, 4 * NS_PER_S)
    short = plan_of(tmp_path, {"phases": phases, "load": {"locust": {**file, "stop_timeout": "0s"}}})
    assert short.stop_timeout_ns == 0


def test_a_drain_between_measured_phases_ends_no_load(tmp_path: Path) -> None:
    phases = [
        {"name": "one", "kind": "measure", "duration": "1s"},
        {"name": "rest", "kind": "drain", "duration": "1s"},
        {"name": "two", "kind": "measure", "duration": "1s"},
        {"name": "end", "kind": "drain", "duration": "1s"},
    ]
    load = {"locust": {"file": str(tmp_path / "locustfile.py")}}
    assert plan_of(tmp_path, {"phases": phases, "load": load}).load_end_ns == 3 * NS_PER_S


def test_servers_do_not_change_it(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, {"servers": {"count": 3}})
    plan = plan_run(scenario, None)
    assert routed(plan, scenario, scenario.entries_for(3)) is plan


def test_a_file_that_is_not_there_is_told_with_the_plan(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path)
    (tmp_path / "locustfile.py").unlink()
    with pytest.raises(ScenarioError, match=r"^load\.locust\.file: "):
        plan_run(scenario, None)


def test_it_has_no_rate(tmp_path: Path) -> None:
    from fractions import Fraction

    scenario = scenario_of(tmp_path)
    with pytest.raises(ValueError, match="has no rate"):
        mean_rate_hz(scenario)
    with pytest.raises(ScenarioError, match="no rate that could be scaled"):
        scaled_scenario(scenario, Fraction(1, 2), "time")
