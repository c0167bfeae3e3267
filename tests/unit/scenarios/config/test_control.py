"""Models that a scenario wants loaded and unloaded: what can be said, what it stands for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.overrides import apply_override
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError

URL = {"url": "http://h:1"}


def scenario_of(server: dict[str, Any], **more: Any) -> Scenario:
    phases = [
        {"name": "m", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
        {"name": "drain", "kind": "drain", "duration": "1s"},
    ]
    whole = {"name": "x", "seed": 1, "model": {"name": "m"}, "phases": phases, "server": server, **more}
    return scenario_from_mapping(whole, "test")


@pytest.mark.parametrize(
    ("control", "said"),
    [
        ({"load": ["a", "a"]}, "server.control.load: 'a' is named twice"),
        ({"load": {"a": {"instances": 0}}}, "server.control.load.a.instances: "),
        ({"load": {"a": {"config": {"name": "b"}}}}, "config.name: a model has its name from the repository"),
        ({"load": {"a": {"instances": 2, "config": {"instance_group": []}}}}, "exclude each other"),
        ({"load": ["a"], "unload": ["b", "a"]}, "server.control: unload: 'a' is in load too"),
        ({"after": "leave"}, "server.control.after: "),
        ({"unlaod": ["a"]}, "server.control.unlaod: unknown key, did you mean 'unload'?"),
        ({"unload": ["m"]}, "server.control.unload: 'm' is the model under load"),
    ],
)
def test_control_that_cannot_be_is_one_line(control: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario_of({**URL, "control": control})
    assert said in str(refused.value)
    assert len([line for line in str(refused.value).splitlines() if "server" in line]) == 1


@pytest.mark.parametrize("control", [{"unload": ["a"]}, {"after": "keep"}])
def test_a_server_that_squall_starts_has_nothing_to_unload_or_to_keep(control: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match=r"control\.(unload|after): is for a server at url"):
        scenario_of({"control": control})
    assert scenario_of({"control": {"load": ["a"]}}).server.control is not None


def test_control_of_all_servers_is_that_of_each_that_has_none_of_its_own() -> None:
    servers = [{"url": "http://a:1"}, {"url": "http://b:1", "control": {"unload": ["c"]}}]
    scenario = scenario_of({"control": {"load": ["a", "b"]}}, servers=servers)
    first, second = scenario.server_entries() or ()
    assert first.control is not None
    assert list(first.control.load) == ["a", "b"]
    assert second.control is not None
    assert (second.control.load, second.control.unload) == ({}, ("c",))
    assert scenario_from_mapping(scenario.to_mapping(), "again").digest() == scenario.digest()


def test_a_sweep_may_change_how_a_model_is_loaded() -> None:
    mapping: dict[str, Any] = {"server": {**URL, "control": {}}}
    apply_override(mapping, "server.control.load.a.instances=3")
    apply_override(mapping, "server.control.load.a.config.max_batch_size=4")
    control = scenario_of(mapping["server"]).server.control
    assert control is not None
    assert (control.load["a"].instances, control.load["a"].config) == (3, {"max_batch_size": 4})
