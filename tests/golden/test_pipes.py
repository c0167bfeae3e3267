"""A pipe in the place of a file, which nobody writes, keeps no command waiting."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import Command
from tests.overhead_runs import write_run

_DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    """A command that waits at a pipe ends by TimeoutError."""

    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, _DEADLINE_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


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
def test_a_pipe_is_refused_in_one_line(
    tmp_path: Path,
    words: str,
    made: Callable[[Path], Path],
    command: Command,
) -> None:
    path = str(made(tmp_path))
    code, _, said = command(*words.replace("{}", path).split())
    assert code in (1, 2), said
    assert len(said.splitlines()) == 1, said
    assert said.startswith("squall: ")
    assert "internal error" not in said
