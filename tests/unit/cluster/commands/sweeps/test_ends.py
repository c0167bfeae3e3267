"""How a sweep ends before its time: by SIGKILL, by one Ctrl-C, by two; with real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from squall.cluster.commands.decisions.sweep_journal import FILE
from squall.cluster.interrupts import Interrupts
from tests.sweep_runs import FakeRuns, comparable, load, sweep, write_experiment

ROOT = Path(__file__).parents[5]
CHANGES: dict[str, Any] = {
    "repeats": 4, "confirm": 1,
    "reference": {"cell": {"model.max_batch_size": 8, "model.queue_delay": "0s"}, "every": 4},
}  # fmt: skip
INVALID_AT = 3
_CHILD = """
import os, signal, sys
from pathlib import Path
from squall.scenarios.experiment import load_experiment
from tests.sweep_runs import FakeRuns, sweep

out, experiment, kill_at, invalid_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

def die(number, interrupts):
    if number == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

sweep(load_experiment(experiment), out, FakeRuns(statuses={invalid_at: "INVALID"}, before=die))
"""


def test_a_process_killed_at_37_percent_loses_the_run_that_went_on_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    experiment = load(tmp_path, **CHANGES)
    undisturbed = FakeRuns(statuses={INVALID_AT: "INVALID"})
    _, whole = sweep(experiment, tmp_path / "whole", undisturbed)
    n = len(whole.runs)
    kill_at = round(0.37 * n)
    path = write_experiment(tmp_path, **CHANGES)
    arguments = [str(tmp_path / "cut"), str(path), str(kill_at), str(INVALID_AT)]
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments], cwd=ROOT, capture_output=True, check=False
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    (folder,) = (tmp_path / "cut").iterdir()
    assert not (folder / "sweep.json").exists(), "nothing ended it in order"
    lines = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    ended = [line["key"] for line in lines if line["state"] in ("done", "invalid")]
    assert len(ended) == kill_at
    rest = FakeRuns()
    _, found = sweep(experiment, tmp_path / "cut", rest, resume=folder)
    assert comparable(found) == comparable(whole)
    assert (found.cells, found.rankings, found.drift) == (whole.cells, whole.rankings, whole.drift)
    assert len(rest.digests) == n - kill_at
    assert undisturbed.digests[kill_at:] == rest.digests, "in the order of the one that was not killed"
    keys = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    done = [line["key"] for line in keys if line["state"] == "done"]
    assert len(done) == len(set(done)), "no key was run twice"
    assert [row.outcome for row in found.runs].count("invalid") == 1


def at(run: int, *signals: int) -> Any:
    """Sends this process signals while that run goes on."""

    def send(number: int, _: Interrupts) -> None:
        if number == run:
            for one in signals:
                os.kill(os.getpid(), one)

    return send


def test_ctrl_c_finishes_the_run_that_goes_on_and_ends_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, runs = load(tmp_path), FakeRuns(before=at(2, signal.SIGINT))
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        sweep(experiment, tmp_path, runs, interrupts=interrupts)
    assert interrupts.name == "SIGINT"
    assert len(runs.digests) == 3
    (folder,) = tmp_path.glob("held-sweep-*")
    held = json.loads((folder / "sweep.json").read_text())
    assert [row["outcome"] for row in held["runs"]] == ["done"] * 3, "the third one too"
    told = capsys.readouterr().err
    assert "squall SIGINT: the run that goes on is finished first; once more breaks it off" in told
    assert f"squall sweep experiment.yaml --resume {folder} goes on with it" in told.replace("\n", " ")
    rest = FakeRuns()
    _, found = sweep(experiment, tmp_path, rest, resume=folder)
    assert (len(rest.digests), found.is_complete) == (5, True)


class Long(FakeRuns):
    """Runs that a signal may break off, as a real one."""

    def __call__(self, one: Any, out: Path, ray: str | None, interrupts: Interrupts) -> Any:
        with interrupts.allowed():
            return super().__call__(one, out, ray, interrupts)


@pytest.mark.parametrize(
    "signals", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,), (signal.SIGINT, signal.SIGTERM)]
)
def test_a_second_ctrl_c_and_any_other_signal_break_the_run_off(
    tmp_path: Path, signals: tuple[int, ...]
) -> None:
    experiment, runs = load(tmp_path), Long(before=at(2, *signals))
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        sweep(experiment, tmp_path, runs, interrupts=interrupts)
    assert len(runs.digests) == 3
    (folder,) = tmp_path.glob("held-sweep-*")
    assert len(json.loads((folder / "sweep.json").read_text())["runs"]) == 2, "the third one did not end"
    rest = FakeRuns()
    sweep(experiment, tmp_path, rest, resume=folder)
    assert len(rest.digests) == 6


def test_ctrl_c_between_an_invalid_run_and_its_second_ends_it_there(tmp_path: Path) -> None:
    experiment, runs = load(tmp_path), FakeRuns(statuses={0: "INVALID"}, before=at(0, signal.SIGINT))
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        sweep(experiment, tmp_path, runs, interrupts=interrupts)
    assert len(runs.digests) == 1
    (folder,) = tmp_path.glob("held-sweep-*")
    held = json.loads((folder / "sweep.json").read_text())
    assert (held["n_ended"], len(held["runs"])) == (0, 1), "its second is still to come"


def test_outside_of_a_sweep_the_first_ctrl_c_still_breaks_in() -> None:
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt), interrupts.allowed():
        os.kill(os.getpid(), signal.SIGINT)
    assert not interrupts.is_asked_to_end
