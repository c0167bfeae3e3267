"""Commands that run or change a scenario, with one whose load is Locust's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from squall.analysis.compare.run_row import load_digest
from squall.analysis.storage.locust import LocustFacts
from squall.analysis.storage.manifest import Manifest, PlanFacts
from squall.cluster.cli import app
from squall.cluster.commands.decisions.compared_runs import PairPlan, refuse_other_load, without_profilers
from squall.cluster.commands.decisions.runnable_cells import refuse_unrunnable
from squall.cluster.commands.decisions.seeds import for_seeds
from squall.cluster.driver.intent import announce, describe_plan, refuse_empty
from squall.scenarios.config.loader import load_scenario
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.experiment import Experiment, load_experiment
from squall.scenarios.run_plan import plan_run
from squall.scenarios.units import NS_PER_S

PROMISES = {"service": "p(95)<50ms", "failures": "rate<1%"}


def mapping_of(**locust: Any) -> dict[str, Any]:
    load = {"locust": {"file": "locustfile.py", "users": 4, "spawn_rate": 2, "run_time": "5s", **locust}}
    return {"name": "users", "seed": 1, "model": {"name": "linear_head"}, "load": load, "promises": PROMISES}


def scenario_file(folder: Path, name: str = "scenario.yaml", **locust: Any) -> Path:
    for file in ("locustfile.py", "other.py"):
        (folder / file).write_text(f"# {file}\n")
    path = folder / name
    path.write_text(yaml.safe_dump(mapping_of(**locust)))
    return path


def scenario_of(folder: Path, **locust: Any) -> Scenario:
    return load_scenario(scenario_file(folder, **locust))


def experiment_of(folder: Path, **stated: Any) -> Experiment:
    scenario_file(folder)
    (folder / "experiment.yaml").write_text(
        yaml.safe_dump({"scenario": "scenario.yaml", **stated}, sort_keys=False)
    )
    return load_experiment(folder / "experiment.yaml")


def test_a_capacity_search_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["capacity", str(scenario_file(tmp_path))])
    assert result.exit_code != 0
    assert "users of Locust" in str(result.exception)
    assert "sweep over load.locust.users (docs/sweep.md)" in str(result.exception)
    assert isinstance(result.exception, ScenarioError)


def test_a_sweep_has_a_cell_for_each_number_of_users_with_its_own_warmup(tmp_path: Path) -> None:
    found = experiment_of(
        tmp_path, matrix={"load.locust.users": [2, 20], "load.locust.file": ["locustfile.py", "other.py"]}
    )
    assert [cell.label for cell in found.cells] == [
        "users=2, file=locustfile.py",
        "users=2, file=other.py",
        "users=20, file=locustfile.py",
        "users=20, file=other.py",
    ]
    assert [cell.scenario.phases[0].duration_ns // NS_PER_S for cell in found.cells] == [2, 2, 11, 11]
    refuse_unrunnable(found.cells, tmp_path)
    digests = {plan_run(cell.with_seed(3), None).sha256() for cell in found.cells}
    assert len(digests) == 4


def test_a_sweep_over_users_of_stated_phases_and_of_options_is_one_too(tmp_path: Path) -> None:
    phases = [
        {"name": "warm", "kind": "warmup", "duration": "1s"},
        {"name": "main", "kind": "measure", "duration": "2s"},
        {"name": "end", "kind": "drain", "duration": "1s"},
    ]
    whole = {**mapping_of(), "phases": phases}
    del whole["load"]["locust"]["run_time"]
    matrix = {"load.locust.users": [1, 5], "load.locust.options": [["--own", "a"], []]}
    found = experiment_of(tmp_path, scenario=whole, matrix=matrix)
    assert len(found.cells) == 4
    assert len({cell.scenario.phases for cell in found.cells}) == 1
    refuse_unrunnable(found.cells, tmp_path)


def test_a_cell_whose_locustfile_is_no_python_is_refused_before_the_first_run(tmp_path: Path) -> None:
    found = experiment_of(tmp_path, matrix={"load.locust.file": ["locustfile.py", "bad.py"]})
    (tmp_path / "bad.py").write_text("def f(:\n")
    with pytest.raises(ScenarioError, match=r"cell file=bad\.py: load\.locust\.file: bad\.py: SyntaxError"):
        refuse_unrunnable(found.cells, tmp_path / "experiment.yaml")


def test_a_factor_that_cannot_be_names_its_cell(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"load\.locust\.users: 0 must be at least 1"):
        experiment_of(tmp_path, matrix={"load.locust.users": [1, 0]})
    with pytest.raises(ScenarioError, match=r"load\.locust\.user: unknown key, did you mean 'users'"):
        experiment_of(tmp_path, matrix={"load.locust.user": [1, 2]})


def test_the_plan_is_told_as_users_and_never_as_empty(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path)
    plan = plan_run(scenario, None)
    facts = describe_plan(plan)
    assert (facts.load, facts.n_users, facts.sha256) == ("locust", 4, plan.sha256())
    refuse_empty(facts)
    (line,) = announce(facts, scenario.load)
    assert line.startswith("Locust: 4 users of locustfile.py, 2 a second")
    assert plan.sha256()[:12] in line


def test_profilers_and_seeds_change_nothing_of_it(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path)
    assert plan_run(without_profilers(scenario), None).sha256() == plan_run(scenario, None).sha256()
    assert for_seeds(scenario, 3).load == scenario.load


def test_sides_of_a_comparison_must_have_the_same_users(tmp_path: Path) -> None:
    a = scenario_of(tmp_path)
    refuse_other_load(a, scenario_of(tmp_path, web={}, html=True))
    for key, value in (("users", 5), ("spawn_rate", 3), ("options", ["-x"]), ("file", "other.py")):
        with pytest.raises(ScenarioError, match=rf"A and B differ in load\.locust\.{key}: "):
            refuse_other_load(a, scenario_of(tmp_path, **{key: value}))
    copy = tmp_path / "copy"
    copy.mkdir()
    refuse_other_load(a, scenario_of(copy))
    plan = PairPlan(a, a, "a", "b", 2, 7, 0.03)
    assert (plan.scenario("a", 1).seed, plan.scenario("a", 1).load) == (8, a.load)


def test_runs_are_of_one_load_where_their_users_do_the_same(tmp_path: Path) -> None:
    def manifest(sha256: str = "f", **locust: Any) -> Manifest:
        facts = LocustFacts(version="2", file="locustfile.py", file_sha256=sha256, node="node-0")
        plan = PlanFacts(load="locust", n_users=4)
        return replace(
            Manifest(), plan=plan, locust=facts, scenario=scenario_of(tmp_path, **locust).to_mapping()
        )

    same = load_digest(manifest())
    assert load_digest(manifest(html=True)) == same
    assert load_digest(manifest(sha256="g")) != same
    assert load_digest(manifest(users=5)) != same
    assert load_digest(manifest(tags=["a"])) != same
