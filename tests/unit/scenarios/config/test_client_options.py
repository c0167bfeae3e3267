"""Value checks and shared memory in a scenario: what they may be, and which requests a check takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.config.clients.check import ValueCheckConfig
from squall.scenarios.config.loader import load_scenario, scenario_from_mapping
from squall.scenarios.config.scenario import Scenario


def scenario_of(clients: dict[str, Any], **model: Any) -> Scenario:
    mapping = {
        "name": "x", "seed": 1, "model": {"name": "linear_head", **model}, "clients": clients,
        "phases": [
            {"name": "m", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
            {"name": "drain", "kind": "drain", "duration": "1s"},
        ],
    }  # fmt: skip
    return scenario_from_mapping(mapping, "test")


@pytest.mark.parametrize("share", [1.0, 0.5, 0.3, 0.1, 0.07, 0.01, 1 / 3, 1e-4])
@pytest.mark.parametrize("n_parties", [1, 2, 3, 7, 64, 30_030])
def test_each_party_checks_in_its_turn_and_all_together_at_least_the_share(
    share: float, n_parties: int
) -> None:
    every = ValueCheckConfig(share=share).every(n_parties)
    assert 1 / every >= share * (1 - 1e-9)
    parties = [
        check * every % n_parties for check in range(n_parties)
    ]  # ids that follow each other go in turn
    assert sorted(parties) == list(range(n_parties))


@pytest.mark.parametrize(("given", "inputs", "outputs"), [
    (True, True, True), ({}, True, True), ({"outputs": False}, True, False), ({"inputs": False}, False, True),
])  # fmt: skip
def test_shared_memory_may_be_true_or_name_its_tensors(given: Any, inputs: bool, outputs: bool) -> None:
    config = scenario_of({"shared_memory": given}).clients.shared_memory
    assert config is not None
    assert (config.inputs, config.outputs) == (inputs, outputs)


def test_without_shared_memory_and_checks_a_scenario_is_what_it_was() -> None:
    assert scenario_of({"shared_memory": False}).digest() == scenario_of({}).digest()
    assert scenario_of({}).clients.check is None
    loaded = scenario_of({"shared_memory": True, "check": {}})
    assert scenario_from_mapping(loaded.to_mapping(), "again") == loaded
    assert loaded.digest() != scenario_of({}).digest()


def test_a_reference_is_taken_from_the_folder_of_the_scenario_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    loaded = scenario_of({"check": {"reference": "right.npz"}}, repository="/models")
    path.write_text(yaml.safe_dump(loaded.to_mapping()))
    check = load_scenario(path).clients.check
    assert check is not None
    assert check.reference == str(tmp_path / "right.npz")


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ("right.py:answers", "{folder}/right.py:answers"),
        ("../own/right.py:answers", "{above}/own/right.py:answers"),
        ("/own/right.py:answers", "/own/right.py:answers"),
        ("own.right:answers", "own.right:answers"),
        ("numpy:negative", "numpy:negative"),
    ],
)
def test_a_function_in_a_file_is_taken_from_the_folder_of_the_scenario_file(
    tmp_path: Path, named: str, kept: str
) -> None:
    path = tmp_path / "s.yaml"
    loaded = scenario_of({"check": {"function": named}}, repository="/models")
    path.write_text(yaml.safe_dump(loaded.to_mapping()))
    check = load_scenario(path).clients.check
    assert check is not None
    assert check.function == kept.format(folder=tmp_path, above=tmp_path.parent)
    changed = load_scenario(path, ["clients.check.function=here.py:answers"]).clients.check
    assert changed is not None
    assert changed.function == f"{Path.cwd()}/here.py:answers"


def test_laws_of_inputs_are_written_as_they_were_given() -> None:
    given: dict[str, Any] = {
        "ids": {
            "sizes": [{"kind": "lognormal", "mean": 80.0, "cv": 1.0, "max": 512}, 4],
            "low": 0.0,
            "high": 9.0,
        },
        "mask": {"like": "ids"},
        "text": {"length": {"kind": "uniform", "low": 1, "high": 9}},
    }
    scenario = scenario_of({"inputs": given})
    assert scenario.to_mapping()["clients"]["inputs"] == given
    assert scenario_from_mapping(scenario.to_mapping(), "again") == scenario
    short = {**given, "ids": {**given["ids"], "sizes": 7}}
    assert scenario_of({"inputs": short}).to_mapping()["clients"]["inputs"]["ids"]["sizes"] == [7]
