"""What takes long to make and is only read, made by one of the processes that share the tests.

The others wait for it, and each has a copy of its own: what a test of one puts into a run directory no other sees.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from squall.analysis.storage.store import RunStore

Made = TypeVar("Made")


def run_once(factory: pytest.TempPathFactory, name: str, write: Callable[[Path], RunStore]) -> RunStore:
    """The run that `write` makes under the folder it is given; `name` is of no other."""

    def make(folder: Path) -> None:
        write(folder)

    (run_dir,) = _copy(factory, name, make).iterdir()
    return RunStore.open(run_dir)


def value_once(factory: pytest.TempPathFactory, name: str, value: Callable[[], Made]) -> Made:
    """What `value` returns, which pickles; `name` is of no other."""

    def make(folder: Path) -> None:
        (folder / "value").write_bytes(pickle.dumps(value()))

    made: Made = pickle.loads((_copy(factory, name, make) / "value").read_bytes())
    return made


def _copy(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder of this process with what `make` puts into the one it is given.

    A process that a test of a worker started has a worker's environment, and shares nothing.
    """
    own, folder = factory.mktemp(name), factory.getbasetemp()
    if folder.name != f"popen-{os.environ.get('PYTEST_XDIST_WORKER')}":
        make(own)
        return own
    made, begun = (folder.parent / f"{name}.{state}" for state in ("made", "begun"))
    with open(made.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_dir():
            shutil.rmtree(begun, ignore_errors=True)
            begun.mkdir()
            make(begun)
            begun.rename(made)
    shutil.copytree(made, own, dirs_exist_ok=True)
    return own
