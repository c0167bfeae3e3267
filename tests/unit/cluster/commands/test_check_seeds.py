"""How the runs of a check follow each other: seeds in turn, an INVALID one once more, files after each."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from squall.cluster.commands.decisions.seeds import run_seeds
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import TargetError
from tests.unit.analysis.decisions.test_over_seeds import run_of
from tests.unit.scenarios.promises.test_grammar import scenario


class Runs:
    """Stands for `run_scenario`: runs of these statuses in turn."""

    def __init__(self, *statuses: str) -> None:
        self.seeds: list[int] = []
        self._statuses = statuses

    def __call__(self, one: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
        del ray, interrupts
        status = self._statuses[len(self.seeds)]
        self.seeds.append(one.seed)
        if status == "FAILS":
            raise TargetError("the server is gone")
        verdict: dict[str, Any] = {} if status == "VALID" else {"verdict": "invalid", "reason": "INVALID"}
        summary: Any = SimpleNamespace(promises=(run_of(1_000, 0, **verdict),), decided=None)
        return RunResult(out / f"run-{len(self.seeds)}", summary, status)


def run(tmp_path: Path, runs: Runs, n_seeds: int) -> Any:
    promised = scenario({"response": "p(95)<50ms"})
    return run_seeds(promised, tmp_path, None, Interrupts(), n_seeds, {"junit": tmp_path / "j.xml"}, runs)


def test_an_invalid_run_is_run_once_more_with_its_seed(tmp_path: Path) -> None:
    runs = Runs("VALID", "INVALID", "VALID", "VALID")
    folder, checked = run(tmp_path, runs, 3)
    assert runs.seeds == [1, 2, 2, 3]
    assert (checked.verdict, [one.is_replaced for one in checked.runs]) == (
        "kept",
        [False, True, False, False],
    )
    assert json.loads((folder / "check.json").read_text()) == checked.to_json()
    assert (tmp_path / "j.xml").read_text() == (folder / "junit.xml").read_text()


def test_twice_invalid_makes_the_check_invalid(tmp_path: Path) -> None:
    assert run(tmp_path, Runs("INVALID", "INVALID", "VALID"), 2)[1].verdict == "invalid"


def test_a_run_that_fails_ends_it_and_leaves_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(TargetError):
        run(tmp_path, Runs("VALID", "FAILS"), 2)
    (found,) = tmp_path.glob("*/check.json")
    assert len(json.loads(found.read_text())["runs"]) == 1
