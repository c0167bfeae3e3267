"""The scenario: every kind comes back, its digest, and what it says of its models and servers."""

from __future__ import annotations

import math
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from squall.scenarios.arrivals.kinds import OpenArrivals
from squall.scenarios.arrivals.varying import AnyShape, EnvelopeArrivals
from squall.scenarios.config.client import ValueCheckConfig
from squall.scenarios.config.loader import load_scenario, make_scenario, scenario_from_mapping
from squall.scenarios.config.rows import ConstantRows, RowsConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.strict_yaml import parse_yaml
from tests.unit.scenarios.config.given import changed, scenario_of

MODELS: list[dict[str, Any]] = [{"name": "dense", "share": 3}, {"name": "text"}]


def full() -> Scenario:
    """`full.yaml`, with the example of each kind of arrivals."""
    whole = yaml.safe_load((Path(__file__).parent / "full.yaml").read_text())
    arrivals, rows = whole.pop("arrivals"), whole.pop("rows")
    arrivals += [parse_yaml(section.example, "example") for section in get_args(OpenArrivals)]
    trace_rows = {"kind": "trace", "size": "tokens", "per_row": 32.5, "max": 7}
    trace = next(one for one in arrivals if one["kind"] == "trace")
    sent = [*zip(arrivals, cycle(rows), strict=False), (trace, trace_rows)]
    phases = [
        {"name": f"m{index}", "kind": "measure", "duration": "7s", "arrivals": arrivals, "rows": rows}
        for index, (arrivals, rows) in enumerate(sent)
    ]
    end = {"name": "end", "kind": "drain", "duration": "1ns"}
    return scenario_from_mapping({**whole, "phases": [*phases, end]}, "full")


def test_a_scenario_of_every_kind_of_arrivals_shape_and_rows_comes_back() -> None:
    scenario = full()
    parts = [phase.arrivals for phase in scenario.phases if phase.arrivals]
    assert {type(part) for part in parts} == {*get_args(OpenArrivals)}
    shapes = {type(part.shape) for part in parts if isinstance(part, EnvelopeArrivals)} - {type(None)}
    assert shapes == {*get_args(get_args(AnyShape)[0])}
    rows = {type(scenario.models[0].rows_of(phase.rows)) for phase in scenario.phases}
    assert rows | {ConstantRows} == {*get_args(get_args(RowsConfig)[0])}
    again = scenario_from_mapping(yaml.safe_load(yaml.safe_dump(scenario.to_mapping())), "again")
    assert again == scenario
    assert again.digest() == scenario.digest()


def test_the_digest_is_stable_and_sees_the_seed() -> None:
    # A new default or key changes it: results are then no longer of the same scenario, and say so.
    model = {"name": "head", "version": 3, "settings": {"width": 8}, "preferred_batch_sizes": [4, 8]}
    phases = changed("phases.0.duration", "0.5m")["phases"]
    phases[0]["arrivals"]["rate"] = "12000/min"
    phases[1]["duration"] = "1500ms"
    digests = [scenario_of(model=model, phases=phases, seed=seed).digest() for seed in (0, 1, 2**70)]
    assert digests[0] == "832db60d1a87a9427beca8e7f085b9ae7bed18ce02738e6b6ce770cd1e316c0a"
    assert len(set(digests)) == 3


def test_the_resolved_mapping_carries_units_and_defaults_and_one_model_as_it_was_stated() -> None:
    scenario = scenario_of(model={"name": "dense", "queue_delay": "2ms"})
    resolved = scenario.to_mapping()
    assert resolved["phases"][0]["arrivals"]["rate"] == "5/s"
    assert resolved["clients"]["rows"] == {"kind": "constant", "value": 1}
    assert resolved["profile"]["osrt_threshold"] == "100us"
    stated = (
        resolved.keys() | resolved["model"].keys() | resolved["clients"].keys() | resolved["phases"][0].keys()
    )
    assert not {"models", "servers", "share", "shares", "promises", "request", "check"} & stated
    (one,) = scenario.models
    assert (one.key, one.model.model_fields_set) == ("model", {"name", "queue_delay_ns"})
    assert (one.clients, one.place_of("data")) == (scenario.clients, "clients.data")
    assert scenario.models_at("server-0") == (one.model,)


def test_rows_of_a_model_hold_in_every_phase_and_those_of_a_phase_for_the_others() -> None:
    own = {"rows": {"kind": "constant", "value": 5}}
    phases = [{**changed("scenario", {})["phases"][0], "rows": {"kind": "constant", "value": 4}}]
    scenario = scenario_of(
        models=[MODELS[0], MODELS[1] | own], phases=[*phases, changed("scenario", {})["phases"][1]]
    )
    found = [one.rows_of(scenario.phases[0].rows).model_dump()["value"] for one in scenario.models]
    assert found == [4, 5]
    assert [one.place_of("rows") for one in scenario.models] == ["clients.rows", "models.text.rows"]


def test_shares_are_those_of_the_models_but_where_a_phase_has_its_own() -> None:
    main, end = changed("scenario", {})["phases"]
    scenario = scenario_of(models=MODELS, phases=[{**main, "name": "own", "shares": {"text": 4}}, main, end])
    assert [scenario.shares_of(phase) for phase in scenario.phases[:2]] == [(0.0, 4.0), (3.0, 1.0)]
    others = scenario_of(models=MODELS, phases=[{**main, "name": "own", "shares": {"text": 3}}, main, end])
    assert others.digest() != scenario.digest()


def test_servers_of_a_model_are_named_or_numbered_and_none_given_are_all() -> None:
    models = [{"name": "a"}, {"name": "b", "servers": ["server-2", 0]}, {"name": "c", "servers": [1]}]
    scenario = scenario_of(models=models, servers={"count": 3})
    assert scenario.served_at(3) == ((0, 1, 2), (0, 2), (1,))
    assert [[one.name for one in scenario.models_at(f"server-{n}")] for n in range(3)] == [
        ["a", "b"],
        ["a", "c"],
        ["a", "b"],
    ]


def test_so_many_servers_are_as_server_says() -> None:
    counted, by_gpu = (
        scenario_of(servers=servers, server={"nice": 3}) for servers in ({"count": 3}, {"per": "gpu"})
    )
    assert counted.servers == by_gpu.entries_for(3)
    assert [entry.nice for entry in by_gpu.entries_for(2)] == [3, 3]


def test_changes_reach_models_by_name_and_entries_of_servers_by_what_they_inherit(tmp_path: Path) -> None:
    changed_servers = make_scenario(
        scenario_of(servers=[{}, {"nice": 2}]), {"server.nice": 5, "servers.1.weight": 1}
    )
    assert [entry.nice for entry in changed_servers.servers or ()] == [5, 2]
    path = tmp_path / "s.yaml"
    urls = [{"url": "http://a:8000"}, {"url": "http://b:8000"}]
    path.write_text(yaml.safe_dump(changed("scenario", {"models": MODELS, "servers": urls})))
    changes = [
        "models.0.share=5",
        "models.text.rows={kind: constant, value: 2}",
        "servers[1].url=http://c:1",
        "server.control.load=[other]",
    ]
    loaded = load_scenario(path, changes)
    assert (loaded.models[0].model.share, loaded.models[1].clients.rows.model_dump()["value"]) == (5.0, 2)
    assert [(one.url, list(one.control.load) if one.control else None) for one in loaded.servers or ()] == [
        ("http://a:8000", ["other"]), ("http://c:1", ["other"]),
    ]  # fmt: skip


def test_phases_of_a_run_time_follow_what_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(changed("load.locust", {"file": "l.py", "run_time": "5s"})))
    values = {"load.locust.users": 9, "load.locust.run_time": "7s"}
    for found in (
        load_scenario(path, [f"{key}={value}" for key, value in values.items()]),
        make_scenario(load_scenario(path), values),
    ):
        assert [one.duration_ns // 10**9 for one in found.phases] == [10, 7, 30]
    phases = [
        {"name": "m", "kind": "measure", "duration": "2s"},
        {"name": "end", "kind": "drain", "duration": "1s"},
    ]
    stated = scenario_of(load={"locust": {"file": "/l/l.py"}}, phases=phases)
    assert make_scenario(stated, {"load.locust.users": 9}).phases == stated.phases


@pytest.mark.parametrize("share", [1.0, 0.5, 0.3, 0.1, 0.07, 0.01, 1 / 3, 1e-4])
@pytest.mark.parametrize("n_parties", [1, 2, 3, 7, 64, 30_030])
def test_each_party_checks_in_its_turn_and_all_together_at_least_the_share(
    share: float, n_parties: int
) -> None:
    every = ValueCheckConfig(share=share).every(n_parties)
    assert 1 / every >= share * (1 - 1e-9)
    assert math.gcd(every, n_parties) == 1  # ids that follow each other go to parties in turn
