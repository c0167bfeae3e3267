"""A run of object storage in a folder here: while it is made, and to be taken up again."""

from __future__ import annotations

from pathlib import Path

from squall.analysis.storage.manifest_file import MANIFEST, read_document
from squall.analysis.storage.part import error_reason
from squall.analysis.storage.places.place import fetch, is_address, place_at
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import ScenarioError, StoreError

HERE = Path("runs")
"""Folder for a run that goes to object storage, until it is there."""


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
    folder = HERE / manifest.run
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot bring {run} to {folder}: {error_reason(error)}") from error
    return folder


def bring_home(run: str, folder: Path) -> None:
    """Copies a run of object storage to `folder`, which `home_of` says, unless it lies there. Raises `StoreError`."""
    place = place_at(run)
    if place is None or (folder / MANIFEST).exists():  # made here, and never sent as a whole: it has all
        return
    try:
        names = [name for name in place.sizes() if name != MANIFEST]
        for name in [*names, MANIFEST]:  # so that a copy which has one is whole
            fetch(place, name, folder / name)
    except OSError as error:
        raise StoreError(f"cannot bring {run} to {folder}: {error_reason(error)}") from error
    for name in ("tables", "nsys", "logs"):
        (folder / name).mkdir(exist_ok=True)


def is_to_be_sent(store: RunStore) -> bool:
    """Whether it is a run in a folder here that is to lie in object storage, sealed and without a lack."""
    known = store.manifest
    return bool(known.copied_to) and store.is_sealed and known.unfinished is None


def send_away(store: RunStore) -> str:
    """Brings a run that is sealed and lacks nothing to the object storage it is to lie in, if any; where it lies then.

    Raises `StoreError`: it is whole in its folder then.
    """
    return store.send() if is_to_be_sent(store) else store.where


def unsent_text(store: RunStore) -> str:
    """Where a sealed run lies when `send_away` was broken off, and how to go on; for a screen."""
    address = store.manifest.copied_to
    if address and (store.run_dir / MANIFEST).exists():  # which goes first once all is there
        return f"not all of it is in {address}: squall resume {store.run_dir} brings it there"
    return f"the run is whole: {address or store.run_dir}"
