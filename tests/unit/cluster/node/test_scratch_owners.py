"""Whose a scratch folder is: what one says counts only where no other user can have written it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from squall.cluster.node.scratch import (
    Scratch,
    claim,
    folders_of,
    is_wanted,
    owner_of,
    sweep_scratch,
    this_place,
)

SOUND = {"run": "demo", "node": "node-0", "run_dir": "/runs/demo", "place": "here", "mark": "1"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a temporary folder that several users share, of a process that has ended; it has rows of `demo`."""
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    scratch = Scratch()
    scratch.leave()
    claim(scratch.path, "demo", "node-0", str(tmp_path / "runs" / "demo"), this_place())
    (scratch.path / "spill").mkdir()
    (scratch.path / "spill" / "requests-0.arrows").write_bytes(b"rows")
    return scratch.path


def other_user(patch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    patch.setattr(os, "geteuid", lambda: other)


BAD: tuple[dict[str, Any], ...] = (
    {"run": ".."}, {"run": "/etc"}, {"run": 7}, {"run": None}, {"run": ["demo"]}, {"node": "../n"},
    {"node": "n/../../m"}, {"node": {}}, {"run_dir": 1}, {"run_dir": "/a\0b"}, {"mark": None}, {"more": 1},
)  # fmt: skip


@pytest.mark.parametrize(
    "content", ["[]", "7", "{", "[" * 100_000, "{}", *(json.dumps({**SOUND, **bad}) for bad in BAD)]
)
def test_a_folder_that_says_nonsense_says_nothing(folder: Path, content: str) -> None:
    (folder / "owner.json").write_text(content)
    assert owner_of(folder) is None
    assert not is_wanted(folder)


def test_what_it_says_is_read_through_no_link_and_waits_for_nobody(folder: Path, tmp_path: Path) -> None:
    owner = owner_of(folder)
    assert owner is not None
    assert (owner.run, owner.node) == ("demo", "node-0")
    (tmp_path / "link").symlink_to(folder)
    assert owner_of(tmp_path / "link") is None
    (folder / "owner.json").rename(tmp_path / "owner.json")
    (folder / "owner.json").symlink_to(tmp_path / "owner.json")
    assert owner_of(folder) is None
    (folder / "owner.json").unlink()
    os.mkfifo(folder / "owner.json")
    assert owner_of(folder) is None


@pytest.mark.parametrize(
    "make", [lambda path: path.chmod(0o770), lambda path: path.chmod(0o777), lambda path: path.chmod(0o755)]
)
def test_a_folder_that_others_may_look_into_is_nobodys(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder)
    assert owner_of(folder) is None
    assert folders_of("demo", folder.parent.parent / "runs" / "demo") == {}
    with pytest.raises(OSError, match="is gone"):
        Scratch(folder)


def test_a_folder_of_another_user_is_neither_believed_nor_swept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "runs" / "demo"
    assert folders_of("demo", run_dir) == {"node-0": folder}
    other_user(monkeypatch)
    (run_dir / "manifest.json").write_text(json.dumps({"run": "demo", "state": "sealed"}))
    assert folders_of("demo", run_dir, {"node-0": str(folder)}) == {}
    sweep_scratch()
    assert folder.is_dir()


def test_a_named_folder_counts_where_it_says_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # it is elsewhere
    run_dir = tmp_path / "runs" / "demo"
    named = {"node-0": str(folder)}
    assert folders_of("demo", run_dir, named) == {"node-0": folder}
    assert folders_of("other", run_dir, named) == {}
    assert folders_of("demo", run_dir, {"node-1": str(folder)}) == {}
    monkeypatch.chdir(folder.parent)
    assert folders_of("demo", run_dir, {"node-0": folder.name}) == {}
    aside = folder.rename(folder.with_name("another-name"))
    assert folders_of("demo", run_dir, {"node-0": str(aside)}) == {}


def test_a_copy_of_a_run_directory_does_not_take_what_is_of_the_run_itself(
    folder: Path, tmp_path: Path
) -> None:
    run_dir, copy = tmp_path / "runs" / "demo", tmp_path / "from-elsewhere" / "demo"
    copy.mkdir(parents=True)
    assert folders_of("demo", copy, {"node-0": str(folder)}) == {}
    run_dir.rmdir()  # it was moved, or the driver was another machine
    assert folders_of("demo", copy, {"node-0": str(folder)}) == {"node-0": folder}


@pytest.mark.parametrize("found", [[], "text", {"run": [], "state": {}}, {"phases": 3, "run": 1}])
def test_odd_manifests_neither_raise_nor_hang(folder: Path, tmp_path: Path, found: Any) -> None:
    manifest = tmp_path / "runs" / "demo" / "manifest.json"
    manifest.write_text(json.dumps(found))
    assert is_wanted(folder) is not isinstance(found, dict)


def test_a_manifest_that_cannot_be_read_keeps_the_rows(folder: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "runs" / "demo" / "manifest.json"
    manifest.write_text("[" * 100_000)
    assert is_wanted(folder)
    manifest.unlink()
    os.mkfifo(manifest)
    assert is_wanted(folder)
