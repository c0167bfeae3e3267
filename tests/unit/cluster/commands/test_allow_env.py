"""A scenario from others reads no variable of the environment that the user has not named."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from squall.cluster.api import run
from squall.cluster.cli import app
from squall.scenarios.config.loader import load_scenario
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.experiment import load_experiment
from squall.scenarios.published.experiment import load_published
from squall.scenarios.strict_yaml import parse_yaml

HEADERS = {"X-Key": "Bearer ${SQUALL_TEST_KEY}"}
SCENARIO: dict[str, Any] = {
    "name": "theirs", "seed": 1, "model": {"name": "linear_head"}, "clients": {"headers": HEADERS},
    "promises": {"response": "p(95)<50ms"},
    "phases": [
        {"name": "warm", "kind": "warmup", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "10/s"}},
        {"name": "burst", "kind": "measure", "duration": "2s", "arrivals": {"kind": "poisson", "rate": "10/s"}},
        {"name": "drain", "kind": "drain", "duration": "1s"},
    ],
}  # fmt: skip
REFUSED = (
    "clients.headers.X-Key asks for ${SQUALL_TEST_KEY} of the environment:"
    " --allow-env SQUALL_TEST_KEY allows it"
)


class Loaded(Exception):
    """In place of the run."""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SQUALL_TEST_KEY", "s3cr3t")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def loaded(*_: object, **__: object) -> Any:
        raise Loaded

    for place in (
        "driver.run.run_scenario", "dry_run.dry_run", "api.run_apart",
        "commands.decisions.seeds.run_seeds", "commands.decisions.compared_runs.run_pairs",
        "commands.decisions.sweep_rehearsal.rehearse", "commands.decisions.capacity.settings_of",
    ):  # fmt: skip
        monkeypatch.setattr(f"squall.cluster.{place}", loaded)
    (tmp_path / "theirs.yaml").write_text(json.dumps(SCENARIO))
    (tmp_path / "cells.yaml").write_text(
        json.dumps({"scenario": "theirs.yaml", "matrix": {"model.instances": [1, 2]}, "repeats": 1})
    )
    return tmp_path / "theirs.yaml"


COMMANDS = [
    ("run", "theirs.yaml"),
    ("run", "theirs.yaml", "--dry-run"),
    ("run", "theirs.yaml", "--measure-overhead"),
    ("check", "theirs.yaml"),
    ("capacity", "theirs.yaml"),
    ("compare", "theirs.yaml", "--set-b", "model.instances=2"),
    ("sweep", "cells.yaml", "--dry-run"),
]


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.usefixtures("theirs")
def test_every_command_asks_for_the_name(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ScenarioError), done.output
    assert str(done.exception).partition(": ")[2] == REFUSED
    allowed = CliRunner().invoke(app, [*words, "--allow-env", "OTHER,SQUALL_TEST_KEY"])
    assert isinstance(allowed.exception, Loaded), allowed.output


@pytest.mark.parametrize("option", ["--set", "--set-a"])
@pytest.mark.usefixtures("theirs")
def test_what_is_typed_is_named(option: str) -> None:
    words = ["compare", "theirs.yaml", "theirs.yaml", "--set-b", "clients.headers.X-Key=none"]
    done = CliRunner().invoke(app, [*words, option, "clients.headers.X-Key=${SQUALL_TEST_KEY}"])
    assert isinstance(done.exception, Loaded), done.output


def test_names_in_a_file_of_the_users_own_are_allowed(theirs: Path) -> None:
    own = theirs.parent / "config/squall/allow-env"
    own.parent.mkdir(parents=True)
    own.write_text("OTHER\nSQUALL_TEST_KEY\n")
    own.chmod(0o644)
    assert isinstance(CliRunner().invoke(app, ["check", "theirs.yaml"]).exception, Loaded)
    own.chmod(0o664)
    done = CliRunner().invoke(app, ["check", "theirs.yaml"])
    assert str(done.exception) == f"{own}: others can write it: make it your own, and chmod go-w it"


def test_from_python_a_file_asks_and_a_mapping_is_the_callers_own(theirs: Path) -> None:
    with pytest.raises(ScenarioError, match="--allow-env SQUALL_TEST_KEY"):
        run(theirs)
    with pytest.raises(Loaded):
        run(theirs, allow_env=["SQUALL_TEST_KEY"])
    with pytest.raises(Loaded):
        run(SCENARIO)


def test_a_factor_of_an_experiment_asks_too(theirs: Path) -> None:
    path = theirs.parent / "cells.yaml"
    plain = {**SCENARIO, "clients": {}}
    matrix = {"clients.headers.X-Key": ["${A}", "${B}"]}
    path.write_text(json.dumps({"scenario": plain, "matrix": matrix, "repeats": 1}))
    with pytest.raises(ScenarioError, match=r"asks for \$\{B\} of the environment"):
        load_experiment(path, ["A"])
    assert len(load_experiment(path, ["A", "B"]).cells) == 2


def test_a_published_experiment_asks_too(theirs: Path) -> None:
    path = theirs.parent / "published.yaml"
    mapping = parse_yaml(resources.files("squall.scenarios.published").joinpath("e1.yaml").read_text(), "e1")
    mapping["scenario"].setdefault("clients", {})["headers"] = HEADERS
    path.write_text(json.dumps(mapping))
    done = CliRunner().invoke(app, ["reproduce", str(path), "--dry-run"])
    assert str(done.exception).endswith(REFUSED), done.output
    assert load_published(str(path), allow_env=["SQUALL_TEST_KEY"]).parts


def test_the_scenario_keeps_the_name_alone(theirs: Path) -> None:
    found = load_scenario(theirs, allow_env=["SQUALL_TEST_KEY"])
    assert isinstance(found, Scenario)
    assert found.clients.headers == HEADERS
