"""A pipe in the place of a file, which nobody writes, keeps no command waiting: real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.overhead_runs import write_run

_DEADLINE_S = 60.0


def end_of(*words: object) -> tuple[int, str]:
    """Exit code and stderr of a command. Raises TimeoutExpired where it waits."""
    ended = subprocess.run(
        [sys.executable, "-m", "squall.cluster.entry", *map(str, words)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_DEADLINE_S, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stderr


def of_a_run(name: str) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        run = write_run(folder).run_dir
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
        return run

    return made


def alone(name: str) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        os.mkfifo(folder / name)
        return folder / name

    return made


def comparison(folder: Path) -> Path:
    for side in ("a", "b"):
        (folder / side).mkdir()
    os.mkfifo(folder / "compare.json")
    return folder


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("analyze {}", of_a_run("manifest.json")),
        ("report {}", of_a_run("summary.json")),
        ("analyze {}", of_a_run("tables/requests/part-00000.parquet")),
        ("trace info {}", alone("trace.csv")),
        ("trace synth {} {}.csv --duration 1s", alone("arrivals.yaml")),
        ("run {} --dry-run", alone("scenario.yaml")),
        ("compare {}", comparison),
    ],
)
def test_a_pipe_is_refused_in_one_line(tmp_path: Path, words: str, made: Callable[[Path], Path]) -> None:
    path = str(made(tmp_path))
    code, said = end_of(*words.replace("{}", path).split())
    assert code in (1, 2), said
    assert len(said.splitlines()) == 1, said
    assert said.startswith("squall: ")
    assert "internal error" not in said
