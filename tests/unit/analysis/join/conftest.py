"""Synthetic runs that are joined, and of which nothing else is derived."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from squall.analysis.join.join import write_joined
from squall.analysis.storage.store import RunStore
from tests.synthetic_runs import SyntheticRun


@pytest.fixture
def make_joined(tmp_path: Path) -> Callable[[SyntheticRun], RunStore]:
    """Writes an open run with `joined` and `batch_costs` alone: windows and verdict take as long again."""
    return lambda run: joined_run(run, tmp_path / "runs")


def joined_run(run: SyntheticRun, parent: Path) -> RunStore:
    run.derived = run.seal = False
    store = run.write(parent)
    write_joined(store)
    return store
