"""Folders of rings that are made while another agent of the machine sweeps."""

from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path

import pytest

from squall.actors.process.sweep import sweep
from squall.cluster.node.injected import ring_folder
from squall.cluster.node.injected.ring_folder import hold_alone, make_ring_folder, remove_rings, rings_of
from squall.scenarios.errors import ClusterError

_N_MADE = 400


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the machine's memory."""
    found = tmp_path / "memory"
    found.mkdir()
    monkeypatch.setattr(ring_folder, "_MEMORY", found)
    return found


def test_no_folder_is_swept_between_its_making_and_its_use(tmp_path: Path, memory: Path) -> None:
    done = threading.Event()

    def another_agent() -> None:
        while not done.is_set():
            sweep(memory, "squall-rings-*", partial(shutil.rmtree, ignore_errors=True))

    sweeper = threading.Thread(target=another_agent)
    sweeper.start()
    try:
        for number in range(_N_MADE):
            own = tmp_path / f"server-{number}"
            rings = make_ring_folder(own, "kernels")
            assert rings.path.parent == memory
            (rings.path / "0.ring").touch()  # there, and kept
            rings.let_go()
            remove_rings(own, "kernels")
    finally:
        done.set()
        sweeper.join()


def test_a_folder_that_was_made_is_its_readers_alone(tmp_path: Path, memory: Path) -> None:
    rings = make_ring_folder(tmp_path, "batches")
    assert rings.path.parent == memory
    with pytest.raises(ClusterError, match="another run reads the batches in"):
        hold_alone(rings.path, "batches")
    rings.let_go()
    hold_alone(rings.path, "batches").let_go()


@pytest.mark.usefixtures("memory")
def test_what_a_dead_agent_left_is_swept_once_the_folder_of_its_server_is_gone(tmp_path: Path) -> None:
    own, other = tmp_path / "server", tmp_path / "other"
    own.mkdir()
    make_ring_folder(own, "batches").let_go()
    make_ring_folder(own, "batches").let_go()  # anew
    make_ring_folder(other, "batches").let_go()
    assert rings_of(own, "batches") is not None
    own.rmdir()
    make_ring_folder(other, "kernels").let_go()
    assert rings_of(own, "batches") is None


def test_without_room_in_memory_the_folder_is_the_servers_own(tmp_path: Path, memory: Path) -> None:
    memory.rmdir()
    rings = make_ring_folder(tmp_path, "batches")
    assert rings.path == tmp_path / "rings"
    rings.let_go()


def test_what_another_user_put_into_the_place_of_a_folder_is_not_read(tmp_path: Path, memory: Path) -> None:
    rings = make_ring_folder(tmp_path, "batches")
    rings.let_go()
    assert rings_of(tmp_path, "batches") == rings.path
    rings.path.chmod(0o777)
    assert rings_of(tmp_path, "batches") is None
    shutil.rmtree(rings.path)
    (memory / "aside").mkdir(mode=0o700)
    rings.path.symlink_to(memory / "aside")
    assert rings_of(tmp_path, "batches") is None
