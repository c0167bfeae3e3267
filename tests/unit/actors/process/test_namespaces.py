"""Which process here it is that a container knows by another number."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from squall.actors.process.namespaces import mapper_of, pids_called

RING = Path("/dev/shm/rings/batches-1-00ff.ring")


def process(proc: Path, pid: int, numbers: str, *mapped: str) -> None:
    """`numbers`: its pids from this namespace inwards; empty: the kernel does not tell."""
    (proc / str(pid)).mkdir()
    told = f"NSpid:\t{numbers}\n" if numbers else ""
    (proc / str(pid) / "status").write_text(f"Name:\tx\nPid:\t{pid}\n{told}Threads:\t1\n")
    lines = (f"7f0000-7f1000 rw-s 00000000 00:17 5  {path}\n" for path in mapped)
    (proc / str(pid) / "maps").write_text("".join(lines))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Process 1 of this host, process 1 of two containers, and the stub of one of these."""
    (tmp_path / "self").mkdir()
    process(tmp_path, 1, "1")
    process(tmp_path, 700, "700 1", "/rings/batches-1-00ff.ring (deleted)")
    process(tmp_path, 701, "701 24", "/rings/batches-1-00ff.ring")
    process(tmp_path, 900, "900 5 1", "/dev/shm/rings/batches-1-beef.ring")
    return tmp_path


def test_all_that_a_number_means_in_some_namespace_are_found(proc: Path) -> None:
    assert pids_called(1, proc) == [1, 700, 900]
    assert pids_called(24, proc) == [701]
    assert pids_called(700, proc) == [], "it knows itself as 1"


def test_the_one_that_has_the_file_mapped_is_meant_by_whatever_path(proc: Path) -> None:
    assert mapper_of(RING, 1, proc) == 700
    assert mapper_of(RING, 24, proc) == 701, "a child may have inherited it: the number tells"
    assert mapper_of(RING, 5, proc) is None
    assert mapper_of(Path("/rings/batches-1-0.ring"), 1, proc) is None


def test_who_may_not_be_looked_at_is_not_found(proc: Path) -> None:
    (proc / "700" / "maps").unlink()
    (proc / "900" / "status").unlink()
    assert mapper_of(RING, 1, proc) is None
    assert pids_called(1, proc) == [1, 700]


def test_a_kernel_that_tells_of_no_namespaces_has_but_one(tmp_path: Path) -> None:
    process(tmp_path, 30, "", str(RING))
    assert mapper_of(RING, 30, tmp_path) == 30


def test_this_process_finds_itself(tmp_path: Path) -> None:
    path = tmp_path / "batches-of-mine.ring"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert mapper_of(path, os.getpid()) == os.getpid()
    assert mapper_of(path, os.getpid()) is None
