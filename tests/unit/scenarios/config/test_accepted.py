"""What a scenario may say (`accepted.yaml`): what it means, that it comes back as it was, and what is one scenario."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.arrivals.replay import TraceArrivals
from squall.scenarios.config.loader import load_scenario, make_scenario, scenario_from_mapping
from squall.scenarios.fields import Section
from tests.unit.scenarios.config.given import ACCEPTED, at, changed, holds, scenario_of


def plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.model_dump(mode="json", by_alias=True)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("case", ACCEPTED["accepted"])
def test_what_is_given_has_its_meaning_and_comes_back(case: dict[str, Any]) -> None:
    scenario = scenario_of(**case["given"])
    for path, value in case.get("has", {}).items():
        assert plain(at(scenario, path)) == value, path
    resolved = scenario.to_mapping()
    for path in case.get("back", ()):
        assert holds(at(resolved, path), at(case["given"], path)), path
    read = yaml.safe_load(yaml.safe_dump(resolved, sort_keys=False)), json.loads(json.dumps(resolved))
    for again in (
        *(scenario_from_mapping(mapping, "again") for mapping in read),
        make_scenario(scenario),
        pickle.loads(pickle.dumps(scenario)),
    ):
        assert again == scenario
        assert again.digest() == scenario.digest() != scenario_of().digest()


@pytest.mark.parametrize(("one", "other"), ACCEPTED["same"])
def test_one_scenario_has_one_digest_however_it_is_written(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert scenario_of(**one) == scenario_of(**other)
    assert scenario_of(**one).digest() == scenario_of(**other).digest()


def test_every_key_of_locust_is_in_the_digest() -> None:
    (case,) = (case for case in ACCEPTED["accepted"] if case.get("back") == ["load.locust"])
    stated = case["given"]["load"]["locust"]
    least = {"file": "/l/other.py", "run_time": "5s"}
    digests = {scenario_of(load={"locust": {**least, key: value}}).digest() for key, value in stated.items()}
    assert len(digests - {scenario_of(load={"locust": least}).digest()}) == len(stated)


@pytest.mark.parametrize(("place", "given", "kept"), ACCEPTED["paths"])
def test_a_relative_path_is_taken_from_the_folder_of_the_file(
    tmp_path: Path, place: str, given: Any, kept: Any
) -> None:
    file = tmp_path / "own" / "s.yaml"
    (file.parent / "own").mkdir(parents=True)
    (file.parent / "own" / "users.py").symlink_to(tmp_path / "elsewhere.py")
    file.write_text(yaml.safe_dump(changed(place, given)))
    text = json.dumps(kept).replace("F:", str(file.parent)).replace("UP:", str(tmp_path))
    assert holds(at(load_scenario(file).to_mapping(), place), json.loads(text))


def test_a_relative_path_of_a_change_is_taken_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "there" / "s.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(changed("scenario", {})))
    monkeypatch.chdir(tmp_path)
    given = {"kind": "trace", "file": "a.csv", "format": "csv"}
    for scenario in (
        load_scenario(file, [f"phases.main.arrivals={json.dumps(given)}", "clients.check.function=a.py:f"]),
        make_scenario(file, {"phases.main.arrivals": given, "clients.check": {"function": "a.py:f"}}),
        make_scenario(
            changed("phases.0.arrivals", {**given, "file": Path("a.csv")}),
            {"clients.check.function": "a.py:f"},
        ),
    ):
        assert isinstance(scenario.phases[0].arrivals, TraceArrivals)
        assert scenario.phases[0].arrivals.file == str(tmp_path / "a.csv")
        assert at(scenario, "clients.check.function") == f"{tmp_path}/a.py:f"
