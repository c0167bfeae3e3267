"""What a node does for the records that stay on it, in a process of its own there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.clocks.track import ClockTrack
from squall.analysis.schema import TABLES
from squall.analysis.storage.held_folder import held_folder, sweep_folders
from squall.analysis.storage.kept_parts import OWNER, as_kept
from squall.analysis.storage.part import NewParts, error_reason, table_entry
from squall.analysis.storage.places.local_folder import LocalFolder
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.workplace import Desk, Errand
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.sealed import SealedFile
from squall.cluster.driver.records.ingest import ingest_file
from squall.cluster.driver.records.node_files import FilesHere
from squall.cluster.node.scratch import claim, owner_of
from squall.cluster.node.spills import NodeFile
from squall.cluster.node.triton_home import cache_dir
from squall.scenarios.errors import ClusterError


@dataclass(frozen=True)
class Taken:
    """A spill file that became parts of its table, and what the driver's ledger asks of requests: `request_id`,
    `scheduled_ns` on the node's clock, `rows`."""

    files: Sequence[SealedFile]
    arrivals: pa.Table | None
    losses: Sequence[str]


class Keeper:
    """The folder of runs on one node: `FOLDER/RUN/NODE/tables/…`. For several threads, but `take`, which is for one.

    Methods raise ClusterError.
    """

    def __init__(self, folder: str | None) -> None:
        """`folder`: None for squall's cache."""
        self._folder = Path(folder) if folder is not None else cache_dir() / "records"
        self._stores: dict[str, RunStore] = {}
        self._sweeping = Lock()
        self._swept: set[Path] = set()

    def begin(self, run: str, node: str, run_dir: str, place: str) -> str:
        """Makes the folder of a run and node here, and says in it whose it is; the folder of the run.

        `run_dir`, `place`: see `squall.cluster.node.scratch.claim`.
        """
        path = self._folder / run / node
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
            claim(path, run, node, run_dir, place)
            (path / "tables").mkdir()
        except OSError as error:
            raise ClusterError(f"{node}: cannot keep records in {path}: {error_reason(error)}") from error
        self._stores[node] = RunStore(path, Manifest(run=run), {})
        return str(path.parent)

    def take(
        self, node: str, scratch: str, file: NodeFile, clock: ClockTrack, phases: Sequence[RunPhase]
    ) -> Taken:
        """Makes parts of a spill file in the scratch folder of a site here, on the run clock."""
        store = self._stores[node]
        before = set(store.path(file.table))
        try:
            losses: list[str] = []
            made = ingest_file(store, FilesHere(Path(scratch), node), file, clock, phases, losses)
            arrivals = [_of_ledger(data) for data in made if file.table == "requests"]
            store.flush(file.table)
        except Exception as error:
            raise ClusterError(f"{node}: cannot keep {file.path}: {error}") from error
        parts = [path for path in store.path(file.table) if path not in before]
        entry = table_entry(store.run_dir, parts)
        return Taken(as_kept(node, entry.files), pa.concat_tables(arrivals) if arrivals else None, losses)

    def work(
        self, folder: str, node: str, table: str, made: str, number: int, errand: Errand
    ) -> Sequence[SealedFile]:
        """Makes part `number` of a derived table of what the node keeps in a run's folder; it stays there. For two
        threads at a time: each holds a slice in memory."""
        own = self._inside(folder) / node
        if not TABLES[table].is_derived or not (own / "tables").is_dir():
            raise ClusterError(f"{table} of {node} is not to be made in {folder}")
        self._sweep(own)
        try:
            (own / "tables" / table).mkdir(exist_ok=True)
            with held_folder(".scratch-", own) as scratch:
                new = NewParts(table, own / "tables" / table, made=made)
                errand(Desk(own.parent, scratch, new))
                entry = table_entry(own, [new.path(number)])
        except OSError as error:
            raise ClusterError(f"cannot write to {own}: {error_reason(error)}") from error
        return as_kept(node, entry.files)

    def nodes_of(self, run: str) -> dict[str, str]:
        """The nodes whose records of a run lie here, each with the folder of the run."""
        folder = self._folder / run
        return {path.parent.name: str(folder) for path in folder.glob("*/tables")}

    def sizes(self, folder: str, under: str) -> dict[str, int]:
        """See `Place.sizes`. Raises OSError as text, as all that is asked of files."""
        return LocalFolder(self._inside(folder)).sizes(under)

    def size(self, folder: str, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        path = self._file(folder, name)
        return path.stat().st_size if path.is_file() else None

    def read(self, folder: str, name: str, start: int, n_bytes: int) -> bytes:
        """At most `n_bytes` of a file from `start` on."""
        with open(self._file(folder, name), "rb") as file:
            return os.pread(file.fileno(), n_bytes, start)

    def write(self, folder: str, name: str, content: bytes) -> None:
        """See `Place.write`."""
        LocalFolder(self._inside(folder)).write(name, content)

    def remove(self, folder: str, name: str) -> None:
        """See `Place.remove`."""
        self._file(folder, name).unlink(missing_ok=True)

    def forget(self, run: str, node: str, run_dir: str) -> bool:
        """See `remove_kept_folder`."""
        return remove_kept_folder(self._folder / run / node, run, node, run_dir)

    def _sweep(self, own: Path) -> None:
        """What an earlier process left of its errands goes, before the first of this one: later a folder may be new."""
        with self._sweeping:
            if own not in self._swept:
                sweep_folders(own)
                self._swept.add(own)

    def _file(self, folder: str, name: str) -> Path:
        root = self._inside(folder)
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            raise ClusterError(f"{name} is no file of records")
        return path

    def _inside(self, folder: str) -> Path:
        """Nothing else of the node is read or written."""
        path = Path(folder).resolve()
        if not path.is_relative_to(self._folder.resolve()):
            raise ClusterError(f"{folder} is no folder of records")
        return path


def remove_kept_folder(path: Path, run: str, node: str, run_dir: str) -> bool:
    """Removes what a keeper of this user made in `path`, which says that it is of that run; whether it is gone.

    What else lies there stays, and so does a folder that does not say so.
    """
    owner = owner_of(path)
    if owner is None or (owner.run, owner.node, owner.run_dir) != (run, node, run_dir):
        return not os.path.lexists(path)
    for made in (*(path / "tables" / table for table in TABLES), *path.glob(".scratch-*")):
        shutil.rmtree(made, ignore_errors=True)
    with suppress(OSError):
        (path / "tables").rmdir()
        (path / OWNER).unlink()
        path.rmdir()
        path.parent.rmdir()  # where no other node of this machine keeps some
    return not os.path.lexists(path)


def _of_ledger(data: pa.Table) -> pa.Table:
    """A few bytes a row: ids and sizes are small, instants near one another."""
    return pa.table({name: np.asarray(data.column(name)) for name in ("request_id", "scheduled_ns", "rows")})
