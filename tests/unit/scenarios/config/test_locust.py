"""What a scenario may say of Locust, what it implies, and what it refuses beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.config.loader import load_scenario, make_scenario, scenario_from_mapping
from squall.scenarios.config.locust import DRAIN_NS
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.units import NS_PER_S

PHASES = [
    {"name": "main", "kind": "measure", "duration": "2s"},
    {"name": "end", "kind": "drain", "duration": "1s"},
]


def mapping_of(locust: Any, **more: Any) -> dict[str, Any]:
    whole = {"name": "users", "seed": 1, "model": {"name": "linear_head"}, "load": {"locust": locust}, **more}
    return {key: value for key, value in whole.items() if value is not None}


def of(more: dict[str, Any] | None = None, **locust: Any) -> Scenario:
    """Phases of `run_time`, unless `more` has some."""
    stated = {"file": "locustfile.py", **locust}
    if "phases" not in (more or {}):
        stated = {"run_time": "5s", **stated}
    return scenario_from_mapping(mapping_of(stated, **(more or {})), "test")


def test_the_phases_follow_from_users_spawn_rate_and_run_time() -> None:
    phases = of(users=30, spawn_rate=4, run_time="2m").phases
    assert [(one.name, one.kind, one.duration_ns) for one in phases] == [
        ("warmup", "warmup", round(7.5 * NS_PER_S) + NS_PER_S),
        ("measure", "measure", 120 * NS_PER_S),
        ("drain", "drain", DRAIN_NS),
    ]
    assert [one.arrivals and one.arrivals.kind for one in phases] == ["locust", "locust", None]
    assert of(spawn_rate=1e9).phases[0].duration_ns == NS_PER_S + 1
    null = {**mapping_of({"file": "locustfile.py", "run_time": "5s"}), "phases": None}
    assert scenario_from_mapping(null, "test") == of()


def test_users_have_the_drain_to_end_and_no_more() -> None:
    assert of(stop_timeout="2m").phases[-1].duration_ns == 120 * NS_PER_S
    assert of(stop_timeout="1s").phases[-1].duration_ns == DRAIN_NS
    assert of({"phases": PHASES}, stop_timeout="1s").phases[-1].duration_ns == NS_PER_S


def test_stated_phases_need_no_arrivals_and_may_name_those_of_locust() -> None:
    named = [{**PHASES[0], "arrivals": {"kind": "locust"}}, PHASES[1]]
    assert of({"phases": PHASES}) == of({"phases": named})


EVERY_KEY: dict[str, Any] = {
    "include": ["data", "more.csv"],
    "users": 20,
    "spawn_rate": 2.5,
    "run_time": "90s",
    "user_classes": ["Reader", "Writer"],
    "tags": ["slow"],
    "exclude_tags": ["broken"],
    "host": "http://other:8000",
    "stop_timeout": "0s",
    "options": ["--tenant", "a b", "--loglevel=DEBUG", "-x", ""],
    "web": {"port": 9000},
    "html": True,
}


def test_every_key_comes_back_and_is_in_the_digest() -> None:
    full = of(**EVERY_KEY)
    again = scenario_from_mapping(full.to_mapping(), "again")
    assert again == full
    assert again.digest() == full.digest()
    plain = of()
    assert plain.digest() != full.digest()
    for key, value in EVERY_KEY.items():
        changed = of(**{key: value})
        assert scenario_from_mapping(changed.to_mapping(), "again") == changed
        assert changed.digest() != plain.digest(), key
        assert changed.to_mapping()["load"]["locust"][key] == value
    assert yaml.safe_load(yaml.safe_dump(full.to_mapping())) == full.to_mapping()


@pytest.mark.parametrize(
    "option", ["--enable-rebalancing", "--userspace", "--hostile=1", "--tagged", "-x5", "Reader"]
)
def test_any_other_option_is_left_to_locust(option: str) -> None:
    load = of(options=[option]).load
    assert load is not None
    assert load.locust.options == (option,)


def test_service_times_and_failures_may_be_promised() -> None:
    promised = of({"promises": {"service": "p(95)<50ms", "failures": "rate<1%"}}).promises
    assert promised is not None
    assert len(promised) == 2


def written(folder: Path, locust: dict[str, Any], **more: Any) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(mapping_of(locust, **more)), encoding="utf-8")
    return path


def stated(scenario: Scenario) -> Any:
    assert scenario.load is not None
    return scenario.load.locust


def test_paths_are_of_the_scenarios_folder_and_links_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "real.py").write_text("")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "users.py").symlink_to(tmp_path / "elsewhere" / "real.py")
    locust = {"file": "own/users.py", "include": ["own/data", "own/a/../b"], "run_time": "5s"}
    found = stated(load_scenario(written(tmp_path, locust)))
    assert found.file == str(tmp_path / "own" / "users.py")
    assert found.include == (str(tmp_path / "own" / "data"), str(tmp_path / "own" / "b"))


def test_users_are_set_on_the_command_line_and_the_warmup_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, {"file": "locustfile.py", "run_time": "5s"})
    changes = ["load.locust.users=5", "load.locust.tags=[slow]", "load.locust.web.port=9001"]
    found = load_scenario(path, changes)
    assert (stated(found).users, stated(found).tags, stated(found).web.port) == (5, ("slow",), 9001)
    assert found.phases[0].duration_ns == 6 * NS_PER_S
    monkeypatch.chdir(tmp_path.parent)
    assert stated(load_scenario(path, ["load.locust.file=other.py"])).file == str(
        tmp_path.parent / "other.py"
    )
    with pytest.raises(ScenarioError, match=r"load\.locust\.user: unknown key, did you mean 'users'"):
        load_scenario(path, ["load.locust.user=5"])


def test_a_scenario_is_changed_in_python_and_its_phases_follow(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, {"file": "locustfile.py", "run_time": "5s"}))
    changed = make_scenario(scenario, {"load.locust.users": 9, "load.locust.run_time": "7s"})
    assert [one.duration_ns for one in changed.phases[:2]] == [10 * NS_PER_S, 7 * NS_PER_S]
    with_phases = load_scenario(written(tmp_path, {"file": "locustfile.py"}, phases=PHASES))
    assert make_scenario(with_phases, {"load.locust.users": 9}).phases == with_phases.phases
