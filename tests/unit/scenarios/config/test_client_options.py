"""Value checks and shared memory in a scenario: what they may be, and which requests a check takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.config.clients.check import ValueCheckConfig
from squall.scenarios.config.loader import load_scenario, scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError


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


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Content-Length": "3"}, "headers.Content-Length: squall writes it itself"),
        ({"transfer-encoding": "chunked"}, "headers.transfer-encoding: squall writes it itself"),
        ({"X-A": "1", "x-a": "2"}, "headers: X-A and x-a are one header"),
    ],
)
def test_headers_that_would_frame_a_request_anew_or_come_twice_are_refused(
    headers: dict[str, str], why: str
) -> None:
    with pytest.raises(ScenarioError, match=why):
        scenario_of({"headers": headers})


def test_without_shared_memory_and_checks_a_scenario_is_what_it_was() -> None:
    assert scenario_of({"shared_memory": False}).digest() == scenario_of({}).digest()
    assert scenario_of({}).clients.check is None
    loaded = scenario_of({"shared_memory": True, "check": {}})
    assert scenario_from_mapping(loaded.to_mapping(), "again") == loaded
    assert loaded.digest() != scenario_of({}).digest()


@pytest.mark.parametrize(
    ("clients", "model", "why"),
    [
        ({"check": {"share": 0.0}}, {}, "clients.check.share: 0.0 must be at least 0.000000001"),
        ({"check": {"share": 1.5}}, {}, "clients.check.share: 1.5 must be at most 1"),
        ({"check": {"rtol": -1.0}}, {}, "clients.check.rtol: -1.0 must be at least 0"),
        ({"check": {"atoll": 1}}, {}, "clients.check.atoll: unknown key, did you mean 'atol'?"),
        (
            {"check": {"function": "right.npz"}},
            {},
            "clients.check.function: 'right.npz' must be package.module:function or path/to/file.py:function",
        ),
        ({"check": {"function": "right.py:"}}, {}, "clients.check.function: 'right.py:' must be"),
        ({"check": {"function": "own.right:a.b"}}, {}, "clients.check.function: 'own.right:a.b' must be"),
        (
            {"check": {"function": "own.right:answers", "reference": "right.npz"}},
            {},
            "clients.check: the right values come from function or from reference, not from both",
        ),
        ({"shared_memory": {"input": True}}, {}, "clients.shared_memory.input: unknown key"),
        ({"shared_memory": {"inputs": False, "outputs": False}}, {}, "use shared_memory: false"),
    ],
)
def test_what_makes_no_sense_is_refused(clients: dict[str, Any], model: dict[str, Any], why: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario_of(clients, **model)
    assert why in str(caught.value)


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


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"low": 1.0}, "clients.inputs.a: low and high go together"),
        ({"low": 2.0, "high": 1.0}, "clients.inputs.a: low 2 is above high 1"),
        ({"words": [""]}, "clients.inputs.a.words[0]: "),
        (
            {"low": 0.0, "high": 1.0, "length": 3},
            "clients.inputs.a: says its elements once: length or words of a BYTES input",
        ),
        ({"present": 1.5}, "clients.inputs.a.present: 1.5 must be at most 1"),
        ({"length": 0}, "clients.inputs.a.length: 0 must be at least 1"),
        ({"length": {"kind": "trace", "size": "s", "max": 3}}, "clients.inputs.a.length: kind"),
        (
            {"length": {"kind": "empirical", "file": "f", "size": "s", "max": 3}},
            "a law from a file is for rows",
        ),
        ({"sizes": []}, "clients.inputs.a.sizes: [] is empty, it needs at least one entry"),
        ({"sizes": "b"}, "clients.inputs.a.sizes: 'b' is not a list"),
        ({"sizes": [3, {"kind": "zipf"}]}, "clients.inputs.a.sizes[1].exponent: missing, it must be given"),
        (
            {"sizes": 3, "like": "b"},
            "clients.inputs.a: has sizes of its own, or those of another input",
        ),
        ({"lenght": 3}, "clients.inputs.a.lenght: unknown key, did you mean 'length'?"),
    ],
)
def test_a_wrong_input_is_one_line(how: dict[str, Any], text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario_of({"inputs": {"a": how}})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value).strip()
