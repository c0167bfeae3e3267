"""How the runs of a check follow each other: seeds in turn, an INVALID one once more, files after each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from squall.analysis.compare.checked import lines
from squall.analysis.record import to_json
from squall.analysis.storage.sealed import Failures
from squall.cluster.commands.decisions.minutes import phases_s
from squall.cluster.commands.decisions.seeds import for_seeds, run_seeds
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError, TargetError
from tests.unit.analysis.compare.test_over_seeds import run_of
from tests.unit.scenarios.test_promises import scenario


class Runs:
    """Stands for `run_scenario`: runs of these statuses in turn; FAILING: VALID, with more failures than expected."""

    def __init__(self, *statuses: str) -> None:
        self.seeds: list[int] = []
        self._statuses = statuses

    def __call__(self, one: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
        del ray, interrupts
        status = self._statuses[len(self.seeds)]
        self.seeds.append(one.seed)
        if status == "FAILS":
            raise TargetError("the server is gone")
        is_valid = status in ("VALID", "FAILING")
        verdict: dict[str, Any] = {} if is_valid else {"verdict": "invalid", "reason": "INVALID"}
        failures = Failures(
            n=1_000,
            n_failed=20,
            failed_ratio=0.02,
            is_beyond=status == "FAILING",
            allowed_ratio=0.01,
            sentence="2 % failed.",
        )
        summary: Any = SimpleNamespace(
            promises=(run_of(1_000, 0, **verdict),),
            decided=None,
            measure=SimpleNamespace(failures=failures),
            locust=None,
        )
        return RunResult(out / f"run-{len(self.seeds)}", summary, "VALID" if is_valid else status)


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
    assert json.loads((folder / "check.json").read_text()) == to_json(checked)
    assert (tmp_path / "j.xml").read_text() == (folder / "junit.xml").read_text()


def test_the_minutes_are_told_before_the_first_run_and_after_each_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 10_000, 42))  # between two looks: what each run took
    monkeypatch.setattr("squall.cluster.measured.time.monotonic", lambda: float(next(clock)))
    run(tmp_path, Runs("VALID", "INVALID", "VALID", "VALID"), 3)
    lines = [line for line in capsys.readouterr().err.splitlines() if "minutes are left" in line]
    length_s = phases_s(scenario({"response": "p(95)<50ms"}))
    beside = f"the phases, and {42 - length_s:.0f} s a run beside them"
    assert lines == [
        f"squall 3 seeds to come, at least {3 * length_s / 60:.1f} minutes are left: the phases; what a run takes"
        " beside them is known once one has run",
        f"squall 2 seeds to come, {2 * 42 / 60:.1f} minutes are left: {beside} (measured over 1 run)",
        f"squall 1 seed to come, {42 / 60:.1f} minutes are left: {beside} (measured over 3 runs)",
    ]


def test_twice_invalid_makes_the_check_invalid(tmp_path: Path) -> None:
    assert run(tmp_path, Runs("INVALID", "INVALID", "VALID"), 2)[1].verdict == "invalid"


def test_a_seed_with_more_failures_than_expected_breaks_the_check_although_its_promise_was_kept(
    tmp_path: Path,
) -> None:
    folder, checked = run(tmp_path, Runs("VALID", "FAILING"), 2)
    assert [one.verdict for one in checked.promises] == ["kept"]
    assert checked.verdict == "broken"
    told = "seed 2, run-2: 2 % failed. expect.failures allows 1.00 %."
    assert told in lines(checked)
    for name in ("check.md", "check.html", "junit.xml"):
        assert told in (folder / name).read_text(), name


def test_a_run_that_fails_ends_it_and_leaves_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(TargetError):
        run(tmp_path, Runs("VALID", "FAILS"), 2)
    (found,) = tmp_path.glob("*/check.json")
    said = json.loads(found.read_text())
    assert (said["verdict"], said["n_seeds_planned"], len(said["runs"])) == ("unfinished", 2, 1)


def test_copies_are_written_after_each_run_into_a_folder_that_is_made(tmp_path: Path) -> None:
    promised = scenario({"response": "p(95)<50ms"})
    copies = {"junit": tmp_path / "new" / "a" / "j.xml", "markdown": tmp_path / "new" / "b" / "c.md"}
    with pytest.raises(TargetError):
        run_seeds(promised, tmp_path / "runs", None, Interrupts(), 2, copies, Runs("VALID", "FAILS"))
    for kind, name in (("junit", "junit.xml"), ("markdown", "check.md")):
        (own,) = (tmp_path / "runs").glob(f"*/{name}")
        assert copies[kind].read_text() == own.read_text()


@pytest.mark.parametrize("kind", ["junit", "markdown"])
@pytest.mark.parametrize("place", ["file/copy", "folder"])
def test_a_copy_that_cannot_be_is_refused_before_the_first_run(tmp_path: Path, kind: str, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    runs, out = Runs("VALID"), tmp_path / "runs"
    with pytest.raises(ScenarioError, match=f"^--{kind}: "):
        run_seeds(
            scenario({"response": "p(95)<50ms"}), out, None, Interrupts(), 1, {kind: tmp_path / place}, runs
        )
    assert (runs.seeds, out.exists()) == ([], False)


def test_over_seeds_only_what_each_run_must_keep_ends_a_run() -> None:
    aborting = {"threshold": "p(95)<50ms", "abortOnFail": True}
    both = scenario({"response": [aborting, "max<1s"]})
    assert for_seeds(both, 1) == both
    found = for_seeds(both, 8)
    assert [one.aborts_on_fail for one in found.promises or ()] == [False, False]
    found = for_seeds(scenario({"response": [aborting, "max<1s"]}, stop_when="decided"), 8)
    assert [one.aborts_on_fail for one in found.promises or ()] == [False, True]
    assert found.stop_when is None, "a share needs its runs whole"
    found = for_seeds(scenario({"response": "max<1s"}, stop_when="decided"), 8)
    assert found.stop_when == "decided"
    assert scenario_from_mapping(found.to_mapping(), "x") == found


def test_a_run_that_a_promise_of_each_run_ended_is_the_last(tmp_path: Path) -> None:
    class Ended(Runs):
        def __call__(self, one: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
            result = super().__call__(one, out, ray, interrupts)
            broken = run_of(1_000, 1, is_of_each_run=True, allowed_ratio=None, verdict="broken")
            measure = SimpleNamespace(failures=Failures(n=1_000))
            summary: Any = SimpleNamespace(promises=(broken,), decided="yes", measure=measure, locust=None)
            return replace(result, summary=summary)

    runs = Ended("VALID", "VALID", "VALID")
    promised = scenario({"response": "max<50ms"}, stop_when="decided")
    folder, checked = run_seeds(promised, tmp_path, None, Interrupts(), 3, {}, runs, ["squall check"])
    assert (runs.seeds, checked.verdict) == ([1], "broken")
    assert "squall check" in (folder / "check.html").read_text()
