"""Whether a server's process shows the kernel library; for the batch library tests/golden/test_batch_rings.py asks
real ones."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from squall.cluster.node.injected.effect import held_rings, injected, why_silent
from squall.cluster.node.injected.ring_folder import why_unread

LIBRARY = "/somewhere/actors/_kernels.abi3.so"


def process(folder: Path, **environment: str) -> Path:
    """A folder as /proc with one process, 7."""
    (folder / "7").mkdir()
    entries = "\0".join(f"{name}={value}" for name, value in environment.items())
    (folder / "7" / "environ").write_text(entries)
    (folder / "7" / "maps").write_text("7f0000-7f1000 r-xp 00000000 00:00 0  /lib/libc.so.6\n")
    return folder


def test_a_server_that_cuda_will_load_the_library_into_says_where_it_records_before_it_uses_cuda(
    tmp_path: Path,
) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    proc = process(tmp_path, SQUALL_KERNELS=str(rings), CUDA_INJECTION64_PATH=LIBRARY)
    assert injected([7], "kernels", proc).folder == rings
    assert injected([7], "batches", proc).reason == "the server was started without SQUALL_BATCHES"


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "the server was started without SQUALL_KERNELS"),
        (
            {"SQUALL_KERNELS": "/dev/shm"},
            "the server has SQUALL_KERNELS, but CUDA_INJECTION64_PATH does not name the library",
        ),
        (
            {"SQUALL_KERNELS": "/dev/shm", "CUDA_INJECTION64_PATH": "/opt/nsys/libToolsInjection64.so"},
            "the server has SQUALL_KERNELS, but CUDA_INJECTION64_PATH does not name the library",
        ),
        (
            {"SQUALL_KERNELS": "/nowhere/rings", "CUDA_INJECTION64_PATH": LIBRARY},
            "the server records into /nowhere/rings, which is no folder here",
        ),
    ],
)
def test_a_server_without_it_says_why_nothing_is_recorded(
    tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    found = injected([7], "kernels", process(tmp_path, **environment))
    assert (found.folder, found.reason) == (None, reason)
    assert "no process of the server can be seen" in injected([], "kernels").reason


LOG = """
I1123 started
ERROR: ld.so: object '/squall/_batches.so' from LD_PRELOAD cannot be preloaded (file too short): ignored.
squall: batches are not recorded: /dev/shm/r: Permission denied
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (LOG, "object '/squall/_batches.so' from LD_PRELOAD cannot be preloaded (file too short): ignored."),
        (LOG.splitlines()[3], "/dev/shm/r: Permission denied"),
        ("I1123 started", "the library is not in effect in the server, whose log does not say why"),
    ],
)
def test_a_server_that_was_given_the_library_in_vain_says_why_in_its_log(
    tmp_path: Path, log: str, reason: str
) -> None:
    assert why_silent(tmp_path, log) == reason


def test_a_ring_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "batches-1-0.ring").write_text("no ring")
    assert "not a ring" in str(why_silent(tmp_path, ""))


def test_whose_rings_they_are_is_said_where_they_may_not_be_read(tmp_path: Path) -> None:
    ring = tmp_path / "batches-1-0.ring"
    ring.touch()
    owner, own = ring.stat().st_uid, os.geteuid()
    told = why_unread(ring, PermissionError(13, "Permission denied"))
    assert told.startswith(f"the rings are of user {owner}, and this is user {own}: run squall as root")
    assert why_unread(tmp_path / "gone", PermissionError()).startswith("the rings are of user another")
    assert why_unread(ring, ValueError("no ring")) == "no ring"


def ring_of(folder: Path, writer: int) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"batches-24-{'0' * 32}.ring"
    path.write_bytes(struct.pack("<8sIIQqQ", b"SQBATCH", 1, 4096, 4096, 24, writer).ljust(8192, b"\0"))
    return path


def mapped(proc: Path, *names: object) -> None:
    lines = [f"7f0000-7f1000 rw-s 00000000 00:17 5                    {name}\n" for name in names]
    (proc / "7" / "maps").write_text("".join(lines))


def test_a_hooks_rings_are_found_by_what_processes_have_mapped(tmp_path: Path) -> None:
    proc = process(tmp_path)
    one, other = ring_of(tmp_path / "a folder", 1), ring_of(tmp_path / "b", 1)
    mapped(proc, "/lib/libc.so.6", one, f"{other} (deleted)", one, "/x/batches-24-0.ring", "[heap]")
    assert held_rings([7, 8], proc) == [one]
    found = injected([7], "batches", proc)
    assert (found.folders, found.writer) == ((tmp_path / "a folder",), "hook")
    mapped(proc, one, other)
    assert injected([7], "batches", proc).folders == (tmp_path / "a folder", tmp_path / "b")
    assert injected([7], "kernels", proc).reason == "the server was started without SQUALL_KERNELS"


def test_a_hooks_rings_that_are_elsewhere_or_none_say_so(tmp_path: Path) -> None:
    proc = process(tmp_path)
    mapped(proc, tmp_path / "inside" / f"batches-1-{'0' * 32}.ring")
    found = injected([7], "batches", proc)
    assert found.folder is None
    assert "which is not what this node has under that name" in found.reason
    broken = ring_of(tmp_path / "b", 7)
    mapped(proc, broken)
    assert "a writer that this reader does not know" in injected([7], "batches", proc).reason
