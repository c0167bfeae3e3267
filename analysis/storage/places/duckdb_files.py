"""Files of places for DuckDB: a file system of its Python binding, which asks for the pieces that a query reads.

A file is named by an address that stays true for the life of the process: `squall://<number of the place>/<name>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from os import SEEK_CUR, SEEK_END, SEEK_SET
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from squall.analysis.storage.places.place import FarPart, Part, Place

if TYPE_CHECKING:
    import duckdb

_SCHEME = "squall"
_lock = Lock()
_places: list[Place] = []
_numbers: dict[Place, int] = {}


def read_parquet(parts: Iterable[Part]) -> str:
    """SQL that reads the parts as one table; far ones on a connection that `register_places` was called with.

    A folder above them may be named `model=x`, which DuckDB would take for a column."""
    urls = (_url_in(part.place, part.file) if isinstance(part, FarPart) else one_file(part) for part in parts)
    quoted = ", ".join("'" + url.replace("'", "''") + "'" for url in urls)
    return f"read_parquet([{quoted}], hive_partitioning = false)"


def one_file(path: Path) -> str:
    """What DuckDB calls the file at `path`, and no other: a folder may bear a name that it would take for a pattern."""
    return re.sub(r"[*?[]", r"[\g<0>]", str(path))


def _url_in(place: Place, name: str) -> str:
    """What DuckDB calls the file `name` of `place`. Equal places have one number."""
    with _lock:
        if place not in _numbers:
            _numbers[place] = len(_places)
            _places.append(place)
        return f"{_SCHEME}://{_numbers[place]}/{name}"


def register_places(connection: duckdb.DuckDBPyConnection) -> None:
    """Has the database of `connection` find files of places; once a database is enough, again is no harm."""
    if not connection.filesystem_is_registered(_SCHEME):
        connection.register_filesystem(_file_system())


class _SharedFile:
    """A file with a position for each thread: DuckDB's threads share one, and seek before each read."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self._at = local()

    def seek(self, position: int, whence: int = SEEK_SET) -> int:
        base = {SEEK_SET: 0, SEEK_CUR: self.tell(), SEEK_END: self._file.size()}[whence]
        self._at.position = base + position
        return self.tell()

    def tell(self) -> int:
        return int(getattr(self._at, "position", 0))

    def read(self, n_bytes: int) -> bytes:
        found: bytes = self._file.read_at(n_bytes, self.tell())
        self._at.position = self.tell() + len(found)
        return found

    def close(self) -> None:
        self._file.close()


def _opened(path: str) -> pa.NativeFile:
    number, _, name = path.removeprefix(f"{_SCHEME}://").partition("/")
    return _places[int(number)].open(name)


def _file_system() -> Any:
    from fsspec import AbstractFileSystem

    class PlaceFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
        """Reads only."""

        protocol = _SCHEME
        cachable = False

        @classmethod
        def _strip_protocol(cls, path: Any) -> Any:
            return path

        def open(self, path: str, mode: str = "rb", **_: Any) -> _SharedFile:
            if mode != "rb":
                raise OSError(f"{path} is only read")
            return _SharedFile(_opened(path))

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            with _opened(path) as file:
                return {"name": path, "size": file.size(), "type": "file"}

        def glob(self, path: str, **_: Any) -> Any:
            return [path]

        def exists(self, path: str, **_: Any) -> bool:
            try:
                _opened(path).close()
            except FileNotFoundError:
                return False
            return True

        def modified(self, _path: str) -> datetime:
            """The same always: a part is never changed, one that is made anew has another name."""
            return datetime(2000, 1, 1, tzinfo=UTC)

    return PlaceFiles()
