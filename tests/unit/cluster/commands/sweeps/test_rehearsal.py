"""`--dry-run`: cells, order and minutes, before any run and after some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from squall.cluster.commands.decisions.sweep_rehearsal import rehearse
from squall.cluster.commands.decisions.sweeper import Asked, run_sweep
from squall.cluster.interrupts import Interrupts
from squall.scenarios.errors import ScenarioError
from tests.sweep_runs import SITE, FakeRuns, load, sweep

PHASES_S = 4.0
PATH = Path("experiment.yaml")


def test_before_any_run_minutes_are_of_the_phases_alone(tmp_path: Path) -> None:
    experiment = load(tmp_path, confirm=2, cooldown={"pause": "3s"})
    found = rehearse(experiment, None, PATH, SITE, False)
    assert found.seconds_left == pytest.approx((8 + 2) * PHASES_S + 9 * 3)
    lines = found.lines()
    assert lines[0] == "4 cells"
    assert lines[1] == "    0  max_batch_size=1, queue_delay=0s"
    assert lines[5] == "8 runs, 0 finished"
    first = found.to_json()["runs"][0]["label"]  # drawn with the experiment's digest
    assert first in {line.split(maxsplit=1)[1] for line in lines[1:5]}
    assert lines[6] == f"    1  {first}, seed 1, block 0, 4 s"
    assert lines[-2] == "and 2 of the cell that will be chosen, with fresh seeds"
    assert lines[-1].startswith("at least 1.1 minutes are left: the phases; what a run takes beside them")


def test_the_order_is_the_one_that_is_run(tmp_path: Path) -> None:
    experiment = load(tmp_path, reference={"cell": {"model.max_batch_size": 8, "model.queue_delay": "0s"}})
    planned = rehearse(experiment, None, PATH, SITE, False).runs
    _, found = sweep(experiment, tmp_path, FakeRuns())
    assert [(run["role"], run["cell"], run["seed"]) for run in planned] == [
        (row.role, row.cell, row.seed) for row in found.runs
    ]


def test_once_runs_exist_what_they_took_is_taken_and_they_are_done(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    clock = iter(range(0, 10_000, 7))  # 7 s between two looks: what each run took
    around = replace(FakeRuns(statuses={5: KeyError("cut")}).around(), monotonic_s=lambda: float(next(clock)))
    with pytest.raises(KeyError):
        run_sweep(experiment, Asked(tmp_path, None, None, False, PATH), Interrupts(), around)
    (folder,) = tmp_path.glob("held-sweep-*")
    found = rehearse(experiment, folder, PATH, SITE, False)
    assert (found.beside.seconds, found.beside.n_runs) == (7.0 - PHASES_S, 5)
    assert [run["is_finished"] for run in found.runs] == [True] * 5 + [False] * 3
    assert found.seconds_left == pytest.approx(3 * 7.0)
    assert rehearse(experiment, folder, PATH, SITE, True).seconds_left == pytest.approx(8 * 7.0)
    with pytest.raises(ScenarioError, match="repeats changed"):
        rehearse(load(tmp_path, repeats=4), folder, PATH, SITE, False)
