"""Several models in a scenario: what each has of its own, who serves it, and what cannot be together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.config.loader import load_scenario, make_scenario, scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError

TWO: list[dict[str, Any]] = [{"name": "dense", "share": 3}, {"name": "text"}]


def mapping(models: Any = TWO, closed: bool = False, **more: Any) -> dict[str, Any]:
    arrivals = {"kind": "closed", "users": 3} if closed else {"kind": "poisson", "rate": "9/s"}
    phases = [
        {"name": "m", "kind": "measure", "duration": "1s", "arrivals": arrivals},
        {"name": "drain", "kind": "drain", "duration": "1s"},
    ]
    return {"name": "x", "seed": 1, "models": models, "phases": phases, **more}


def scenario_of(models: Any = TWO, **more: Any) -> Scenario:
    return scenario_from_mapping(mapping(models, **more), "test")


def with_phase(**more: Any) -> list[dict[str, Any]]:
    phase, drain = mapping()["phases"]
    return [phase | more, drain]


def test_each_model_has_what_clients_say_where_it_says_nothing_itself() -> None:
    own = {"rows": {"kind": "constant", "value": 5}, "payload_variants": 9, "inputs": {"IN": {"length": 3}}}
    own |= {"check": {"share": 0.5}, "request": {"priority": 2}, "data": {"path": "/d/x.parquet"}}
    clients = {"rows": {"kind": "uniform", "low": 1, "high": 2}, "payload_variants": 3, "timeout": "7s"}
    for key, value in own.items():
        scenario = scenario_of([{"name": "dense"}, {"name": "text", key: value}], clients=clients)
        dense, text = scenario.models
        assert (dense.model.name, text.model.name) == scenario.model_names == ("dense", "text")
        assert (
            dense.clients
            == scenario.clients
            == text.clients.model_copy(update={key: getattr(scenario.clients, key)})
        )
        assert text.clients.model_dump(mode="json", exclude_unset=True)[key] == value
        assert (dense.place_of(key), text.place_of(key)) == (f"clients.{key}", f"models.text.{key}")
        assert scenario.has_data == (key == "data")
        assert scenario_from_mapping(scenario.to_mapping(), "again") == scenario


def test_rows_of_a_model_hold_in_every_phase_and_those_of_a_phase_for_the_others() -> None:
    models = [{"name": "dense"}, {"name": "text", "rows": {"kind": "constant", "value": 5}}]
    scenario = scenario_of(models, phases=with_phase(rows={"kind": "constant", "value": 4}))
    found = [one.rows_of(scenario.phases[0].rows).model_dump()["value"] for one in scenario.models]
    assert found == [4, 5]


def test_a_scenario_with_one_model_has_a_list_of_one_and_is_written_as_it_was_stated() -> None:
    stated = {"name": "dense", "queue_delay": "2ms"}
    whole = {key: value for key, value in mapping(model=stated).items() if key != "models"}
    scenario = scenario_from_mapping(whole, "test")
    (one,) = scenario.models
    assert (one.key, one.model.name, one.model.queue_delay_ns) == ("model", "dense", 2_000_000)
    assert one.model.model_fields_set == {"name", "queue_delay_ns"}
    assert (one.clients, one.place_of("data")) == (scenario.clients, "clients.data")
    assert scenario.models_at("server-0") == (one.model,)
    assert not {"models", "share"} & (scenario.to_mapping() | scenario.to_mapping()["model"]).keys()
    assert "shares" not in scenario.to_mapping()["phases"][0]


def test_what_is_written_loads_back_to_an_equal_scenario() -> None:
    scenario = scenario_of(phases=with_phase(shares={"dense": 1, "text": 4}), servers={"count": 2})
    assert scenario_from_mapping(scenario.to_mapping(), "again") == scenario
    assert (
        scenario_of(phases=with_phase(shares={"dense": 1}), servers={"count": 2}).digest()
        != scenario.digest()
    )


def test_shares_are_those_of_the_models_but_where_a_phase_has_its_own() -> None:
    phase, drain = with_phase(shares={"text": 4})
    scenario = scenario_of(phases=[phase, with_phase(name="n")[0], drain])
    assert [scenario.shares_of(phase) for phase in scenario.phases if phase.arrivals] == [
        (0.0, 4.0),
        (3.0, 1.0),
    ]


def test_servers_are_named_or_numbered_and_none_given_are_all() -> None:
    models = [{"name": "a"}, {"name": "b", "servers": ["server-2", 0]}, {"name": "c", "servers": [1]}]
    scenario = scenario_of(models, servers={"count": 3})
    assert scenario.served_at(3) == ((0, 1, 2), (0, 2), (1,))
    at = {
        name: [one.name for one in scenario.models_at(name)] for name in ("server-0", "server-1", "server-2")
    }
    assert at == {"server-0": ["a", "b"], "server-1": ["a", "c"], "server-2": ["a", "b"]}


def test_an_override_reaches_a_model_by_name_and_by_number(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(mapping()))
    scenario = load_scenario(path, ["models.0.share=5", "models.text.rows={kind: constant, value: 2}"])
    dense, text = (one.model for one in scenario.models)
    assert (dense.share, text.rows and text.rows.model_dump()["value"]) == (5.0, 2)
    changed = make_scenario(path, {"phases.m.shares": {"dense": 1, "text": 1}})
    assert changed.shares_of(changed.phases[0]) == (1.0, 1.0)
    with pytest.raises(ScenarioError, match=r"models has no item 'txet', did you mean 'text'\?"):
        load_scenario(path, ["models.txet.share=5"])


def test_relative_paths_of_a_model_are_those_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text("")
    theirs = {
        "name": "text", "repository": "repo", "data": {"path": "lines.txt"}, "check": {"function": "right.py:answers"},
        "rows": {"kind": "empirical", "file": "sizes.csv", "size": "tokens", "max": 8},
    }  # fmt: skip
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(mapping([{"name": "dense"}, theirs])))
    text = load_scenario(tmp_path / "s.yaml").to_mapping()["models"][1]
    assert (text["repository"], text["data"]["path"]) == (f"{tmp_path}/repo", f"{tmp_path}/lines.txt")
    assert (text["check"]["function"], text["rows"]["file"]) == (
        f"{tmp_path}/right.py:answers",
        f"{tmp_path}/sizes.csv",
    )
