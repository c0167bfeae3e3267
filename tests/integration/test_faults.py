"""Some cells of the fault table (`tests/bench/faults.py`), one with a clean run after it in the same place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.fault_place import ROOT

pytestmark = pytest.mark.beside


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        pytest.param("nothing/happens/load", marks=pytest.mark.long),
        pytest.param("stub/kill/set-up", marks=pytest.mark.long),
        "tritonserver/kill/load",
        "scratch-folder/delete/load",
        pytest.param("terminal/SIGINT/exit", marks=pytest.mark.long),
    ],
)
def test_a_run_that_meets_a_fault_ends_as_it_should(cell: str, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    follow = "cell" if cell.startswith("stub/") else "none"
    words = [
        "--cells",
        cell,
        "--repeat",
        "1",
        "--again",
        "1",
        "--next",
        follow,
        "--slack",
        "2",
        "--out",
        str(told),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.faults", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    (run,) = json.loads(told.read_text())[cell] if told.exists() else ({"failures": done.stderr},)
    assert run["failures"] == {}, run
    assert run["why_not"] == ""
    assert done.returncode == 0
