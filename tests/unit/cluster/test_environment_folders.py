"""The folder that a killed server leaves in /tmp goes with it; nobody else's does."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.environment_folders import EnvironmentFolders, remove_recorded


def made(tmp_path: Path, has_others: bool = False) -> tuple[EnvironmentFolders, Path, Path]:
    """Folders of a server that has started: of somebody else, and its own."""
    shared, folder = tmp_path / "tmp", tmp_path / "server-0"
    shared.mkdir()
    folder.mkdir()
    foreign, own = shared / "python_env_foreign", shared / "python_env_own"
    foreign.mkdir()
    folders = EnvironmentFolders(folder, shared, lambda _: has_others)
    folders.begin()
    own.mkdir()
    folders.settle()
    return folders, foreign, own


def test_what_a_killed_server_left_is_removed(tmp_path: Path) -> None:
    folders, foreign, own = made(tmp_path)
    folders.remove()
    assert foreign.is_dir()
    assert not own.exists()


def test_who_adopts_the_folder_of_a_server_removes_it_too(tmp_path: Path) -> None:
    _, foreign, own = made(tmp_path)
    remove_recorded(tmp_path / "server-0")
    assert foreign.is_dir()
    assert not own.exists()


@pytest.mark.parametrize("case", ["another server started meanwhile", "it has unpacked something"])
def test_what_may_be_anothers_or_holds_something_stays(tmp_path: Path, case: str) -> None:
    folders, _, own = made(tmp_path, has_others=case.startswith("another"))
    if not case.startswith("another"):
        (own / "env").touch()
    folders.remove()
    assert own.is_dir()


def test_a_server_that_removed_its_own_or_never_had_any_is_no_trouble(tmp_path: Path) -> None:
    folders, _, own = made(tmp_path)
    own.rmdir()
    folders.remove()
    remove_recorded(tmp_path / "no such server")
