"""Scratch folders of real processes: who keeps one, who sweeps it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from actors.sweep import share
from cluster.scratch import Scratch

_OWNER = "from cluster.scratch import Scratch; print(Scratch().path, flush=True); input()"


@pytest.fixture
def dead_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scratch folder of a process that is killed when the test has looked at nothing yet but its path."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        Scratch().remove()
        assert path.is_dir(), "a living owner's folder is not swept"
        owner.kill()
    return path


def test_the_next_scratch_sweeps_the_folder_of_a_dead_process(dead_owners: Path) -> None:
    Scratch().remove()
    assert not dead_owners.exists()
    assert share(dead_owners) is None


def test_a_folder_that_another_process_shares_outlives_its_owner(dead_owners: Path) -> None:
    lock = share(dead_owners)
    assert lock is not None
    Scratch().remove()
    assert dead_owners.is_dir()
    os.close(lock)
    Scratch().remove()
    assert not dead_owners.exists()


def test_an_adopted_folder_is_held_and_removed_like_an_own_one(dead_owners: Path) -> None:
    adopted = Scratch(dead_owners)
    Scratch().remove()
    assert dead_owners.is_dir()
    adopted.remove()
    assert not dead_owners.exists()
    with pytest.raises(OSError, match="is gone"):
        Scratch(dead_owners)
