"""Commands that are offered for pasting: a folder or file whose name is a command to a shell stands quoted in them."""

from __future__ import annotations

from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.manifest import OPEN, Manifest
from squall.analysis.storage.query import full_disk
from squall.analysis.storage.store import RunStore
from squall.cluster.cli import app
from squall.cluster.commands.decisions.reproduced_parts import Wanted
from squall.cluster.commands.decisions.sweeper import Asked, run_sweep
from squall.cluster.driver.resume import _Resuming
from squall.cluster.driver.run import _Run
from squall.cluster.interrupts import Interrupts
from squall.scenarios.errors import ScenarioError, StoreError
from tests.overhead_runs import write_run
from tests.simulated_runs import SimulatedRuns
from tests.sweep_runs import FakeRuns, load
from tests.unit.cluster.commands.test_capacity import searching
from tests.unit.cluster.commands.test_compare_runs import A, B, Runs, plan_of, run


def said_of(captured: pytest.CaptureFixture[str]) -> str:
    """What stands on stderr, on one line."""
    return captured.readouterr().err.replace("\n", " ")


def test_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = Asked(tmp_path / "a;b", None, None, is_forced=False, path=Path("c;d.yaml"))
    runs = FakeRuns(statuses={1: StoreError("no space")})
    with pytest.raises(StoreError):
        run_sweep(load(tmp_path), asked, Interrupts(), runs.around())
    (folder,) = (tmp_path / "a;b").iterdir()
    assert f"squall sweep 'c;d.yaml' --resume '{folder}' goes on with it" in said_of(capsys)
    assert "squall sweep 'c;d.yaml'" in unescape((folder / "sweep.html").read_text())


def test_of_a_comparison(tmp_path: Path) -> None:
    folder, _ = run(tmp_path / "a;b", Runs(), plan_of(A, B, 2))
    assert f"squall compare '{folder}'" in unescape((folder / "compare.html").read_text())


def test_of_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        searching(tmp_path / "a;b", SimulatedRuns(0.01, ends_at=1)).run(by_gpus=False)
    assert f"goes on with --resume '{tmp_path / 'a;b'}'" in said_of(capsys)


def test_of_an_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object, wanted: Wanted, __: object) -> None:
        raise ScenarioError(wanted.going_on(Path("a;b")))

    where = "squall.cluster.commands.decisions.reproduced_parts.reproduce_experiment"
    monkeypatch.setattr(where, refuse)
    monkeypatch.setattr("squall.scenarios.published.experiment.load_published", lambda *_: None)
    done = CliRunner().invoke(app, ["reproduce", "c;d.yaml", "--seed", "3"])
    assert str(done.exception) == "squall reproduce 'c;d.yaml' --seed 3 --resume 'a;b'"


def test_of_a_run_without_a_summary(tmp_path: Path) -> None:
    store = RunStore.open(write_run(tmp_path / "a;b").run_dir)
    (store.run_dir / "summary.json").write_text("{")
    with pytest.raises(StoreError, match=f"cannot be read: squall analyze '{store.run_dir}'$"):
        Summary.read(store)
    assert "squall analyze 'a;b' makes it again" in full_disk("a;b")


def test_of_records_in_scratch_folders() -> None:
    manifest = Manifest(run="r", state=OPEN)
    store = SimpleNamespace(run="r", run_dir=Path("a;b"), manifest=manifest, is_sealed=True)
    resuming = _Resuming(cast(Any, store), cast(Any, SimpleNamespace(step=print)))
    with pytest.raises(StoreError, match=r"squall resume 'a;b' finishes the run$"):
        resuming._give_up(StoreError("no space"))
    begun = SimpleNamespace(_store=store, _kept_folders=lambda: {"node-0": "/tmp/x"})
    assert _Run._how_to_finish(cast(Any, begun)).endswith(": squall resume 'a;b' finishes the run")
