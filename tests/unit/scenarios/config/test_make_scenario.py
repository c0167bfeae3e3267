"""A scenario asked for in Python: from a file, a mapping or a Scenario, with values by key path."""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from squall.scenarios.config.loader import load_scenario, make_scenario
from squall.scenarios.errors import ScenarioError
from tests.integration.live_runs import scenario_mapping

DEMO = Path(__file__).resolve().parents[4] / "scenarios" / "config" / "demo.yaml"
CHANGES: dict[str, object] = {"seed": 5, "phases.burst.arrivals.rate": "300/s", "model.settings.width": 128}


def test_a_file_a_mapping_and_a_scenario_make_the_same() -> None:
    wanted = load_scenario(DEMO)
    for source in (DEMO, str(DEMO), wanted.to_mapping(), wanted):
        assert make_scenario(source) == wanted


def test_values_change_it_as_the_texts_of_the_command_line_do() -> None:
    wanted = load_scenario(DEMO, [f"{path}={value}" for path, value in CHANGES.items()])
    for source in (DEMO, load_scenario(DEMO)):
        assert make_scenario(source, CHANGES) == wanted
    assert make_scenario(DEMO, {"clients.rows": {"kind": "constant", "value": 3}}) == load_scenario(
        DEMO, ["clients.rows={kind: constant, value: 3}"]
    )


def test_a_text_is_not_read_as_yaml() -> None:
    with pytest.raises(ScenarioError, match="seed: '5' is not a whole number"):
        make_scenario(DEMO, {"seed": "5"})


def test_what_it_is_made_from_stays_as_it_was() -> None:
    mapping = scenario_mapping()
    before = deepcopy(mapping)
    make_scenario(mapping, CHANGES)
    assert mapping == before


@pytest.mark.parametrize("text", [str, Path])
def test_a_relative_file_is_taken_from_the_current_folder(
    text: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arrivals = {"kind": "trace", "file": text("a.csv"), "format": "csv"}
    wanted = str(tmp_path / "a.csv")
    mapping = scenario_mapping()
    changed = make_scenario(mapping, {"phases.burst.arrivals": dict(arrivals)})
    mapping["phases"][1]["arrivals"] = arrivals
    for scenario in (changed, make_scenario(mapping)):
        assert scenario.to_mapping()["phases"][1]["arrivals"]["file"] == wanted


@pytest.mark.parametrize(
    ("source", "values", "problem"),
    [
        (3, {}, "scenario: a file, a mapping or a Scenario, not a int"),
        (None, {}, "scenario: a file, a mapping or a Scenario, not a NoneType"),
        ("gone.yaml", {}, "gone.yaml: no such scenario file"),
        ({}, {}, "scenario: name: missing, it must be given (and 1 more)"),
        (DEMO, {"phases.bursts.duration": "3s"},
         "phases.bursts.duration='3s': phases has no item 'bursts', did you mean 'burst'?"),
        (DEMO, {"sed": 3}, "sed=3: sed: unknown key, did you mean 'seed'?"),
        (DEMO, {"": 3}, "=3: '' is no key path, write for example phases.burst.arrivals.rate=300/s"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(source: Any, values: dict[str, object], problem: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        make_scenario(source, values)
    assert str(raised.value) == problem


def test_a_scenario_goes_to_another_process_as_it_is() -> None:
    scenario = make_scenario(DEMO)
    assert pickle.loads(pickle.dumps(scenario)) == scenario
