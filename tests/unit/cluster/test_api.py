"""`squall.run` before a process is started: no option hides a key of a scenario, and a bad one starts nothing."""

from __future__ import annotations

import inspect
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest

import squall


def test_no_option_hides_a_key_of_a_scenario() -> None:
    kinds = {name: one.kind for name, one in inspect.signature(squall.run).parameters.items()}
    options = {name for name, kind in kinds.items() if kind is not inspect.Parameter.VAR_KEYWORD}
    keys = {field.alias or name for name, field in squall.Scenario.model_fields.items()}
    assert options == {"scenario", "out", "ray", "progress", "allow_env"}
    assert options & keys == set()


def test_a_bad_scenario_starts_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(squall.ScenarioError, match="scenario: name: missing"):
        squall.run({"seed": 1}, out=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []
