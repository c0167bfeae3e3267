"""Temporary folders of an analysis that was killed are swept by the next; those of a living one stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.analysis.report.derive import derive
from squall.analysis.storage.held_folder import held_folder, sweep_folders
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import SquallError


def test_a_sweep_takes_what_dead_processes_left_and_nothing_else(tmp_path: Path) -> None:
    left = tmp_path / ".spill-dead"
    (left / "deep").mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    with held_folder(tmp_path) as living:
        sweep_folders(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([living, tmp_path / "tables"])
    assert list(tmp_path.iterdir()) == [tmp_path / "tables"]


def test_an_analysis_begins_with_a_sweep(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "run", 0, Manifest())
    left = store.run_dir / ".spill-dead"
    left.mkdir()
    with pytest.raises(SquallError):  # it has no requests
        derive(store)
    assert not left.exists()
