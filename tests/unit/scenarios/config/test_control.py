"""Models that a scenario wants loaded and unloaded: what can be said, what it stands for, and what is refused."""

from __future__ import annotations

from typing import Any

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.overrides import apply_override
from squall.scenarios.config.scenario import Scenario

URL = {"url": "http://h:1"}


def scenario_of(server: dict[str, Any], **more: Any) -> Scenario:
    phases = [
        {"name": "m", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
        {"name": "drain", "kind": "drain", "duration": "1s"},
    ]
    whole = {"name": "x", "seed": 1, "model": {"name": "m"}, "phases": phases, "server": server, **more}
    return scenario_from_mapping(whole, "test")


def test_control_of_all_servers_is_that_of_each_that_has_none_of_its_own() -> None:
    servers = [{"url": "http://a:1"}, {"url": "http://b:1", "control": {"unload": ["c"]}}]
    scenario = scenario_of({"control": {"load": ["a", "b"]}}, servers=servers)
    first, second = scenario.servers or ()
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
