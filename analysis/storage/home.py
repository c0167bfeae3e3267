"""A run of object storage in a folder here: while it is made, and to be taken up again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from shlex import quote

from squall.analysis.storage.held_folder import held_folder, sweep_folders
from squall.analysis.storage.manifest_file import MANIFEST, read_document
from squall.analysis.storage.part import error_reason
from squall.analysis.storage.places.mirror import is_of_run
from squall.analysis.storage.places.place import fetch, is_address, place_at
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import ScenarioError, StoreError
from squall.scenarios.foreign_text import escaped

HERE = Path("runs")
"""Folder for a run that goes to object storage, until it is there."""
_SCRATCH = ".scratch-"


def refuse_address(out: Path | str) -> None:
    """Raises ScenarioError where `out`, which is to be a folder or file here, is an address."""
    if is_address(str(out)):
        raise ScenarioError(
            "--out: name a place on this disk: object storage, s3://BUCKET/PREFIX, takes runs of squall run alone"
        )


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot bring {run} to {folder}: {error_reason(error)}") from error
    return folder


def bring_home(run: str, folder: Path) -> None:
    """Copies a run of object storage to `folder`, which `home_of` says, unless it lies there. A process that is killed
    leaves what the next one removes, or goes on with.

    Raises `StoreError`, also where anything else lies there: what is in the folder is sent, and removed.
    """
    place = place_at(run)
    if place is None:
        return
    digest = hashlib.sha256(place.address.encode()).hexdigest()[:16]
    brought = folder / f".brought-{digest}"  # at first all of the run, then a mark that it came from there
    if (folder / MANIFEST).exists():  # never sent as a whole: it has all
        here, there = read_document(folder)[0], read_document(place)[0]
        is_from_there = here.copied_to == place.address or brought.is_dir()
        if not is_from_there or (here.run, here.started_ns) != (there.run, there.started_ns):
            raise StoreError(f"{folder} has another run than {place.address}: move it away")
        return
    try:
        if not (brought / MANIFEST).exists():
            if not all(path == brought or path.name.startswith(_SCRATCH) for path in folder.iterdir()):
                raise StoreError(f"{folder} has files of something else than {place.address}: move it away")
            sweep_folders(folder)
            names = [name for name in place.sizes() if is_of_run(name)]
            with held_folder(_SCRATCH, folder) as scratch:
                incoming = scratch / brought.name
                for name in names:
                    fetch(place, name, incoming / name)
                for name in ("tables", "nsys", "logs"):
                    (incoming / name).mkdir(parents=True, exist_ok=True)
                incoming.rename(brought)
        for path in sorted(brought.iterdir(), key=lambda path: path.name == MANIFEST):
            path.rename(folder / path.name)  # the manifest last: a copy which has one is whole
    except OSError as error:
        raise StoreError(f"cannot bring {run} to {folder}: {error_reason(error)}") from error


def is_to_be_sent(store: RunStore) -> bool:
    """Whether it is a run in a folder here that is to lie in object storage, sealed and without a lack."""
    return bool(store.manifest.copied_to) and _is_whole(store)


def _is_whole(store: RunStore) -> bool:
    return store.is_sealed and store.manifest.unfinished is None


def send_away(store: RunStore, address: str) -> str:
    """Brings a run that is sealed and lacks nothing to `address`, which the user named; where it lies then. Without
    one it stays.

    Raises `StoreError`: it is whole in its folder then.
    """
    if not address or not _is_whole(store):
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
    """What brings a run of this folder to the object storage that its manifest names: a user decides, no manifest."""
    return f"squall resume {quote(escaped(str(store.run_dir)))} --out {quote(_parent_of(store))}"


def _parent_of(store: RunStore) -> str:
    """Where the folder of the run lies there, if its manifest says one, for a screen."""
    parent, _, name = store.manifest.copied_to.rpartition("/")
    try:
        is_one = place_at(parent) is not None and name == store.run
    except StoreError:
        is_one = False
    return escaped(parent) if is_one else "s3://BUCKET/PREFIX"
