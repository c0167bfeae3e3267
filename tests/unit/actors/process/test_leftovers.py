"""What a killed server left elsewhere on the machine goes with it; nobody else's does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import squall.actors.process.supervisor
from squall.actors.process.supervisor import region_prefix, remove_leftovers

Remove = Callable[..., set[str]]
NOW_S = 1_800_000_000.0
LAUNCHED_S = NOW_S - 60


@pytest.fixture
def remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remove:
    """Removes what a server launched a minute ago left; `foreign` started before that, `own` 2 s after."""
    (tmp_path / "shm").mkdir()
    for name, made_s in (("python_env_foreign", LAUNCHED_S - 30), ("python_env_own", LAUNCHED_S + 2)):
        (tmp_path / "tmp" / name).mkdir(parents=True)
        os.utime(tmp_path / "tmp" / name, (made_s, made_s))

    def go(starts: list[float] | None = None, since_s: float | None = LAUNCHED_S) -> set[str]:
        monkeypatch.setattr(squall.actors.process.supervisor, "_server_starts", lambda _: starts or [])
        remove_leftovers(str(tmp_path / "server-0"), since_s, tmp_path / "shm", tmp_path / "tmp")
        return {path.name.removeprefix("python_env_") for path in (tmp_path / "tmp").iterdir()}

    return go


def test_the_folder_that_it_made_is_removed_and_no_older_one(remove: Remove) -> None:
    assert remove() == {"foreign"}


def test_who_adopts_the_folder_of_a_server_knows_its_launch_from_there(
    remove: Remove, tmp_path: Path
) -> None:
    assert remove(since_s=None) == {"foreign", "own"}, "nobody says when it was launched"
    (tmp_path / "server-0").mkdir()
    (tmp_path / "server-0" / "started").touch()
    os.utime(tmp_path / "server-0" / "started", (LAUNCHED_S, LAUNCHED_S))
    assert remove(since_s=None) == {"foreign"}


@pytest.mark.parametrize(
    ("start_s", "stays"),
    [(LAUNCHED_S - 300, True), (LAUNCHED_S + 1, True), (LAUNCHED_S + 3, True), (LAUNCHED_S + 5, False)],
)
def test_what_a_living_server_may_have_made_stays(remove: Remove, start_s: float, stays: bool) -> None:
    assert ("own" in remove([start_s])) is stays


def test_the_last_of_several_servers_takes_what_nobody_could_tell_apart(remove: Remove) -> None:
    assert "own" in remove([LAUNCHED_S + 1]), "the other lives"
    assert "own" not in remove(since_s=LAUNCHED_S + 1), "it ends"


def test_what_holds_something_stays(remove: Remove, tmp_path: Path) -> None:
    (tmp_path / "tmp" / "python_env_own" / "env").touch()
    assert "own" in remove()


def test_shared_memory_is_told_by_its_name(remove: Remove, tmp_path: Path) -> None:
    own, foreign = (
        tmp_path / "shm" / f"{region_prefix(str(tmp_path / name))}stub_0" for name in ("server-0", "server-1")
    )
    own.touch()
    foreign.touch()
    remove(since_s=None)
    assert not own.exists()
    assert foreign.exists()


def test_memory_that_cannot_be_removed_is_left_and_the_rest_goes(remove: Remove, tmp_path: Path) -> None:
    prefix = region_prefix(str(tmp_path / "server-0"))
    (
        tmp_path / "shm" / f"{prefix}another-users"
    ).mkdir()  # what unlink fails for, as for a file of another user
    (tmp_path / "shm" / f"{prefix}own").touch()
    assert remove() == {"foreign"}
    assert [path.name for path in (tmp_path / "shm").iterdir()] == [f"{prefix}another-users"]
