"""Two commands on one folder: one holds it, the other is refused in one line and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from squall.analysis.storage.held_folder import sole_holder
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import ScenarioError
from tests.command import Command
from tests.integration.live_runs import Bench
from tests.integration.test_check import MAPPING
from tests.null_process import NullProcess
from tests.synthetic_runs import synthesise
from tests.unit.scenarios.test_published import write

pytestmark = pytest.mark.beside


@pytest.mark.slow
def test_a_search_that_is_resumed_while_it_goes_on_is_refused_and_the_first_is_not_disturbed(
    joined: Bench,
) -> None:
    assert joined.ray is not None
    load = {
        "name": "main",
        "kind": "measure",
        "duration": "12s",
        "arrivals": {"kind": "poisson", "rate": "60/s"},
    }
    drain = {"name": "end", "kind": "drain", "duration": "5s"}
    # so long that a second squall has started by then on a busy host too
    promised = {**MAPPING, "promises": {"response": "p(50)<1500ms"}, "phases": [load, drain]}
    with NullProcess("--service=constant:3ms") as null:
        path = joined.write(promised)
        at = [
            "--server", f"http://127.0.0.1:{null.ports['http']}", "--ray", joined.ray, "--seeds", "1", "--low", "0",
            "--most", "60/s",
        ]  # fmt: skip
        first = joined.start("capacity", path, "--out", joined.out, *at)
        first.wait_for("main ")  # its load goes on
        (folder,) = joined.out.iterdir()
        runs = sorted(path.name for path in folder.glob("*/manifest.json"))
        second = joined.start("capacity", path, "--resume", folder, *at)
        assert second.end() == 2, second.lines
        assert second.error_line() == f"squall: {folder}: another squall goes on in it"
        assert sorted(path.name for path in folder.glob("*/manifest.json")) == runs
        assert first.process.poll() is None, "the first goes on"
        first.interrupt()
        assert first.end() == 1, first.lines
    assert all(RunStore.open(one.parent).is_sealed for one in folder.glob("*/manifest.json"))


@pytest.mark.parametrize("name", ["capacity", "reproduce", "resume", "compare"])
def test_a_folder_that_another_process_holds_is_refused_in_one_line(
    name: str, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    scenario = tmp_path / "held.yaml"
    scenario.write_text(
        yaml.safe_dump(
            {**MAPPING, "promises": {"response": "p(50)<1s"}, "server": {"url": "http://127.0.0.1:9"}}
        )
    )
    words = [str(scenario), "--resume", str(folder)]
    if name == "reproduce":
        words = [str(write(tmp_path)), "--resume", str(folder)]
    if name == "resume":
        folder = synthesise().write(tmp_path).run_dir
        words = [str(folder)]
    if name == "compare":
        for seed in (1, 2):
            for side in "ab":
                synthesise(seed).write(tmp_path / side)
        words = [str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(folder)]
    before = sorted(path.name for path in folder.rglob("*"))
    with sole_holder(folder, ScenarioError("not by the test")):
        code, _, said = command(name, *words)
    assert code in (1, 2)
    told = said.splitlines()
    assert len(told) == 1
    assert "goes on in it" in told[0] or "is being written by a squall that still runs" in told[0]
    assert sorted(path.name for path in folder.rglob("*")) == before


@pytest.mark.slow
def test_a_search_that_ended_before_its_first_probe_can_be_resumed(joined: Bench) -> None:
    assert joined.ray is not None
    with NullProcess("--service=constant:3ms") as null:
        path = joined.write({**MAPPING, "promises": {"response": "p(50)<1500ms"}})
        url = f"http://127.0.0.1:{null.ports['http']}"
        at = ["--server", url, "--ray", joined.ray, "--seeds", "1", "--low", "0", "--most", "60/s"]
        null.kill()
        first = joined.start("capacity", path, "--out", joined.out, *at)
        assert first.end() == 1, first.lines
        (folder,) = joined.out.iterdir()
        assert any(f"goes on with --resume {folder}" in line for line in first.lines)
        null.start()
        second = joined.start("capacity", path, "--resume", folder, *at)
        second.wait_for("main ")  # its first probe
        second.interrupt()
        assert second.end() == 1, second.lines
        assert second.error_line() == "squall: interrupted by SIGINT"
