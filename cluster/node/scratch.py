"""Scratch folders: each is locked by its process, and the next process sweeps what dead ones left.

One that holds rows of a run which is not sealed whole is kept for `squall resume`: it says whose it is in `owner.json`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from squall.actors.process.sweep import hold, is_own_folder, share, sweep
from squall.analysis.storage.beneath import read_plain
from squall.analysis.storage.manifest import is_sealed_whole
from squall.analysis.storage.manifest_file import MANIFEST
from squall.scenarios.foreign_text import is_beneath, is_component, json_of
from squall.scenarios.records import Frozen

_OWNER, _MOST_OWNER_BYTES = "owner.json", 65_536
_PREFIX = "squall-tmp-"
_REMOVED_WITHIN_S = 3.0
_LOOK_EVERY_S = 0.1
_KEPT_S = 7 * 24 * 3600
"""A folder whose run directory cannot be seen from here is kept so long."""


class Scratch:
    """A new folder in the node's temporary folder, until `remove` or, after a kill, the next Scratch."""

    def __init__(self, adopted: Path | None = None) -> None:
        """Sweeps what dead processes left, then makes the folder; `adopted`: takes on that of a process that died.

        Raises OSError where that fails.
        """
        if adopted is not None:
            lock = share(adopted)
            if lock is None:
                raise OSError(f"the scratch folder of a lost process is gone: {adopted.name}")
            self.path, self._lock = adopted, lock
            return
        sweep_scratch()
        held = None
        while held is None:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            held = hold(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self._lock = held

    def put_back(self) -> bool:
        """Makes the folder again where somebody removed it, empty, and holds it; True if so. Raises OSError."""
        if os.fstat(self._lock).st_nlink:
            return False
        self.path.mkdir(exist_ok=True)
        self.path.chmod(0o700)
        held = hold(self.path, os.O_RDONLY | os.O_DIRECTORY)
        if held is None:
            raise FileNotFoundError(errno.ENOENT, "it was swept at once", str(self.path))
        os.close(self._lock)
        self._lock = held
        return True

    def wait_alone(self, timeout_s: float) -> bool:
        """Waits until nobody else holds the folder; whether that came within `timeout_s`."""
        until = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            fcntl.flock(self._lock, fcntl.LOCK_SH)  # an attempt that fails may let go of the lock (flock(2))
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_EVERY_S)

    def remove(self) -> None:
        """Removes the folder and all in it, as far as that can be done; who writes there may need a moment to end."""
        remove_folder(self.path, _REMOVED_WITHIN_S)
        self.leave()

    def leave(self) -> None:
        """Lets go of the folder, which stays."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_folder(folder: Path, timeout_s: float) -> None:
    """Removes `folder` and all in it, again and again where somebody still writes there, for `timeout_s` at most."""
    until = time.monotonic() + timeout_s
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)
        shutil.rmtree(folder, ignore_errors=True)


def remove_free(folder: Path, timeout_s: float) -> None:
    """As `remove_folder`, once none of our processes holds it any more: who writes there puts back what is gone."""
    until = time.monotonic() + timeout_s
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_LOOK_EVERY_S)
        remove_folder(folder, max(_REMOVED_WITHIN_S, until - time.monotonic()))
    finally:
        os.close(lock)


class Owner(Frozen):
    """Whose rows a folder holds: run and node, and its run directory as the machine and mounts `place` name it.

    `mark` is drawn for each folder: who finds it under the same path sees the same folder.
    """

    run: str
    node: str
    run_dir: str
    place: str
    mark: str


def claim(folder: Path, run: str, node: str, run_dir: str, place: str) -> Owner:
    """Says in `folder` whose it is. `place`: that of who knows `run_dir`. Raises OSError."""
    owner = Owner(run, node, run_dir, place, secrets.token_hex(16))
    (folder / _OWNER).write_text(json.dumps(asdict(owner)), encoding="utf-8")
    return owner


def owner_of(folder: Path) -> Owner | None:
    """Whose rows it holds; None where it does not say, is not there, or is not this user's alone."""
    if not is_own_folder(folder):
        return None
    try:
        owner = Owner(**json_of(read_plain(folder / _OWNER, _MOST_OWNER_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
    is_text = all(isinstance(one, str) and "\0" not in one for one in vars(owner).values())
    return owner if is_text and is_component(owner.run) and is_beneath(owner.node) else None


def this_place() -> str:
    """Names this machine since it booted, and the mounts that this process sees."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/mnt')}"


def _has_requests(folder: Path) -> bool:
    """Whether a worker has spilled a request there."""
    return any(path.stat().st_size for path in folder.glob("spill/requests-*.arrows"))


def _has_batches(folder: Path) -> bool:
    """Whether a batch of a server of the node was recorded there, by its model or by what is in the server."""
    found = (
        path for pattern in ("*/batches/*.jsonl", "*/recorded/*.frames") for path in folder.glob(pattern)
    )
    return any(path.stat().st_size for path in found)


def is_wanted(folder: Path) -> bool:
    """Whether it holds rows of a run that is not sealed whole, and is not gone.

    Batches without requests, as on a server's node without workers, may be a model's warm-up: they count once the load
    has begun.
    """
    owner, has_requests = owner_of(folder), _has_requests(folder)
    if owner is None or not (has_requests or _has_batches(folder)):
        return False
    manifest = Path(owner.run_dir) / MANIFEST
    try:
        found = json_of(read_plain(manifest))
        if not isinstance(found, dict):
            raise ValueError("it is no manifest")
    except (OSError, ValueError):
        if manifest.parent.is_dir():
            return True
        is_gone = owner.place == this_place()  # else it may be there, but not for us
        return not is_gone and time.time() - folder.stat().st_mtime < _KEPT_S
    has_begun = has_requests or bool(found.get("phases"))
    return has_begun and found.get("run") == owner.run and not is_sealed_whole(found)


def folders_of(run: str, run_dir: Path, named: Mapping[str, str] | None = None) -> dict[str, Path]:
    """The folders here of the run in `run_dir`, by site: those in this machine's temporary folder, and of `named`,
    which somebody else may have written, those that are such folders and say the same themselves."""
    found = {}
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        owner = owner_of(folder)
        if owner is not None and owner.run == run and _is_for(owner, run_dir):
            found[owner.node] = folder
    for site, folder in ((site, Path(text)) for site, text in (named or {}).items()):
        owner = owner_of(folder) if folder.is_absolute() and folder.name.startswith(_PREFIX) else None
        if owner is not None and (owner.run, owner.node) == (run, site) and _is_for(owner, run_dir):
            found[site] = folder
    return found


def _is_for(owner: Owner, run_dir: Path) -> bool:
    """Whether `run_dir` is where its rows are to go: not if that directory is here and another one, which may be a copy
    by somebody else. One that is not here was moved, or is on the driver's machine."""
    there = Path(owner.run_dir)
    try:
        return not there.is_dir() or there.samefile(run_dir)
    except OSError:
        return False


def sweep_scratch() -> None:
    """Removes the folders of dead processes in this machine's temporary folder that no run wants."""
    sweep(Path(tempfile.gettempdir()), f"{_PREFIX}*", _remove_unwanted)


def _remove_unwanted(folder: Path) -> None:
    if not is_wanted(folder):
        shutil.rmtree(folder, ignore_errors=True)
