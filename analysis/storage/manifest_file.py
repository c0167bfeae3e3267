"""manifest.json as a file: read and checked, changed without losing what this version does not know."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from squall.analysis.record import to_json
from squall.analysis.storage.beneath import read_plain
from squall.analysis.storage.manifest import OWN_FIELDS, Manifest, read_manifest
from squall.analysis.storage.object_folder import ObjectFolder
from squall.analysis.storage.part import error_reason
from squall.analysis.storage.schema import SCHEMA_VERSION
from squall.scenarios.errors import StoreError
from squall.scenarios.foreign_text import escaped, json_of

MANIFEST = "manifest.json"
_MOST_BYTES = 64 * 1024**2
"""2,500 times that of a small run: large ones have thousands of workers and clock tracks."""


def read_document(lies: Path | ObjectFolder) -> tuple[Manifest, Mapping[str, Any]]:
    """The manifest of the run directory `lies`, and its file with what this version does not know of.

    Raises `StoreError` where there is none, or one that cannot be read here.
    """
    path = lies.address if isinstance(lies, ObjectFolder) else lies
    try:
        document = json_of(
            lies.read(MANIFEST, _MOST_BYTES)
            if isinstance(lies, ObjectFolder)
            else read_plain(lies / MANIFEST, _MOST_BYTES)
        )
    except (OSError, ValueError) as error:
        reason = error_reason(error) if isinstance(error, OSError) else f"{MANIFEST} is not JSON"
        raise StoreError(f"{path} is not a run directory: {reason}") from error
    if not isinstance(document, dict) or "state" not in document or "run" not in document:
        raise StoreError(f"{path} is not a run directory: {MANIFEST} states no run and state")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has tables of schema version {escaped(str(version))}; this squall reads version {SCHEMA_VERSION}: "
            "analyze it with the squall that wrote it, or run again"
        )
    if document.get("kept"):
        raise StoreError(
            f"{path}: rows of this run are not in it, but on the nodes that recorded them: bring them with squall"
            " resume of the squall that recorded it, or run again"
        )
    try:
        return read_manifest(document), document
    except StoreError as error:
        raise StoreError(f"{path} has a manifest that squall did not write: {error}") from error


def refuse_own(manifest: Manifest, known: Manifest) -> None:
    """Raises StoreError where a field that only the store writes differs."""
    if own := [name for name in OWN_FIELDS if getattr(manifest, name) != getattr(known, name)]:
        raise StoreError(f"the manifest field {own[0]} is written by the store alone")


def changed(document: Mapping[str, Any], before: Manifest, after: Manifest) -> dict[str, Any]:
    """`document`, which is `before` on the disk, as `after`. What did not change stays, and so do keys not known."""
    stated: dict[str, Any] = to_json(after)
    known, changes = vars(before), vars(after)
    stays = {
        name for name in document if name not in known or (name in stated and known[name] == changes[name])
    }
    return {**stated, **{name: document[name] for name in document if name in stays}}
