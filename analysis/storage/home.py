"""A run of object storage in a folder here: while it is made, and to be taken up again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from shlex import quote

from squall.analysis.storage.beneath import new_file, read_plain
from squall.analysis.storage.manifest_file import MANIFEST, read_document
from squall.analysis.storage.mirror import is_of_run
from squall.analysis.storage.object_folder import place_at
from squall.analysis.storage.part import disk_errors
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import StoreError
from squall.scenarios.foreign_text import escaped

HERE = Path("runs")
"""Folder for a run that goes to object storage, until it is there."""
_BROUGHT = ".brought"
"""File in a folder that was made for a run of object storage, with its address."""


def home_of(run: str) -> Path:
    """The folder here of a run that may lie in object storage: the one it was made in, which is made where it is gone.

    Raises `StoreError` where there is no run.
    """
    place = place_at(run)
    if place is None:
        read_document(Path(run))
        return Path(run)
    manifest, _ = read_document(place)
    if not manifest.run:
        raise StoreError(f"{run} has a manifest that squall did not write: it names no run")
    folder = HERE / manifest.run
    with disk_errors(f"cannot bring {run} to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def bring_home(run: str, folder: Path) -> None:
    """Copies a run of object storage to `folder`, which `home_of` says, unless it lies there. What a process that is
    killed has fetched is fetched again, and its manifest last: a copy which has one is whole.

    Raises `StoreError`, also where anything else lies there: what is in the folder is sent, and removed.
    """
    place = place_at(run)
    if place is None:
        return
    brought = folder / _BROUGHT
    with disk_errors(f"cannot bring {run} to {folder}"):
        is_from_there = brought.exists() and read_plain(brought) == place.address.encode()
        if (folder / MANIFEST).exists():  # never sent as a whole: it has all
            here, there = read_document(folder)[0], read_document(place)[0]
            is_from_there |= here.copied_to == place.address
            if not is_from_there or (here.run, here.started_ns) != (there.run, there.started_ns):
                raise StoreError(f"{folder} has another run than {place.address}: move it away")
            return
        if not is_from_there and any(folder.iterdir()):
            raise StoreError(f"{folder} has files of something else than {place.address}: move it away")
        names = [name for name in place.sizes() if is_of_run(name) and name != MANIFEST]
        if not is_from_there:
            with new_file(brought) as file:
                file.write(place.address.encode())
        for name in ("tables", "nsys", "logs"):
            (folder / name).mkdir(exist_ok=True)
        for name in (*names, MANIFEST):
            place.fetch(name, folder / name)


def is_to_be_sent(store: RunStore) -> bool:
    """Whether it is a run in a folder here that is to lie in object storage, sealed and without a lack."""
    return bool(store.manifest.copied_to) and store.manifest.is_whole


def send_away(store: RunStore, address: str) -> str:
    """Brings a run that is sealed and lacks nothing to `address`, which the user named; where it lies then. Without
    one it stays.

    Raises `StoreError`: it is whole in its folder then.
    """
    if not address or not store.manifest.is_whole:
        return store.where
    try:
        return store.send(address)
    except StoreError as error:
        told = f"the run is whole in {store.run_dir}: {sending_command(store)} brings it there"
        raise StoreError(f"{error}; {told}") from error


def unsent_text(store: RunStore) -> str:
    """Where a sealed run lies when `send_away` was broken off, and how to go on; for a screen."""
    address = escaped(store.manifest.copied_to)
    if address and (store.run_dir / MANIFEST).exists():  # which goes first once all is there
        return f"not all of it is in {address}: {sending_command(store)} brings it there"
    return f"the run is whole: {address or store.run_dir}"


def sending_command(store: RunStore) -> str:
    """What brings a run of this folder to the object storage that its manifest names, for a screen: a user decides, no
    manifest."""
    parent, _, name = store.manifest.copied_to.rpartition("/")
    shown = "s3://BUCKET/PREFIX"
    with suppress(StoreError):
        if name == store.run and place_at(parent) is not None:
            shown = escaped(parent)
    return f"squall resume {quote(escaped(str(store.run_dir)))} --out {quote(shown)}"
