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
    own |= {"check": {"share": 0.5}, "request": {"priority": 2}}
    clients = {"rows": {"kind": "uniform", "low": 1, "high": 2}, "payload_variants": 3, "timeout": "7s"}
    scenario = scenario_of([{"name": "dense"}, {"name": "text", **own}], clients=clients)
    dense, text = scenario.each_model()
    assert dense.clients == scenario.clients
    assert (dense.model.name, text.model.name) == scenario.model_names == ("dense", "text")
    assert text.rows_of(text.phases[0]).model_dump() == own["rows"]
    assert (text.clients.payload_variants, text.clients.timeout_ns) == (9, 7_000_000_000)
    assert text.clients.check is not None
    assert text.clients.request is not None
    assert (text.clients.check.share, text.clients.request.priority) == (0.5, 2)
    assert set(text.clients.inputs or {}) == {"IN"}


def test_a_model_has_data_of_its_own_and_another_has_not() -> None:
    data = {"path": "/d/x.parquet", "columns": {"ids": "tokens"}, "order": {"kind": "zipf", "exponent": 1.1}}
    scenario = scenario_of(
        [{"name": "dense", "data": data}, {"name": "text"}], clients={"payload_variants": 9}
    )
    dense, text = scenario.each_model()
    assert dense.clients.data is not None
    assert dense.clients.data.model_dump(exclude_none=True) == data
    assert (text.clients.data, text.clients.payload_variants) == (None, 9)
    assert (scenario.has_data, dense.has_data, text.has_data) == (True, True, False)
    assert [one.key_of("data") for one in (dense, text)] == ["models.dense.data", "clients.data"]
    assert scenario_from_mapping(scenario.to_mapping(), "again") == scenario
    assert not scenario_of().has_data


def test_rows_of_a_model_hold_in_every_phase_and_those_of_a_phase_for_the_others() -> None:
    rows = {"kind": "constant", "value": 4}
    models = [{"name": "dense"}, {"name": "text", "rows": {"kind": "constant", "value": 5}}]
    scenario = scenario_of(models, phases=with_phase(rows=rows))
    found = [one.rows_of(one.phases[0]).model_dump()["value"] for one in scenario.each_model()]
    assert found == [4, 5]


def test_a_scenario_with_one_model_is_its_own_and_is_written_as_before() -> None:
    scenario = scenario_from_mapping(
        {key: value for key, value in mapping(model={"name": "dense"}).items() if key != "models"}, "test"
    )
    assert scenario.each_model() == (scenario,)
    assert "models" not in scenario.to_mapping()
    assert "shares" not in scenario.to_mapping()["phases"][0]
    assert scenario.models_at("server-0") == (scenario.model,)


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
    dense, text = scenario.several or ()
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
    _, text = load_scenario(tmp_path / "s.yaml").several or ()
    assert text.repository == str(tmp_path / "repo")
    assert text.data is not None
    assert text.data.path == str(tmp_path / "lines.txt")
    assert text.check is not None
    assert text.check.function == f"{tmp_path}/right.py:answers"
    assert text.rows is not None
    assert text.rows.model_dump()["file"] == str(tmp_path / "sizes.csv")


def entry(**more: Any) -> list[dict[str, Any]]:
    """`dense` with more, and `text`."""
    return [{"name": "dense", **more}, {"name": "text"}]


ON_TWO = {"servers": {"count": 2}}
NO_SHARE = "the shares are all 0, one must be above"
OF_ONE = "is for a scenario with one model, and models are several"
OTHERS = "is for servers that all serve the same models; use round-robin, random, weighted, sticky"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"models": None}, "model: missing, it must be given, or models, for several"),
        ({"model": {"name": "dense"}}, "models: stands beside model, which is for one; use one of the two"),
        ({"models": [{"name": "a"}]}, "models: [{'name': 'a'}] has too few entries, the least are 2"),
        ({"models": [{"name": f"m{n}"} for n in range(17)]}, "has too many entries, the most are 16"),
        ({"models": [*entry(), {"name": "text"}]}, "models: the name 'text' is used twice"),
        ({"models": entry(shar=1)}, "models[0].shar: unknown key, did you mean 'share'?"),
        ({"models": entry(share=-1)}, "models[0].share: -1 must be at least 0"),
        ({"models": [{"name": "a", "share": 0}, {"name": "b", "share": 0}]}, f"models: {NO_SHARE}"),
        ({"phases": with_phase(shares={"dense": 0})}, f"phases.m.shares: {NO_SHARE}"),
        ({"phases": with_phase(shares={})}, f"phases.m.shares: {NO_SHARE}"),
        (
            {"phases": with_phase(shares={"txet": 1})},
            "phases.m.shares.txet: there is no such model, there are dense, text",
        ),
        (
            {"phases": [with_phase()[0], {**with_phase()[1], "shares": {"text": 1}}]},
            "phases.drain.shares: a drain sends nothing, remove them",
        ),
        (
            {"models": None, "model": {"name": "a"}, "phases": with_phase(shares={"a": 1})},
            "phases.m.shares: are of a scenario with models, this one has one model",
        ),
        ({"models": entry(servers=[])}, "models[0].servers: [] is empty, it needs at least one entry"),
        ({"models": entry(servers=[1])}, "models[0].servers: there is no server 1, there is server-0 alone"),
        (
            {"models": entry(servers=["server-7"]), **ON_TWO},
            "models[0].servers: there is no server 'server-7', there are server-0 to server-1",
        ),
        ({"models": entry(servers=[0, "server-0"]), **ON_TWO}, "models[0].servers: names server-0 twice"),
        (
            {"models": entry(servers=[0]), "servers": {"per": "node"}},
            "models[0].servers: only the nodes say how many servers there are; write servers as a list",
        ),
        (
            {"models": [{"name": "a", "servers": [0]}, {"name": "b", "servers": [0]}], **ON_TWO},
            "models: server-1 serves none of them",
        ),
        (
            {"models": entry(servers=[0]), **ON_TWO, "clients": {"routing": {"kind": "two-choices"}}},
            f"models[0].servers: clients.routing 'two-choices' {OTHERS}",
        ),
        ({"clients": {"sequences": {"length": 3}}}, f"clients.sequences: {OF_ONE}"),
        (
            {"clients": {"data": {"path": "x.parquet"}}},
            f"clients.data: {OF_ONE}; give each its own in models[].data",
        ),
        (
            {"models": entry(data={"path": "x.parquet"}, payload_variants=3)},
            "models[0].data: each entry is a payload of its own; leave payload_variants out",
        ),
        (
            {"models": entry(data={"path": "x", "order": {"kind": "trace", "column": "n"}})},
            "models[0].data.order: kind 'trace' is for a scenario with one model, for a trace does not say which model"
            " a request asks; use sequence, random or zipf",
        ),
        (
            {"models": entry(data={"path": "x"}), "clients": {"shared_memory": True}},
            "models[0].data: its entries travel in messages; leave clients.shared_memory out",
        ),
        (
            {"models": entry(data={"path": "x", "limt": 3})},
            "models[0].data.limt: unknown key, did you mean 'limit'?",
        ),
        (
            {"models": entry(rows={"kind": "trace", "size": "tokens", "max": 4})},
            f"models[0].rows: kind 'trace' {OF_ONE}; use another kind, such as 'empirical' with the same file",
        ),
        (
            {"models": entry(rows={"kind": "constant", "value": 33})},
            "models[0].rows: up to 33 rows are above models[0].max_batch_size 32",
        ),
        (
            {"models": entry(max_batch_size=2), "clients": {"rows": {"kind": "constant", "value": 3}}},
            "clients.rows: up to 3 rows are above models[0].max_batch_size 2",
        ),
        (
            {"models": entry(request={"binary": False}), "clients": {"protocol": "grpc"}},
            "models[0].request.binary: false is for protocol http, gRPC carries tensors as bytes",
        ),
        (
            {"models": entry(request={"compression": "gzip"})},
            "models[1].request.compression: requests are compressed to all models or to none; say it in clients",
        ),
        (
            {"promises": {"response{model:other}": "p(95) < 5ms"}},
            "promises: response{model:other}: there is no model under load 'other', only dense, text",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict[str, Any], problem: str) -> None:
    whole = {key: value for key, value in {**mapping(), **changes}.items() if value is not None}
    with pytest.raises(ScenarioError) as raised:
        scenario_from_mapping(whole, "test")
    assert problem in str(raised.value)
    assert str(raised.value).startswith("test: ")
    assert "\n" not in str(raised.value)
