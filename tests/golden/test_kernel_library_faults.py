"""What stands in the way of the kernel library's ring never does of the process: it runs on, and nothing is left. What
becomes of the ring never ends its reader."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from squall.actors.inject.ring_file import RingError
from tests.integration.disks import fill, small_disk
from tests.kernel_hosts import Built, KernelHost, switched
from tests.sanitize import compiler

pytestmark = pytest.mark.skipif(not compiler(), reason="no C compiler is here")


def assert_off(
    build: Built,
    folder: Path,
    why: str,
    limits: Mapping[int, int] | None = None,
    settings: Mapping[str, str] | None = None,
) -> None:
    """A process under these limits goes on without a ring, says so once and leaves nothing."""
    before = set(folder.iterdir()) if folder.is_dir() else set()
    with KernelHost(build, folder, settings) as host:
        for limit, value in (limits or {}).items():
            resource.prlimit(host.pid, limit, (value, value))
        assert host.ask("init") == 1
        host.ask("kernels 10")
        assert host.end("exit 5") == (5, f"squall kernels: {folder}: a file in it cannot be made: {why}\n")
    assert (set(folder.iterdir()) if folder.is_dir() else set()) == before


def test_a_full_disk(kernel_build: Built, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        fill(disk)
        assert_off(kernel_build, disk, "No space left on device")


def test_a_disk_that_takes_no_file_and_a_folder_that_is_none(kernel_build: Built, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m", "ro") as disk:
        assert_off(kernel_build, disk, "Read-only file system")
    (tmp_path / "file").touch()
    assert_off(kernel_build, tmp_path / "file", "Not a directory")


def test_a_limit_of_the_size_of_files(kernel_build: Built, kernel_rings: Path) -> None:
    """A file grown beyond it would end the process by a signal."""
    assert_off(kernel_build, kernel_rings, "File too large", {resource.RLIMIT_FSIZE: 1 << 20})


def test_a_limit_of_memory(kernel_build: Built, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "300m") as disk:
        settings = {"SQUALL_KERNEL_RING_BYTES": str(1 << 28)}
        assert_off(kernel_build, disk, "Cannot allocate memory", {resource.RLIMIT_AS: 1 << 27}, settings)


def test_the_reader_may_open_a_ring_whatever_the_umask(kernel_build: Built, kernel_rings: Path) -> None:
    before = os.umask(0o777)
    try:
        host = KernelHost(kernel_build, kernel_rings)
    finally:
        os.umask(before)
    with host:
        ring = host.begin()
        assert stat.S_IMODE(ring.path.stat().st_mode) == 0o600
        ring.close()


def test_a_ring_that_was_cut_while_it_was_read_is_refused(kernel_build: Built, kernel_rings: Path) -> None:
    """A byte of the map that the file lacks would end the reader by a signal."""
    with KernelHost(kernel_build, kernel_rings) as host:
        ring = host.begin()
        switched(ring, True)
        host.ask("kernels 100")
        switched(ring, False)
        host.kill()
        os.truncate(ring.path, 0)
        with pytest.raises(RingError, match=r"the ring was cut while it was read$"):
            ring.drain()
        ring.close()
