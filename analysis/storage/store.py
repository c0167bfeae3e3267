"""`RunStore`: a run directory that is append-only while the run lasts, then sealed.

    <name>-<UTC>-<4 hex>/
        manifest.json                       what ran, where, when, and the verdict; `state` is open or sealed
        tables/<table>/part-00000.parquet   zstd; only closed parts bear this name
        tables/<table>/part-00000.parquet.open   the part being written; has no footer yet, never read
        nsys/ logs/ summary.json report.html
        .new-<table>/                       a derived table being made anew; takes the place of the old one when whole
        .reserve                            disk space given up at the seal, so that a full disk can be sealed

A part is closed (footer, fsync, rename) after `PART_ROWS` rows or on `flush`. What a closed part holds
survives any later failure; what an open part held is lost with a write error, and stands in `losses`.
One process writes a run directory; every method may block on the disk.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.schema import TABLES
from squall.analysis.storage.aside import aside_of, drop_aside, put_back
from squall.analysis.storage.beneath import new_file, refuse_ways_out
from squall.analysis.storage.far_run import FarRun
from squall.analysis.storage.manifest_file import (
    MANIFEST,
    changed,
    read_document,
    refuse_own,
    with_losses,
)
from squall.analysis.storage.part import (
    FileOpener,
    NewParts,
    OpenPart,
    conform,
    differences,
    error_reason,
    make_unique,
    restore_folder,
    swap_folders,
    table_entry,
    write_atomically,
)
from squall.analysis.storage.places.local_folder import LocalFolder
from squall.analysis.storage.places.mirror import Mirror, is_of_run
from squall.analysis.storage.places.place import (
    FarPart,
    Part,
    Place,
    bytes_of,
    name_of,
    place_at,
    read_bytes,
    rows_of,
    sha256_of,
)
from squall.analysis.tables.manifest import OPEN, SEALED, Manifest, is_sealed_whole
from squall.analysis.tables.sealed import SealedTable, Unfinished, Verdict
from squall.scenarios.errors import MissingTable, Sealed, StoreError
from squall.scenarios.foreign_text import escaped, is_beneath

PART_ROWS = 1_000_000
"""Rows after which a part is closed and the next begun."""
RESERVE_BYTES = 256 * 1024
"""Real bytes held back on the disk: several times the manifest of a large run."""
RESERVE = ".reserve"
_PASSING = re.compile(
    r"\.(reserve|fetched)|\.(new|old|resumed|done|scratch|spill|brought)-.*|[0-9a-f]{16}-.*\.(new|open)"
)
"""What squall leaves in a run directory beside the run when it is killed."""
_DERIVED = ("summary.json", "report.html")
"""Files that are made of the tables, beside the derived ones."""


class RunStore:
    """One run directory. Made by `create` or `open`; both raise `StoreError` when that cannot be done."""

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        document: Mapping[str, Any],
        file_opener: FileOpener = new_file,
        far: FarRun | None = None,
    ) -> None:
        """`document`: the manifest as it stands on the disk, with what this version does not know. `far`: where the
        run lies, if not at `path`, which is a folder for what is passing then."""
        self.run_dir = path
        self._far = far
        self._mirror: Mirror | None = None
        self._manifest = manifest
        self._document = document
        self._open_file = file_opener
        self._parts: dict[str, OpenPart] = {}
        self._lost: list[str] = []

    @classmethod
    def create(
        cls,
        parent: Path,
        name: str,
        now_utc_ns: int,
        manifest: Manifest,
        file_opener: FileOpener = new_file,
    ) -> RunStore:
        """A new, open run directory `<name>-<YYYYMMDDTHHMMSSZ>-<4 hex>` under `parent`, made if need be.

        `manifest`: what is known of the run at its begin; the store's own fields it has not.
        """
        refuse_own(manifest, Manifest())
        if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name[0] == ".":
            raise StoreError(f"cannot create a run named {name!r}: use letters, digits, '-', '_' and '.'")
        stamp = datetime.fromtimestamp(now_utc_ns // 10**9, UTC).strftime("%Y%m%dT%H%M%SZ")
        try:
            run_dir = make_unique(Path(parent), f"{name}-{stamp}")
            store = cls(run_dir, Manifest(), {}, file_opener)
            store._reserve()
        except OSError as error:
            raise StoreError(f"cannot create the run directory {parent}: {error_reason(error)}") from error
        store._write_manifest(replace(manifest, run=run_dir.name))
        return store

    @classmethod
    def open(cls, path: Path | str, file_opener: FileOpener = new_file) -> RunStore:
        """The run directory at `path`, which may be an address such as `s3://bucket/prefix/RUN`, sealed or not. Raises
        `StoreError` if it is not one, or of another schema version."""
        place = place_at(str(path))
        if place is None:
            refuse_ways_out(Path(path))
            manifest, document = read_document(Path(path))
            return cls(Path(path), manifest, document, file_opener)
        manifest, document = read_document(place)
        far = FarRun(place, manifest.run)
        return cls(far.folder, manifest, document, file_opener, far)

    @property
    def where(self) -> str:
        """Where the run lies, for people and for `open`: a folder here, or an address of object storage."""
        return str(self.run_dir) if self._far is None else self._far.place.address

    @property
    def is_far(self) -> bool:
        """Whether it lies elsewhere than in a folder here."""
        return self._far is not None

    @property
    def run(self) -> str:
        """Name of the run: the name of the directory when it was made."""
        return self._manifest.run

    @property
    def manifest(self) -> Manifest:
        """The manifest as it stands on the disk."""
        return self._manifest

    @property
    def is_sealed(self) -> bool:
        """Whether the run is sealed: its raw tables will never change again."""
        return self._manifest.state == SEALED

    def append(self, table: str, batch: pa.Table | pa.RecordBatch) -> None:
        """Adds the rows of `batch` to `table`. Raises `Sealed`, `SchemaMismatch` or `StoreError` (disk).

        Text columns may come plain or dictionary-encoded; all else must be as the schema says. After a disk
        error the rows of the open part are gone and counted in `losses`; closed parts stay.
        """
        self._refuse_if_sealed()
        assert self._far is None, "a run is recorded in a folder here, and copied"
        if TABLES.get(table) is not None and TABLES[table].is_derived:
            raise StoreError(f"{table} is derived: write it with replace_derived")
        rows = conform(table, batch)
        try:
            part = self._parts.get(table) or self._open_part(table)
            part.write(rows)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(self._drop_part(table, error)) from error
        if part.n_rows >= PART_ROWS:
            self.flush(table)

    def flush(self, table: str | None = None) -> None:
        """Closes the open part of `table` (or of all): its rows are on disk and readable from now on."""
        for name in [table] if table else list(self._parts):
            if name not in self._parts:
                continue
            try:
                self._parts[name].close()
            except (OSError, pa.ArrowException) as error:
                raise StoreError(self._drop_part(name, error)) from error
            self._copy(name_of(self._parts.pop(name).path, self.run_dir))

    def has(self, table: str) -> bool:
        """Whether `table` has a closed part. A table whose source was not there is absent, not empty."""
        return bool(self.parts(table))

    def tables(self) -> list[str]:
        """Names of the tables that have a closed part, in the order of the schema."""
        return [name for name in TABLES if self.has(name)]

    def parts(self, table: str) -> Sequence[Part]:
        """The closed parts of `table`, wherever they lie, in the order written; empty if the table is absent."""
        return self._far.parts(table, self._manifest) if self._far is not None else self.path(table)

    def path(self, table: str) -> list[Path]:
        """The closed parts of `table` in the folder here, in the order written."""
        _, current, old = (self.run_dir / name for name in _folders(table))
        return sorted((current if current.is_dir() else old).glob("part-*.parquet"))

    def sizes(self, table: str) -> dict[str, int]:
        """The bytes of the closed parts of `table` that are there, by name from the run directory."""
        if self._far is None:
            return {name_of(part, self.run_dir): bytes_of(part) for part in self.path(table)}
        return {name: size for name, size in self._far.sizes.items() if name.startswith(f"tables/{table}/")}

    def read_text(self, name: str) -> str:
        """A file such as `summary.json`. Raises `StoreError`."""
        place = LocalFolder(self.run_dir) if self._far is None else self._far.place
        try:
            return read_bytes(place, name).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(
                f"{self.where}/{name} cannot be read: squall analyze {quote(self.where)}"
            ) from error

    def has_file(self, name: str) -> bool:
        """Whether a file such as `report.html` is there."""
        return (self.run_dir / name).exists() if self._far is None else name in self._far.sizes

    def folder(self, name: str) -> Path:
        """A folder of small files of another program's, such as `nsys`, to be read here: brought, where it lies far."""
        if self._far is not None:
            self._far.bring(name)
        return self.run_dir / name

    def read(
        self, table: str, columns: list[str] | None = None, keeps: pc.Expression | None = None
    ) -> pa.Table:
        """The rows of all closed parts of `table`, those that `keeps` is true of, in the order appended.

        Raises `MissingTable`.
        """
        parts = self.parts(table)
        if not parts:
            raise MissingTable(f"{self.where} has no table {table}")
        try:
            read = [rows_of(part, columns, keeps) for part in parts]
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"cannot read {table} of {self.where}: {error_reason(error)}") from error
        return pa.concat_tables(read).unify_dictionaries()

    def replace_derived(self, table: str, data: pa.Table | pa.RecordBatchReader) -> int:
        """Writes derived `table` anew as one part, before or after the seal, and returns its rows: `replacing`."""
        with self.replacing(table) as new:
            return new.write(0, data)

    @contextmanager
    def replacing(self, table: str) -> Iterator[NewParts]:
        """Derived `table` anew, in as many parts as are written within; a table without any becomes empty.

        The old parts stay until the block ends without an error, then all new ones take their place; a process that
        is killed in between leaves the one or the other, never both. The manifest of a sealed run is brought up to
        date after that. Raises `StoreError`.
        """
        if table not in TABLES or not TABLES[table].is_derived:
            raise StoreError(f"{table} is not a derived table: raw tables are never rewritten")
        if self._far is not None and not self.is_sealed:
            raise StoreError(
                f"{self.where} is not sealed: squall resume {quote(self.where)} finishes it first"
            )
        new, current, old = (self.run_dir / name for name in _folders(table))
        try:
            restore_folder(current, old)
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
        except OSError as error:
            raise StoreError(f"cannot write {table} of {self.run_dir}: {error_reason(error)}") from error
        try:
            yield NewParts(table, new, self._open_file)
            self._put_in_place(table)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _put_in_place(self, table: str) -> None:
        new, current, old = (self.run_dir / name for name in _folders(table))
        if not any(new.iterdir()):
            NewParts(table, new, self._open_file).write(0, TABLES[table].arrow().empty_table())
        try:
            swap_folders(new, current, old)
        except OSError as error:
            raise StoreError(f"cannot write {table} of {self.run_dir}: {error_reason(error)}") from error
        if self._far is not None:
            self._far.send_derived(
                table, partial(self._state_table, table), self._far.parts(table, self._manifest)
            )
            return
        for part in self.path(table):
            self._copy(name_of(part, self.run_dir))
        if self.is_sealed:
            self._state_table(table, table_entry(self.run_dir, self.path(table)))

    def _state_table(self, table: str, entry: SealedTable) -> None:
        self._write_manifest(replace(self._manifest, tables={**(self._manifest.tables or {}), table: entry}))

    def amend(self, manifest: Manifest) -> None:
        """Puts a changed manifest in the place of the old, on disk at once: `amend(replace(store.manifest, seed=7))`.

        Raises `Sealed`; `StoreError` where a field of the store's own is another.
        """
        self._refuse_if_sealed()
        refuse_own(manifest, self._manifest)
        self._write_manifest(manifest)

    def write_text(self, name: str, text: str) -> Path:
        """Writes `summary.json`, `report.html` or another file that can be made again; whole or not."""
        path = self._beneath(name)
        try:
            write_atomically(path, text.encode(), self._open_file)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error_reason(error)}") from error
        if self._far is not None:
            self._far.write(name, text.encode())
        self._copy(name)
        return path

    def write_file(self, name: str, pieces: Iterable[bytes]) -> Path:
        """Writes a file of another program's, `nsys/server-0/burst/….parquet`, from its pieces; whole or not."""
        path = self._beneath(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, b"".join(pieces), self._open_file)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error_reason(error)}") from error
        self._copy(name)
        return path

    def _beneath(self, name: str) -> Path:
        """Where a file of the run lies. Raises StoreError for a name, which others may have chosen, that leads away."""
        if not is_beneath(name):
            raise StoreError(f"{escaped(name)} is no name of a file in a run directory")
        return self.run_dir / name

    def seal(
        self, verdict: Verdict, unfinished: Unfinished | None = None, is_broken_off: bool = False
    ) -> None:
        """Closes all parts and states `verdict`.

        `unfinished` says where rows are that the run has not; `reopen` takes it up again then. `is_broken_off`: not all
        came back that was to come since `reopen`, so that what it put aside stays, and is where the next one begins.
        Frees the reserve first. A part that cannot be closed is dropped and stands in `losses`; with any loss
        of rows a VALID verdict becomes INVALID. Raises `StoreError` if the manifest cannot be written: the
        run then stays open, and `seal` may be called again.
        """
        self._refuse_if_sealed()
        self._release_reserve()
        for table in list(self._parts):
            try:
                self.flush(table)
            except StoreError:
                continue  # the loss is noted by `_drop_part` and judged below
        self._remove_unfinished()
        manifest = replace(
            self._manifest,
            state=SEALED,
            tables={table: table_entry(self.run_dir, self.path(table)) for table in self.tables()},
            losses=(*self._manifest.losses, *self._lost),
            verdict=with_losses(verdict, tuple(self._lost)),
            disk_losses=tuple(self._lost),
            unfinished=unfinished,
        )
        if unfinished is None or not (is_broken_off or self._lost):
            try:
                drop_aside(self.run_dir, TABLES)
            except OSError as error:
                raise StoreError(f"cannot seal {self.run_dir}: {error_reason(error)}") from error
        self._write_manifest(manifest)

    def reopen(self, tables: Iterable[str], keeps: Callable[[str, pa.Table], pa.Table]) -> None:
        """Takes up a run that is open, or sealed as unfinished: of raw `tables` only the rows that `keeps` gives stay,
        which is told name and rows.

        The rows that were there lie beside the tables until the run is sealed; what is derived goes. Raises `Sealed`
        for a run that is finished, `StoreError` where the disk has no room.
        """
        known = self._manifest
        if self.is_sealed and known.unfinished is None:
            raise Sealed(f"{self.run_dir} is sealed and whole")
        self._release_reserve()
        try:
            self._reserve()
            self._write_manifest(_opened(known))
            self._remove_unfinished()
            put_back(self.run_dir, TABLES)
            for name in self.tables():
                if TABLES[name].is_derived:
                    shutil.rmtree(self.run_dir / "tables" / name)
            for name in tables:
                self._put_aside(name, keeps)
        except OSError as error:
            (self.run_dir / RESERVE).unlink(missing_ok=True)
            raise StoreError(f"cannot write to {self.run_dir}: {error_reason(error)}") from error

    def _put_aside(self, table: str, keeps: Callable[[str, pa.Table], pa.Table]) -> None:
        aside, current = aside_of(self.run_dir, table), self.run_dir / "tables" / table
        if current.is_dir():
            current.rename(aside)
        n_kept = 0
        for part in sorted(aside.glob("part-*.parquet")):
            kept = keeps(table, rows_of(part))
            n_kept += len(kept)
            if len(kept):
                self.append(table, kept)
        self.flush(table)
        if not n_kept:  # its room is wanted
            shutil.rmtree(aside, ignore_errors=True)

    def verify(self) -> list[str]:
        """What differs between a sealed run's files and its manifest, a line each; empty if nothing does."""
        if not self.is_sealed:
            raise StoreError(f"{self.run_dir} is not sealed: it has no checksums yet")
        stated = self._manifest.tables or {}
        names = sorted({*stated, *self.tables()})
        return [
            line for name in names for line in differences(self.run_dir, self.parts(name), stated.get(name))
        ]

    def copy_to(self, place: Place) -> None:
        """From now on whatever is whole is copied to `place` too, in the background; `send` ends that.

        Raises `StoreError` where that does not take the manifest.
        """
        self._write_manifest(replace(self._manifest, copied_to=place.address))
        try:
            place.write(MANIFEST, (self.run_dir / MANIFEST).read_bytes())
        except OSError as error:
            raise StoreError(f"cannot write to {place.address}: {error_reason(error)}") from error
        self._mirror = Mirror(self.run_dir, place)

    def send(self, address: str) -> str:
        """Makes the copy at `address`, which the user named, whole, its manifest last, and removes what is of the run
        here; the address.

        Where nothing lies there, a manifest that says `open` goes first: by that a sending which was broken off is
        known. Raises `StoreError`, also where something else lies there: all is still here then.
        """
        place = place_at(address)
        assert place is not None, "it was looked at when it was given"
        refuse_ways_out(self.run_dir)
        try:
            has_there = self._refuse_other(place)
            if self._manifest.copied_to != address:
                self._write_manifest(replace(self._manifest, copied_to=address))
            if not has_there:
                place.write(MANIFEST, self._as_written(_opened(self._manifest))[1])
            (self._mirror or Mirror(self.run_dir, place)).finish(MANIFEST)
        except OSError as error:
            raise StoreError(f"cannot write to {address}: {error_reason(error)}") from error
        (self.run_dir / MANIFEST).unlink(missing_ok=True)  # first: a folder that is half removed is no run
        own = [one for one in self.run_dir.iterdir() if is_of_run(one.name) or _PASSING.fullmatch(one.name)]
        for path in own:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # files of a user's stay
            self.run_dir.rmdir()
        return address

    def _refuse_other(self, place: Place) -> bool:
        """Whether this run, or a part of it, lies there. Raises StoreError where something else does, OSError."""
        found = place.sizes()
        if not found:
            return False
        told = "has something else: remove that, or name another place by --out"
        if MANIFEST in found:
            there, document = read_document(place)
            if (there.run, there.started_ns) == (self.run, self._manifest.started_ns):
                # sealed whole: sent by another process, or all of it there
                is_settled = self._mirror is None and is_sealed_whole(document)
                if not is_settled or self._is_alike(there, place, found):
                    return True
                told = (
                    "has this run with other records or logs, and stays as it is: name another place by --out"
                )
        raise StoreError(f"{place.address} {told}")

    def _is_alike(self, there: Manifest, place: Place, found: Mapping[str, int]) -> bool:
        """Whether the sealed run in `place` is this one, file by file, but for what is derived: that can be made again
        of the rest, by each squall in its way. Raises OSError."""

        def is_raw(name: str) -> bool:
            """Of a table, or of a file or folder in the run directory."""
            return name not in _DERIVED and not (name in TABLES and TABLES[name].is_derived)

        def is_same(name: str, size: int) -> bool:
            path = self.run_dir / name
            return (
                path.is_file()
                and path.stat().st_size == size
                and sha256_of(path) == sha256_of(FarPart(place, name))
            )

        mine, theirs = (
            replace(
                one,
                copied_to="",
                tables={name: entry for name, entry in (one.tables or {}).items() if is_raw(name)},
            )
            for one in (self._manifest, there)
        )
        return mine == theirs and all(
            is_same(name, size)
            for name, size in found.items()
            if is_of_run(name) and name != MANIFEST and is_raw(name.removeprefix("tables/").split("/")[0])
        )

    def _copy(self, name: str, content: bytes | None = None) -> None:
        if self._mirror is not None:
            self._mirror.put(name, content)

    def _refuse_if_sealed(self) -> None:
        if self.is_sealed:
            raise Sealed(f"{self.run_dir} is sealed")

    def _open_part(self, table: str) -> OpenPart:
        directory = self.run_dir / "tables" / table
        directory.mkdir(parents=True, exist_ok=True)
        part = OpenPart(directory / f"part-{len(self.path(table)):05d}.parquet", table, self._open_file)
        self._parts[table] = part
        return part

    def _drop_part(self, table: str, error: Exception) -> str:
        """Removes the open part of `table`, notes the loss for the seal, and returns it as a line."""
        part = self._parts.pop(table, None)
        n_lost = part.drop() if part is not None else 0
        loss = f"{table}: at least {n_lost} rows were lost: {error_reason(error)}"
        self._lost.append(loss)
        return f"cannot write to {self.run_dir}: {loss}"

    def _remove_unfinished(self) -> None:
        """Removes parts without a footer that a process left behind when it died."""
        for leftover in (*(self.run_dir / "tables").glob("*/*.open"), *self.run_dir.glob("*.new")):
            leftover.unlink(missing_ok=True)

    def _write_manifest(self, manifest: Manifest) -> None:
        path = self.run_dir / MANIFEST
        try:
            document, content = self._as_written(manifest)
            if self._far is not None:
                self._far.write(MANIFEST, content)
            else:
                write_atomically(path, content, self._open_file)
        except (OSError, TypeError, ValueError) as error:
            raise StoreError(f"cannot write {self.where}/{MANIFEST}: {error_reason(error)}") from error
        self._copy(MANIFEST, content)
        self._manifest, self._document = manifest, document

    def _as_written(self, manifest: Manifest) -> tuple[dict[str, Any], bytes]:
        """The document that `manifest` is, and its file. Raises TypeError, ValueError."""
        document = changed(self._document, self._manifest, manifest)
        return document, json.dumps(document, indent=2, allow_nan=False).encode() + b"\n"

    def _reserve(self) -> None:
        # Random bytes: a compressing or sparse file system would hold back nothing for zeros.
        with self._open_file(self.run_dir / RESERVE) as file:
            file.write(os.urandom(RESERVE_BYTES))
            file.flush()
            os.fsync(file.fileno())

    def _release_reserve(self) -> None:
        try:
            (self.run_dir / RESERVE).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot seal {self.run_dir}: {error_reason(error)}") from error


def _opened(manifest: Manifest) -> Manifest:
    """It without what the seal stated."""
    return replace(
        manifest,
        state=OPEN,
        losses=tuple(loss for loss in manifest.losses if loss not in manifest.disk_losses),
        tables=None,
        verdict=None,
        disk_losses=(),
        unfinished=None,
    )


def _folders(table: str) -> tuple[str, str, str]:
    """Where a derived table is made anew, where it lies, and where the old one lies while they change places."""
    return f".new-{table}", f"tables/{table}", f".old-{table}"
