"""Whether a server's process shows the kernel library; for the batch library tests/golden/test_batch_rings.py asks
real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.cluster.node.injected.effect import injected

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
