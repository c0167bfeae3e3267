"""squall beside modules of a user's that are called like its folders: in the working folder, and on the import path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.live_runs import Bench, scenario_mapping

NAMES = ("scenarios", "models", "actors", "cluster", "analysis")
_SQUALL = Path(sys.executable).with_name("squall")


pytestmark = pytest.mark.beside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds a module of each name that ends whatever imports it."""
    made = tmp_path / "user"
    made.mkdir()
    for name in NAMES:
        (made / f"{name}.py").write_text(f"raise SystemExit('{name} of the user was imported')\n")
    return made


@pytest.mark.slow
def test_a_run_finds_its_own_modules(alone: Bench, folder: Path) -> None:
    """The folder is both the working one and on the path: either would be searched."""
    mapping = scenario_mapping(profile={"nvml": "off"})
    live = alone.start(
        "run", alone.write(mapping), "--out", alone.out, "--json",
        cwd=folder, env={"PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert live.end() in (0, 3), live.lines
    assert json.loads(alone.stdout())["run"] == alone.store().run
    assert alone.store().manifest.status in ("VALID", "INVALID")
    alone.wait_until_gone()


_IN_PYTHON = """
import json, sys
import squall
run = squall.run(json.loads(sys.argv[1]), out=sys.argv[2], ray=sys.argv[3])
again = squall.open_run(run.path)
with again.duckdb() as tables:
    print(again.name, again.verdict.status, *tables.sql("SELECT count(*) FROM requests").fetchall()[0])
"""


@pytest.mark.beside
def test_a_run_asked_for_from_python_finds_its_own_modules(joined: Bench, folder: Path) -> None:
    assert joined.ray is not None
    arguments = (json.dumps(scenario_mapping()), joined.out, joined.ray)
    live = joined.start_python("-c", _IN_PYTHON, *arguments, cwd=folder, env={"PYTHONPATH": str(folder)})
    assert live.end() == 0, live.lines
    name, status, n_requests = joined.stdout().split()
    assert name == joined.store().run
    assert status in ("VALID", "INVALID")
    assert int(n_requests) == joined.store().manifest.plan.n_arrivals > 0


@pytest.mark.parametrize("words", [("--help",), ("models", "list"), ("demo", "--help")])
def test_the_command_finds_its_own_modules(folder: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [_SQUALL, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_pace_of_a_head_is_measured_beside_a_users_models(folder: Path) -> None:
    code = "from squall.models.pace import measure_pace; print(measure_pace('linear_head', {}, 8))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert float(done.stdout) > 0, done.stderr
