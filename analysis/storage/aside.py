"""The tables of a run that is taken up again, as they were before: beside the tables until the run is sealed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

_ASIDE, _DONE = ".resumed-", ".done-"


def aside_of(run_dir: Path, table: str) -> Path:
    """Where the parts of `table` lie meanwhile."""
    return run_dir / f"{_ASIDE}{table}"


def put_back(run_dir: Path, tables: Iterable[str]) -> None:
    """Makes the tables what they were before an attempt that was broken off. Raises OSError."""
    for table in tables:  # no other name: of `.resumed-..` the place is `tables/..`, the run itself
        aside, current = aside_of(run_dir, table), run_dir / "tables" / table
        if aside.is_dir():
            shutil.rmtree(current, ignore_errors=True)
            aside.rename(current)


def drop_aside(run_dir: Path, tables: Iterable[str]) -> None:
    """The tables have all of it that stays. Renamed first: half of it must never be put back. Raises OSError."""
    done = {table: run_dir / f"{_DONE}{table}" for table in tables}
    for table, path in done.items():
        if aside_of(run_dir, table).is_dir():
            aside_of(run_dir, table).rename(path)
    for path in done.values():
        shutil.rmtree(path, ignore_errors=True)
