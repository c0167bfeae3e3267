"""Small disks that fill up, and what a run that met a fault must still be."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from squall.analysis.storage.store import RunStore


@contextmanager
def small_disk(folder: Path, size: str, *options: str) -> Iterator[Path]:
    """A tmpfs of `size` at `folder`; skips where it cannot be mounted."""
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size}", *options)), "tmpfs", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"mounting a small tmpfs: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Takes all the space that is left in the file system of `folder`."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def executed(store: RunStore) -> set[int]:
    """Ids of the requests that the server has executed, by its own records."""
    return set(pc.list_flatten(store.read("batches").column("request_ids")).to_pylist())


def assert_whole(store: RunStore) -> None:
    """Sealed, nothing left to resume, a row for each arrival, and none denies what the server did."""
    assert store.is_sealed
    assert store.manifest.unfinished is None
    assert store.verify() == []
    rows = store.read("requests", ["request_id", "outcome"])
    n_planned = store.manifest.plan.n_arrivals
    assert np.array_equal(np.sort(rows.column("request_id").to_numpy()), np.arange(n_planned))
    by_outcome = {
        name: set(
            rows.filter(pc.equal(rows.column("outcome").cast("string"), name))
            .column("request_id")
            .to_pylist()
        )
        for name in ("ok", "unsent")
    }
    assert by_outcome["ok"] <= executed(store)
    assert not by_outcome["unsent"] & executed(store)
    assert not list(store.run_dir.glob(".*"))
