"""`RunStore`: a run directory that is append-only while the run lasts, then sealed.

    <name>-<UTC>-<4 hex>/
        manifest.json                       what ran, where, when, and the verdict; `state` is open or sealed
        tables/<table>/part-00000.parquet   zstd; only closed parts bear this name
        tables/<table>/….parquet.open       the part being written; has no footer yet, never read
        nsys/ logs/ summary.json run.parquet report.html
        .new-<table>/                       a derived table being made anew; takes the place of the old one when whole
        .resumed/<table>/                   a table as it was before the run was taken up again, until it is sealed
        .reserve                            disk space given up at the seal, so that a full disk can be sealed

A part is closed (footer, fsync, rename) after `PART_ROWS` rows or on `flush`. What a closed part holds
survives any later failure; what an open part held is lost with a write error, and stands in `losses`.
One process writes a run directory; every method may block on the disk.

A run may lie in object storage instead: `squall.analysis.storage.object_store`.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squall.analysis.storage.beneath import (
    MOST_SMALL_BYTES,
    FileOpener,
    new_file,
    read_plain,
    refuse_ways_out,
    write_atomically,
)
from squall.analysis.storage.held_folder import held_folder, sweep_folders
from squall.analysis.storage.manifest import OPEN, SEALED, Manifest
from squall.analysis.storage.manifest_file import MANIFEST, changed, read_document, refuse_own
from squall.analysis.storage.mirror import Mirror, is_of_run
from squall.analysis.storage.nsys import TIED_TABLES
from squall.analysis.storage.object_folder import ObjectFile, ObjectFolder, Part, place_at
from squall.analysis.storage.parquet import parquet_file, rows_of, sha256_of
from squall.analysis.storage.part import NewParts, OpenPart, conform, disk_errors, error_reason
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.sealed import SealedFile, SealedTable, Unfinished, Verdict
from squall.scenarios.errors import MissingTable, Sealed, StoreError
from squall.scenarios.foreign_text import escaped, is_beneath

PART_ROWS = 1_000_000
"""Rows after which a part is closed and the next begun."""
RESERVE_BYTES = 256 * 1024
"""Real bytes held back on the disk: several times the manifest of a large run."""
RESERVE = ".reserve"
_RESUMED, _RESUMED_DONE = ".resumed", ".done"
_DERIVED_TABLES = "|".join(name for name, table in TABLES.items() if table.is_derived)
DERIVED = re.compile(
    rf"manifest\.json|summary\.json|run\.parquet|report\.html|tables/({_DERIVED_TABLES})(/.*)?"
)
"""Files of a run that are made of others, and the folders of such tables."""
_PASSING = re.compile(
    r"\.(reserve|fetched|resumed|done|brought)|\.(new|old|spill)-.*|[0-9a-f]{16}-.*\.(new|open)"
)
"""What squall leaves in a run directory beside the run when it is killed."""


class RunStore:
    """One run directory. Made by `create` or `open`; both raise `StoreError` when that cannot be done."""

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        document: Mapping[str, Any],
        file_opener: FileOpener = new_file,
    ) -> None:
        """`document`: the manifest as it stands on the disk, with what this version does not know."""
        self.run_dir = path
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
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise StoreError(f"cannot create a run named {name!r}: use letters, digits, '-', '_' and '.'")
        stamp = datetime.fromtimestamp(now_utc_ns // 10**9, UTC).strftime("%Y%m%dT%H%M%SZ")
        with disk_errors(f"cannot create the run directory {parent}"):
            run_dir = _make_unique(Path(parent), f"{name}-{stamp}")
            store = cls(run_dir, Manifest(), {}, file_opener)
            store._reserve()
        store._write_manifest(replace(manifest, run=run_dir.name))
        return store

    @staticmethod
    def open(path: Path | str, file_opener: FileOpener = new_file) -> RunStore:
        """The run directory at `path`, which may be an address such as `s3://bucket/prefix/RUN`, sealed or not. Raises
        `StoreError` if it is not one, or of another schema version."""
        if place := place_at(str(path)):
            from squall.analysis.storage.object_store import ObjectRunStore

            return ObjectRunStore(place)
        refuse_ways_out(Path(path))
        return RunStore(Path(path), *read_document(Path(path)), file_opener)

    @property
    def where(self) -> str:
        """Where the run lies, for people and for `open`: a folder here, or an address of object storage."""
        return str(self.run_dir)

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
        if table in TABLES and TABLES[table].is_derived:
            raise StoreError(f"{table} is derived: write it with replace_derived")
        rows = conform(table, batch)
        with self._dropped_on_error(table):
            if table not in self._parts:
                path = self.run_dir / "tables" / table / f"part-{len(self.parts(table)):05d}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                self._parts[table] = OpenPart(path, table, self._open_file)
            self._parts[table].write(rows)
        if self._parts[table].n_rows >= PART_ROWS:
            self.flush(table)

    def flush(self, table: str | None = None) -> None:
        """Closes the open part of `table` (or of all): its rows are on disk and readable from now on."""
        for name in [table] if table else list(self._parts):
            if name in self._parts:
                with self._dropped_on_error(name):
                    self._parts[name].close()
                self._copy(f"tables/{name}/{self._parts.pop(name).path.name}")

    @contextmanager
    def _dropped_on_error(self, table: str) -> Iterator[None]:
        """On an error of the disk removes the open part of `table`, notes the loss for the seal, and raises it as
        StoreError."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            part = self._parts.pop(table, None)
            n_lost = part.drop() if part is not None else 0
            loss = f"{table}: at least {n_lost} rows were lost: {error_reason(error)}"
            self._lost.append(loss)
            raise StoreError(f"cannot write to {self.run_dir}: {loss}") from error

    def has(self, table: str) -> bool:
        """Whether `table` has a closed part. A table whose source was not there is absent, not empty."""
        return bool(self._part_names(table))

    def tables(self) -> list[str]:
        """Names of the tables that have a closed part, in the order of the schema."""
        return [name for name in TABLES if self.has(name)]

    def n_rows(self, table: str) -> int:
        """The rows of all closed parts of `table`."""
        with disk_errors(f"cannot read {table} of {self.where}"):
            return sum(parquet_file(part).metadata.num_rows for part in self.parts(table))

    def parts(self, table: str) -> list[Part]:
        """The closed parts of `table`, in the order written; empty if the table is absent."""
        return [*self.files(table).values()]

    def files(self, table: str) -> dict[str, Part]:
        """The same by their names in the run directory."""
        return {name: self._part(name) for name in self._part_names(table)}

    def _part(self, name: str) -> Part:
        return self.run_dir / name

    def size(self, name: str) -> int | None:
        """The bytes of a file; None where there is none."""
        path = self.run_dir / name
        return path.stat().st_size if path.exists() else None

    def _part_names(self, table: str) -> list[str]:
        _, current, old = _folders(table)
        folder = current if (self.run_dir / current).is_dir() else old
        try:
            names = os.listdir(self.run_dir / folder)
        except OSError:
            return []
        return [f"{folder}/{name}" for name in sorted(fnmatch.filter(names, "part-*.parquet"))]

    def read_bytes(self, name: str, most_bytes: int = MOST_SMALL_BYTES) -> bytes:
        """A small file. Raises OSError."""
        return read_plain(self.run_dir / name, most_bytes)

    def read_text(self, name: str) -> str:
        """A file such as `summary.json`. Raises `StoreError`."""
        try:
            return self.read_bytes(name).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(
                f"{self.where}/{name} cannot be read: squall analyze {quote(self.where)}"
            ) from error

    def has_file(self, name: str) -> bool:
        """Whether a file such as `report.html` is there."""
        return self.size(name) is not None

    def folder(self, name: str) -> Path:
        """A folder of small files of another program's, such as `nsys`: of a run in object storage a copy."""
        return self.run_dir / name

    def passing(self) -> AbstractContextManager[Path | ObjectFolder]:
        """A new folder for what the tasks of an analysis share, wherever they run; gone at the end. Raises StoreError
        where none can be made."""
        return held_folder(self.run_dir)

    def sweep(self) -> None:
        """Removes what an analysis left that was killed."""
        sweep_folders(self.run_dir)

    def read(
        self, table: str, columns: list[str] | None = None, keeps: pc.Expression | None = None
    ) -> pa.Table:
        """The rows of all closed parts of `table`, those that `keeps` is true of, in the order appended.

        Raises `MissingTable`.
        """
        parts = self.parts(table)
        if not parts:
            raise MissingTable(f"{self.where} has no table {table}")
        with disk_errors(f"cannot read {table} of {self.where}"):
            return pa.concat_tables([rows_of(part, columns, keeps) for part in parts]).unify_dictionaries()

    def replace_derived(self, table: str, data: pa.Table | pa.RecordBatchReader) -> int:
        """Writes derived `table` anew as one part, before or after the seal, and returns its rows: `replacing`."""
        with self.replacing(table) as new:
            return new.write(0, data).rows

    @contextmanager
    def replacing(self, table: str) -> Iterator[NewParts]:
        """Derived `table` anew, in as many parts as are written within; a table without any becomes empty. In an open
        run also a raw one whose rows are to get their batches (`TIED_TABLES`).

        The old parts stay until the block ends without an error, then all new ones take their place; a process that
        is killed in between leaves the one or the other, never both. The manifest of a sealed run is brought up to
        date after that. Raises `StoreError`.
        """
        is_open = not self.is_sealed and table in TIED_TABLES
        if table not in TABLES or not (is_open or TABLES[table].is_derived):
            raise StoreError(f"{table} is not a derived table: raw tables are never rewritten")
        with self._replacing(table) as parts:
            yield parts
            if not parts.files:
                parts.write(0, TABLES[table].arrow().empty_table())

    @contextmanager
    def _replacing(self, table: str) -> Iterator[NewParts]:
        new, current, old = (self.run_dir / name for name in _folders(table))
        with disk_errors(f"cannot write {table} of {self.where}"):
            _restore(current, old)
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
        parts = NewParts(table, new, self._open_file)
        try:
            yield parts
            with disk_errors(f"cannot write {table} of {self.where}"):
                _swap(new, current, old)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        for file in parts.files.values():
            self._copy(file.path)
        if self.is_sealed:
            self._state(parts)

    def _state(self, parts: NewParts) -> None:
        """Has the manifest name the new parts of a derived table."""
        files = tuple(file for _, file in sorted(parts.files.items()))
        self._write_manifest(
            replace(self._manifest, tables={**(self._manifest.tables or {}), parts.table: _table_of(files)})
        )

    def _sealed(self, table: str) -> SealedTable:
        """What the manifest states of a table."""
        return (self._manifest.tables or {}).get(table, SealedTable())

    def _sealed_table(self, names: list[str]) -> SealedTable:
        """What a manifest is to state of a table of these parts."""
        return _table_of(
            tuple(
                SealedFile(
                    path=name,
                    rows=pq.read_metadata(path).num_rows,
                    bytes=path.stat().st_size,
                    sha256=sha256_of(path),
                )
                for name in names
                for path in [self.run_dir / name]
            )
        )

    def amend(self, manifest: Manifest) -> None:
        """Puts a changed manifest in the place of the old, on disk at once: `amend(replace(store.manifest, seed=7))`.

        Raises `Sealed`; `StoreError` where a field of the store's own is another.
        """
        self._refuse_if_sealed()
        refuse_own(manifest, self._manifest)
        self._write_manifest(manifest)

    def write_text(self, name: str, text: str) -> Path:
        """Writes `summary.json`, `report.html` or another file that can be made again; whole or not."""
        return self.write_file(name, [text.encode()])

    def write_file(self, name: str, pieces: Iterable[bytes]) -> Path:
        """Writes a file, such as `nsys/server-0/burst/….parquet` of another program's, from its pieces; whole or not.

        Raises StoreError, also for a name, which others may have chosen, that leads out of the run directory.
        """
        if not is_beneath(name):
            raise StoreError(f"{escaped(name)} is no name of a file in a run directory")
        path = self.run_dir / name
        with disk_errors(f"cannot write {self.where}/{name}"):
            self._put(name, pieces)
        self._copy(name)
        return path

    def _put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Has a file there, whole or not. Raises OSError."""
        path = self.run_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, pieces, self._open_file)

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
        with disk_errors(f"cannot seal {self.run_dir}"):
            (self.run_dir / RESERVE).unlink(missing_ok=True)
        for table in list(self._parts):
            with suppress(StoreError):  # the loss is noted, and judged below
                self.flush(table)
        self._remove_unfinished()
        lost = tuple(self._lost)
        if lost and verdict.status == "VALID":
            verdict = replace(verdict, status="INVALID", reasons=(*verdict.reasons, *lost))
        manifest = replace(
            self._manifest,
            state=SEALED,
            tables={table: self._sealed_table(self._part_names(table)) for table in self.tables()},
            losses=(*self._manifest.losses, *lost),
            verdict=verdict,
            disk_losses=lost,
            unfinished=unfinished,
        )
        if unfinished is None or not (is_broken_off or lost):
            aside, done = self.run_dir / _RESUMED, self.run_dir / _RESUMED_DONE
            with disk_errors(f"cannot seal {self.run_dir}"):
                shutil.rmtree(done, ignore_errors=True)
                if aside.is_dir():
                    aside.rename(done)  # half of it must never be put back
                    shutil.rmtree(done, ignore_errors=True)
        self._write_manifest(manifest)

    def reopen(self, tables: Iterable[str], keeps: Callable[[str, pa.Table], pa.Table]) -> None:
        """Takes up a run that is open, or sealed as unfinished: of raw `tables` only the rows that `keeps` gives stay,
        which is told name and rows.

        The rows that were there lie beside the tables until the run is sealed; what is derived goes. Raises `Sealed`
        for a run that is finished, `StoreError` where the disk has no room.
        """
        if self._manifest.is_whole:
            raise Sealed(f"{self.run_dir} is sealed and whole")
        reserve, aside = self.run_dir / RESERVE, self.run_dir / _RESUMED
        try:
            reserve.unlink(missing_ok=True)
            self._reserve()
            self._write_manifest(_opened(self._manifest))
            self._remove_unfinished()
            aside.mkdir(exist_ok=True)
            for name in TABLES:
                current = self.run_dir / "tables" / name
                _restore(current, self.run_dir / _folders(name)[2])
                if (aside / name).is_dir():  # of an attempt that was broken off
                    shutil.rmtree(current, ignore_errors=True)
                    (aside / name).rename(current)
                if TABLES[name].is_derived:
                    shutil.rmtree(current, ignore_errors=True)
            for name in tables:
                self._put_aside(name, aside / name, keeps)
        except OSError as error:
            reserve.unlink(missing_ok=True)
            raise StoreError(f"cannot write to {self.run_dir}: {error_reason(error)}") from error

    def _put_aside(self, table: str, aside: Path, keeps: Callable[[str, pa.Table], pa.Table]) -> None:
        current = self.run_dir / "tables" / table
        if current.is_dir():
            current.rename(aside)
        for part in sorted(aside.glob("part-*.parquet")):
            rows = keeps(table, rows_of(part))
            if len(rows):
                self.append(table, rows)
        self.flush(table)
        if not self.has(table):  # its room is wanted
            shutil.rmtree(aside, ignore_errors=True)

    def verify(self, tables: Iterable[str] = TABLES, is_read: bool = True) -> list[str]:
        """What differs between the parts of `tables` of a sealed run and its manifest, a line each that begins with the
        file; empty if nothing does. Unless `is_read`, their sizes alone are compared."""
        if not self.is_sealed:
            raise StoreError(f"{self.run_dir} is not sealed: it has no checksums yet")
        changes = []
        for table in tables:
            stated = {file.path: file for file in self._sealed(table).files}
            found = {name: self.size(name) for name in self._part_names(table)}
            for name in sorted({*stated, *found}):
                if found.get(name) is None:
                    changes.append(f"{name} is missing")
                elif name not in stated:
                    changes.append(f"{name} is not in the manifest")
                else:
                    with disk_errors(f"cannot read {self.where}/{name}"):
                        if found[name] != stated[name].bytes or (
                            is_read and sha256_of(self._part(name)) != stated[name].sha256
                        ):
                            changes.append(f"{name} has changed since the seal")
        return changes

    def copy_to(self, place: ObjectFolder) -> None:
        """From now on whatever is whole is copied to `place` too, in the background; `send` ends that.

        Raises `StoreError` where that does not take the manifest.
        """
        self._write_manifest(replace(self._manifest, copied_to=place.address))
        with disk_errors(f"cannot write to {place.address}"):
            place.send(MANIFEST, self.run_dir / MANIFEST)
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
        with disk_errors(f"cannot write to {address}"):
            has_there = self._refuse_other(place)
            if self._manifest.copied_to != address:
                self._write_manifest(replace(self._manifest, copied_to=address))
            if not has_there:
                place.write(MANIFEST, self._as_written(_opened(self._manifest))[1])
            (self._mirror or Mirror(self.run_dir, place)).finish(MANIFEST)
        (self.run_dir / MANIFEST).unlink(missing_ok=True)  # first: a folder that is half removed is no run
        for path in [*self.run_dir.iterdir()]:
            if not is_of_run(path.name) and not _PASSING.fullmatch(path.name):
                continue  # a file of a user's stays
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self.run_dir.rmdir()
        return address

    def _refuse_other(self, place: ObjectFolder) -> bool:
        """Whether this run, or a part of it, lies there. Raises StoreError where something else does, OSError."""
        found = place.sizes()
        if not found:
            return False
        told = "has something else: remove that, or name another place by --out"
        if MANIFEST in found:
            there = read_document(place)[0]
            if (there.run, there.started_ns) == (self.run, self._manifest.started_ns):
                # sealed whole: sent by another process, or all of it there
                if self._mirror is not None or not there.is_whole or self._is_alike(there, place, found):
                    return True
                told = (
                    "has this run with other records or logs, and stays as it is: name another place by --out"
                )
        raise StoreError(f"{place.address} {told}")

    def _is_alike(self, there: Manifest, place: ObjectFolder, sizes: Mapping[str, int]) -> bool:
        """Whether the sealed run in `place` is this one, file by file, but for what is derived: that can be made again
        of the rest, by each squall in its way. Raises OSError."""

        def is_same(name: str) -> bool:
            path = self.run_dir / name
            if not path.is_file() or path.stat().st_size != sizes[name]:  # before any is fetched
                return False
            return sha256_of(path) == sha256_of(ObjectFile(place, name))

        def raw_alone(manifest: Manifest) -> Manifest:
            stated = (manifest.tables or {}).items()
            tables = {name: entry for name, entry in stated if not DERIVED.fullmatch(f"tables/{name}")}
            return replace(manifest, copied_to="", tables=tables)

        raw = [name for name in sizes if is_of_run(name) and not DERIVED.fullmatch(name)]
        return raw_alone(self._manifest) == raw_alone(there) and all(map(is_same, raw))

    def _copy(self, name: str, content: bytes | None = None) -> None:
        """Has a file that is whole here, with this `content` if that is told, copied in the background."""
        if self._mirror is not None:
            self._mirror.put(name, content)

    def _refuse_if_sealed(self) -> None:
        if self.is_sealed:
            raise Sealed(f"{self.run_dir} is sealed")

    def _remove_unfinished(self) -> None:
        """Removes parts without a footer that a process left behind when it died."""
        for leftover in (*(self.run_dir / "tables").glob("*/*.open"), *self.run_dir.glob("*.new")):
            leftover.unlink(missing_ok=True)

    def _write_manifest(self, manifest: Manifest) -> None:
        try:
            document, content = self._as_written(manifest)
            self._put(MANIFEST, [content])
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


def _table_of(files: tuple[SealedFile, ...]) -> SealedTable:
    return SealedTable(rows=sum(file.rows for file in files), files=files)


def _make_unique(parent: Path, stem: str) -> Path:
    """Makes `parent` if need be and a new directory `<stem>-<4 hex>` in it. Raises OSError."""
    parent.mkdir(parents=True, exist_ok=True)
    for _ in range(16):
        run_dir = parent / f"{stem}-{secrets.token_hex(2)}"
        with suppress(FileExistsError):
            run_dir.mkdir()
            for name in ("tables", "nsys", "logs"):
                (run_dir / name).mkdir()
            return run_dir
    raise FileExistsError(f"{stem}: 16 names in a row are taken")


def _folders(table: str) -> tuple[str, str, str]:
    """Where a derived table is made anew, where it lies, and where the old one lies while they change places."""
    return f".new-{table}", f"tables/{table}", f".old-{table}"


def _swap(new: Path, current: Path, old: Path) -> None:
    """Puts folder `new` in the place of `current`, if that is there, and removes what was there. Raises OSError.

    Between the two renames `current` is missing and `old` is whole: a process that is killed there leaves that. Any
    other failure puts the old folder back.
    """
    try:
        if current.exists():
            current.rename(old)
        new.rename(current)
    except BaseException:
        _restore(current, old)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _restore(current: Path, old: Path) -> None:
    """Ends a swap that was cut short: `old` becomes `current` again where that is missing, else it goes."""
    if old.exists() and not current.exists():
        old.rename(current)
    shutil.rmtree(old, ignore_errors=True)
