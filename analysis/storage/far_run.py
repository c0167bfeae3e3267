"""A run that lies elsewhere, opened to be read and analysed: its files there, and a folder here for what is passing."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from weakref import finalize

from squall.analysis.storage.part import error_reason, table_entry
from squall.analysis.storage.places.place import FarPart, Place, fetch
from squall.analysis.tables.manifest import SEALED, Manifest
from squall.analysis.tables.sealed import SealedTable
from squall.scenarios.errors import StoreError


class FarRun:
    """The files of one run in `place`. The folder here goes with it. Methods raise StoreError."""

    def __init__(self, place: Place, run: str) -> None:
        self.place = place
        passing = mkdtemp(prefix="squall-run-")
        finalize(self, shutil.rmtree, passing, ignore_errors=True)
        self.folder = Path(passing) / run
        (self.folder / "tables").mkdir(parents=True)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The bytes of the files that lay there when first asked for, by name."""
        try:
            return self.place.sizes()
        except OSError as error:
            raise StoreError(f"cannot read {self.place.address}: {error_reason(error)}") from error

    def parts(self, table: str, manifest: Manifest) -> list[FarPart]:
        """Of a sealed run what the manifest names, so that a derived table changes at once, when that does."""
        if manifest.state == SEALED:
            stated = (manifest.tables or {}).get(table, SealedTable())
            return [FarPart(self.place, file.path) for file in stated.files]
        begin = f"tables/{table}/part-"
        names = [name for name in self.sizes if name.startswith(begin) and name.endswith(".parquet")]
        return [FarPart(self.place, name) for name in names]

    def bring(self, under: str) -> None:
        """Brings the files under a folder, such as `nsys`, into the folder here."""
        try:
            for name in self.sizes:
                if name.startswith(f"{under}/") and not (self.folder / name).exists():
                    fetch(self.place, name, self.folder / name)
        except OSError as error:
            raise StoreError(f"cannot read {self.place.address}/{under}: {error_reason(error)}") from error

    def write(self, name: str, content: bytes) -> None:
        """Puts a small file there."""
        try:
            self.place.write(name, content)
        except OSError as error:
            raise StoreError(f"cannot write {self.place.address}/{name}: {error_reason(error)}") from error
        self.sizes[name] = len(content)

    def send_derived(self, table: str, state: Callable[[SealedTable], None], before: list[FarPart]) -> None:
        """The parts of `table` in the folder here take the place of `before` there, when `state` puts the manifest."""
        made = secrets.token_hex(4)
        here = sorted((self.folder / "tables" / table).glob("part-*.parquet"))
        entry = table_entry(self.folder, here)
        files = tuple(
            replace(one, path=one.path.replace(".parquet", f"-{made}.parquet")) for one in entry.files
        )
        try:
            for path, file in zip(here, files, strict=True):
                self.place.send(file.path, path)
                path.unlink()
            state(replace(entry, files=files))
            for part in before:
                self.place.remove(part.file)
        except OSError as error:
            told = f"cannot write {table} of {self.place.address}: {error_reason(error)}"
            raise StoreError(told) from error
