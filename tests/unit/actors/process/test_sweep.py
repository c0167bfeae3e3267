"""What a sweep of a folder that several users share takes: what is this user's alone, and no link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from squall.actors.process.sweep import is_own_folder, share, sweep


def swept(parent: Path) -> list[str]:
    found: list[Path] = []
    sweep(parent, "squall-*", found.append)
    return sorted(path.name for path in found)


def test_only_what_is_this_users_alone_is_swept(tmp_path: Path) -> None:
    for name, mode in (("squall-ours", 0o700), ("squall-open", 0o755), ("squall-shared", 0o770)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "squall-link").symlink_to(tmp_path / "squall-ours")
    os.mkfifo(tmp_path / "squall-pipe", 0o644)  # opened for reading, it waits for a writer
    for name, mode in (("squall-file", 0o600), ("squall-open-file", 0o644)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    assert swept(tmp_path) == ["squall-file", "squall-ours"]
    own = [path.name for path in sorted(tmp_path.iterdir()) if is_own_folder(path)]
    assert own == ["squall-ours"]


def test_nothing_of_another_user_is_swept_or_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "squall-ours"
    folder.mkdir(mode=0o700)
    lock = share(folder)
    assert lock is not None
    os.close(lock)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert swept(tmp_path) == []
    assert share(folder) is None
    assert not is_own_folder(folder)


def test_a_link_is_not_shared(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert share(tmp_path / "link") is None
