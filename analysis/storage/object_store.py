"""`ObjectRunStore`: a run that lies in object storage, whose tables are read and written there. It is recorded in a
folder here, and copied.

A new part of a derived table has a name of its own and counts from when the manifest names it, which changes at once.
"""

from __future__ import annotations

import fnmatch
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from shlex import quote
from tempfile import mkdtemp
from weakref import finalize

from squall.analysis.storage.beneath import MOST_SMALL_BYTES
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.manifest_file import read_document
from squall.analysis.storage.object_folder import PASSING, ObjectFile, ObjectFolder
from squall.analysis.storage.part import NewParts, disk_errors
from squall.analysis.storage.store import DERIVED, RunStore
from squall.scenarios.errors import SquallError, StoreError


class ObjectRunStore(RunStore):
    """The run at an address. `run_dir` is a temporary folder, gone with this object: for what queries spill, and for
    copies of other programs' files."""

    def __init__(self, place: ObjectFolder) -> None:
        manifest, document = read_document(place)
        passing = Path(mkdtemp(prefix="squall-run-"))
        finalize(self, shutil.rmtree, passing, ignore_errors=True)
        super().__init__(passing / manifest.run, manifest, document)
        self._place = place
        (self.run_dir / "tables").mkdir(parents=True)

    @property
    def where(self) -> str:
        return self._place.address

    @cached_property
    def _there(self) -> dict[str, int]:
        """The bytes of its files by name: when first asked for, and of those written since."""
        with disk_errors(f"cannot read {self.where}"):
            return self._place.sizes()

    def _part(self, name: str) -> ObjectFile:
        return ObjectFile(self._place, name)

    def _part_names(self, table: str) -> list[str]:
        if self.is_sealed:
            return [file.path for file in self._sealed(table).files]
        return fnmatch.filter(self._there, f"tables/{table}/part-*.parquet")

    def size(self, name: str) -> int | None:
        return self._there.get(name)

    def read_bytes(self, name: str, most_bytes: int = MOST_SMALL_BYTES) -> bytes:
        return self._place.read(name, most_bytes)

    def folder(self, name: str) -> Path:
        for file in self._there:
            if file.startswith(f"{name}/") and not (self.run_dir / file).exists():
                with disk_errors(f"cannot read {self.where}/{file}"):
                    self._place.fetch(file, self.run_dir / file)
        return self.run_dir / name

    def passing(self) -> AbstractContextManager[ObjectFolder]:
        return self._place.passing()

    def sweep(self) -> None:
        """Removes whatever the manifest does not name: of two analyses at a time one is too many."""
        if not self.is_sealed:
            return
        if not self._is_own():  # what it does not name may be another's by now
            raise StoreError(self._changed())
        named = _files_of(self.manifest)
        self._place.remove_all(
            name
            for name in self._there
            if name.startswith(PASSING)
            or (name.startswith("tables/") and DERIVED.fullmatch(name) and name not in named)
        )

    @contextmanager
    def _replacing(self, table: str) -> Iterator[NewParts]:
        if not self.is_sealed:
            raise StoreError(
                f"{self.where} is not sealed: squall resume {quote(self.where)} finishes it first"
            )
        parts = NewParts(table, self._place, mark=f"-{secrets.token_hex(4)}")
        before = self._part_names(table)
        try:
            yield parts
            with disk_errors(f"cannot write {table} of {self.where}"):
                there = self._place.sizes()
            if not self._is_own() or any(there.get(file.path) != file.bytes for file in parts.files.values()):
                raise StoreError(self._changed())
            self._state(parts)
        except BaseException:
            with suppress(OSError, SquallError):  # a manifest that cannot be read may name them
                new = fnmatch.filter(self._place.sizes(), f"tables/{table}/part-*{parts.mark}.parquet")
                named = _files_of(read_document(self._place)[0])
                self._place.remove_all(name for name in new if name not in named)
            raise
        self._place.remove_all(before)
        self._there.update({file.path: file.bytes for file in parts.files.values()})

    def _is_own(self) -> bool:
        """Whether the manifest there still is the one that this object knows."""
        return read_document(self._place)[0] == self.manifest

    def _changed(self) -> str:
        return f"{self.where} was changed by another process meanwhile: squall analyze {quote(self.where)}"

    def _put(self, name: str, pieces: Iterable[bytes]) -> None:
        content = b"".join(pieces)
        self._place.write(name, content)
        self._there[name] = len(content)


def _files_of(manifest: Manifest) -> set[str]:
    """The parts that it names."""
    return {file.path for table in (manifest.tables or {}).values() for file in table.files}
