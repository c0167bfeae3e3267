"""A scratch folder that others still write to is neither swept nor taken for nobody's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from squall.actors.process.sweep import share
from squall.cluster.node.scratch import Scratch, remove_free, sweep_scratch


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_who_holds_a_folder_alone_knows_it() -> None:
    scratch = Scratch()
    other = share(scratch.path)
    assert other is not None
    assert not scratch.wait_alone(0.0)
    os.close(other)
    assert scratch.wait_alone(0.0)


def test_a_folder_is_not_swept_after_the_wait_for_others_failed() -> None:
    scratch = Scratch()
    other = share(scratch.path)
    assert other is not None
    assert not scratch.wait_alone(0.0)
    os.close(other)
    sweep_scratch()
    assert scratch.path.is_dir(), "it is still held"
    scratch.leave()
    sweep_scratch()
    assert not scratch.path.exists()


def test_a_dead_process_s_folder_is_removed_with_what_is_in_it(tmp_path: Path) -> None:
    scratch = Scratch()
    (scratch.path / "spill").mkdir()
    scratch.leave()
    remove_free(scratch.path, 1.0)
    assert not scratch.path.exists()
    remove_free(tmp_path / "never there", 1.0)
