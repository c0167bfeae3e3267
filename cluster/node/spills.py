"""What a node keeps for the driver: spill files of tables, and scrubbed reports; written there, read in pieces."""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from squall.actors.sampling.triton_trace import read_traces, trace_files
from squall.actors.spill import SpillFile
from squall.cluster.node.batches import read_batches, read_recorded
from squall.scenarios.errors import ClusterError, StoreError

_HASHED_BYTES = 2**20
_DELETED = " (deleted)"
"""What the kernel puts behind the name of such a file (proc_pid_fd(5))."""


class NodeFile(NamedTuple):
    """A file of a node's scratch folder: path below it, length, and the table whose rows it holds, if it holds one."""

    path: str
    n_bytes: int
    table: str


class Piece(NamedTuple):
    """Bytes of a file as they left its node, and their CRC-32."""

    data: bytes
    crc32: int


def save_deleted(folder: Path, pids: Iterable[int]) -> list[Path]:
    """Files below `folder` whose names were removed while processes write them: what they hold, under their names.

    Returns those that were saved; one that cannot be read is left out.
    """
    saved, folder = [], folder.resolve()
    for link in (link for pid in pids for link in Path(f"/proc/{pid}/fd").glob("*")):
        try:
            name = Path(os.readlink(link).removesuffix(_DELETED))
            if os.stat(link).st_nlink or not name.is_relative_to(folder) or name.exists():
                continue
            name.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(link, name)
        except OSError:  # its process has ended
            continue
        saved.append(name)
    return saved


class Spills:
    """The files of one node below its scratch folder. `spill_dir` is for workers and observer too."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder = folder
        self._node = node
        self.spill_dir = folder / "spill"
        self.reports_dir = folder / "reports"
        for path in (self.spill_dir, self.reports_dir):
            path.mkdir(exist_ok=True)

    def write(self, table: str, part: str, data: Iterator[pa.Table]) -> list[str]:
        """Writes tables of one kind to a spill file of their own; returns losses."""
        file = self._open(table, part)
        n_lost = sum(len(item) for item in data if not file.write(item))
        file.close()
        return [self._loss(table, n_lost, file)] if n_lost else []

    def write_all(self, part: str, data: Iterator[tuple[str, pa.Table]]) -> list[str]:
        """As `write`, of tables of several kinds that come in any order: (table, rows)."""
        files: dict[str, SpillFile] = {}
        n_lost: Counter[str] = Counter()
        for table, rows in data:
            if table not in files:
                files[table] = self._open(table, part)
            if not files[table].write(rows):
                n_lost[table] += len(rows)
        for one in files.values():
            one.close()
        return [self._loss(table, n, files[table]) for table, n in n_lost.items()]

    def _open(self, table: str, part: str) -> SpillFile:
        path = self.spill_dir / f"{table}-{part}.arrows"
        path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        path.unlink(missing_ok=True)  # what an agent that died had begun
        return SpillFile(path, table)

    def _loss(self, table: str, n: int, file: SpillFile) -> str:
        return f"{table}: {n} rows lost on {self._node}: {file.error}"

    def write_batches(self, records: Path, labels: Mapping[str, str]) -> list[str]:
        """The models' own records in `records` as table `batches`; returns losses."""
        losses: list[str] = []
        return self.write("batches", "all", read_batches(records, labels, losses)) + losses

    def write_recorded(
        self, files: list[Path], labels: Mapping[str, str], from_ns: int
    ) -> tuple[list[str], list[str]]:
        """What the batch library recorded, from `from_ns` on, as table `batches`; returns losses and notes."""
        losses: list[str] = []
        notes: list[str] = []
        own = {name: labels[name] for name in ("run", "node", "server")}
        lost = self.write("batches", "library", read_recorded(files, own, from_ns, losses, notes))
        return lost + losses, notes

    def write_traces(self, files: list[Path], labels: Mapping[str, str]) -> list[str]:
        """What Triton's trace API wrote to `files` and their successors; returns losses."""
        losses: list[str] = []
        found = [path for file in files for path in trace_files(file)]
        return self.write("triton_traces", "all", read_traces(found, labels, losses)) + losses

    def take_in(self, name: str, offset: int, piece: Piece) -> None:
        """Puts a piece of the driver's into the file `name` of the scratch folder. Raises ClusterError where it came
        damaged, or the disk takes no more."""
        if zlib.crc32(piece.data) != piece.crc32:
            raise ClusterError(f"{self._node}: a piece of {name} came damaged")
        try:
            with self._file(name).open("r+b" if offset else "wb") as file:
                file.seek(offset)
                file.write(piece.data)
        except OSError as error:
            raise ClusterError(f"{self._node}: no room for {name}: {error.strerror}") from error

    def files(self) -> list[NodeFile]:
        """Every spill file, and every file of a scrubbed report (table empty)."""
        spilled = [
            NodeFile(
                self._below(path), path.lstat().st_size, path.name.partition("-")[0].removesuffix(".arrows")
            )
            for path in sorted(self.spill_dir.glob("*.arrows"))
        ]
        reports = [
            NodeFile(self._below(path), path.lstat().st_size, "")
            for path in sorted(self.reports_dir.rglob("*.parquet"))
        ]
        return spilled + reports

    def piece(self, path: str, offset: int, n_bytes: int) -> Piece:
        """`n_bytes` from `offset` on of a file that `files` lists, fewer at its end. Raises StoreError where it cannot
        be read."""
        try:
            with self._file(path).open("rb") as file:
                file.seek(offset)
                data = file.read(n_bytes)
        except OSError as error:
            raise StoreError(f"{self._node}: cannot read {path}: {error.strerror}") from error
        return Piece(data, zlib.crc32(data))

    def sha256(self, path: str, n_bytes: int) -> str:
        """Of the first `n_bytes` of a file that `files` lists, in hex; raises as `piece`."""
        try:
            return sha256_of(self._file(path), n_bytes).hexdigest()
        except OSError as error:
            raise StoreError(f"{self._node}: cannot read {path}: {error.strerror}") from error

    def _file(self, path: str) -> Path:
        wanted = (self._folder / path).resolve()
        if not wanted.is_relative_to(self._folder.resolve()):
            raise StoreError(f"{self._node}: {path} is none of its files")
        return wanted

    def _below(self, path: Path) -> str:
        return str(path.relative_to(self._folder))


def sha256_of(path: Path, n_bytes: int) -> hashlib._Hash:
    """Of the first `n_bytes` of a file, or of all where it has fewer. Raises OSError."""
    digest, left = hashlib.sha256(), n_bytes
    with path.open("rb") as file:
        while left and (data := file.read(min(_HASHED_BYTES, left))):
            digest.update(data)
            left -= len(data)
    return digest
