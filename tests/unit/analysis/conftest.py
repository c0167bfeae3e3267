"""Synthetic runs as fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from squall.analysis.storage.store import RunStore
from tests.synthetic_runs import SyntheticRun, synthesise


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunStore]:
    """Writes a run, by default the one of `synthesise()`."""

    def make(run: SyntheticRun | None = None) -> RunStore:
        return (run or synthesise()).write(tmp_path / "runs")

    return make


@pytest.fixture
def synthetic() -> SyntheticRun:
    """A consistent run, to be broken."""
    return synthesise()


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """One sealed run for tests that only read."""
    return synthesise().write(tmp_path_factory.mktemp("runs"))
