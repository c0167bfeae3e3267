"""The tables of a run that is taken up again, as they were before: beside the tables until the run is sealed."""

from __future__ import annotations

import shutil
from pathlib import Path

_ASIDE, _DONE = ".resumed-", ".done-"


def aside_of(run_dir: Path, table: str) -> Path:
    """Where the parts of `table` lie meanwhile."""
    return run_dir / f"{_ASIDE}{table}"


def put_back(run_dir: Path) -> None:
    """Makes the tables what they were before an attempt that was broken off. Raises OSError."""
    for aside in run_dir.glob(f"{_ASIDE}*"):
        current = run_dir / "tables" / aside.name.removeprefix(_ASIDE)
        shutil.rmtree(current, ignore_errors=True)
        aside.rename(current)


def drop_aside(run_dir: Path) -> None:
    """The tables have all of it that stays. Renamed first: half of it must never be put back. Raises OSError."""
    for aside in run_dir.glob(f"{_ASIDE}*"):
        aside.rename(run_dir / f"{_DONE}{aside.name.removeprefix(_ASIDE)}")
    for done in run_dir.glob(f"{_DONE}*"):
        shutil.rmtree(done, ignore_errors=True)
