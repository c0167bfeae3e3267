"""Parts of a run's tables that stayed on the nodes which made them, each in a folder of its node.

Parts of a derived table that a node makes lie there from when they are written, and are of the run from when its
manifest names them. What a manifest does not name is nobody's: whoever makes the table again removes it first.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from squall.analysis.storage.beneath import read_plain, refuse_ways_out
from squall.analysis.storage.part import error_reason
from squall.analysis.storage.places.local_folder import LocalFolder
from squall.analysis.storage.places.place import FarPart, Place, fetch
from squall.analysis.storage.workplace import Order, Workplace, work_there
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.sealed import SealedFile, SealedTable
from squall.scenarios.errors import StoreError
from squall.scenarios.foreign_text import escaped, json_of

OWNER, MOST_OWNER_BYTES = "owner.json", 65_536
"""Says in a folder of records whose they are: `squall.cluster.node.scratch` writes it."""


class KeptParts:
    """Those that the manifest names, and those that are added before the seal.

    A file is named `node-1/tables/requests/part-00000.parquet`: a name no other node has. Folders that are on this
    machine, and marked as this run's, are read as they are, and only read: that a manifest names them is no reason to
    remove something there. `reach` says how others are.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.run = manifest.run
        self.folders = manifest.kept
        """The folder of the run on each node."""
        self.workplaces: dict[str, Workplace] = {}
        """Nodes that work on their own records."""
        self._places: dict[str, Place] = {}
        self._reached: set[str] = set()
        """Those of `reach`."""
        self._made: dict[str, list[SealedFile]] = {}
        """Parts of derived tables that the manifest does not name yet."""
        self._files: dict[str, list[SealedFile]] = {
            name: [file for file in table.files if file.node]
            for name, table in (manifest.tables or {}).items()
        }

    def reach(self, places: Mapping[str, Place], workplaces: Mapping[str, Workplace] | None = None) -> None:
        """From now on the folder of each of these nodes is read through its place, and slices of what lies there are
        made by its workplace, if it has one."""
        self._places.update(places)
        self._reached.update(places)
        self.workplaces.update(workplaces or {})

    def add(self, table: str, files: Iterable[SealedFile]) -> None:
        """Parts that a node has made."""
        self._files.setdefault(table, []).extend(files)

    def parts(self, table: str) -> list[FarPart]:
        """By node, then as they were made. Raises StoreError, which names nodes that are not reached and what they
        have."""
        files = self._files.get(table, [])
        nodes = sorted({file.node for file in files})
        found = {node: place for node in nodes if (place := self._place_of(node)) is not None}
        if len(found) < len(nodes):  # all that is missing is told at once, whatever was asked for
            absent = [node for node in sorted(self.folders) if self._place_of(node) is None]
            told = "; ".join(self._told(node) for node in absent)
            raise StoreError(f"{told}: name a Ray that has these nodes, --ray ADDRESS")
        return [FarPart(found[node], file.path) for node in nodes for file in files if file.node == node]

    def sizes(self, table: str) -> dict[str, int]:
        """The bytes of those parts that are there. Raises StoreError as `parts`, and where a node does not answer."""
        sizes: dict[str, int] = {}
        for node in sorted({part.file.partition("/")[0] for part in self.parts(table)}):
            place = self._place_of(node)
            assert place is not None, "parts has found it"
            try:
                sizes |= place.sizes(f"{node}/tables/{table}/")
            except OSError as error:
                raise StoreError(f"{self._told(node)}: {error_reason(error)}") from error
        stated = {file.path for file in self._files[table]} if sizes else set()
        return {name: size for name, size in sizes.items() if name in stated}

    def make(self, table: str, made: str, orders: Sequence[Order]) -> int:
        """Has nodes make parts of derived `table` (`RunStore.replacing`), and returns their rows. Raises AnalysisError
        where one cannot, StoreError where one is not reached."""
        if not orders:
            return 0
        self._sweep(table, {order.node for order in orders})
        files = work_there(self.workplaces, table, made, orders)
        self._made.setdefault(table, []).extend(files)
        return sum(file.rows for file in files)

    def made(self, table: str) -> list[SealedFile]:
        """What `make` has of the table since it was settled or dropped."""
        return self._made.get(table, [])

    def settle(self, table: str) -> None:
        """The manifest names what was made: the parts of before go."""
        before = self._files.get(table, [])
        self._files[table] = self._made.pop(table, [])
        self._remove(before)

    def drop(self, table: str) -> None:
        """What was made is not wanted: it goes, as far as its nodes are there."""
        self._remove(self._made.pop(table, []))

    def _sweep(self, table: str, nodes: Iterable[str]) -> None:
        """Removes what the nodes have of a derived table that the manifest does not name."""
        named = {file.path for file in self._files.get(table, [])}
        for node in sorted(nodes):
            place = self._place_of(node)
            assert place is not None, "who works there is reached"
            try:
                for name in place.sizes(f"{node}/tables/{table}/"):
                    if name not in named:
                        place.remove(name)
            except OSError as error:
                raise StoreError(f"{self._told(node)}: {error_reason(error)}") from error

    def _remove(self, files: Iterable[SealedFile]) -> None:
        for file in files:
            if file.node in self._reached:
                with suppress(OSError):  # it is swept when the table is made again
                    self._places[file.node].remove(file.path)

    def added_to(self, table: str, entry: SealedTable) -> SealedTable:
        """What a sealed manifest states of the table whose parts here are `entry`."""
        files = sorted(self._files.get(table, []), key=lambda file: file.node)
        rows = entry.rows + sum(file.rows for file in files)
        return replace(entry, rows=rows, files=(*entry.files, *files))

    def fetch(self, part: FarPart, path: Path) -> None:
        """Brings a part to `path`. Raises OSError, and StoreError where it is not what was sealed."""
        fetch(part.place, part.file, path)
        stated = next(file for files in self._files.values() for file in files if file.path == part.file)
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != stated.sha256:
                raise StoreError(f"{part.file} of {stated.node} has changed since the seal")

    def _place_of(self, node: str) -> Place | None:
        if node not in self._places and (folder := self.folders.get(node)):
            root = Path(folder)
            if self._is_marked(root / node) and (root / node / "tables").is_dir():
                refuse_ways_out(root / node)
                self._places[node] = LocalFolder(root)
        return self._places.get(node)

    def _is_marked(self, own: Path) -> bool:
        """Whether a folder says itself that it is of this run, and is this user's: the manifest may say anything."""
        try:
            said = json_of(read_plain(own / OWNER, MOST_OWNER_BYTES))
            return (
                own.lstat().st_uid == os.geteuid() and isinstance(said, dict) and said.get("run") == self.run
            )
        except (OSError, ValueError):
            return False

    def _told(self, node: str) -> str:
        """What is missing without a node."""
        tables = self._rows_of(node)
        what = ", ".join(f"{rows} rows of {name}" for name, rows in tables.items())
        folder = escaped(self.folders.get(node, ""))
        return f"{node} is not reached, which keeps {what} in {folder}"

    def _rows_of(self, node: str) -> dict[str, int]:
        return {
            name: sum(file.rows for file in files if file.node == node)
            for name, files in self._files.items()
            if any(file.node == node for file in files)
        }


def as_kept(node: str, files: Sequence[SealedFile]) -> list[SealedFile]:
    """Parts as a node has them in its own folder, as the run names them."""
    return [replace(file, path=f"{node}/{file.path}", node=node) for file in files]
