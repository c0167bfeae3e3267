"""Scratch folders of real processes: who keeps one, who sweeps it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from squall.actors.process.sweep import share
from squall.cluster.node.scratch import Scratch, claim, folders_of, this_place

_OWNER = "from squall.cluster.node.scratch import Scratch; print(Scratch().path, flush=True); input()"


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


def _with_rows(folder: Path, run_dir: Path, place: str) -> None:
    claim(folder, run_dir.name, "node-0", str(run_dir), place)
    (folder / "spill").mkdir()
    (folder / "spill" / "requests-0.arrows").write_bytes(b"rows")


def test_rows_of_a_run_that_is_not_whole_are_kept_until_it_is(dead_owners: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "demo"
    run_dir.mkdir(parents=True)
    _with_rows(dead_owners, run_dir, this_place())
    assert folders_of("demo", run_dir) == {"node-0": dead_owners}
    for manifest in (None, {"state": "open"}, {"state": "sealed", "unfinished": {}}):
        if manifest is not None:
            (run_dir / "manifest.json").write_text(json.dumps({"run": "demo", **manifest}))
        Scratch().remove()
        assert dead_owners.is_dir(), manifest
    (run_dir / "manifest.json").write_text(json.dumps({"run": "demo", "state": "sealed"}))
    Scratch().remove()
    assert not dead_owners.exists()


@pytest.mark.parametrize("recorded", ["server-0/recorded/1.frames", "server-0/batches/head.jsonl"])
def test_batches_on_a_node_without_workers_are_kept_once_the_load_has_begun(
    recorded: str, dead_owners: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "runs" / "demo"
    run_dir.mkdir(parents=True)
    claim(dead_owners, "demo", "node-0", str(run_dir), this_place())
    path = dead_owners / recorded
    path.parent.mkdir(parents=True)
    path.write_bytes(b"batches")
    begun = {"run": "demo", "state": "open", "phases": [{"name": "burst"}]}
    (run_dir / "manifest.json").write_text(json.dumps(begun))
    Scratch().remove()
    assert dead_owners.is_dir()
    (run_dir / "manifest.json").write_text(json.dumps({**begun, "phases": []}))
    Scratch().remove()
    assert not dead_owners.exists(), "a model's warm-up"


def test_rows_of_a_run_that_is_gone_are_swept_but_not_where_it_may_be_out_of_sight(
    dead_owners: Path, tmp_path: Path
) -> None:
    _with_rows(dead_owners, tmp_path / "gone", "another machine")
    Scratch().remove()
    assert dead_owners.is_dir()
    long_ago_s = time.time() - 8 * 24 * 3600
    os.utime(dead_owners, (long_ago_s, long_ago_s))
    Scratch().remove()
    assert not dead_owners.exists()


def test_rows_of_a_run_that_was_removed_here_are_swept(dead_owners: Path, tmp_path: Path) -> None:
    _with_rows(dead_owners, tmp_path / "gone", this_place())
    Scratch().remove()
    assert not dead_owners.exists()


def test_a_folder_without_rows_is_swept_whosever_it_is(dead_owners: Path, tmp_path: Path) -> None:
    claim(dead_owners, "demo", "node-0", str(tmp_path), this_place())
    Scratch().remove()
    assert not dead_owners.exists()
